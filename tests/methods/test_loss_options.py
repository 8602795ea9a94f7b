"""Every option of the loss: worked examples, the formulas token by token, finite differences, exact limits."""

from __future__ import annotations

import itertools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax import Array

from rsipo_jax.config import LossConfig
from rsipo_jax.methods.losses import AVERAGES, HYBRIDS, KL, loss_sums, policy_loss, pull, taught
from rsipo_jax.validation.choices import CHOICES
from tests.methods import reference
from tests.methods.test_losses import MASK, NEW, OLD, TEACHER, TRUST, arrays, trajectory_advantages

OPTIONS = [
    LossConfig(),
    LossConfig(clip_high=0.28),
    LossConfig(kl_kind="k1", kl=0.1),
    LossConfig(kl_kind="k2", kl=0.1),
    LossConfig(average="sequence"),
    LossConfig(clip=0.05, dual_clip=1.2),
    LossConfig(distill_clip=0.1),
    LossConfig(hybrid="gated_loss"),
    LossConfig(hybrid="gated_loss", distill_clip=0.1),
    LossConfig(hybrid="gated_loss", gate_slope=0.0),
    LossConfig(hybrid="modulate"),
    LossConfig(teacher="current"),
    LossConfig(hybrid="modulate", teacher="current", average="sequence", clip_high=0.3, kl_kind="k2"),
]


def total(
    new: Array,
    old: Array,
    ref: Array,
    teacher: Array,
    adv: Array,
    weight: Array,
    mask: Array,
    cfg: LossConfig,
) -> Array:
    """The mean loss over rows of one segment each; `weight` is lambda w."""
    advantages, extra = taught(adv, weight, teacher, old, new, mask, cfg)
    weights = AVERAGES[cfg.average](mask, jnp.ones(mask.shape, jnp.int32))
    sums = loss_sums(new, old, ref, advantages, mask, weights, cfg)
    count = mask.any(axis=1).sum() if cfg.average == "sequence" else mask.sum()
    return (sums.loss + (weights * extra).sum()) / count


def by_hand(
    new: np.ndarray, frozen: np.ndarray, old: np.ndarray, ref: np.ndarray, teacher: np.ndarray,
    adv: np.ndarray, weight: np.ndarray, mask: np.ndarray, cfg: LossConfig,
) -> float:  # fmt: skip
    values = np.zeros(mask.shape)
    for i in zip(*np.nonzero(mask), strict=True):
        values[i] = reference.token(
            new[i], frozen[i], old[i], ref[i], teacher[i], adv[i], weight[i], 1.0, cfg
        )
    return reference.mean(values, mask, cfg.average)


def drawn(seed: int) -> tuple[np.ndarray, ...]:
    """new, old, ref, teacher, advantages, weights and mask, [5, 4]; no row without a token."""
    rng = np.random.default_rng(seed)
    old = rng.normal(-1.5, 0.5, (5, 4))
    new, ref, teacher = (old + rng.normal(0, 0.4, old.shape) for _ in range(3))
    weight = 0.3 * rng.uniform(-1, 1, (5, 1)) * np.array([[1], [1], [0], [1], [1]]) * np.ones((1, 4))
    adv, mask = rng.normal(size=(5, 1)) * np.ones((1, 4)), rng.random((5, 4)) < 0.7
    mask[:, 0] = True
    return new, old, ref, teacher, adv, weight, mask


@pytest.mark.parametrize("cfg", OPTIONS, ids=str)
def test_every_option_is_its_formula_and_its_gradient_is_the_finite_difference(cfg: LossConfig) -> None:
    new, *rest, mask = drawn(4)
    old, ref, teacher, adv, weight = rest
    found: list[tuple[float, np.ndarray]] = []
    for x64 in (True, False):
        with jax.enable_x64(x64):
            loss = jax.jit(jax.value_and_grad(lambda x: total(x, *arrays(*rest), jnp.asarray(mask), cfg)))
            value, gradient = loss(jnp.asarray(new, dtype=float))
            found.append((float(value), np.asarray(gradient, np.float64)))
    value, gradient = found[0]
    assert value == pytest.approx(by_hand(new, new, old, ref, teacher, adv, weight, mask, cfg), abs=1e-10)
    assert found[1][0] == pytest.approx(value, abs=1e-5)
    np.testing.assert_allclose(found[1][1], gradient, atol=1e-5)
    h = 1e-6
    for i in itertools.product(range(5), range(4)):
        step = np.zeros_like(new)
        step[i] = h
        up, down = (by_hand(new + s * step, new, old, ref, teacher, adv, weight, mask, cfg) for s in (1, -1))
        assert gradient[i] == pytest.approx((up - down) / (2 * h), abs=1e-7), i
    assert (gradient[~mask] == 0).all()


def test_the_options_are_those_that_validation_knows() -> None:
    assert set(CHOICES["loss.hybrid"]) == set(HYBRIDS)
    assert set(CHOICES["loss.kl_kind"]) == set(KL)
    assert set(CHOICES["loss.average"]) == set(AVERAGES)


@pytest.mark.parametrize(("x64", "tolerance"), [(True, 1e-6), (False, 1e-5)])
def test_golden_gated_loss(x64: bool, tolerance: float) -> None:
    cfg = LossConfig(hybrid="gated_loss")
    with jax.enable_x64(x64):
        for weight, expected in ((np.ones((4, 1)), 0.15658715696501105), (TRUST, 0.053714300932161764)):
            teacher, old, new, w = arrays(TEACHER, OLD, NEW, weight)

            def mean(n: Array, w: Array = w, teacher: Array = teacher, old: Array = old) -> Array:
                return taught(trajectory_advantages(), w, teacher, old, n, MASK, cfg)[1].sum() / MASK.sum()

            value, gradient = jax.jit(jax.value_and_grad(mean))(new)
            assert float(value) == pytest.approx(expected, abs=tolerance)
            if (weight == 1).all():  # of the log-probs alone, so that what is left is the mean of the gates
                assert float(-gradient.sum()) == pytest.approx(0.5208336555140506, abs=tolerance)


@pytest.mark.parametrize(("x64", "tolerance"), [(True, 1e-6), (False, 1e-5)])
def test_golden_modulation(x64: bool, tolerance: float) -> None:
    cfg = LossConfig(hybrid="modulate")
    with jax.enable_x64(x64):
        teacher, old, new, half = arrays(TEACHER, OLD, NEW, np.full((4, 1), 0.5))
        run = jax.jit(lambda t, o, n, w: taught(trajectory_advantages(), w, t, o, n, MASK, cfg))
        found, extra = run(teacher, old, new, half)
        # GRSD compares turns: the mean log-ratio of the row at each of its tokens.
        gap = (TEACHER - OLD).mean(axis=1, where=MASK, keepdims=True)
        by_turn, _ = run(old + gap, old, new, half)
    turns = np.array([[0.77781636], [-0.70710578], [0.77781636], [-0.77781636]])
    np.testing.assert_allclose(by_turn, np.where(MASK, turns, 0), atol=tolerance)
    expected = [
        [0.77781636, 0.6363952, 0.77781636],
        [-0.77781636, -0.64301751, 0],
        [0.70710578, 0.77781636, 0.70710578],
        [-0.77781636, -0.77781636, 0],
    ]
    np.testing.assert_allclose(found, expected, atol=tolerance)
    assert not np.any(extra)


@pytest.mark.parametrize("hybrid", HYBRIDS)
@pytest.mark.parametrize("teacher", ["behaviour", "current"])
@pytest.mark.parametrize("poison", [np.inf, -np.inf, np.nan])
def test_without_trust_every_form_is_grpo_bit_for_bit(hybrid: str, teacher: str, poison: float) -> None:
    new, old, ref, _, adv, weight, mask = drawn(1)
    cfg = LossConfig(hybrid=hybrid, teacher=teacher)
    bad = np.full_like(old, poison)

    def run(teacher_logp: np.ndarray, weight: np.ndarray, cfg: LossConfig) -> tuple[Array, Array]:
        rest = arrays(old, ref, teacher_logp, adv, weight)
        return jax.value_and_grad(lambda x: total(x, *rest, jnp.asarray(mask), cfg))(arrays(new)[0])

    plain, silent = run(old, 0 * weight, LossConfig()), run(bad, 0 * weight, cfg)
    for a, b in zip(plain, silent, strict=True):
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()
    spoiled = np.where(mask & (weight != 0), old + 0.1, poison)
    assert all(np.isfinite(a).all() for a in run(spoiled, weight, cfg))


@pytest.mark.parametrize(
    ("advantage", "ratio", "value", "slope"),
    [
        (2.0, 1.25, -2.5, -2.5),  # beyond 1 + clip, within 1 + clip_high
        (2.0, 1.5, -2.56, 0.0),
        (-2.0, 0.75, 1.6, 0.0),  # the lower end stays at 1 - clip
    ],
)
def test_an_upper_end_of_its_own(advantage: float, ratio: float, value: float, slope: float) -> None:
    cfg = LossConfig(clip=0.2, clip_high=0.28)
    found = jax.value_and_grad(lambda x: policy_loss(x, jnp.array(-1.0), jnp.array(advantage), cfg))(
        -1.0 + jnp.log(ratio)
    )
    np.testing.assert_allclose(found, (value, slope), atol=1e-5)


def test_a_gate_without_slope_is_half_of_imitation() -> None:
    new, old, _, teacher, adv, weight, mask = drawn(2)
    cfg = LossConfig(hybrid="gated_loss", gate_slope=0.0)

    def extra(x: Array) -> Array:
        return taught(*arrays(adv, weight, teacher, old), x, jnp.asarray(mask), cfg)[1].sum()

    np.testing.assert_allclose(jax.grad(extra)(arrays(new)[0]), np.where(mask, -weight / 2, 0), atol=1e-6)


def test_only_the_modulation_is_dead_where_there_is_no_advantage() -> None:
    new, old, _, teacher, adv, weight, mask = drawn(3)
    for hybrid in HYBRIDS:
        cfg = LossConfig(hybrid=hybrid)
        changed, extra = taught(*arrays(0 * adv, weight, teacher, old, new), jnp.asarray(mask), cfg)
        trains = bool(np.any(changed) or np.any(extra))
        assert trains == (hybrid != "modulate")


@pytest.mark.parametrize(
    ("weight", "gap", "factor"),
    [
        (1.0, 0.1, np.exp(0.1)),  # the teacher agrees with the advantage
        (1.0, 9.0, 1.2),  # by no more than 0.2
        (1.0, -9.0, 0.8),
        (-2.0, 9.0, 0.6),  # where the teacher repels
        (6.0, -9.0, 0.1),  # a tenth of the advantage is left
    ],
)
@pytest.mark.parametrize("adv", [2.0, -2.0])
def test_the_modulation_is_bounded_and_leaves_a_tenth(
    adv: float, weight: float, gap: float, factor: float
) -> None:
    cfg = LossConfig(hybrid="modulate")
    given_ = arrays([[adv]], [[weight]], [[np.sign(adv) * gap - 1]], [[-1.0]], [[-1.0]])
    found, _ = taught(*given_, jnp.ones((1, 1), bool), cfg)
    assert float(found[0, 0]) == pytest.approx(adv * factor, rel=1e-5)


@given(st.integers(0, 500), st.floats(-10, 10), st.sampled_from(["behaviour", "current"]))
def test_the_modulation_keeps_the_sign_of_every_advantage(seed: int, weight: float, teacher: str) -> None:
    new, old, _, wild, adv, _, mask = drawn(seed)
    cfg = LossConfig(hybrid="modulate", teacher=teacher)
    given_ = arrays(adv, np.full_like(adv, weight), 30 * wild, old, new)
    changed, _ = taught(*given_, jnp.asarray(mask), cfg)
    np.testing.assert_array_equal(np.sign(changed), np.where(mask, np.sign(adv), 0))


@pytest.mark.parametrize("hybrid", HYBRIDS)
def test_no_gradient_reaches_teacher_trust_or_advantage(hybrid: str) -> None:
    new, old, ref, teacher, adv, weight, mask = drawn(5)
    cfg = LossConfig(hybrid=hybrid)

    def loss(old: Array, ref: Array, teacher: Array, adv: Array, weight: Array) -> Array:
        return total(arrays(new)[0], old, ref, teacher, adv, weight, jnp.asarray(mask), cfg)

    gradients = jax.grad(loss, argnums=range(5))(*arrays(old, ref, teacher, adv, weight))
    assert all((g == 0).all() for g in gradients)


def test_the_current_teacher_is_compared_with_the_current_student() -> None:
    new, old, _, teacher, adv, weight, mask = drawn(6)
    here, now = (replace(LossConfig(), teacher=name) for name in ("behaviour", "current"))
    found, _ = taught(*arrays(adv, weight, teacher, old, new), jnp.asarray(mask), now)
    expected, _ = taught(*arrays(adv, weight, teacher, new, new), jnp.asarray(mask), here)
    np.testing.assert_array_equal(found, expected)
    other, _ = taught(*arrays(adv, weight, teacher, old, new), jnp.asarray(mask), here)
    assert np.abs(np.asarray(found - other)).max() > 1e-2


@pytest.mark.parametrize("hybrid", HYBRIDS)
def test_the_pull_is_what_the_teacher_adds_to_the_gradient(hybrid: str) -> None:
    """At the policy that acted: the gradient by each log-probability with the teacher, less that without."""
    cfg = LossConfig(hybrid=hybrid, distill_clip=0.5, kl=0.0)
    gradient = jax.jit(jax.grad(total), static_argnums=7)
    for seed, scale in itertools.product(range(5), (0.1, 1.0, 30.0)):
        _, old, ref, other, adv, weight, mask = drawn(seed)
        taught_by = old + scale * (other - old)
        with jax.enable_x64(True):
            rest = arrays(old, old, ref, taught_by, adv)
            with_, without = (
                gradient(*rest, *arrays(w), jnp.asarray(mask), cfg) for w in (weight, 0 * weight)
            )
        found = pull(adv[mask], weight[mask], (taught_by - old)[mask], cfg)
        np.testing.assert_allclose(found, np.abs(with_ - without)[mask] * mask.sum(), atol=1e-9)
        assert not pull(adv[mask], 0 * weight[mask], np.full(mask.sum(), np.nan), cfg).any()


def test_a_sequence_counts_by_its_segment_wherever_it_is_packed() -> None:
    mask = np.array([[1, 1, 0, 1, 1, 1], [0, 1, 0, 0, 0, 0]], bool)
    segments = np.array([[1, 1, 2, 2, 2, 2], [1, 1, 1, 0, 0, 0]])
    weights = AVERAGES["sequence"](jnp.asarray(mask), jnp.asarray(segments))
    third = 1 / 3
    np.testing.assert_allclose(weights, [[0.5, 0.5, 0, third, third, third], [0, 1, 0, 0, 0, 0]], atol=1e-6)
