"""Plans a run on machines that are not at hand: python launch/plan.py --config=FILE:PRESET --topology=v5e:4x8 [--search]

Compiles the real programs of the config for the named slice of TPUs (v5e:4x8, v5p:2x2x4, ...) or machine of GPUs (h100:8,
h200:8) and prints what they need of it and how long a step takes at least. With --search, it also looks for the mesh and
the micro-batch that make the update fastest. Needs the compilers of requirements-plan.txt, and no TPU and no GPU.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

os.environ["JAX_PLATFORMS"] = "cpu"  # nothing is computed here; before JAX looks for devices

from absl import flags
from flags import errors_as_sentences, no_more, parse, settings

from rsipo_jax.planning import plan as planning
from rsipo_jax.planning import search as searching
from rsipo_jax.planning.chips import parse_slice
from rsipo_jax.planning.programs import OutOfMemory
from rsipo_jax.planning.report import candidates, record, record_candidates, report
from rsipo_jax.reports.console import make_console
from rsipo_jax.validation import ConfigError

flags.DEFINE_string("topology", None, "The slice or machine, e.g. v5e:4x8, v5p:2x2x4, h100:8.")
flags.DEFINE_bool("search", False, "Also search the meshes and micro-batches that fit.")
flags.DEFINE_string("json", "", "Where to write the plan; without it, it is only printed.")


def main() -> None:
    no_more(parse())
    args, console = flags.FLAGS, make_console()
    if args.topology is None:
        raise ConfigError("--topology is missing: name a slice, such as v5e:4x8, v5p:2x2x4 or h100:8")
    if args.json and not Path(args.json).parent.is_dir():
        raise ConfigError(
            f"--json={args.json} cannot be written: there is no folder {Path(args.json).parent}"
        )
    slice_ = parse_slice(args.topology)
    config, _ = settings()
    setting = planning.make_setting(config, slice_)
    out: dict[str, Any] = {}
    problem = ""
    try:
        plan = planning.make_plan(setting, lambda name: console.print(f"compiling {name} ...", style="dim"))
    except OutOfMemory as error:
        held = planning.held_bytes(setting)[error.program]
        over = error.wanted + held - slice_.chip.hbm if error.wanted else 0.0
        problem = searching.too_large(setting, error.program, over)
    else:
        console.print(report(plan))
        out = record(plan)
        if (worst := plan.worst).memory.over > 0:
            problem = searching.too_large(setting, worst.compiled.name, worst.memory.over)
    if args.search:
        found = searching.search(setting, lambda name: console.print(f"compiling {name} ...", style="dim"))
        console.print(candidates(found))
        out["search"] = list(record_candidates(found))
    if args.json:
        Path(args.json).write_text(json.dumps(out | {"problem": problem}, indent=2) + "\n", encoding="utf-8")
    if problem:
        raise ConfigError(problem)


if __name__ == "__main__":
    with errors_as_sentences():
        main()
