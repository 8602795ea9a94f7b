"""The formulas of advantages and losses token by token in plain Python floats, written from the papers' equations."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from rsipo_jax.config import LossConfig


def clipped(ratio: float, advantage: float, cfg: LossConfig) -> float:
    """The surrogate of one token."""
    above = cfg.clip_high if cfg.clip_high > 0 else cfg.clip
    bounded = min(max(ratio, 1 - cfg.clip), 1 + above)
    worst = max(-advantage * ratio, -advantage * bounded)
    return min(worst, -advantage * cfg.dual_clip) if advantage < 0 else worst


def kl(new: float, ref: float, kind: str) -> float:
    log_ratio = new - ref  # log pi / pi_ref
    if kind == "k1":
        return log_ratio
    if kind == "k2":
        return 0.5 * log_ratio * log_ratio
    return min(math.exp(-log_ratio) - 1 + log_ratio, 10.0)


def token(
    new: float,
    frozen: float,
    old: float,
    ref: float,
    teacher: float,
    advantage: float,
    weight: float,
    importance: float,
    cfg: LossConfig,
) -> float:
    """Policy, distillation and KL of one token. `frozen` is `new` wherever no gradient passes."""
    student = frozen if cfg.teacher == "current" else old
    extra = 0.0
    if weight != 0:
        if cfg.hybrid == "advantage":
            advantage += weight * min(max(teacher - student, -cfg.distill_clip), cfg.distill_clip)
        elif cfg.hybrid == "gated_loss":
            gap = min(max(teacher - frozen, -cfg.distill_clip), cfg.distill_clip)
            gate = 1 / (1 + math.exp(-cfg.gate_slope * gap))
            extra = weight * gate * (gap + frozen - new)
        else:
            sign = math.copysign(1, advantage)
            g = min(max(math.exp(sign * (teacher - student)) - 1, -0.2), 0.2)
            advantage *= max(1 + weight * g, 0.1)
    sampled = clipped(math.exp(new - old), advantage, cfg) + extra
    return importance * sampled + cfg.kl * kl(new, ref, cfg.kl_kind)


def mean(values: np.ndarray, mask: np.ndarray, average: str) -> float:
    """Over tokens, or over rows of means over tokens; rows without a token do not count."""
    if average == "token":
        return float(values[mask].mean())
    return float(np.mean([row[m].mean() for row, m in zip(values, mask, strict=True) if m.any()]))


def rloo(returns: Sequence[float], groups: Sequence[int], times: Sequence[float]) -> list[float]:
    """Each return minus the mean of the others of its group, in which each counts `times` times."""
    found = []
    for i, own in enumerate(returns):
        others = [j for j in range(len(returns)) if j != i and groups[j] == groups[i]]
        total = sum(times[j] for j in others)
        found.append(own - sum(times[j] * returns[j] for j in others) / total if total else 0.0)
    return found


def discounted(rewards: Sequence[float], gamma: float) -> list[float]:
    """The discounted sum of the rewards from each turn of an episode on."""
    return [sum(gamma ** (s - t) * rewards[s] for s in range(t, len(rewards))) for t in range(len(rewards))]
