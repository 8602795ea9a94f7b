"""Measures the policy of a run: python launch/evaluate.py --workdir=FOLDER --panel=valid_unseen [--step=N]

Plays the panel with the newest checkpoint (or that of --step; 0 is the SFT policy) and says whether the result is the
one the run recorded.
"""

from pathlib import Path

import jax
from absl import flags
from flags import run

from rsipo_jax.config import Config
from rsipo_jax.training import loop
from rsipo_jax.validation import PANELS

flags.DEFINE_enum("panel", "valid_unseen", PANELS, "Which games to play.")
flags.DEFINE_integer(
    "step", -1, "RL step whose checkpoint is measured; -1: the newest, 0: the SFT policy.", lower_bound=-1
)


def main(config: Config, workdir: Path) -> None:
    jax.config.update("jax_compilation_cache_dir", str((workdir / "compiled").resolve()))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    loop.evaluate(config, workdir, flags.FLAGS.panel, flags.FLAGS.step)


if __name__ == "__main__":
    run(main)
