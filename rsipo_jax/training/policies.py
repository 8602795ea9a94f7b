"""The policies that a run has kept: that of its SFT stage, and those of its last RL checkpoints."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from rsipo_jax.models.lora import join, split
from rsipo_jax.models.transformer import Params
from rsipo_jax.training import setup
from rsipo_jax.training.checkpoint import Checkpoints
from rsipo_jax.validation import ConfigError


def kept_step(workdir: Path, step: int) -> int:
    """The RL step whose policy `step` means: -1 the newest, 0 that of the SFT stage. Raises ConfigError without one."""
    if not (workdir / setup.SFT).exists():
        raise ConfigError(
            f"{workdir} has no policy yet: let launch/train.py finish its SFT stage there first"
        )
    with closing(Checkpoints(workdir)) as checkpoints:
        kept = [0, *checkpoints.steps()]
    if step < 0:
        return kept[-1]
    if step not in kept:
        raise ConfigError(f"{workdir} has no checkpoint of step {step}: choose --step from {kept}")
    return step


def load_policy(workdir: Path, network: setup.Network, step: int) -> Params:
    """The policy of a step that `kept_step` gave, on the current mesh."""
    policy = setup.load_sft(workdir, network)
    if not step:
        return policy
    trained, frozen = split(policy)
    with closing(Checkpoints(workdir)) as checkpoints:
        return join(checkpoints.restore_params(step, trained), frozen)
