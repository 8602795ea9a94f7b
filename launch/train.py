"""Trains: python launch/train.py --config=configs/alfworld.py[:PRESET] [--workdir=FOLDER] [--config.x.y=VALUE ...]

Run again with the same settings and workdir, it goes on from the last checkpoint.
"""

from pathlib import Path

import jax
from flags import run

from rsipo_jax.config import Config
from rsipo_jax.training import loop


def main(config: Config, workdir: Path) -> None:
    jax.config.update("jax_compilation_cache_dir", str((workdir / "compiled").resolve()))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    loop.run(config, workdir)


if __name__ == "__main__":
    run(main)
