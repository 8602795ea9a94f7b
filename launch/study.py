"""Runs the variants of a study for several seeds, and reports.

    python launch/study.py --config=configs/alfworld.py --study=tiny_methods --out=FOLDER [--seeds=0,1,2] [--jobs=1]

`configs/studies.py` holds the studies. Every run is launch/train.py in a workdir of its own, FOLDER/VARIANT/seedN; games,
demonstrations, tokenizer and SFT policy of a seed are made once, in FOLDER/base/seedN, and shared by its variants, as is
the compilation cache. The same command goes on where it was stopped: finished runs are not run again, others go on from
their last checkpoint; a folder made with other settings is refused. Another study, or more seeds, in the same FOLDER adds to
it, and runs that both have are run once. A run that fails is named, and the others go on.
"""

from __future__ import annotations

import dataclasses
import fcntl
import json
import os
import runpy
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from absl import flags
from flags import SETTINGS, errors_as_sentences, no_more, parse, settings
from rich.console import Console
from rich.text import Text

from rsipo_jax.config import Config
from rsipo_jax.evaluation.study import MANIFEST, finished, read_manifest, summarize, workdir_of
from rsipo_jax.reports.console import duration, make_console, progress
from rsipo_jax.reports.records import plain, replace_file
from rsipo_jax.reports.run_log import check_config
from rsipo_jax.reports.study import write
from rsipo_jax.training.setup import MADE, SFT
from rsipo_jax.validation import ConfigError, keys, relevant, to_config_dict, unknown_key, validated

BASE = "base"  # stands where a variant's name does: what its seed's runs share
OUTPUT = "output.txt"  # in a workdir: what its run printed
COMPILED = "compiled"
POLL = 0.5  # seconds between two looks at the runs
# Settings of what is shared, and of the measurements: a variant may not change them.
SHARED = (
    *("seed", "env.", "games.", "model.", "lora.", "mesh.", "tokenizer.", "context.", "sft.", "eval."),
    *("rollout.max_new_tokens", "skill.max_new_tokens", "skill.observation_chars", "train.momentum_dtype"),
)
TRAIN = Path(__file__).with_name("train.py")
STUDIES = Path(__file__).parents[1] / "configs" / "studies.py"


@dataclass(frozen=True)
class Run:
    name: str  # VARIANT/seedN
    config: Config
    workdir: Path
    base: Run | None  # whose games, demonstrations, tokenizer and SFT policy it starts from

    def done(self) -> bool:
        return finished(self.workdir) if self.base else (self.workdir / SFT).exists()


def main() -> None:
    # defined here, not when imported: launch/report.py has flags of these names too
    flags.DEFINE_string("study", "", "Which study of configs/studies.py.")
    flags.DEFINE_string("out", "", "Folder of the runs and of the report.")
    flags.DEFINE_list("seeds", ["0", "1", "2"], "Seeds of every variant.")
    flags.DEFINE_integer("jobs", 1, "Runs at the same time.", lower_bound=1)
    no_more(parse())
    if flags.FLAGS.workdir or flags.FLAGS.config is None or not flags.FLAGS.out:
        raise ConfigError(
            "a study needs --config=FILE and --out=FOLDER, in which it makes the workdirs: give these two"
        )
    config, _ = settings()
    table = runpy.run_path(str(STUDIES))
    if flags.FLAGS.study not in table["STUDIES"]:
        raise ConfigError(
            f"--study={flags.FLAGS.study} is unknown: choose one of {', '.join(table['STUDIES'])}"
        )
    variants = table["STUDIES"][flags.FLAGS.study](config)
    out, seeds = Path(flags.FLAGS.out), _seeds(flags.FLAGS.seeds)
    failed = study(
        flags.FLAGS.study, config, variants, table["REFERENCES"], seeds, out, flags.FLAGS.jobs, make_console()
    )
    sys.exit(1 if failed else 0)


def study(
    name: str,
    config: Config,
    variants: Mapping[str, Mapping[str, Any]],
    references: Sequence[str],
    seeds: Sequence[int],
    out: Path,
    jobs: int,
    console: Console,
) -> dict[str, str]:
    """Runs what is not finished yet and writes the report; returns the failed runs with a sentence each.

    Raises ConfigError before anything is run when a workdir in `out` belongs to other settings, or a variant is none.
    """
    runs = plan(config, variants, seeds, out)
    out.mkdir(parents=True, exist_ok=True)
    with _alone(out) as lock:
        manifest = _manifest(out, name, variants, references, seeds)
        for run in runs:
            if (run.workdir / SETTINGS).exists():
                try:
                    check_config(run.workdir / SETTINGS, _record(run.config))
                    run.done()
                except ValueError as error:  # a record is damaged, or of other settings
                    raise ConfigError(str(error)) from error
        replace_file(out / MANIFEST, [(json.dumps(manifest, indent=1) + "\n").encode("ascii")])
        (out / COMPILED).mkdir(exist_ok=True)
        failed = run_all(runs, jobs, console, lock)
        paths = write(summarize(out), out)
    for run_name, sentence in failed.items():
        console.print(Text(f"{run_name} failed: {sentence}"), soft_wrap=True)
    console.print(Text(paths[0].read_text(encoding="utf-8")), soft_wrap=True)
    console.print(Text("Written: " + ", ".join(map(str, paths))), soft_wrap=True)
    return failed


def plan(
    config: Config, variants: Mapping[str, Mapping[str, Any]], seeds: Sequence[int], out: Path
) -> list[Run]:
    """All runs in the order in which they start: seed by seed, what a seed's variants share first."""
    if not config.eval.panels:
        raise ConfigError("config.eval.panels is empty, so a study has nothing to compare: name a panel")
    runs = []
    for seed in seeds:
        prepare_only = {"seed": seed, "train.steps": 0, "eval.panels": ()}
        base = Run(f"{BASE}/seed{seed}", _changed(config, prepare_only), workdir_of(out, BASE, seed), None)
        runs.append(base)
        for name, changes in variants.items():
            _check_variant(name, changes)
            own = _changed(config, {**changes, "seed": seed})
            runs.append(Run(f"{name}/seed{seed}", own, workdir_of(out, name, seed), base))
    return runs


def run_all(runs: Sequence[Run], jobs: int, console: Console, lock: int) -> dict[str, str]:
    """Runs those that are not done, `jobs` at a time; returns the failed ones with a sentence each."""
    waiting = [run for run in runs if not run.done()]
    console.print(f"{len(runs) - len(waiting)} of {len(runs)} runs are done, {len(waiting)} to go")
    going: dict[subprocess.Popen[bytes], tuple[Run, float]] = {}
    failed: dict[str, str] = {}
    started, recorded = list(waiting), sum(map(_recorded, waiting))
    total = sum(run.config.train.steps for run in waiting) - recorded
    try:
        with progress(console, "RL steps of the study", total) as advance:
            while waiting or going:
                for process, (run, since) in list(going.items()):
                    if process.poll() is None:
                        continue
                    del going[process]
                    if sentence := _failure(run, process.returncode):
                        failed[run.name] = sentence
                    how = f"failed: {sentence}" if sentence else "done"
                    took = duration(time.monotonic() - since)
                    console.print(Text(f"{run.name}: {how} ({took})"), soft_wrap=True)
                for run in list(waiting):
                    if run.base and run.base.name in failed:
                        failed[run.name] = f"not started, because {run.base.name} failed"
                        waiting.remove(run)
                    elif len(going) < jobs and (run.base is None or _ended(run.base, waiting, going)):
                        waiting.remove(run)
                        done, steps = _recorded(run), run.config.train.steps
                        what = f"from step {done} of {steps}" if run.base else "games, SFT"
                        console.print(Text(f"{run.name}: {what}"))
                        going[_start(run, lock)] = (run, time.monotonic())
                now = sum(map(_recorded, started))
                if now != recorded:
                    advance(now - recorded)
                    recorded = now
                if going:
                    time.sleep(POLL)
    finally:  # Ctrl-C: nothing is left running
        for process in going:
            process.terminate()
        for process in going:
            process.wait()
    return failed


def prepare(run: Run) -> None:
    """Makes the run's workdir, whole or not at all: its settings, and links to what its base has made.

    Nothing of that is ever written to in place, so the files may be the same ones.
    """
    if (run.workdir / SETTINGS).exists():
        return
    partial = run.workdir.with_name(f".{run.workdir.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    for name in MADE:
        if run.base and (run.base.workdir / name).exists():
            shutil.copytree(run.base.workdir / name, partial / name, copy_function=_link)
    (partial / COMPILED).symlink_to(Path("..", "..", COMPILED))
    replace_file(partial / SETTINGS, [(json.dumps(_record(run.config), indent=2) + "\n").encode("ascii")])
    partial.rename(run.workdir)


def _start(run: Run, lock: int) -> subprocess.Popen[bytes]:
    """The run as a process; it holds the lock too, so that nobody starts it again if it outlives the study."""
    prepare(run)
    with (run.workdir / OUTPUT).open("ab") as output:
        return subprocess.Popen(
            [sys.executable, str(TRAIN), f"--workdir={run.workdir}"],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            pass_fds=[lock],
        )


def _failure(run: Run, code: int) -> str:
    """Why the run failed, "" if it did not: the last line that it printed is its sentence."""
    if code == 0:
        return "" if run.done() else "it ended without its last measurement"
    if code < 0:
        return f"ended by signal {-code} ({signal.Signals(-code).name})"
    lines = (run.workdir / OUTPUT).read_text(encoding="utf-8", errors="replace").split("\n")
    said = [line.strip() for line in lines if line.strip()]
    return f"{said[-1] if said else 'without a word'} (exit code {code}; see {run.workdir / OUTPUT})"


def _ended(run: Run, waiting: Sequence[Run], going: Mapping[Any, tuple[Run, float]]) -> bool:
    return run not in waiting and all(run != other for other, _ in going.values())


def _recorded(run: Run) -> int:
    """RL steps that the run has recorded."""
    log = run.workdir / "log.jsonl"
    return log.read_bytes().count(b"\n") if log.exists() else 0


def _changed(config: Config, changes: Mapping[str, Any]) -> Config:
    """The settings with the changes; what `config` sets without an effect on this method is at its default."""
    changed = to_config_dict(config)
    changed.update_from_flattened_dict(changes)
    return validated(relevant(changed, changes))


def _check_variant(name: str, changes: Mapping[str, Any]) -> None:
    if name == BASE or not name.replace("_", "").isalnum():
        raise ConfigError(
            f"the variant {name!r} cannot be a folder beside {BASE!r}: name it with letters, digits and _"
        )
    for key in changes:
        if key not in keys():
            raise unknown_key(f"config.{key}")
        if key.startswith(SHARED):
            raise ConfigError(
                f"the variant {name!r} changes config.{key}, which all variants of a seed share: make it a study of its own"
            )


def _manifest(
    out: Path,
    name: str,
    variants: Mapping[str, Mapping[str, Any]],
    references: Sequence[str],
    seeds: Sequence[int],
) -> dict[str, Any]:
    """What is in `out` from now on: earlier studies and seeds stay."""
    earlier = read_manifest(out) if (out / MANIFEST).exists() else {}
    return {
        "studies": list(dict.fromkeys([*earlier.get("studies", []), name])),
        "references": list(references),
        "seeds": sorted({*earlier.get("seeds", []), *seeds}),
        "variants": {**earlier.get("variants", {}), **{key: dict(value) for key, value in variants.items()}},
    }


def _record(config: Config) -> dict[str, Any]:
    return plain(dataclasses.asdict(config), "config")


def _link(source: str, target: str) -> None:
    """A hard link, or a copy where the file system has none."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


@contextmanager
def _alone(out: Path) -> Iterator[int]:
    """Holds `out` for this study and its runs; yields the descriptor that holds it. Raises ConfigError when others do."""
    with (out / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ConfigError(
                f"{out} is in use by another launch/study.py or a run that it started: wait for it, or end it"
            ) from error
        yield lock.fileno()


def _seeds(given: Sequence[str]) -> list[int]:
    if not given or not all(text.strip().isdecimal() for text in given):
        raise ConfigError(
            f"--seeds={','.join(given)} is no list of seeds: give numbers, such as --seeds=0,1,2"
        )
    return list(dict.fromkeys(map(int, given)))


if __name__ == "__main__":
    with errors_as_sentences():
        main()
