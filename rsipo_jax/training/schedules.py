"""How strongly the teacher (lambda) and the skill reward (eta) count at each RL step."""

from __future__ import annotations

import math

from rsipo_jax.config import Config, LossConfig

STEP_OF_SCALE = 1.25  # most that the band moves lambda from one step to the next
# Where the replays give no reason for trust, the teacher has next to no pull: a band must not undo that by a huge lambda.
SCALE_LIMITS = (0.1, 10.0)


def scheduled(kind: str, start: float, final: float, step: int, steps: int) -> float:
    """`start` at step 1, `final` at the last of `steps`; in between a line or half a cosine; "constant" stays."""
    if kind == "constant":
        return start
    done = (step - 1) / max(steps - 1, 1)
    return final + (start - final) * (
        1.0 - done if kind == "linear" else 0.5 * (1.0 + math.cos(math.pi * done))
    )


def strengths(config: Config, step: int, scale: float) -> tuple[float, float]:
    """(lambda, eta) of RL step `step` (from 1); `scale` is what the band has made of lambda."""
    loss, skill, steps = config.loss, config.skill, config.train.steps
    return (
        scale * scheduled(loss.distill_schedule, loss.distill, loss.distill_final, step, steps),
        scheduled(skill.eta_schedule, skill.eta, skill.eta_final, step, steps),
    )


def next_scale(scale: float, distill_to_rl: float, cfg: LossConfig) -> float:
    """The scale of the next step: lambda is moved towards [distill_low, distill_high] when the ratio left it.

    The ratio (`losses.pull`) is proportional to lambda, of `modulate` as far as its floor, so the factor that brings it to
    the nearest end is known; it is taken up to `STEP_OF_SCALE`, since the ratio of one step is noisy. A step without any
    pull of the teacher (no trust) or without a trajectory advantage says nothing, and changes nothing.
    """
    if not cfg.distill_high or not 0.0 < distill_to_rl < math.inf:
        return scale
    wanted = min(max(distill_to_rl, cfg.distill_low), cfg.distill_high) / distill_to_rl
    moved = scale * min(max(wanted, 1 / STEP_OF_SCALE), STEP_OF_SCALE)
    return min(max(moved, SCALE_LIMITS[0]), SCALE_LIMITS[1])
