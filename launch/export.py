"""Writes a run's policy as a Hugging Face checkpoint: weights, configs, tokenizer and chat template.

    python launch/export.py --workdir=FOLDER --out=FOLDER [--step=N] [--dtype=float32]

transformers loads the folder, and so does `--config.model.checkpoint=FOLDER`. Adapters are merged into the weights.
"""

from pathlib import Path

from absl import flags
from flags import errors_as_sentences, no_more, parse, settings

from rsipo_jax.training.export import export
from rsipo_jax.validation import ConfigError

flags.DEFINE_string("out", "", "Where to write it: a folder that does not exist yet.")
flags.DEFINE_integer(
    "step", -1, "RL step whose checkpoint is written; -1: the newest, 0: the SFT policy.", lower_bound=-1
)
flags.DEFINE_enum("dtype", "bfloat16", ["bfloat16", "float32"], "Type of the weights that are written.")


def main() -> None:
    no_more(parse())
    if not flags.FLAGS.out:
        raise ConfigError("--out is missing: name the folder to write")
    config, workdir = settings()
    export(config, workdir, flags.FLAGS.step, Path(flags.FLAGS.out), flags.FLAGS.dtype)


if __name__ == "__main__":
    with errors_as_sentences():
        main()
