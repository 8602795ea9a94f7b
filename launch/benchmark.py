"""Measures the parts of the project on this machine: python launch/benchmark.py --suite=NAME [--json=FILE]

alfworld: the engines. Real games are those of --data or $ALFWORLD_DATA; without either, generated ones are played.
train: one optimizer update beside the plainest torch step, by the Python of `make goldens` or of --torch.
rollout: sampling a plain batch and a recorded ALFWorld loop (games as above) beside transformers, Tunix and vLLM, whose
Pythons are those of --transformers (or of `make goldens`), --tunix and --vllm; one that is not named is left out.
retrieval: our BM25 and dense search beside bm25s and faiss alone on --passages of made-up text, with vectors of
--vector_size numbers; faiss may have a Python of its own, --faiss. Encoding is measured where --encoder names a folder.
trust: errors of the shrunken replay gains, and what the weights pick, in a simulation.

Times are wall-clock, so a busy machine shows in them: the load is written down beside them.
"""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from absl import app, flags
from benchmarks import alfworld, retrieval, rollout, train, trust
from rich.console import Console, Group
from rich.table import Table

from rsipo_jax.reports.console import make_console
from rsipo_jax.validation import ConfigError

# a suite: flags, console -> its results, section -> name -> value
SUITES: Mapping[str, Callable[[flags.FlagValues, Console], dict[str, dict[str, Any]]]] = {
    "alfworld": lambda args, console: alfworld.measure(
        args.data or os.environ.get("ALFWORLD_DATA", ""), args.games, console
    ),
    "train": lambda args, console: train.measure(args.torch, console),
    "rollout": lambda args, console: rollout.measure(
        args.data or os.environ.get("ALFWORLD_DATA", ""),
        {competitor.name: str(args[competitor.name].value) for competitor in rollout.COMPETITORS},
        console,
    ),
    "retrieval": lambda args, console: retrieval.measure(
        args.passages, args.vector_size, args.faiss, args.encoder, console
    ),
    "trust": lambda args, console: trust.measure(),
}

flags.DEFINE_enum("suite", None, sorted(SUITES), "What to measure.", required=True)
flags.DEFINE_string("json", "", "Where to write the results; without it they are only printed.")
flags.DEFINE_string(
    "data", "", "The folder of the real games; $ALFWORLD_DATA if empty, else generated games."
)
flags.DEFINE_integer("games", 8, "How many games the engines are compared on.", lower_bound=1)
flags.DEFINE_string(
    "torch", "", "A Python with torch and transformers, for `train`; the one of `make goldens` if empty."
)
flags.DEFINE_multi_integer(
    "passages", [100_000, 1_000_000], "Passages of a corpus for `retrieval`; may be repeated.", lower_bound=1
)
flags.DEFINE_integer(
    "vector_size", 384, "Numbers of a vector for `retrieval`: MiniLM's; E5 has 768.", lower_bound=1
)
flags.DEFINE_string("faiss", "", f"A Python for `retrieval`: {retrieval.FAISS}.")
flags.DEFINE_string("encoder", "", "Hugging Face folder of a BERT encoder for `retrieval`.")
for competitor in rollout.COMPETITORS:
    flags.DEFINE_string(competitor.name, "", f"A Python for `rollout`: {competitor.install}.")


def main(argv: list[str]) -> None:
    app.define_help_flags()
    rest = flags.FLAGS(argv)
    if len(rest) > 1:
        raise ConfigError(f"{rest[1]!r} is not a flag: flags are given as --name=value")
    args, console = flags.FLAGS, make_console()
    if args.json and not Path(args.json).parent.is_dir():
        raise ConfigError(
            f"--json={args.json} cannot be written: there is no folder {Path(args.json).parent}"
        )
    results = SUITES[args.suite](args, console)
    record = {"suite": args.suite, "machine": machine(), "results": results}
    if args.suite == "trust":
        trust.show(results, console)
    else:
        console.print(tables(record))
    if args.json:
        try:
            Path(args.json).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
        except OSError as error:
            raise ConfigError(
                f"--json={args.json} cannot be written ({error.strerror}): name another file"
            ) from error


def machine() -> dict[str, Any]:
    """What the numbers depend on besides the code."""
    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 2),  # processes running or waiting, over the last minute
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
    }


def _cpu_model() -> str:
    """Its name as Linux gives it, otherwise what Python knows."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor()


def tables(record: Mapping[str, Any]) -> Group:
    """A table for each section of the results."""
    shown = []
    for title, values in {"machine": record["machine"], **record["results"]}.items():
        table = Table(title=title, title_justify="left", show_header=False, min_width=60)
        table.add_column("what")
        table.add_column("value", justify="right")
        for name, value in values.items():
            table.add_row(name.replace("_", " "), f"{value:,.4g}" if isinstance(value, float) else str(value))
        shown.append(table)
    return Group(*shown)


if __name__ == "__main__":
    try:
        main(sys.argv)
    except (ConfigError, flags.Error) as error:
        print(f"benchmark.py: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(2)
