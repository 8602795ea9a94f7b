"""Properties of trust that hold on average: its prior is unbiased, its errors are small, its probabilities are right."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rsipo_jax.config import TrustConfig
from rsipo_jax.skills.prior import PriorState, fit, merge
from rsipo_jax.skills.trust import posterior, trust, update_prior

CFG = TrustConfig()
STEPS, TASKS, N = 1000, 16, 8


@jax.jit
def of_counts(s1: jax.Array, s0: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """(tau2 before the floor, posterior means, P) of each step."""

    def step(state: PriorState, counts: tuple[jax.Array, jax.Array]) -> tuple[PriorState, tuple]:
        units = counts[0], jnp.full(TASKS, N), counts[1], jnp.full(TASKS, N), jnp.ones(TASKS, bool)
        state = update_prior(state, *units, CFG)
        report = trust(state, *units, CFG)
        tau2 = state.W[0] / state.F[0] - state.V[0] / state.N[0]
        return state, (tau2, report.posterior_mean, report.prob)

    return jax.lax.scan(step, PriorState.zero(), (s1, s0))[1]


@pytest.fixture(scope="module")
def simulation() -> tuple[np.ndarray, ...]:
    """(tau2, posterior means, P, raw gains, true gains); true gains N(0.05, 0.15^2), and few rates are cut off.

    Much smaller gains against this noise let tau2 fall to its floor at times, and the probabilities are then too sure.
    """
    rng = np.random.default_rng(0)
    p0, true = rng.uniform(0.4, 0.6, (STEPS, TASKS)), rng.normal(0.05, 0.15, (STEPS, TASKS))
    s0, s1 = rng.binomial(N, p0), rng.binomial(N, np.clip(p0 + true, 0, 1))
    found = map(np.asarray, of_counts(jnp.asarray(s1), jnp.asarray(s0)))
    return (*found, s1 / N - s0 / N, true)


def test_tau2_is_unbiased_before_it_is_cut_off(simulation: tuple[np.ndarray, ...]) -> None:
    tau2 = simulation[0]
    np.testing.assert_allclose(tau2.mean(), 0.15**2, rtol=0.1)


def test_the_shrunken_gain_is_nearer_to_the_truth(simulation: tuple[np.ndarray, ...]) -> None:
    _, mean, _, raw, true = simulation
    assert ((mean - true) ** 2).mean() < 0.4 * ((raw - true) ** 2).mean()


def frequencies(probability: np.ndarray, true: np.ndarray) -> None:
    """In each fifth of P with units enough, P is how often the true gain is above 0."""
    bins, seen = np.clip((5 * probability).astype(int), 0, 4), 0
    for b in range(5):
        if (bins == b).sum() > 100:
            seen += 1
            assert abs((true[bins == b] > 0).mean() - probability[bins == b].mean()) < 0.1, b
    assert seen >= 4


def test_probabilities_are_right_for_counts(simulation: tuple[np.ndarray, ...]) -> None:
    _, _, probability, _, true = simulation
    frequencies(probability[50:], true[50:])


def test_probabilities_are_right_under_the_model_itself() -> None:
    rng = np.random.default_rng(1)
    v = rng.uniform(0.01, 0.06, (STEPS, TASKS))
    true = rng.normal(0.02, 0.15, (STEPS, TASKS))
    d = rng.normal(true, np.sqrt(v))

    @jax.jit
    def run(d: jax.Array, v: jax.Array) -> jax.Array:
        def step(state: PriorState, x: tuple[jax.Array, jax.Array]) -> tuple[PriorState, jax.Array]:
            state = merge(state, x[0], x[1], x[1], jnp.ones(TASKS, bool), CFG.decay)
            prior = fit(state, CFG)
            return state, posterior(*x, prior.mu[0], prior.tau2[0], prior.var_mu[0])[3]

        return jax.lax.scan(step, PriorState.zero(), (d, v))[1]

    frequencies(np.asarray(run(jnp.asarray(d), jnp.asarray(v)))[50:], true[50:])
