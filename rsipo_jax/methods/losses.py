"""Token-level losses of the jitted update: arrays [rows, length] in, sums over tokens out.

Losses are returned as sums and divided by the caller's *global* token count, so k micro-batches add up to one
batch and padding changes nothing. Only `logp_new` carries a gradient: advantages, trust weights, behaviour,
teacher and reference log-probs are constants here whatever they were computed from. `mask` is bool, True on
response tokens.
"""

from __future__ import annotations

import jax.numpy as jnp
from flax import struct
from jax import Array
from jax.lax import stop_gradient

from rsipo_jax.config import LossConfig

# Beyond it the clipped losses are flat; bounding the exponent keeps inf * 0 = NaN out of their gradients.
MAX_LOG_RATIO = 20.0


def hybrid_advantages(
    adv_traj: Array,
    trust_weight: Array,
    teacher_logp: Array,
    student_logp: Array,
    mask: Array,
    lam: float,
    clip: float,
) -> Array:
    """A_tok = A_traj + lam * w * clip(log pi_teacher - log pi_student, +-clip); 0 outside the mask.

    Where w = 0 the result is A_traj bit for bit, whatever the teacher's scores are (inf and NaN included).

    Args:
        adv_traj, trust_weight: broadcastable to [rows, length]; the weight w is in [0, 1].
        teacher_logp, student_logp: [rows, length] log-probs of the same tokens under the behaviour policy,
            with and without the skill in context.
    """
    correction = lam * trust_weight * jnp.clip(teacher_logp - student_logp, -clip, clip)
    # One where on the result is enough: no gradient passes here that a NaN left unselected could enter.
    advantages = jnp.where(trust_weight > 0.0, adv_traj + correction, adv_traj)
    return stop_gradient(jnp.where(mask, advantages, 0.0))


def policy_loss_terms(
    logp_new: Array, logp_old: Array, advantages: Array, clip: float, dual_clip: float
) -> Array:
    """PPO's clipped surrogate (arXiv 1707.06347), dual clip where the advantage is negative (1912.09729).

    All arrays [rows, length], log-probs finite; returns the loss of each token.
    """
    advantages = stop_gradient(advantages)
    ratio = jnp.exp(jnp.clip(logp_new - stop_gradient(logp_old), -MAX_LOG_RATIO, MAX_LOG_RATIO))
    loss = jnp.maximum(-advantages * ratio, -advantages * jnp.clip(ratio, 1.0 - clip, 1.0 + clip))
    return jnp.where(advantages < 0.0, jnp.minimum(loss, -advantages * dual_clip), loss)


def k3_kl(logp_new: Array, logp_ref: Array) -> Array:
    """k3 estimate of KL(pi || pi_ref) at each token: clip(exp(x) - x - 1, +-10), x = log pi_ref - log pi."""
    x = jnp.clip(stop_gradient(logp_ref) - logp_new, -MAX_LOG_RATIO, MAX_LOG_RATIO)
    return jnp.clip(jnp.exp(x) - x - 1.0, -10.0, 10.0)


def masked_sum(values: Array, mask: Array) -> tuple[Array, Array]:
    """(sum of the values under the mask, number of tokens under it); values outside are never read."""
    return jnp.sum(jnp.where(mask, values, 0.0)), jnp.sum(mask, dtype=float)


@struct.dataclass
class LossSums:
    """Scalar sums over the masked tokens of a (micro-)batch; those of two batches add."""

    policy: Array  # clipped surrogate
    kl: Array  # k3 estimate against the reference
    tokens: Array  # masked tokens


def loss_sums(
    logp_new: Array, logp_old: Array, logp_ref: Array, advantages: Array, mask: Array, cfg: LossConfig
) -> LossSums:
    """Surrogate and KL of the tokens under the mask; the loss is (policy + cfg.kl * kl) / all tokens.

    The same two terms serve action tokens (A_tok) and skill tokens (A_sk). Scores outside the mask may be
    anything.
    """
    # Cleaned before the arithmetic: masked out only afterwards, inf still sends 0 * inf into the gradient.
    new, old, ref = (jnp.where(mask, x, 0.0) for x in (logp_new, logp_old, logp_ref))
    policy, tokens = masked_sum(policy_loss_terms(new, old, advantages, cfg.clip, cfg.dual_clip), mask)
    kl, _ = masked_sum(k3_kl(new, ref), mask)
    return LossSums(policy, kl, tokens)
