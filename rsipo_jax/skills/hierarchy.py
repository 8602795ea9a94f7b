"""The posterior of skills within tasks: what the skills of one task share, and what they do not.

    d_i = D_i + e_i + e_0     D_i ~ N(delta, om2)     delta ~ N(mu, tau2)

e_i ~ N(0, v1_i) is the noise of the skill's own replays, e_0 ~ N(0, v0) that of the task's plain episodes, the same for
all of its skills. The covariance of the d_i is diagonal plus a constant, so that its inverse is known (Sherman and
Morrison), and the posterior needs two sums over the skills of the task.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array
from jax.ops import segment_sum

from rsipo_jax.skills.prior import Prior


class TaskPosterior(NamedTuple):
    """Arrays [units]; units are skills."""

    shrinkage: Array  # B: share of mu in the posterior mean, in (0, 1)
    mean: Array  # m: posterior mean of D_i
    variance: Array  # posterior variance of D_i, the uncertainty of mu included (B^2 var_mu)
    task_mean: Array  # posterior mean of delta, equal for the skills of a task


def task_posterior(
    d: Array, v1: Array, v0: Array, present: Array, task: Array, prior: Prior
) -> TaskPosterior:
    """The exact Gaussian posterior; needs om2 + v1 > 0.

        a_i = 1/(om2 + v1_i), S = sum a, c = tau2 + v0, r = d - mu, z = sum(a r)/(1 + c S), u_i = a_i (r_i - c z)
        m_i = mu + om2 u_i + tau2 z,   B_i = 1 - (om2 a_i + tau2 S)/(1 + c S)

    Args:
        d, v1, v0: [units] gains and the variances of their two rates; v0 is equal within a task.
        present: bool [units]; others are part of no task.
        task: int [units] in [0, units).
        prior: arrays that broadcast to [units], equal within a task.
    """
    mu, tau2, var_mu, om2 = prior.mu, prior.tau2, prior.var_mu, prior.om2
    a = jnp.where(present, 1.0 / (om2 + v1), 0.0)
    r, c = d - mu, tau2 + v0

    def total(x: Array) -> Array:
        return segment_sum(x, task, len(d))[task]

    S = total(a)
    scale = 1.0 + c * S
    z = total(a * r) / scale
    m = mu + om2 * a * (r - c * z) + tau2 * z
    B = 1.0 - (om2 * a + tau2 * S) / scale
    # Var(D_i) - k' Sigma^-1 k, with k = om2 at skill i and tau2 at all skills of the task
    explained = om2**2 * (a - c * a**2 / scale) + (2.0 * om2 * a + tau2 * S) * tau2 / scale
    return TaskPosterior(B, m, om2 + tau2 - explained + B**2 * var_mu, mu + tau2 * z)
