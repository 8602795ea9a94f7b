"""Empirical-Bayes trust in the skill-conditioned teacher: how far do the replays justify following it?

A unit u (a task, or a skill: skills/units.py) was won s0 times in n0 episodes without a skill and s1 times in n1
replays with one. Its observed gain d is a noisy look at its true gain D, and true gains vary around a common mean:

    d | D ~ N(D, v)        D ~ N(mu, tau2)

(mu, tau2) are estimated from all units seen so far, older ones decayed (skills/prior.py); each unit's d is then
shrunk towards mu by as much as its own noise demands, and the weight w in [0, 1] of the teacher's scores is
read off the posterior; `signed` lets it fall to -1. Skills within tasks share more: skills/hierarchy.py.

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
from rsipo_jax.skills.hierarchy import task_posterior
from rsipo_jax.skills.prior import PriorState, merge, merge_tasks, prior_of_units


@struct.dataclass
class Trust:
    """What the evidence says about each unit. Arrays are [units]; gains are differences of success rates."""

    gain: Array  # d: success rate with a skill minus success rate without
    variance: Array  # v: sampling variance of d; above 0 where there is evidence, else 0
    shrinkage: Array  # B in (0, 1): share of the prior mean in the posterior mean
    posterior_mean: Array  # m: the shrunken gain
    posterior_variance: Array  # V: posterior variance, the uncertainty of mu included
    prob: Array  # P: posterior probability that the true gain is above 0
    weight: Array  # w: trust in the teacher, in [0, 1], or in [-1, 1] if signed
    mu: Array  # mean of the unit's prior
    tau2: Array  # variance of the unit's prior; of `hier`: between tasks
    var_mu: Array  # sampling variance of mu
    om2: Array  # of `hier`: variance of a task's skills


class Evidence(NamedTuple):
    """Arrays [units]. The variances of d are the sums of those of its two rates, with a skill (1) and without (0)."""

    gain: Array  # d
    v1: Array  # smoothed: never zero, used in the posterior
    v0: Array
    u1: Array  # unbiased: used to estimate the prior; smoothed for a rate of one trial, which has no unbiased one
    u0: Array
    present: Array  # bool

    @property
    def variance(self) -> Array:
        return self.v1 + self.v0


# Trust functions of gain d, shrinkage B, posterior mean m, probability P, scale kappa; all end in [0, 1].
Weight = Callable[[Array, Array, Array, Array, float], Array]
WEIGHTS: dict[str, Weight] = {
    "pos_mean": lambda d, B, m, P, kappa: jnp.clip(m / kappa, 0.0, 1.0),
    "prob": lambda d, B, m, P, kappa: P,
    "prob_excess": lambda d, B, m, P, kappa: jnp.maximum(2.0 * P - 1.0, 0.0),
    "reliability": lambda d, B, m, P, kappa: (1.0 - B) * (m > 0.0),
    "raw": lambda d, B, m, P, kappa: jnp.clip(d, 0.0, 1.0),
    "one": lambda d, B, m, P, kappa: jnp.ones_like(d),
    "zero": lambda d, B, m, P, kappa: jnp.zeros_like(d),
}
# The same in [-1, 1], for those that are 0 where there is nothing to gain: a teacher that misleads repels.
SIGNED: dict[str, Weight] = {
    "pos_mean": lambda d, B, m, P, kappa: jnp.clip(m / kappa, -1.0, 1.0),
    "prob_excess": lambda d, B, m, P, kappa: 2.0 * P - 1.0,
    "reliability": lambda d, B, m, P, kappa: (1.0 - B) * jnp.sign(m),
    "raw": lambda d, B, m, P, kappa: jnp.clip(d, -1.0, 1.0),
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
    (v1, u1), (v0, u0) = _variances(s1, n1, c0), _variances(s0, n0, c0)
    return Evidence(s1 / n1 - s0 / n0, v1, v0, u1, u0, present)


def _variances(s: Array, n: Array, c0: float) -> tuple[Array, Array]:
    """Of the rate s/n: smoothed, and unbiased where n >= 2."""
    p, q = s / n, (s + c0) / (n + 2.0 * c0)
    smoothed = q * (1.0 - q) / n
    # The maximum only keeps the unused branch finite.
    return smoothed, jnp.where(n >= 2.0, p * (1.0 - p) / jnp.maximum(n - 1.0, 1.0), smoothed)


def update_prior(
    state: PriorState,
    s1: ArrayLike,
    n1: ArrayLike,
    s0: ArrayLike,
    n0: ArrayLike,
    valid: ArrayLike,
    cfg: TrustConfig,
    classes: ArrayLike | None = None,
    task: ArrayLike | None = None,
) -> PriorState:
    """Merge one step's units (arguments as in `trust`). A step updates first and calls `trust` after."""
    seen = evidence(s1, n1, s0, n0, valid, cfg.c0)
    if cfg.unit == "hier":
        return merge_tasks(state, seen.gain, seen.u1, seen.u0, seen.present, cfg.decay, _tasks(task), classes)
    # Where either rate has a single trial, the smoothed variance of d as a whole stands in.
    plain = jnp.minimum(jnp.asarray(n1), jnp.asarray(n0)) >= 2
    unbiased = jnp.where(plain, seen.u1 + seen.u0, seen.variance)
    return merge(state, seen.gain, seen.variance, unbiased, seen.present, cfg.decay, classes)


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
    classes: ArrayLike | None = None,
    task: ArrayLike | None = None,
) -> Trust:
    """Posterior gain and teacher weight of each unit under the prior in `state`.

    Args:
        s1, n1, s0, n0, valid: [units], as in `evidence`.
        classes: int [units], whose prior each unit has; -1, and by default: that of all units.
        task: int [units] in [0, units), the task of each skill; `hier` needs it.

    Raises:
        ValueError: `cfg.function` is no trust function, or has no signed form although `cfg.signed`.
    """
    functions = SIGNED if cfg.signed else WEIGHTS
    if cfg.function not in functions:
        raise ValueError(
            f"trust.function is {cfg.function!r} with trust.signed={cfg.signed}; use one of {', '.join(functions)}."
        )
    seen = evidence(s1, n1, s0, n0, valid, cfg.c0)
    prior = prior_of_units(state, cfg, jnp.full(seen.gain.shape, -1) if classes is None else classes)
    if cfg.unit == "hier":
        B, m, V, _ = task_posterior(seen.gain, seen.v1, seen.v0, seen.present, _tasks(task), prior)
        P = norm.cdf(m / jnp.sqrt(V))
    else:
        B, m, V, P = posterior(seen.gain, seen.variance, prior.mu, prior.tau2, prior.var_mu)
    w = functions[cfg.function](seen.gain, B, m, P, cfg.kappa)
    d, v, B, m, V, P, w = (jnp.where(seen.present, x, 0.0) for x in (seen.gain, seen.variance, B, m, V, P, w))
    return Trust(d, v, B, m, V, P, w, prior.mu, prior.tau2, prior.var_mu, prior.om2)


def _tasks(task: ArrayLike | None) -> Array:
    if task is None:
        raise ValueError("trust.unit is 'hier', which needs the task of each unit.")
    return jnp.asarray(task)
