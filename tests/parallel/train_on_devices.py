"""The smallest whole run on forced devices: python -m tests.parallel.train_on_devices WORKDIR DEVICES KEY=NUMBER ..."""

from __future__ import annotations

import sys
from pathlib import Path

import jax

from rsipo_jax.training import loop
from tests.training.tiny_run import config


def main(workdir: str, devices: str, *changes: str) -> None:
    jax.config.update("jax_num_cpu_devices", int(devices))
    settings: dict[str, object] = {k: int(v) for k, _, v in (change.partition("=") for change in changes)}
    if "lora.rank" in settings:
        settings["sft.optimizer"] = "adamw"  # muon is for whole matrices
    loop.run(config(**settings), Path(workdir))


if __name__ == "__main__":
    main(*sys.argv[1:])
