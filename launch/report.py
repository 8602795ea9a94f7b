"""Writes tables and curves of a study again, from its records: python launch/report.py --study=FOLDER [--out=FOLDER]

`--study` is the `--out` of launch/study.py; without `--out` the report goes there too.
"""

from pathlib import Path

from absl import flags
from flags import errors_as_sentences, no_more, parse

from rsipo_jax.evaluation.study import summarize
from rsipo_jax.reports.study import write
from rsipo_jax.validation import ConfigError

flags.DEFINE_string("study", "", "Folder with the runs of a study.")
flags.DEFINE_string("out", "", "Folder of the report; without it, that of the study.")


def main() -> None:
    no_more(parse())
    for name in ("config", "workdir"):
        if flags.FLAGS[name].present:
            raise ConfigError(f"--{name} has no effect here: name the study with --study=FOLDER")
    if not flags.FLAGS.study:
        raise ConfigError("--study is missing: name the --out of an earlier launch/study.py")
    study = Path(flags.FLAGS.study)
    for path in write(summarize(study), Path(flags.FLAGS.out or study)):
        print(path)


if __name__ == "__main__":
    with errors_as_sentences():
        main()
