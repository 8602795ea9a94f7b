"""Skills within tasks: the closed form against dense Gaussian conditioning, its limits, and its moments."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rsipo_jax.config import TrustConfig
from rsipo_jax.skills.hierarchy import TaskPosterior, task_posterior
from rsipo_jax.skills.prior import Prior, PriorState, fit
from rsipo_jax.skills.trust import posterior, trust, update_prior
from tests.skills import reference_trust as plain

CFG = replace(TrustConfig(), unit="hier", min_units=1)
POSTERIOR = jax.jit(task_posterior)


def solve(
    d: np.ndarray, vs: np.ndarray, v0: np.ndarray, task: np.ndarray, prior: tuple[float, ...]
) -> TaskPosterior:
    """`task_posterior` with one prior (mu, tau2, var_mu, om2) for all."""
    each = Prior(*(jnp.full(len(d), x, dtype=float) for x in prior))
    return POSTERIOR(*map(jnp.asarray, (d, vs, v0, np.ones(len(d), bool), task)), each)


@pytest.mark.parametrize(("x64", "tolerance"), [(True, 1e-6), (False, 1e-5)])
def test_golden_skills_of_a_task(x64: bool, tolerance: float) -> None:
    d, vs = np.array([0.5, 0.25, 0, -0.25]), np.array([0.05, 0.06, 0.06, 0.05])
    with jax.enable_x64(x64):
        found = solve(d, vs, np.full(4, 0.03), np.zeros(4, int), (0.05, 0.02, 0.0, 0.01))
    expected = [0.13822674, 0.09314784, 0.05743355, 0.01322674]
    np.testing.assert_allclose(found.mean, expected, atol=tolerance, rtol=0)
    np.testing.assert_allclose(found.task_mean, [0.07267442] * 4, atol=tolerance, rtol=0)


gains = st.lists(st.floats(-1, 1), min_size=6, max_size=6)
noise = st.lists(st.floats(1e-3, 0.3), min_size=6, max_size=6)
spread = st.floats(1e-4, 0.2)


@given(
    gains, noise, st.tuples(st.floats(1e-3, 0.3), st.floats(1e-3, 0.3)), st.floats(-0.5, 0.5), spread, spread
)
def test_the_closed_form_is_dense_conditioning(
    d: list[float], vs: list[float], v0: tuple[float, float], mu: float, tau2: float, om2: float
) -> None:
    """Two tasks of four and two skills, whose units stand mixed."""
    task = np.array([0, 1, 0, 0, 1, 0])
    with jax.enable_x64(True):
        found = solve(np.array(d), np.array(vs), np.array(v0)[task], task, (mu, tau2, 0.01, om2))
        for t in (0, 1):
            i = task == t
            mean, variance, of_task = plain.dense_task(np.array(d)[i], np.array(vs)[i], v0[t], mu, tau2, om2)
            np.testing.assert_allclose(found.mean[i], mean, atol=1e-12)
            np.testing.assert_allclose(found.task_mean[i], of_task, atol=1e-12)
            np.testing.assert_allclose(
                found.variance[i], variance + found.shrinkage[i] ** 2 * 0.01, atol=1e-12
            )
            # B is what the mean moves with mu
            higher, _, _ = plain.dense_task(np.array(d)[i], np.array(vs)[i], v0[t], mu + 1, tau2, om2)
            np.testing.assert_allclose(found.shrinkage[i], higher - mean, atol=1e-10)
        assert ((found.shrinkage > 0) & (found.shrinkage < 1) & (found.variance > 0)).all()


def test_without_spread_of_skills_all_share_the_posterior_of_their_task() -> None:
    d, vs = np.array([0.5, 0.25, 0, -0.25]), np.array([0.05, 0.06, 0.06, 0.05])
    with jax.enable_x64(True):
        found = solve(d, vs, np.full(4, 0.03), np.zeros(4, int), (0.05, 0.02, 0.0, 1e-12))
    np.testing.assert_allclose(found.mean, found.task_mean, atol=1e-9)


def test_without_anything_shared_each_skill_stands_alone() -> None:
    d, vs = np.array([0.5, 0.25, 0, -0.25]), np.array([0.05, 0.06, 0.06, 0.05])
    with jax.enable_x64(True):
        found = solve(d, vs, np.zeros(4), np.zeros(4, int), (0.05, 0.0, 0.002, 0.01))
        B, m, V, _ = posterior(d, vs, 0.05, 0.01, 0.002)
    np.testing.assert_allclose(found.mean, m, atol=1e-12)
    np.testing.assert_allclose(found.variance, V)
    np.testing.assert_allclose(found.shrinkage, B)


def test_a_task_of_one_skill_is_a_unit_with_both_spreads() -> None:
    with jax.enable_x64(True):
        found = solve(
            np.array([0.4]), np.array([0.05]), np.array([0.03]), np.zeros(1, int), (0.1, 0.02, 0.0, 0.01)
        )
        B, m, V, _ = posterior(jnp.array(0.4), jnp.array(0.08), 0.1, 0.03, 0.0)
    np.testing.assert_allclose([found.shrinkage[0], found.mean[0], found.variance[0]], [B, m, V])


skill_counts = st.tuples(st.integers(2, 6), st.integers(0, 6)).map(lambda x: (min(x[1], x[0]), x[0]))
task_of_skills = st.tuples(st.lists(skill_counts, min_size=1, max_size=4), st.integers(0, 8))


@given(st.lists(st.lists(task_of_skills, min_size=4, max_size=4), min_size=2, max_size=2))
def test_moments_of_ragged_tasks_over_decayed_steps(drawn: list[list[tuple]]) -> None:
    drawn[0][0] = ([(1, 2), (2, 2)], 3)  # at least one task with two skills, so that there is a spread within
    steps = [[[(*c, s0, 8) for c in skills] for skills, s0 in tasks] for tasks in drawn]
    with jax.enable_x64(True):
        state = PriorState.zero()
        for tasks in steps:
            rows = [(t, *c) for t, skills in enumerate(tasks) for c in skills]
            padded = np.array(rows + [(0, 0, 0, 0, 0)] * (16 - len(rows)), float).T
            state = _update(state, *padded)
        prior = fit(state, CFG)
    expected = plain.hier_moments(steps, 0.9, CFG.tau2_floor)
    np.testing.assert_allclose((prior.mu[0], prior.tau2[0], prior.om2[0]), expected, rtol=1e-9, atol=1e-12)


@jax.jit
def _update(state: PriorState, task: jax.Array, *counts: jax.Array) -> PriorState:
    return update_prior(state, *counts, counts[1] > 0, CFG, None, task.astype(int))


def test_moments_are_unbiased_and_the_hierarchy_beats_the_raw_gain() -> None:
    """Spread 0.01 of tasks and 0.01 of skills, away from 0 and 1 so that no rate is cut off."""
    steps, tasks, skills, k, n0 = 4000, 16, 8, 4, 8
    rng = np.random.default_rng(0)
    p0 = rng.uniform(0.45, 0.55, (steps, tasks, 1))
    true = rng.normal(0.0, 0.1, (steps, tasks, 1)) + rng.normal(0.0, 0.1, (steps, tasks, skills))
    s0 = rng.binomial(n0, p0) + np.zeros((1, 1, skills), int)
    s1 = rng.binomial(k, np.clip(p0 + true, 0, 1))
    cfg, task = replace(CFG, decay=1.0, tau2_floor=1e-9), np.repeat(np.arange(tasks), skills)

    @jax.jit
    def step(state: PriorState, counts: tuple[jax.Array, jax.Array]) -> tuple[PriorState, jax.Array]:
        units = (
            counts[0],
            jnp.full(len(task), k),
            counts[1],
            jnp.full(len(task), n0),
            jnp.ones(len(task), bool),
        )
        state = update_prior(state, *units, cfg, None, task)
        return state, trust(state, *units, cfg, None, task).posterior_mean

    flat = (jnp.asarray(s1.reshape(steps, -1)), jnp.asarray(s0.reshape(steps, -1)))
    state, means = jax.lax.scan(step, PriorState.zero(), flat)
    prior = fit(state, cfg)
    np.testing.assert_allclose([prior.tau2[0], prior.om2[0]], [0.01, 0.01], rtol=0.1)
    error = np.mean((np.asarray(means) - true.reshape(steps, -1)) ** 2)
    raw = np.mean((s1 / k - s0 / n0 - true) ** 2)
    assert error < 0.25 * raw
