"""Empirical-Bayes trust: worked examples, the limits and symmetries of the formulas, and a simulation."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax import Array

from rsipo_jax.config import TrustConfig
from rsipo_jax.skills.prior import PriorState, fit, merge
from rsipo_jax.skills.trust import SIGNED, WEIGHTS, Trust, evidence, posterior, trust, update_prior
from rsipo_jax.validation.choices import SIGNED_FUNCTIONS
from tests.skills import reference_trust as plain

CFG = TrustConfig()
Counts = tuple[float, ...]  # (s1, n1, s0, n0)
Drawn = list[tuple[Counts, bool]]


def state_with(mu: float, tau2: float, var_mu: float) -> PriorState:
    """A state of 100 units whose moments are the given ones."""
    units, freedom, spread = 100.0, 90.0, 100.0 * var_mu
    values = {"N": units, "D1": units * mu, "W": spread * freedom, "F": freedom, "V": units * (spread - tau2)}
    zero = PriorState.zero()
    return zero.replace(**{name: zero.N.at[0].set(value) for name, value in values.items()})


def prior_moments(state: PriorState, cfg: TrustConfig) -> tuple[Array, Array, Array]:
    """(mu, tau2, var_mu) over all units."""
    prior = fit(state, cfg)
    return prior.mu[0], prior.tau2[0], prior.var_mu[0]


def sums_of(state: PriorState) -> list[float]:
    """(N, D1, W, F, V) over all units."""
    return [float(x[0]) for x in (state.N, state.D1, state.W, state.F, state.V)]


def call(state: PriorState, counts: Counts, cfg: TrustConfig = CFG, jit: bool = False) -> Trust:
    function = jax.jit(trust, static_argnames="cfg") if jit else trust
    s1, n1, s0, n0 = (jnp.array([x]) for x in counts)
    return function(state, s1, n1, s0, n0, jnp.array([True]), cfg)


# (s1, n1, s0, n0), (mu, tau2, var_mu) -> d, v, B, m, V, P, pos_mean
GOLDEN = [
    ((1, 1, 4, 8), None, (0.5, 0.218750, 0.916230, 0.041885, 0.018325, 0.621497, 0.041885)),
    ((8, 8, 4, 8), None, (0.5, 0.037809, 0.654031, 0.172985, 0.013081, 0.934796, 0.172985)),
    ((4, 4, 0, 8), (0.05, 0.04, 0.001), (1, 0.029059, 0.420782, 0.600257, 0.017008, 0.999998, 0.600257)),
    ((0, 4, 8, 8), (0.05, 0.04, 0.001), (-1, 0.029059, 0.420782, -0.558179, 0.017008, 0.000009, 0)),
    ((0, 8, 0, 8), (0.05, 0.04, 0.001), (0, 0.013117, 0.246949, 0.012347, 0.009939, 0.549284, 0.012347)),
    ((6, 8, 2, 8), (0.05, 0.04, 0.001), (0.5, 0.050154, 0.556316, 0.249658, 0.022562, 0.951753, 0.249658)),
    (
        (600, 800, 200, 800),
        (0.05, 0.04, 0.001),
        (0.5, 0.000469, 0.011593, 0.494783, 0.000464, 1.0, 0.494783),
    ),
    ((2, 4, 4, 8), (0.1, 0.0, 0.001), (0, 0.093750, 1.0, 0.1, 0.001, 0.999217, 0.1)),
]


@pytest.mark.parametrize(("counts", "prior", "expected"), GOLDEN)
@pytest.mark.parametrize(("x64", "tolerance"), [(True, 1e-6), (False, 1e-5)])
def test_golden_units(
    counts: Counts, prior: Counts | None, expected: Counts, x64: bool, tolerance: float
) -> None:
    with jax.enable_x64(x64):
        state = PriorState.zero() if prior is None else state_with(*prior)  # the start is (0, 0.02, 0)
        report = call(state, counts, replace(CFG, tau2_floor=0.0), jit=not x64)
        fields = ("gain", "variance", "shrinkage", "posterior_mean", "posterior_variance", "prob", "weight")
        found = [float(getattr(report, name)[0]) for name in fields]
    np.testing.assert_allclose(found, expected, atol=tolerance, rtol=0)


@pytest.mark.parametrize(("x64", "tolerance"), [(True, 1e-9), (False, 1e-5)])
def test_golden_prior_over_two_steps(x64: bool, tolerance: float) -> None:
    cfg = replace(CFG, min_units=1)
    with jax.enable_x64(x64):
        gain = jnp.array([0.5, 0.25, 0, -0.125, 0.375, 0.125])
        unbiased = jnp.array([0.02, 0.03, 0.05, 0.04, 0.02, 0.06])
        present = jnp.ones(6, bool)
        one = merge(PriorState.zero(), gain, unbiased, unbiased, present, 0.9)
        two = jax.jit(merge)(one, gain - 0.1, unbiased, unbiased, present, 0.9)
        found = [sums_of(s) + [float(x) for x in prior_moments(s, cfg)] for s in (one, two)]
    expected: list[list[float]] = [
        [6, 1.125, 0.2734375, 5, 0.22, 0.1875, 0.0180208333, 0.0091145833],
        [11.4, 1.5375, 0.51953125, 9.5, 0.418, 0.1348684211, 0.0180208333, 0.0047971491],
    ]
    np.testing.assert_allclose(found, expected, atol=tolerance, rtol=0)


def test_counts_to_evidence_against_plain_arithmetic() -> None:
    with jax.enable_x64(True):
        s1, n1, s0, n0 = np.array([[3, 4, 2, 8], [1, 1, 2, 8], [2, 2, 1, 1]]).T
        seen = evidence(s1, n1, s0, n0, n1 > 0, 0.5)

    def smooth(s: int, n: int) -> float:
        return (s + 0.5) / (n + 1) * (1 - (s + 0.5) / (n + 1)) / n

    np.testing.assert_allclose(seen.gain, [0.75 - 0.25, 1 - 0.25, 1 - 1])
    np.testing.assert_allclose(
        seen.v1 + seen.v0,
        [smooth(3, 4) + smooth(2, 8), smooth(1, 1) + smooth(2, 8), smooth(2, 2) + smooth(1, 1)],
    )
    # a single trial has no unbiased variance: the smoothed one stands in
    np.testing.assert_allclose(seen.u1, [0.75 * 0.25 / 3, smooth(1, 1), 0.0])
    np.testing.assert_allclose(seen.u0, [0.25 * 0.75 / 7, 0.25 * 0.75 / 7, smooth(1, 1)])


counts_of_a_unit = st.tuples(st.integers(0, 12), st.integers(0, 12)).flatmap(
    lambda n: st.tuples(st.integers(0, n[0]), st.just(n[0]), st.integers(0, n[1]), st.just(n[1]))
)
units = st.lists(st.tuples(counts_of_a_unit, st.booleans()), min_size=16, max_size=16)
FUNCTIONS = tuple(WEIGHTS)


@jax.jit
def every_function(
    s1: Array, n1: Array, s0: Array, n0: Array, valid: Array
) -> tuple[PriorState, list[Trust]]:
    state = update_prior(PriorState.zero(), s1, n1, s0, n0, valid, CFG)
    return state, [trust(state, s1, n1, s0, n0, valid, replace(CFG, function=f)) for f in FUNCTIONS]


@given(units)
def test_any_counts_against_a_plain_reference(drawn: Drawn) -> None:
    counts, valid = np.array([c for c, _ in drawn]), np.array([v for _, v in drawn])
    state, reports = jax.tree.map(np.asarray, every_function(*counts.T, valid))
    present = valid & (counts[:, 1] > 0) & (counts[:, 3] > 0)
    seen = [tuple(c) for c in counts[present].tolist()]
    prior = plain.moments([seen], 0.9, CFG.tau2_floor, CFG.min_units, CFG.tau2_start)
    expected = [plain.posterior(c, *prior) for c in seen]
    np.testing.assert_allclose(state.N[0], len(seen))
    for name, report in zip(FUNCTIONS, reports, strict=True):
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(report)), name
        assert ((report.weight >= 0) & (report.weight <= 1)).all(), name
        assert (report.weight[~present] == 0).all(), name
        wanted = [plain.weights(x, CFG.kappa)[name] for x in expected]
        if name != "reliability":  # which jumps at m = 0
            np.testing.assert_allclose(report.weight[present], wanted, atol=2e-4, err_msg=name)
    report = reports[0]
    for field, letter in (("gain", "d"), ("posterior_mean", "m"), ("posterior_variance", "V"), ("prob", "P")):
        np.testing.assert_allclose(
            getattr(report, field)[present], [x[letter] for x in expected], atol=2e-4, err_msg=field
        )
    assert ((report.shrinkage > 0) & (report.shrinkage < 1))[present].all()
    assert (report.posterior_variance[present] > 0).all()
    low, high = np.minimum(report.mu, report.gain), np.maximum(report.mu, report.gain)
    assert ((report.posterior_mean >= low - 1e-6) & (report.posterior_mean <= high + 1e-6))[present].all()


@given(units, st.permutations(range(16)))
def test_the_order_of_the_units_does_not_matter(drawn: Drawn, order: list[int]) -> None:
    counts, valid = np.array([c for c, _ in drawn]).T, np.array([v for _, v in drawn])
    state, reports = jax.tree.map(np.asarray, every_function(*counts, valid))
    shuffled, permuted = jax.tree.map(np.asarray, every_function(*counts[:, order], valid[order]))
    np.testing.assert_allclose(jax.tree.leaves(shuffled), jax.tree.leaves(state), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(permuted[0].weight, reports[0].weight[order], atol=1e-5)


def test_a_step_without_units_only_decays_the_state() -> None:
    before = state_with(0.1, 0.02, 0.001)
    nothing = np.array([0])
    after = update_prior(before, nothing, nothing, nothing + 1, nothing + 8, nothing == 0, CFG)
    np.testing.assert_allclose(jax.tree.leaves(after), 0.9 * np.array(jax.tree.leaves(before)), rtol=1e-6)


def test_the_trust_functions_against_their_formulas() -> None:
    state = state_with(0.05, 0.04, 0.001)
    with jax.enable_x64(True):
        for counts in [(6, 8, 2, 8), (0, 4, 8, 8), (8, 8, 0, 8)]:
            x = plain.posterior(counts, 0.05, 0.04, 0.001)
            for signed, expected in ((False, plain.weights(x, 0.25)), (True, plain.signed_weights(x, 0.25))):
                for name, value in expected.items():
                    cfg = replace(CFG, function=name, kappa=0.25, signed=signed)
                    np.testing.assert_allclose(
                        float(call(state, counts, cfg).weight[0]), value, atol=1e-6, err_msg=name
                    )
                assert set(expected) == set(SIGNED if signed else WEIGHTS)
    assert set(SIGNED_FUNCTIONS) == set(SIGNED)


def test_a_misleading_skill_repels_only_if_signed() -> None:
    cfg, state = replace(CFG, signed=True), state_with(0.05, 0.04, 0.001)
    assert call(state, (0, 4, 8, 8), cfg).weight[0] == pytest.approx(-0.558179, abs=1e-5)
    assert call(state, (0, 4, 8, 8)).weight[0] == 0


def test_an_unknown_trust_function_is_named_with_the_choices() -> None:
    with pytest.raises(ValueError, match=r"trust\.function is 'mean' .* use one of pos_mean, prob"):
        call(PriorState.zero(), (1, 1, 1, 1), replace(CFG, function="mean"))
    with pytest.raises(ValueError, match=r"'one' with trust\.signed=True; use one of pos_mean, prob_excess"):
        call(PriorState.zero(), (1, 1, 1, 1), replace(CFG, function="one", signed=True))


@pytest.mark.parametrize(
    ("v", "tau2", "limit", "shrinkage"),
    [(1e-9, 0.02, 0.4, 0.0), (0.05, 1e-9, 0.1, 1.0), (0.05, 1e9, 0.4, 0.0)],  # v -> 0, tau2 -> 0, tau2 -> inf
)
def test_limits_of_the_posterior(v: float, tau2: float, limit: float, shrinkage: float) -> None:
    with jax.enable_x64(True):
        B, m, *_ = posterior(
            jnp.array([0.4]), jnp.array([v]), jnp.array(0.1), jnp.array(tau2), jnp.array(0.0)
        )
    np.testing.assert_allclose([float(B[0]), float(m[0])], [shrinkage, limit], atol=1e-6)


def test_without_prior_spread_all_units_weigh_the_same() -> None:
    s1, n = np.array([0, 4, 8]), np.full(3, 8)
    report = trust(state_with(0.2, 1e-9, 0.001), s1, n, n // 2, n, n > 0, replace(CFG, tau2_floor=1e-9))
    np.testing.assert_allclose(report.weight, 0.2, atol=1e-5)


def test_trust_grows_with_the_gain_at_fixed_noise_and_shrinkage_falls_with_evidence() -> None:
    with jax.enable_x64(True):
        d = jnp.linspace(-1, 1, 41)
        _, m, V, P = posterior(d, jnp.full(41, 0.05), jnp.array(0.1), jnp.array(0.02), jnp.array(0.001))
        for name in ("pos_mean", "prob", "prob_excess", "reliability"):
            weights = WEIGHTS[name](d, jnp.full(41, 0.05 / 0.07), m, P, 1.0)
            assert (jnp.diff(weights) >= 0).all(), name
        assert (jnp.diff(V) == 0).all()
        n = 8 * 2 ** jnp.arange(6)
        state = state_with(0.05, 0.04, 0.001)
        more = trust(state, n * 3 // 4, n, n // 4, n, jnp.ones(6, bool), CFG)
        assert (jnp.diff(jnp.abs(more.posterior_mean - more.mu)) > 0).all()


def test_one_replay_is_mostly_shrunk_and_the_baseline_keeps_its_own_noise() -> None:
    assert call(PriorState.zero(), (1, 1, 4, 8)).shrinkage[0] >= 0.9
    many = call(PriorState.zero(), (750_000, 1_000_000, 4, 8)).shrinkage[0]
    v0 = 0.25 / 8
    np.testing.assert_allclose(many, v0 / (v0 + 0.02), atol=1e-4)


@given(st.floats(-0.5, 0.5), st.floats(0.5, 2.0))
def test_shift_and_scale_of_the_gains(shift: float, scale: float) -> None:
    cfg = replace(CFG, min_units=1, tau2_floor=0.0)
    with jax.enable_x64(True):
        d = jnp.array([0.5, 0.25, 0, -0.125, 0.375, 0.125])
        v = jnp.array([0.02, 0.03, 0.05, 0.04, 0.02, 0.06])
        fit = lambda d, v: prior_moments(merge(PriorState.zero(), d, v, v, jnp.ones(6, bool), 0.9), cfg)  # noqa: E731
        mu, tau2, var_mu = fit(d, v)
        B, m, *_ = posterior(d, v, mu, tau2, var_mu)
        np.testing.assert_allclose(fit(d + shift, v), (mu + shift, tau2, var_mu), atol=1e-12)
        np.testing.assert_allclose(
            fit(scale * d, scale**2 * v), (scale * mu, scale**2 * tau2, scale**2 * var_mu)
        )
        B2, m2, *_ = posterior(scale * d, scale**2 * v, *fit(scale * d, scale**2 * v))
        np.testing.assert_allclose(B2, B)
        np.testing.assert_allclose(m2, scale * m, atol=1e-12)


def test_decay_one_pools_all_history_and_decay_zero_forgets() -> None:
    with jax.enable_x64(True):
        d = np.array([[0.5, 0.25, 0.0, -0.15], [0.4, -0.1, 0.2, 0.1]])  # both steps have mean 0.15
        v, present = np.full((2, 4), 0.03), np.ones((2, 4), bool)
        pooled = merge(
            merge(PriorState.zero(), d[0], v[0], v[0], present[0], 1.0), d[1], v[1], v[1], present[1], 1.0
        )
        expected = [8, d.sum(), ((d - d.mean()) ** 2).sum(), 6, v.sum()]
        np.testing.assert_allclose(sums_of(pooled), expected)
        forgetful = merge(pooled, d[1], v[1], v[1], present[1], 0.0)
        fresh = merge(PriorState.zero(), d[1], v[1], v[1], present[1], 0.0)
        jax.tree.map(np.testing.assert_array_equal, forgetful, fresh)


@pytest.mark.parametrize(
    ("units_seen", "min_units", "prior"),
    [
        (15, 16, (0, 0.02, 0)),
        (16, 16, (1, 1e-4, 0)),  # all gains are 1: no spread, and tau2 stops at its floor
        (1, 1, (0, 0.02, 0)),  # one unit says nothing about spread
    ],
)
def test_too_few_units_keep_the_starting_prior(
    units_seen: int, min_units: int, prior: tuple[float, ...]
) -> None:
    cfg, n = replace(CFG, min_units=min_units), np.full(units_seen, 8)
    state = update_prior(PriorState.zero(), n, n, 0 * n, n, n > 0, cfg)
    np.testing.assert_allclose(prior_moments(state, cfg), prior)
