"""The prior's estimators, its classes, and its state across devices."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rsipo_jax.config import TrustConfig
from rsipo_jax.skills.prior import PriorState, fit, merge, prior_of_units
from rsipo_jax.skills.trust import trust, update_prior
from rsipo_jax.training.checkpoint import Checkpoints
from rsipo_jax.training.state import TrainState
from tests.launch.launching import python
from tests.skills import reference_trust as plain

CFG = replace(TrustConfig(), min_units=1)
DL = replace(CFG, estimator="dersimonian_laird", tau2_floor=1e-9)
GAIN = np.array([0.5, 0.25, 0, -0.125, 0.375, 0.125])
VARIANCE = np.array([0.02, 0.03, 0.05, 0.04, 0.02, 0.06])

trials = st.tuples(st.integers(1, 12), st.integers(1, 12)).flatmap(
    lambda n: st.tuples(st.integers(0, n[0]), st.just(n[0]), st.integers(0, n[1]), st.just(n[1]))
)
two_steps = st.lists(st.lists(trials, min_size=8, max_size=8), min_size=2, max_size=2)


@pytest.mark.parametrize(("x64", "tolerance"), [(True, 1e-6), (False, 1e-5)])
def test_golden_dersimonian_and_laird(x64: bool, tolerance: float) -> None:
    with jax.enable_x64(x64):
        state = jax.jit(merge)(PriorState.zero(), GAIN, VARIANCE, VARIANCE, np.ones(6, bool), 0.9)
        prior = fit(state, DL)
        found = [float(prior.mu[0]), float(prior.tau2[0])]
    np.testing.assert_allclose(found, [0.2617521368, 0.0248778626], atol=tolerance, rtol=0)
    # by hand in fractions: (Q - 5) / (A - A2/A) = 8773/352640
    np.testing.assert_allclose(found[1], 8773 / 352640, atol=1e-12 if x64 else 1e-6, rtol=0)


def test_equal_noise_makes_both_estimators_one() -> None:
    with jax.enable_x64(True):
        equal = np.full(6, 0.03)
        state = merge(PriorState.zero(), GAIN, equal, equal, np.ones(6, bool), 0.9)
        one, other = fit(state, CFG), fit(state, DL)
    np.testing.assert_allclose(one.mu[0], other.mu[0])
    np.testing.assert_allclose(one.tau2[0], other.tau2[0])


@given(two_steps)
def test_both_estimators_over_decayed_steps(steps: list[list[plain.Counts]]) -> None:
    with jax.enable_x64(True):
        state = PriorState.zero()
        for units in steps:
            counts = np.array(units, float).T
            state = _update(state, *counts, CFG)
        found = [(p.mu[0], p.tau2[0], p.var_mu[0]) for p in (fit(state, CFG), fit(state, DL))]
    moments = plain.moments(steps, 0.9, CFG.tau2_floor, CFG.min_units, CFG.tau2_start)
    np.testing.assert_allclose(found[0], moments, rtol=1e-8, atol=1e-12)
    np.testing.assert_allclose(
        found[1], plain.dersimonian_laird(steps, 0.9, DL.tau2_floor), rtol=1e-7, atol=1e-11
    )


@jax.jit
def _step(state: PriorState, s1: jax.Array, n1: jax.Array, s0: jax.Array, n0: jax.Array) -> PriorState:
    return update_prior(state, s1, n1, s0, n0, n1 > 0, CFG)


def _update(state: PriorState, *arguments: object) -> PriorState:
    return _step(state, *arguments[:4])


@given(st.lists(trials, min_size=12, max_size=12), st.lists(st.integers(-1, 2), min_size=12, max_size=12))
def test_each_class_has_the_moments_of_its_units(units: list[plain.Counts], labels: list[int]) -> None:
    """A class of at least five units has its own prior, others that of all."""
    cfg = replace(CFG, min_units=5)
    with jax.enable_x64(True):
        counts, classes = np.array(units, float).T, np.array(labels)
        state = jax.jit(update_prior, static_argnames="cfg")(
            PriorState.zero(), *counts, counts[1] > 0, cfg=cfg, classes=classes
        )
        prior = prior_of_units(state, cfg, classes)
    for i, label in enumerate(labels):
        members = [u for u, c in zip(units, labels, strict=True) if c == label]
        own = members if label >= 0 and len(members) >= 5 else units
        expected = plain.moments([own], 0.9, cfg.tau2_floor, 5, cfg.tau2_start)
        found = prior.mu[i], prior.tau2[i], prior.var_mu[i]
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)


def test_classes_differ_in_what_they_trust() -> None:
    """The same counts are trusted where their class gains, not where it loses."""
    n = np.full(8, 8)
    s1, s0 = np.array([7, 6, 7, 6, 1, 2, 1, 2]), np.full(8, 4)
    classes, cfg = np.repeat([0, 1], 4), replace(CFG, min_units=4)
    state = update_prior(PriorState.zero(), s1, n, s0, n, n > 0, cfg, classes)
    report = trust(state, s0, n, s0, n, n > 0, cfg, classes)
    assert (report.weight[:4] > 0.1).all() and (report.weight[4:] == 0).all()


def test_two_devices_with_half_the_units_each_reach_the_same_state() -> None:
    done = python("-m", "tests.skills.trust_on_devices", timeout=300)
    assert done.returncode == 0, done.stderr[-4000:]


def test_the_state_goes_through_a_checkpoint(tmp_path: Path) -> None:
    n = np.full(4, 8)
    state = update_prior(PriorState.zero(), n // 2, n, n // 4, n, n > 0, CFG, np.array([0, 1, 2, -1]))
    params = TrainState({"a": jnp.ones(2)}, (), jnp.zeros((), jnp.int32))
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, params, state, 1.0)
    checkpoints.wait()
    _, read, _ = checkpoints.restore(1, params, PriorState.zero())
    checkpoints.close()
    jax.tree.map(np.testing.assert_array_equal, read, state)
    assert float(read.N[0]) == 4 and float(read.N[2]) == 1
