"""Advantages, replay gains and skill rewards against plain loops, and the exact facts they must respect."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rsipo_jax.config import SkillConfig
from rsipo_jax.methods.advantages import (
    anchor_groups,
    group_advantages,
    leave_one_out,
    replay_gains,
    returns_to_go,
    skill_rewards,
    step_advantages,
)
from tests.methods import reference as formulas

CFG = SkillConfig()
EIGHT = np.ones(8, bool)
advantages_of = jax.jit(group_advantages, static_argnums=2)
gains_of = jax.jit(replay_gains, static_argnums=5)


@pytest.mark.parametrize(("x64", "tolerance"), [(True, 1e-8), (False, 1e-5)])
def test_golden_advantages(x64: bool, tolerance: float) -> None:
    with jax.enable_x64(x64):
        policy = advantages_of(jnp.array([1, 0, 1, 0]), jnp.array([0, 0, 1, 1]), 2, jnp.ones(4, bool))
        replays = jnp.array([1, 0, 1, 1, 0, 0, 1, 0])
        skill = advantages_of(skill_rewards(replays - 0.5, EIGHT, 0 * replays, CFG), 0 * replays, 1, EIGHT)
    np.testing.assert_allclose(policy, [0.70710578, -0.70710578] * 2, atol=tolerance)
    np.testing.assert_allclose(skill, 0.9354126 * (2 * np.asarray(replays) - 1), atol=max(tolerance, 5e-8))


def reference(returns: np.ndarray, groups: np.ndarray, valid: np.ndarray) -> np.ndarray:
    out = np.zeros(len(returns))
    for g in set(groups):
        rows = [i for i in range(len(returns)) if groups[i] == g]
        members = [i for i in rows if valid[i]]
        values = np.array([returns[i] for i in members], dtype=np.float64)
        if len(rows) == 1:
            mean, std = 0.0, 1.0
        elif len(members) < 2 or (values == values[0]).all():
            continue
        else:
            mean, std = values.mean(), values.std(ddof=1)
        out[members] = (values - mean) / (std + 1e-6)
    return out


rows = st.lists(
    st.tuples(st.sampled_from([0.0, 10.0, 9.9, 9.7, -0.1, 0.3]), st.integers(0, 3), st.booleans()),
    min_size=12,
    max_size=12,
)


@given(rows, st.permutations(range(12)))
def test_group_advantages_against_a_loop_and_under_permutation(
    drawn: list[tuple[float, int, bool]], order: list[int]
) -> None:
    returns, groups, valid = (np.array(x) for x in zip(*drawn, strict=True))
    found = group_advantages(
        np.where(valid, returns, np.nan), groups, 4, valid
    )  # a voided return is never read
    np.testing.assert_allclose(found, reference(returns, groups, valid), atol=1e-4)
    shuffled = advantages_of(returns[order], groups[order], 4, valid[order])
    np.testing.assert_allclose(shuffled, np.asarray(found)[order], atol=1e-5)


@given(st.floats(-20, 20, width=32), st.integers(2, 9))
def test_equal_returns_give_exactly_zero(value: float, members: int) -> None:
    valid = np.arange(9) < members
    found = advantages_of(np.where(valid, value, value + 1), np.zeros(9, int), 1, valid)
    assert (np.asarray(found) == 0.0).all()


def test_groups_of_one() -> None:
    returns, groups = np.array([10, 10, 0, 7]), np.array([0, 1, 1, 2])
    found = group_advantages(returns, groups, 3, np.array([True, True, False, False]))
    np.testing.assert_allclose(found, [10, 0, 0, 0], rtol=1e-5)  # drawn alone; left alone by a void; voided


episodes = st.lists(
    st.tuples(st.booleans(), st.booleans(), st.integers(0, 2), st.tuples(*[st.sampled_from("w.v")] * 2)),
    min_size=9,
    max_size=9,
)


@given(episodes)
def test_replay_gains_against_a_loop(drawn: list[tuple[bool, bool, int, tuple[str, ...]]]) -> None:
    won, valid, tasks = (np.array(x) for x in list(zip(*drawn, strict=True))[:3])
    marks = np.array([x[3] for x in drawn])  # w won, . lost, v voided
    found = jax.tree.map(np.asarray, gains_of(won, valid, tasks, marks == "w", marks != "v", 3))
    for x in range(3):
        plain = [won[i] for i in range(9) if tasks[i] == x and valid[i]]
        replays = [m == "w" for i in range(9) if tasks[i] == x for m in marks[i] if m != "v"]
        assert (found.s0[x], found.n0[x], found.s1[x], found.n1[x]) == (
            sum(plain),
            len(plain),
            sum(replays),
            len(replays),
        )
        assert found.task_measured[x] == bool(plain and replays)
        gain = np.mean(replays) - np.mean(plain) if plain and replays else 0.0
        np.testing.assert_allclose(found.task_gain[x], gain, atol=1e-6)
        for i in np.flatnonzero(tasks == x):
            own = [m == "w" for m in marks[i] if m != "v"]
            assert found.skill_measured[i] == bool(plain and own)
            gain = np.mean(own) - np.mean(plain) if plain and own else 0.0
            np.testing.assert_allclose(found.skill_gain[i], gain, atol=1e-6)


def test_task_gain_is_the_mean_skill_gain_and_does_not_depend_on_the_order_of_the_skills() -> None:
    rng = np.random.default_rng(0)
    tasks, won = np.repeat([0, 1], 8), rng.random(16) < 0.5
    replays, order = rng.random((16, 3)) < 0.6, rng.permutation(8)
    all_valid = np.ones(16, bool), np.ones((16, 3), bool)
    gains = replay_gains(won, all_valid[0], tasks, replays, all_valid[1], 2)
    np.testing.assert_allclose(gains.task_gain, gains.skill_gain.reshape(2, 8).mean(axis=1), atol=1e-6)
    replays[:8] = replays[:8][order]
    again = replay_gains(won, all_valid[0], tasks, replays, all_valid[1], 2)
    np.testing.assert_allclose(again.skill_gain[:8], gains.skill_gain[:8][order], atol=1e-7)
    np.testing.assert_allclose(again.task_gain, gains.task_gain, atol=1e-7)


skills = st.lists(
    st.tuples(st.integers(0, 4), st.booleans(), st.integers(0, 2000) | st.just(1200)), min_size=8, max_size=8
)


@given(skills, st.integers(0, 8))
def test_skill_rewards_and_the_floor_for_invalid_skills(drawn: list[tuple[int, bool, int]], won: int) -> None:
    wins, valid, lengths = (np.array(x) for x in zip(*drawn, strict=True))
    gain = np.where(valid, wins / 4 - won / 8, 0.0)
    rewards = np.asarray(skill_rewards(gain, valid, lengths, CFG))
    np.testing.assert_allclose(rewards, np.where(valid, gain - 0.2 * (lengths > 1200), -1.2), atol=1e-6)
    if (~valid).any():
        assert (rewards[~valid] <= rewards.min()).all()


def test_skill_advantages_ignore_the_baseline_and_affine_shrinkage() -> None:
    p1 = np.array([0, 0.25, 0.5, 1, 1, 0.75, 0.25, 0])
    lengths, task = np.full(8, 100), np.zeros(8, int)

    def advantages(gain: np.ndarray) -> np.ndarray:
        return np.asarray(group_advantages(skill_rewards(gain, EIGHT, lengths, CFG), task, 1, EIGHT))

    np.testing.assert_allclose(advantages(p1 - 0.25), advantages(p1 - 0.875), atol=1e-5)
    np.testing.assert_allclose(advantages(0.4 * (p1 - 0.25) + 0.6 * 0.1), advantages(p1), atol=2e-5)
    assert (advantages(np.full(8, 0.1)) == 0).all()
    assert (advantages(p1)[3:5] == advantages(p1).max()).all()


def test_mean_norm_is_the_return_minus_the_mean_of_its_group() -> None:
    returns, groups = np.array([1.0, 0.0, 0.0, -0.05, 0.0, 9.0]), np.array([0, 0, 0, 1, 1, 1])
    valid = np.array([True, True, True, True, True, False])
    advantages = group_advantages(returns, groups, 2, valid, mean_norm=True)
    np.testing.assert_allclose(advantages, [2 / 3, -1 / 3, -1 / 3, -0.025, 0.025, 0.0], atol=1e-7)


@given(rows, st.lists(st.integers(1, 6), min_size=12, max_size=12))
def test_counts_are_as_many_rows_with_the_same_return(
    drawn: list[tuple[float, int, bool]], turns: list[int]
) -> None:
    returns, groups, _ = (np.array(x) for x in zip(*drawn, strict=True))
    every = np.ones(12, bool)
    episodes = np.repeat(np.arange(12), turns)
    found = group_advantages(returns, groups, 4, every, counts=turns)
    written_out = reference(returns[episodes], groups[episodes], np.ones(len(episodes), bool))
    np.testing.assert_allclose(np.asarray(found)[episodes], written_out, atol=1e-3)


def test_statistics_over_rows_take_no_episode_for_lone_that_a_void_left_alone() -> None:
    returns, groups, valid = np.array([10.0, 0, 7]), np.array([0, 0, 1]), np.array([True, False, True])
    found = group_advantages(returns, groups, 2, valid, counts=[1, 0, 1])  # a voided episode has no turns
    np.testing.assert_allclose(found, [0, 0, 7], rtol=1e-5)


@given(rows, st.lists(st.integers(1, 6), min_size=12, max_size=12))
def test_leave_one_out_against_a_loop(drawn: list[tuple[float, int, bool]], turns: list[int]) -> None:
    returns, groups, valid = (np.array(x) for x in zip(*drawn, strict=True))
    found = np.asarray(leave_one_out(np.where(valid, returns, np.nan), groups, 4, valid, turns))
    kept = np.flatnonzero(valid)
    wanted = formulas.rloo(returns[kept], groups[kept], np.array(turns)[kept])
    drawn_alone = np.bincount(groups, minlength=4)[groups[kept]] == 1
    np.testing.assert_allclose(found[kept], np.where(drawn_alone, returns[kept], wanted), atol=1e-5)
    assert (found[~valid] == 0).all()


def test_golden_returns_to_go() -> None:
    found = returns_to_go(np.array([0, 0, 10, 0, 10, 1.0]), np.array([0, 0, 0, 1, 1, 2]), 0.95)
    np.testing.assert_allclose(found, [9.025, 9.5, 10, 9.5, 10, 1], rtol=1e-6)


@given(st.lists(st.floats(-1, 10, width=32), min_size=1, max_size=9), st.floats(0, 1))
def test_returns_to_go_against_their_sum(rewards: list[float], gamma: float) -> None:
    found = returns_to_go(np.array(rewards), np.zeros(len(rewards), int), gamma)
    np.testing.assert_allclose(found, formulas.discounted(rewards, gamma), rtol=1e-5, atol=1e-5)


def test_anchors_are_the_same_text_in_the_same_task() -> None:
    seen = ["kitchen", "hall", "kitchen", "kitchen", "kitchens"]
    group = np.array([0, 0, 0, 1, 0])
    assert anchor_groups(seen, group, 1.0).tolist() == [0, 1, 0, 2, 3]
    assert anchor_groups(seen, group, 0.9).tolist() == [0, 1, 0, 2, 0]  # 14 of 15 characters match


def test_step_advantages_compare_turns_with_the_same_anchor() -> None:
    returns, anchors = np.array([9.0, 5.0, 1.0, 2.0, 4.0], np.float32), np.array([0, 1, 0, 2, 2])
    found = step_advantages(returns, anchors)
    half = 1 / np.sqrt(2)
    np.testing.assert_allclose(found, [half, 0, -half, -half, half], atol=1e-5)  # one alone: 0
    np.testing.assert_allclose(step_advantages(returns, anchors, mean_norm=True), [4, 0, -4, -1, 1])
