"""Token losses: worked examples, exact limits, finite differences, padding and micro-batches."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from jax import Array
from jax.typing import ArrayLike

from rsipo_jax.config import LossConfig
from rsipo_jax.methods.advantages import group_advantages
from rsipo_jax.methods.losses import kl_loss, loss_sums, masked_sum, policy_loss, taught

CFG = LossConfig()
OLD = np.array([[-1, -0.5, -2], [-0.7, -1.2, -0.3], [-0.4, -0.9, -1.6], [-2.2, -0.1, -0.8]])
NEW = np.array([[-0.8, -0.6, -1.5], [-0.7, -1.6, -0.3], [-0.5, -0.9, -1.6], [-1, -0.1, -0.8]])
TEACHER = np.array([[-0.7, -0.9, -1], [-0.9, -1, -0.6], [-0.4, -0.3, -1.6], [-2.6, -0.4, -0.8]])
REF = np.array([[-1.1, -0.5, -1.9], [-0.7, -1.3, -0.2], [-0.6, -0.9, -1.7], [-2, -0.2, -0.8]])
MASK = np.array([[1, 1, 1], [1, 1, 0], [1, 1, 1], [1, 1, 0]], bool)
TRUST = np.array([0.6, 0.6, 0, 1])[:, None]


def arrays(*values: ArrayLike) -> tuple[Array, ...]:
    return tuple(jnp.asarray(x, dtype=float) for x in values)


def taught_advantages(
    adv: Array, weight: Array, teacher: Array, old: Array, mask: Array, lam: float, clip: float
) -> Array:
    """A_tok of the advantage form; the current scores play no part in it."""
    cfg = replace(CFG, distill_clip=clip)
    return taught(adv, lam * weight, teacher, old, jnp.zeros_like(old), mask, cfg)[0]


def trajectory_advantages() -> Array:
    return group_advantages(np.array([1, 0, 1, 0]), np.array([0, 0, 1, 1]), 2, np.ones(4, bool))[:, None]


def loss(
    new: ArrayLike, advantages: Array, old: ArrayLike = OLD, cfg: LossConfig = CFG
) -> tuple[Array, Array]:
    """Mean policy loss and mean KL over the tokens of the mask."""
    new, old, ref = arrays(new, old, REF)
    sums = loss_sums(new, old, ref, advantages, jnp.asarray(MASK), jnp.asarray(MASK, float), cfg)
    return sums.policy / sums.tokens, sums.kl / sums.tokens


def hybrid(lam: float, weight: ArrayLike = TRUST, teacher: ArrayLike = TEACHER, clip: float = 5.0) -> Array:
    teacher, old, weight = arrays(teacher, OLD, weight)
    return taught_advantages(trajectory_advantages(), weight, teacher, old, jnp.asarray(MASK), lam, clip)


@pytest.mark.parametrize(("x64", "tolerance"), [(True, 1e-10), (False, 1e-5)])
@pytest.mark.parametrize(
    ("lam", "weight", "expected"),
    [
        (0.0, TRUST, -0.02896834449936848),
        (0.01, TRUST, -0.028163183519039837),
        (0.01, np.ones((4, 1)), -0.029226409532154097),
        (0.5, TRUST, 0.01128970451706306),
        (0.5, np.ones((4, 1)), -0.041871596138649235),
    ],
)
def test_golden_losses(x64: bool, tolerance: float, lam: float, weight: np.ndarray, expected: float) -> None:
    with jax.enable_x64(x64):
        policy, kl = (float(x) for x in jax.jit(lambda new: loss(new, hybrid(lam, weight)))(NEW))
    found = policy, kl, policy + CFG.kl * kl
    kl = 0.05485596876483292
    np.testing.assert_allclose(found, (expected, kl, expected + 0.01 * kl), atol=tolerance, rtol=0)


@pytest.mark.parametrize("poison", [np.inf, -np.inf, np.nan, 1e30])
def test_without_trust_the_loss_and_gradient_are_grpo_bit_for_bit(poison: float) -> None:
    def value_and_grad(advantages: Array) -> tuple[Array, Array]:
        return jax.value_and_grad(lambda new: loss(new, advantages)[0])(jnp.asarray(NEW, dtype=float))

    plain = value_and_grad(jnp.where(MASK, trajectory_advantages(), 0.0))
    for advantages in (
        hybrid(0.5, np.zeros((4, 1)), np.full((4, 3), poison)),  # no trust
        hybrid(0.0),  # no distillation
        hybrid(0.5, np.zeros((4, 1)), OLD),
        hybrid(0.5, teacher=OLD),  # the teacher sees what the student sees
    ):
        for found, expected in zip(
            jax.tree.leaves(value_and_grad(advantages)), jax.tree.leaves(plain), strict=True
        ):
            assert np.asarray(found).tobytes() == np.asarray(expected).tobytes()


def test_bad_teacher_scores_where_there_is_no_token_or_no_trust_change_nothing() -> None:
    spoiled = np.where(MASK & (TRUST > 0), TEACHER, np.nan)
    assert (hybrid(0.5, teacher=spoiled) == hybrid(0.5)).all()
    assert (hybrid(0.5)[~MASK] == 0).all()


def test_a_wild_teacher_score_counts_no_more_than_the_clip() -> None:
    teacher = np.where(np.arange(3) == 0, -np.inf, OLD)
    gap = hybrid(0.1, np.full((4, 1), 0.5), teacher, clip=2.0) - hybrid(0.0)
    np.testing.assert_allclose(gap, np.where(np.arange(3) == 0, -0.1, 0.0) * np.ones((4, 1)), atol=1e-6)


def test_distillation_trains_where_all_returns_are_equal_only_if_trusted_and_different() -> None:
    def gradient(weight: ArrayLike, teacher: ArrayLike) -> Array:
        teacher, old, weight = arrays(teacher, OLD, np.full((4, 1), weight))
        adv = group_advantages(jnp.full(4, 10.0), jnp.array([0, 0, 1, 1]), 2, jnp.ones(4, bool))[:, None]
        advantages = taught_advantages(adv, weight, teacher, old, jnp.asarray(MASK), 0.03, 5.0)
        return jax.grad(lambda new: loss(new, advantages)[0])(old)

    assert (gradient(0.0, TEACHER) == 0).all()
    assert (gradient(1.0, OLD) == 0).all()
    different = MASK & (TEACHER != OLD)
    assert ((gradient(1.0, TEACHER) != 0) == different).all()


def test_only_the_current_log_probs_carry_a_gradient() -> None:
    def total(new: Array, old: Array, ref: Array, teacher: Array, weight: Array, adv: Array) -> Array:
        advantages = taught_advantages(adv, weight, teacher, old, jnp.asarray(MASK), 0.5, 5.0)
        sums = loss_sums(new, old, ref, advantages, jnp.asarray(MASK), jnp.asarray(MASK, float), CFG)
        return sums.policy + sums.kl

    grads = jax.grad(total, argnums=range(6))(*arrays(NEW, OLD, REF, TEACHER, TRUST), trajectory_advantages())
    assert (grads[0] != 0).any()
    assert (grads[0][~MASK] == 0).all()
    assert all((g == 0).all() for g in grads[1:])


def test_credit_is_a_constant_in_every_function_that_takes_it() -> None:
    def credit(adv: Array, weight: Array, teacher: Array, student: Array) -> Array:
        return taught_advantages(adv, weight, teacher, student, jnp.asarray(MASK), 0.5, 5.0).sum()

    grads = jax.grad(credit, argnums=range(4))(trajectory_advantages(), *arrays(TRUST, TEACHER, OLD))
    assert all((g == 0).all() for g in grads)
    new, old = arrays(NEW, OLD)
    surrogate = lambda adv: policy_loss(new, old, adv, CFG).sum()  # noqa: E731
    assert (jax.grad(surrogate)(hybrid(0.5)) == 0).all()


def test_the_gradient_stops_before_the_teachers_logits() -> None:
    def total(logits: Array) -> Array:
        adv, weight, old = arrays(trajectory_advantages(), TRUST, OLD)
        teacher = jax.nn.log_softmax(logits)[..., 0]
        return loss(NEW, taught_advantages(adv, weight, teacher, old, jnp.asarray(MASK), 0.5, 5.0))[0]

    assert (jax.grad(total)(jax.random.normal(jax.random.key(0), (4, 3, 7))) == 0).all()


def test_on_policy_the_gradient_is_the_advantage_weighted_score() -> None:
    with jax.enable_x64(True):
        advantages = hybrid(0.5)
        logits = jax.random.normal(jax.random.key(1), (4, 3, 5))
        logp = lambda z: jax.nn.log_softmax(z)[..., 2]  # noqa: E731
        behaviour = logp(logits)
        found = jax.grad(lambda z: loss(logp(z), advantages, old=behaviour)[0])(logits)
        expected = jax.grad(lambda z: -(advantages * logp(z) * MASK).sum() / MASK.sum())(logits)
    np.testing.assert_allclose(found, expected, atol=1e-12)


def test_policy_and_kl_gradients_against_finite_differences() -> None:
    rng = np.random.default_rng(3)
    with jax.enable_x64(True):
        old = rng.normal(-1, 0.5, (6, 40))
        new, ref = old + rng.normal(0, 0.5, old.shape), old + rng.normal(0, 0.5, old.shape)
        adv, h = rng.normal(0, 1, old.shape), 1e-6
        ratio = np.exp(new - old)  # the surrogate has kinks at these ratios; stay off them
        smooth = np.min([abs(ratio - k) for k in (0.8, 1.2, CFG.dual_clip)], axis=0) > 1e-4
        policy = lambda x: policy_loss(x, jnp.asarray(old), jnp.asarray(adv), CFG)  # noqa: E731
        for f in (policy, lambda x: kl_loss(x, jnp.asarray(ref), CFG)):
            found = jax.grad(lambda x, f=f: f(x).sum())(jnp.asarray(new))
            numeric = (np.asarray(f(jnp.asarray(new + h))) - np.asarray(f(jnp.asarray(new - h)))) / (2 * h)
            np.testing.assert_allclose(np.asarray(found)[smooth], numeric[smooth], atol=1e-7)


@pytest.mark.parametrize(
    ("advantage", "ratio", "value", "slope"),
    [
        (2.0, 1.1, -2.2, -2.2),  # inside the clip
        (2.0, 1.5, -2.4, 0.0),  # A > 0: no reward beyond 1 + eps
        (2.0, 0.5, -1.0, -1.0),  # but a fallen token is pulled back
        (-2.0, 0.5, 1.6, 0.0),  # A < 0: no reward below 1 - eps
        (-2.0, 1.5, 3.0, 3.0),
        (-2.0, 4.0, 6.0, 0.0),  # dual clip: -A * c
        (0.0, 4.0, 0.0, 0.0),
    ],
)
def test_regions_of_the_clipped_surrogate(advantage: float, ratio: float, value: float, slope: float) -> None:
    term = lambda x: policy_loss(x, jnp.array(-1.0), jnp.array(advantage), CFG)  # noqa: E731
    found = jax.value_and_grad(term)(-1.0 + jnp.log(ratio))
    np.testing.assert_allclose(found, (value, slope), atol=1e-5)


def test_extreme_ratios_keep_losses_and_gradients_finite() -> None:
    far = jnp.array([-500.0, -90.0, -1.0, 0.0])
    for advantage in (-1.0, 0.0, 1.0):
        for centre in (-500.0, 0.0):
            both = lambda x, a=advantage, c=centre: (  # noqa: E731
                policy_loss(x, jnp.full(4, c), jnp.full(4, a), CFG) + kl_loss(x, jnp.full(4, c), CFG)
            ).sum()
            assert all(np.isfinite(x).all() for x in jax.value_and_grad(both)(far))


@given(st.floats(-3, 0), st.floats(-3, 0))
@example(-3.0, 0.0)  # beyond the clip at 10
def test_k3_is_zero_only_where_the_policies_agree(new: float, ref: float) -> None:
    value = float(kl_loss(jnp.array(new), jnp.array(ref), CFG))
    expected = np.exp(ref - new) - (ref - new) - 1
    assert value == pytest.approx(min(expected, 10), abs=1e-4, rel=1e-4)
    assert float(kl_loss(jnp.array(new), jnp.array(new), CFG)) == 0.0


masks = st.lists(st.lists(st.booleans(), min_size=5, max_size=5), min_size=6, max_size=6).map(np.array)


@jax.jit
def sums_and_gradient(new: Array, old: Array, ref: Array, adv: Array, mask: Array) -> tuple[Array, Array]:
    def total(x: Array) -> tuple[Array, Array]:
        sums = loss_sums(x, old, ref, adv, mask, mask.astype(float), CFG)
        return sums.policy + sums.kl, jnp.stack([sums.policy, sums.kl, sums.tokens])

    gradient, sums = jax.grad(total, has_aux=True)(new)
    return sums, gradient


@given(masks, st.integers(1, 5), st.sampled_from([0.0, np.nan, -np.inf]), st.integers(0, 1000))
def test_micro_batches_padding_and_permutation(
    mask: np.ndarray, split: int, outside: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    scores, adv = rng.normal(-1, 0.5, (3, 6, 5)), rng.normal(0, 1, (6, 5))

    def run(rows: np.ndarray, outside: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
        """The rows in the corner of an 8 x 7 batch with `outside` in the scores that the mask leaves out."""
        n = len(rows)
        padded, values, keep = np.full((3, 8, 7), outside), np.zeros((8, 7)), np.zeros((8, 7), bool)
        padded[:, :n, :5] = np.where(mask[rows], scores[:, rows], outside)
        values[:n, :5], keep[:n, :5] = adv[rows], mask[rows]
        sums, gradient = jax.tree.map(np.asarray, sums_and_gradient(*padded, values, keep))
        assert (gradient[~keep] == 0).all()
        return sums, gradient[:n, :5]

    everything, order = np.arange(6), rng.permutation(6)
    sums, gradient = run(everything)
    unpadded = jax.tree.map(np.asarray, sums_and_gradient(*scores, adv, mask))
    spoiled, shuffled = run(everything, outside), run(order)
    first, second = run(everything[:split]), run(everything[split:])
    assert sums[2] == mask.sum()
    for found in (unpadded, spoiled, (shuffled[0], shuffled[1][np.argsort(order)])):
        np.testing.assert_allclose(found[0], sums, atol=1e-5)
        np.testing.assert_allclose(found[1], gradient, atol=1e-6)
    np.testing.assert_allclose(first[0] + second[0], sums, atol=1e-5)
    np.testing.assert_allclose(np.concatenate([first[1], second[1]]), gradient, atol=1e-6)


def test_masked_sum_of_nothing_is_nothing() -> None:
    total, count = masked_sum(jnp.array([[jnp.nan, jnp.inf]]), jnp.zeros((1, 2), bool))
    assert (float(total), float(count)) == (0.0, 0.0)


def test_the_clip_settings_are_the_configs() -> None:
    advantages = hybrid(0.0)
    wide = loss(NEW, advantages, cfg=replace(CFG, clip=0.9))[0]
    assert abs(float(wide - loss(NEW, advantages)[0])) > 1e-3
    tight = loss(NEW, -advantages, cfg=replace(CFG, dual_clip=1.05))[0]
    assert abs(float(tight - loss(NEW, -advantages)[0])) > 1e-3
