"""Empirical-Bayes trust in the skill-conditioned teacher: how far do the replays justify following it?

A unit u (here a task) was won s0 times in n0 episodes without a skill and s1 times in n1 replays with one of
its skills. Its observed gain d is a noisy look at its true gain D, and true gains vary around a common mean:

    d | D ~ N(D, v)        D ~ N(mu, tau2)

(mu, tau2) are estimated by moments from all units seen so far, older ones decayed; each unit's d is then
shrunk towards mu by as much as its own noise demands, and the weight w in [0, 1] of the teacher's scores is
read off the posterior.

Invariant: a unit without evidence (not valid, no replay or no plain episode) adds nothing to the state,
weighs 0 and reports zeros. All functions are pure, work in the default float type and can be jitted with `cfg`
static.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
from flax import struct
from jax import Array
from jax.scipy.stats import norm
from jax.typing import ArrayLike

from rsipo_jax.config import TrustConfig


@struct.dataclass
class PriorState:
    """Decayed sums over all units so far; five float scalars, sums over units, part of a checkpoint."""

    N: Array  # units
    D1: Array  # sum of gains d
    W: Array  # sum of squared deviations of d from the mean of its own step
    F: Array  # degrees of freedom of W
    V: Array  # sum of unbiased sampling variances

    @classmethod
    def zero(cls) -> PriorState:
        """The state before the first step."""
        return cls(*(jnp.zeros((), dtype=float) for _ in range(5)))


@struct.dataclass
class Trust:
    """What the evidence says about each unit. Arrays are [units]; gains are differences of success rates."""

    gain: Array  # d: success rate with a skill minus success rate without
    variance: Array  # v: sampling variance of d, never zero for a unit with evidence
    shrinkage: Array  # B in (0, 1): share of the prior mean in the posterior mean
    posterior_mean: Array  # m: the shrunken gain
    posterior_variance: Array  # V: posterior variance, the uncertainty of mu included
    prob: Array  # P: posterior probability that the true gain is above 0
    weight: Array  # w in [0, 1]: trust in the teacher
    mu: Array  # scalar: prior mean of the gain
    tau2: Array  # scalar: prior variance of the gain
    var_mu: Array  # scalar: sampling variance of mu


class Evidence(NamedTuple):
    gain: Array  # d [units]
    variance: Array  # v [units], smoothed: never zero, used in the posterior
    unbiased: Array  # vu [units], unbiased: used to estimate the prior
    present: Array  # bool [units]


# Trust functions of gain d, shrinkage B, posterior mean m, probability P, scale kappa; all end in [0, 1].
WEIGHTS: dict[str, Callable[[Array, Array, Array, Array, float], Array]] = {
    "pos_mean": lambda d, B, m, P, kappa: jnp.clip(m / kappa, 0.0, 1.0),
    "prob": lambda d, B, m, P, kappa: P,
    "prob_excess": lambda d, B, m, P, kappa: jnp.maximum(2.0 * P - 1.0, 0.0),
    "reliability": lambda d, B, m, P, kappa: (1.0 - B) * (m > 0.0),
    "raw": lambda d, B, m, P, kappa: jnp.clip(d, 0.0, 1.0),
    "one": lambda d, B, m, P, kappa: jnp.ones_like(d),
    "zero": lambda d, B, m, P, kappa: jnp.zeros_like(d),
}


def evidence(
    s1: ArrayLike, n1: ArrayLike, s0: ArrayLike, n0: ArrayLike, valid: ArrayLike, c0: float
) -> Evidence:
    """Observed gain and its sampling variances from success counts.

    Args:
        s1, n1, s0, n0: [units] successes and trials, with a skill and without.
        valid: bool [units]; a unit also needs n1 > 0 and n0 > 0 to count.
        c0: pseudo-count of the smoothed rates (Jeffreys: 1/2); must be above 0.
    """
    s1, n1, s0, n0 = (jnp.asarray(x, dtype=float) for x in (s1, n1, s0, n0))
    present = jnp.asarray(valid, dtype=bool) & (n1 > 0) & (n0 > 0)
    n1, n0 = jnp.maximum(n1, 1.0), jnp.maximum(n0, 1.0)
    p1, p0 = s1 / n1, s0 / n0
    q1, q0 = (s1 + c0) / (n1 + 2.0 * c0), (s0 + c0) / (n0 + 2.0 * c0)
    smoothed = q1 * (1.0 - q1) / n1 + q0 * (1.0 - q0) / n0
    # A single trial has no unbiased variance; the maxima only keep the unused branch finite.
    unbiased = p1 * (1.0 - p1) / jnp.maximum(n1 - 1.0, 1.0) + p0 * (1.0 - p0) / jnp.maximum(n0 - 1.0, 1.0)
    unbiased = jnp.where(jnp.minimum(n1, n0) >= 2.0, unbiased, smoothed)
    return Evidence(p1 - p0, smoothed, unbiased, present)


def merge(state: PriorState, gain: Array, unbiased: Array, present: Array, decay: float) -> PriorState:
    """S <- decay * S + this step's sums over the units that are present.

    W uses the mean of the step itself, so that a drift of mu over training does not inflate tau2. The raw
    sums are decayed, never tau2: it is cut off at a floor, and averages of cut-off values are biased upwards.
    """
    count = jnp.sum(present, dtype=float)
    total = jnp.sum(jnp.where(present, gain, 0.0))
    deviation = jnp.where(present, gain - total / jnp.maximum(count, 1.0), 0.0)
    return PriorState(
        N=decay * state.N + count,
        D1=decay * state.D1 + total,
        W=decay * state.W + jnp.sum(deviation**2),
        F=decay * state.F + jnp.maximum(count - 1.0, 0.0),
        V=decay * state.V + jnp.sum(jnp.where(present, unbiased, 0.0)),
    )


def prior_moments(state: PriorState, cfg: TrustConfig) -> tuple[Array, Array, Array]:
    """Scalars (mu, tau2, var_mu): mu = D1/N, tau2 = max(floor, W/F - V/N), var_mu = (W/F)/N.

    With fewer than `min_units` (decayed) units, or no degree of freedom yet: the start, (0, tau2_start, 0).
    """
    units, freedom = state.N, state.F
    enough = (units >= cfg.min_units) & (freedom > 0.0)
    units, freedom = jnp.where(enough, units, 1.0), jnp.where(enough, freedom, 1.0)
    spread = state.W / freedom
    mu = jnp.where(enough, state.D1 / units, 0.0)
    tau2 = jnp.where(enough, jnp.maximum(spread - state.V / units, cfg.tau2_floor), cfg.tau2_start)
    return mu, tau2, jnp.where(enough, spread / units, 0.0)


def update_prior(
    state: PriorState,
    s1: ArrayLike,
    n1: ArrayLike,
    s0: ArrayLike,
    n0: ArrayLike,
    valid: ArrayLike,
    cfg: TrustConfig,
) -> PriorState:
    """Merge one step's units (arguments as in `evidence`). A step updates first and calls `trust` after."""
    seen = evidence(s1, n1, s0, n0, valid, cfg.c0)
    return merge(state, seen.gain, seen.unbiased, seen.present, cfg.decay)


def posterior(d: Array, v: Array, mu: Array, tau2: Array, var_mu: Array) -> tuple[Array, Array, Array, Array]:
    """(B, m, V, P) of gains d with sampling variance v under the prior N(mu, tau2); needs v > 0 and tau2 > 0.

    B^2 * var_mu carries the uncertainty of mu (Morris 1983); without it P is 0 or 1 at the floor of tau2.
    """
    B = v / (v + tau2)
    m = B * mu + (1.0 - B) * d
    V = (1.0 - B) * v + B**2 * var_mu
    return B, m, V, norm.cdf(m / jnp.sqrt(V))


def trust(
    state: PriorState,
    s1: ArrayLike,
    n1: ArrayLike,
    s0: ArrayLike,
    n0: ArrayLike,
    valid: ArrayLike,
    cfg: TrustConfig,
) -> Trust:
    """Posterior gain and teacher weight of each unit (arguments as in `evidence`) under the prior in `state`.

    Raises:
        ValueError: `cfg.function` is not one of the seven trust functions.
    """
    if cfg.function not in WEIGHTS:
        raise ValueError(f"trust.function is {cfg.function!r}; use one of {', '.join(WEIGHTS)}.")
    seen = evidence(s1, n1, s0, n0, valid, cfg.c0)
    mu, tau2, var_mu = prior_moments(state, cfg)
    B, m, V, P = posterior(seen.gain, seen.variance, mu, tau2, var_mu)
    w = WEIGHTS[cfg.function](seen.gain, B, m, P, cfg.kappa)
    d, v, B, m, V, P, w = (jnp.where(seen.present, x, 0.0) for x in (seen.gain, seen.variance, B, m, V, P, w))
    return Trust(d, v, B, m, V, P, w, mu, tau2, var_mu)
