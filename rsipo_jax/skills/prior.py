"""The prior of the gains: sums over all units so far, older ones decayed, and the moments read off them.

A unit is a task or a skill (skills/units.py). Its gain d has sampling variance v and its true gain is drawn from
N(mu, tau2). Under `unit` "hier" the units are skills, whose true gains have spread om2 within their task, while tau2 is
the spread of tasks.

Raw sums are decayed, never tau2 itself: it is cut off at a floor, and averages of cut-off values are biased upwards.
Sums of squared deviations are taken from the mean of their own step, so that a drift of mu over training does not look
like spread. Everything is a sum over units, so devices that hold a part of them each reach the same state.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import struct
from jax import Array
from jax.ops import segment_max, segment_sum
from jax.typing import ArrayLike

from rsipo_jax.config import TrustConfig

# Row 0 of every sum is over all units, row 1 + c over those of class c (skills/units.py has at most three).
ROWS = 4


@struct.dataclass
class Weighted:
    """Sums with weights a = 1/v, for DerSimonian and Laird's estimate (Controlled Clinical Trials, 1986)."""

    A: Array  # sum of a
    A2: Array  # sum of a^2
    AD: Array  # sum of a d
    Q: Array  # sum of a (d - weighted mean of d in its step)^2
    C: Array  # sum over steps of (sum a - sum a^2 / sum a): what a unit of tau2 adds to Q on average


@struct.dataclass
class Within:
    """Sums over the skills within tasks, for `hier`."""

    W: Array  # squared deviations of a skill's d from the mean of its task
    F: Array  # degrees of freedom of W
    V: Array  # what the replays' own variance adds to W on average
    H: Array  # sum over tasks of 1 / number of skills: what a unit of om2 adds to the sum of squared task means


@struct.dataclass
class PriorState:
    """Decayed sums over all units so far (of `hier`: over tasks); arrays [ROWS], part of a checkpoint."""

    N: Array  # units
    D1: Array  # sum of gains d
    W: Array  # sum of squared deviations of d from the mean of its own step
    F: Array  # degrees of freedom of W
    V: Array  # sum of unbiased sampling variances
    weighted: Weighted
    within: Within

    @classmethod
    def zero(cls) -> PriorState:
        """The state before the first step."""
        none = jnp.zeros(ROWS, dtype=float)
        return cls(none, none, none, none, none, Weighted(*[none] * 5), Within(*[none] * 4))


@struct.dataclass
class Prior:
    """Parameters by row of the state, or by unit."""

    mu: Array  # mean of the true gains
    tau2: Array  # their variance; of `hier`: between tasks
    var_mu: Array  # sampling variance of mu
    om2: Array  # of `hier`: variance of the true gains of one task's skills; otherwise 0


def merge(
    state: PriorState,
    gain: Array,
    variance: Array,
    unbiased: Array,
    present: Array,
    decay: float,
    classes: ArrayLike | None = None,
    within: Within | None = None,
) -> PriorState:
    """S <- decay * S + this step's sums over the units that are present.

    Args:
        gain, variance, unbiased: [units] d, its smoothed variance (never 0 where present) and its unbiased one.
        present: bool [units].
        classes: int [units] in [0, ROWS - 1), or -1 for units of no class; by default no unit has one.
        within: this step's sums within tasks.
    """
    members = _members(present, classes)
    count, total = jnp.sum(members, axis=1, dtype=float), _sum(members, gain)
    deviation = gain - (total / jnp.maximum(count, 1.0))[:, None]
    a = jnp.where(present, 1.0 / jnp.where(present, variance, 1.0), 0.0)
    A, A2, AD = _sum(members, a), _sum(members, a**2), _sum(members, a * gain)
    some = jnp.where(count > 0.0, A, 1.0)
    spread = _sum(members, a * (gain - (AD / some)[:, None]) ** 2)
    freedom = jnp.where(count > 1.0, A - A2 / some, 0.0)
    zero = jnp.zeros_like(count)
    new = PriorState(
        N=count,
        D1=total,
        W=_sum(members, deviation**2),
        F=jnp.maximum(count - 1.0, 0.0),
        V=_sum(members, unbiased),
        weighted=Weighted(A, A2, AD, spread, freedom),
        within=Within(zero, zero, zero, zero) if within is None else within,
    )
    return jax.tree.map(lambda old, step: decay * old + step, state, new)


def merge_tasks(
    state: PriorState,
    gain: Array,
    replay_variance: Array,
    plain_variance: Array,
    present: Array,
    decay: float,
    task: ArrayLike,
    classes: ArrayLike | None = None,
) -> PriorState:
    """`merge` of `hier`: the units are skills [U], the sums between are over the means of tasks.

    With n skills in a task, E sum_i (d_i - mean)^2 = (n - 1)(om2 + mean v1), and
    Var(mean) = tau2 + om2/n + (mean v1)/n + v0: the plain episodes, and so their noise v0, are shared by the skills.

    Args:
        replay_variance, plain_variance: [U] unbiased variances of the two rates in d.
        task: int [U] in [0, U).
        classes: int [U], equal for the skills of a task.
    """
    units, ids = len(gain), jnp.asarray(task)
    labels = jnp.full(units, -1) if classes is None else jnp.asarray(classes)

    def total(x: Array) -> Array:
        return segment_sum(jnp.where(present, x, 0.0), ids, units)

    skills = total(jnp.ones_like(gain))
    n = jnp.maximum(skills, 1.0)
    mean, v1, v0 = total(gain) / n, total(replay_variance) / n, total(plain_variance) / n
    label = segment_max(jnp.where(present, labels, -1), ids, units)
    members = _members(skills > 0.0, label)
    within = Within(
        W=_sum(members, total((gain - mean[ids]) ** 2)),
        F=_sum(members, n - 1.0),
        V=_sum(members, (n - 1.0) * v1),
        H=_sum(members, 1.0 / n),
    )
    noise = v1 / n + v0
    weightless = jnp.ones_like(noise)  # DerSimonian and Laird's weights have no meaning here
    return merge(state, mean, weightless, noise, skills > 0.0, decay, label, within)


def fit(state: PriorState, cfg: TrustConfig) -> Prior:
    """The prior of every row of the state, arrays [ROWS]; variances are cut off below at `tau2_floor`.

    moments:           mu = D1/N, tau2 = W/F - V/N, var_mu = (W/F)/N
    dersimonian_laird: mu = AD/A, tau2 = (Q - F)/C, var_mu = (A + tau2 A2)/A^2, the variance of that weighted mean
    hier:              om2 = (W - V)/F within tasks, tau2 = W/F - V/N - om2 H/N between them

    With fewer than `min_units` (decayed) units, or no degree of freedom yet, a row has the start (0, tau2_start, 0);
    `hier` halves tau2_start between tasks and skills.
    """
    inner, hier, enough = state.within, cfg.unit == "hier", _enough(state, cfg)

    def ratio(a: Array, b: Array) -> Array:
        return a / jnp.where(enough, b, 1.0)

    spread = ratio(state.W, state.F)
    mu, tau2, var_mu = ratio(state.D1, state.N), spread - ratio(state.V, state.N), ratio(spread, state.N)
    om2, start = jnp.zeros_like(mu), cfg.tau2_start
    if hier:
        start = cfg.tau2_start / 2.0
        om2 = jnp.where(enough, jnp.maximum(ratio(inner.W - inner.V, inner.F), cfg.tau2_floor), start)
        tau2 = tau2 - om2 * ratio(inner.H, state.N)
    if cfg.estimator == "dersimonian_laird":
        sums = state.weighted
        mu, tau2 = ratio(sums.AD, sums.A), ratio(sums.Q - state.F, sums.C)
        var_mu = ratio(ratio(sums.A + jnp.maximum(tau2, cfg.tau2_floor) * sums.A2, sums.A), sums.A)
    tau2 = jnp.where(enough, jnp.maximum(tau2, cfg.tau2_floor), start)
    return Prior(jnp.where(enough, mu, 0.0), tau2, jnp.where(enough, var_mu, 0.0), om2)


def prior_of_units(state: PriorState, cfg: TrustConfig, classes: ArrayLike) -> Prior:
    """The prior of each unit's class, arrays [units]; of all units together where the class has too few."""
    rows = 1 + jnp.asarray(classes)
    chosen = jnp.where(_enough(state, cfg)[rows], rows, 0)
    return jax.tree.map(lambda values: values[chosen], fit(state, cfg))


def _enough(state: PriorState, cfg: TrustConfig) -> Array:
    """bool [ROWS]: rows with enough units for an estimate of their own."""
    known = (cfg.min_units <= state.N) & (state.F > 0.0)
    return known & (state.within.F > 0.0) if cfg.unit == "hier" else known


def _members(present: Array, classes: ArrayLike | None) -> Array:
    """bool [ROWS, units]: which units each row sums over."""
    if classes is None:
        classes = jnp.full(present.shape, -1)
    rows = jnp.arange(ROWS)[:, None]
    return present & ((rows == 0) | (rows == 1 + jnp.asarray(classes)))


def _sum(members: Array, values: Array) -> Array:
    return jnp.sum(jnp.where(members, values, 0.0), axis=1)
