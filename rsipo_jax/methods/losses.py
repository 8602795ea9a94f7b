"""Token-level losses of the jitted update: arrays [rows, length] in, arrays or sums over tokens out.

Nothing here divides: the caller divides sums by *global* counts, so k micro-batches add up to one batch and padding
changes nothing. Only `logp_new` carries a gradient: advantages, trust weights, behaviour, teacher and reference log-probs
are constants here whatever they were computed from. `mask` is bool, True on response tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax import Array
from jax.lax import stop_gradient
from jax.ops import segment_sum

from rsipo_jax.config import LossConfig

# Beyond it the clipped losses are flat; bounding the exponent keeps inf * 0 = NaN out of their gradients.
MAX_LOG_RATIO = 20.0
# RLSD's and GRSD's bounds: how much a teacher may change an advantage, and what it must leave of it.
MODULATION, MODULATION_FLOOR = 0.2, 0.1

# (advantages, lambda * w, teacher's scores, student's scores, current scores, settings), all [rows, length] but the last,
# to (advantages of the surrogate, a loss of its own at each token)
Hybrid = Callable[[Array, Array, Array, Array, Array, LossConfig], tuple[Array, Array]]


def as_advantage(
    adv: Array, weight: Array, teacher: Array, student: Array, new: Array, cfg: LossConfig
) -> tuple[Array, Array]:
    """A + lambda w clip(log pi_teacher - log pi_student, +-delta_max): OPID's form (arXiv 2606.26790)."""
    gap = jnp.clip(teacher - student, -cfg.distill_clip, cfg.distill_clip)
    return adv + weight * gap, jnp.zeros_like(new)


def as_gated_loss(
    adv: Array, weight: Array, teacher: Array, student: Array, new: Array, cfg: LossConfig
) -> tuple[Array, Array]:
    """A, and lambda w sg[sigmoid(b gap)] (sg[log pi_teacher] - log pi): SDAR's form (arXiv 2605.15155).

    Its student is always the current policy: gap = log pi_teacher - log pi. It is clipped to +-delta_max here too (SDAR does
    not), which bounds the value, and the gate by sigmoid(b delta_max).
    """
    now = stop_gradient(new)
    gap = jnp.clip(teacher - now, -cfg.distill_clip, cfg.distill_clip)
    return adv, weight * jax.nn.sigmoid(cfg.gate_slope * gap) * (gap + now - new)


def as_modulation(
    adv: Array, weight: Array, teacher: Array, student: Array, new: Array, cfg: LossConfig
) -> tuple[Array, Array]:
    """A max(1 + lambda w g, 0.1), g = clip(expm1(sign(A) gap), +-0.2): keeps A's sign (RLSD; GRSD, arXiv 2607.28076)."""
    agreement = jnp.clip(jnp.sign(adv) * (teacher - student), -MAX_LOG_RATIO, MAX_LOG_RATIO)
    push = jnp.clip(jnp.expm1(agreement), -MODULATION, MODULATION)
    return adv * jnp.maximum(1.0 + weight * push, MODULATION_FLOOR), jnp.zeros_like(new)


HYBRIDS: Mapping[str, Hybrid] = {
    "advantage": as_advantage,
    "gated_loss": as_gated_loss,
    "modulate": as_modulation,
}


def taught(
    adv: Array,
    weight: Array,
    teacher_logp: Array,
    old: Array,
    new: Array,
    mask: Array,
    cfg: LossConfig,
) -> tuple[Array, Array]:
    """What the teacher makes of the advantages: (A_tok, the distillation loss of each token); both 0 outside the mask.

    Where lambda w = 0 they are A and 0 bit for bit, whatever the teacher's scores are (inf and NaN included).

    Args:
        adv, weight: broadcastable to [rows, length]; `weight` is lambda w, below 0 where the teacher repels.
        teacher_logp, old, new: [rows, length] log-probs of the same tokens: with the skill in context, and without it
            under the behaviour policy and under the current one. A `cfg.teacher` of the current policy is compared with
            the current student; the teacher's scores are then those of the current policy too.
    """
    trusted = mask & (weight != 0.0)
    # Two wheres: masked out only at the end, inf and NaN would still reach the gradient as 0 * NaN.
    new, teacher = jnp.where(trusted, new, 0.0), jnp.where(trusted, teacher_logp, 0.0)
    student = stop_gradient(new if cfg.teacher == "current" else old)
    adv, weight, teacher = stop_gradient((adv, weight, teacher))
    changed, extra = HYBRIDS[cfg.hybrid](adv, weight, teacher, student, new, cfg)
    advantages = jnp.where(trusted, changed, jnp.where(mask, adv, 0.0))
    return stop_gradient(advantages), jnp.where(trusted, extra, 0.0)


def pull(adv: np.ndarray, weight: np.ndarray, gap: np.ndarray, cfg: LossConfig) -> np.ndarray:
    """How much the teacher adds to the advantage of each token, in size: float64 [N], on the host.

    That is to the factor of grad log pi in minus the loss, where the current policy is still the one that acted (the first
    update of a step): what `taught` makes of A, less A, and of `gated_loss`, which leaves A alone, lambda w times the gate.

    Args:
        adv, weight: [N]; `weight` is lambda w.
        gap: [N] log pi_teacher - log pi_student of the policy that acted; not read where `weight` is 0.
    """
    trusted = weight != 0.0
    adv, weight, gap = (np.where(trusted, x, 0.0).astype(np.float64) for x in (adv, weight, gap))
    if cfg.hybrid == "modulate":
        agreement = np.clip(np.sign(adv) * gap, -MAX_LOG_RATIO, MAX_LOG_RATIO)
        push = weight * np.clip(np.expm1(agreement), -MODULATION, MODULATION)
        return np.abs(adv * np.maximum(push, MODULATION_FLOOR - 1.0))
    gap = np.clip(gap, -cfg.distill_clip, cfg.distill_clip)
    if cfg.hybrid == "gated_loss":
        gap = 0.5 * (1.0 + np.tanh(0.5 * cfg.gate_slope * gap))  # the sigmoid, which cannot overflow
    return np.abs(weight * gap)


def policy_loss(logp_new: Array, logp_old: Array, advantages: Array, cfg: LossConfig) -> Array:
    """PPO's clipped surrogate (arXiv 1707.06347), dual clip where the advantage is negative (1912.09729).

    The ratio is clipped to [1 - clip, 1 + clip_high]; an upper end of its own is DAPO's (2503.14476). All arrays
    [rows, length], log-probs finite; returns the loss of each token.
    """
    advantages = stop_gradient(advantages)
    ratio = jnp.exp(jnp.clip(logp_new - stop_gradient(logp_old), -MAX_LOG_RATIO, MAX_LOG_RATIO))
    loss = jnp.maximum(-advantages * ratio, -advantages * jnp.clip(ratio, 1.0 - cfg.clip, 1.0 + high(cfg)))
    return jnp.where(advantages < 0.0, jnp.minimum(loss, -advantages * cfg.dual_clip), loss)


def high(cfg: LossConfig) -> float:
    """How far above 1 a ratio may go."""
    return cfg.clip_high or cfg.clip


# Estimates of KL(pi || pi_ref) from one token, of x = log pi_ref - log pi (Schulman, "Approximating KL divergence").
KL: Mapping[str, Callable[[Array], Array]] = {
    "k1": lambda x: -x,  # unbiased, but its gradient is 0 on average
    "k2": lambda x: x**2 / 2,  # its gradient is that of the KL on average
    "k3": lambda x: jnp.clip(jnp.exp(x) - x - 1.0, -10.0, 10.0),
}


def kl_loss(logp_new: Array, logp_ref: Array, cfg: LossConfig) -> Array:
    """The estimate `cfg.kl_kind` of KL(pi || pi_ref) at each token."""
    return KL[cfg.kl_kind](jnp.clip(stop_gradient(logp_ref) - logp_new, -MAX_LOG_RATIO, MAX_LOG_RATIO))


def _each_row_alike(mask: Array, segment_ids: Array) -> Array:
    most = mask.shape[1] + 1
    counts = jax.vmap(lambda m, s: segment_sum(m.astype(float), s, most))(mask, segment_ids)
    return mask / jnp.maximum(jnp.take_along_axis(counts, segment_ids, axis=1), 1.0)


# From (mask, segment_ids) to the weight of each token in the sum that is divided by the global count: of tokens, or of
# rows with a token under the mask. A row lies whole in one segment of one micro-batch.
AVERAGES: Mapping[str, Callable[[Array, Array], Array]] = {
    "token": lambda mask, _: mask.astype(float),
    "sequence": _each_row_alike,
}


def masked_sum(values: Array, mask: Array) -> tuple[Array, Array]:
    """(sum of the values under the mask, number of tokens under it); values outside are never read."""
    return jnp.sum(jnp.where(mask, values, 0.0)), jnp.sum(mask, dtype=float)


@struct.dataclass
class LossSums:
    """Scalar sums over the masked tokens of a (micro-)batch; those of two batches add."""

    loss: Array  # policy + cfg.kl * kl, each token with its weight
    policy: Array  # clipped surrogate
    kl: Array  # estimate against the reference
    tokens: Array  # masked tokens


def loss_sums(
    logp_new: Array,
    logp_old: Array,
    logp_ref: Array,
    advantages: Array,
    mask: Array,
    weights: Array,
    cfg: LossConfig,
) -> LossSums:
    """Surrogate and KL of the tokens under the mask; `weights` [rows, length] are of `AVERAGES`.

    The same two terms serve action tokens (A_tok) and skill tokens (A_sk). Scores outside the mask may be
    anything.
    """
    # Cleaned before the arithmetic: masked out only afterwards, inf still sends 0 * inf into the gradient.
    new, old, ref = (jnp.where(mask, x, 0.0) for x in (logp_new, logp_old, logp_ref))
    policy, kl = policy_loss(new, old, advantages, cfg), kl_loss(new, ref, cfg)
    loss, tokens = masked_sum(weights * (policy + cfg.kl * kl), mask)
    return LossSums(loss, masked_sum(policy, mask)[0], masked_sum(kl, mask)[0], tokens)
