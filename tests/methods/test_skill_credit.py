"""Which skills are judged against each other, and what cannot change their advantages (property 27)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rsipo_jax.config import SkillConfig, TrustConfig
from rsipo_jax.methods.advantages import replay_gains, skill_rewards
from rsipo_jax.methods.method import Outcomes, SkillEvidence
from rsipo_jax.methods.skill_credit import skill_advantages
from rsipo_jax.skills.prior import PriorState
from rsipo_jax.skills.trust import trust

G = 4
CFG = SkillConfig()


def evidence(
    won: np.ndarray,
    replays: np.ndarray,
    readable: np.ndarray,
    group: str = "task",
    cfg: SkillConfig = CFG,
) -> tuple[Outcomes, SkillEvidence]:
    """A step of tasks of G episodes, one replay of each readable skill."""
    n = len(won)
    ids, valid = np.arange(n, dtype=np.int32) // G, np.ones(n, bool)
    gains = replay_gains(won, valid, ids, replays[:, None], readable[:, None], n // G)
    rewards = np.asarray(skill_rewards(gains.skill_gain, readable, np.zeros(n, int), cfg), np.float32)
    counts = gains.s1, gains.n1, gains.s0, gains.n0, gains.task_measured
    outcomes = Outcomes(won.astype(np.float32), ids, valid, n // G)
    trusted = trust(PriorState.zero(), *counts, TrustConfig())
    return outcomes, SkillEvidence(valid, readable, rewards, gains, trusted, ids, won, group)


def flags(n: int) -> st.SearchStrategy[np.ndarray]:
    return st.lists(st.booleans(), min_size=n, max_size=n).map(lambda v: np.asarray(v, bool))


def normal(rewards: np.ndarray) -> np.ndarray:
    return (rewards - rewards.mean()) / (rewards.std(ddof=1) + 1e-6)


@given(won=flags(2 * G), other=flags(2 * G), replays=flags(2 * G))
def test_within_a_task_the_rate_without_a_skill_cancels(
    won: np.ndarray, other: np.ndarray, replays: np.ndarray
) -> None:
    readable = np.ones(2 * G, bool)
    one, two = (skill_advantages(*evidence(w, replays, readable)) for w in (won, other))
    np.testing.assert_allclose(one, two, atol=1e-5)
    for x in range(2):
        if len(set(replays[x * G : (x + 1) * G])) == 1:
            assert not one[x * G : (x + 1) * G].any()


@given(won=flags(G), replays=flags(G), readable=flags(G), bonus=st.sampled_from([0.0, 0.3]))
def test_an_unreadable_skill_is_the_worst_of_its_task(
    won: np.ndarray, replays: np.ndarray, readable: np.ndarray, bonus: float
) -> None:
    found = skill_advantages(*evidence(won, replays, readable, cfg=replace(CFG, valid_bonus=bonus)))
    if readable.any() and not readable.all():
        assert found[~readable].max() < found[readable].min()


def test_a_bonus_for_being_readable_widens_the_gap_to_what_is_not() -> None:
    won, replays, readable = np.zeros(G, bool), np.zeros(G, bool), np.array([True, True, True, False])
    _, plain = evidence(won, replays, readable)
    _, paid = evidence(won, replays, readable, cfg=replace(CFG, valid_bonus=0.5))
    np.testing.assert_allclose(paid.rewards - plain.rewards, [0.5, 0.5, 0.5, 0])


def test_groups_by_outcome_fall_back_to_the_task_where_a_skill_is_alone() -> None:
    won = np.array([1, 1, 0, 0, 1, 0, 0, 0], bool)
    replays = np.array([1, 0, 1, 0, 1, 1, 0, 0], bool)
    outcomes, skills = evidence(won, replays, np.ones(8, bool), "task_outcome")
    found, u = skill_advantages(outcomes, skills), skills.rewards.astype(np.float64)
    np.testing.assert_allclose(found[:2], normal(u[:2]), rtol=1e-4)
    np.testing.assert_allclose(found[2:4], normal(u[2:4]), rtol=1e-4)
    np.testing.assert_allclose(found[4], normal(u[4:])[0], rtol=1e-4)  # the only success of its task
    np.testing.assert_allclose(found[5:], normal(u[5:]), rtol=1e-4)


def test_the_batch_is_one_group() -> None:
    won, replays = np.array([1, 1, 1, 0, 0, 0, 0, 0], bool), np.array([1, 1, 1, 1, 0, 0, 0, 1], bool)
    outcomes, skills = evidence(won, replays, np.ones(8, bool), "batch")
    np.testing.assert_allclose(
        skill_advantages(outcomes, skills), normal(skills.rewards.astype(np.float64)), rtol=1e-4, atol=1e-6
    )


@pytest.mark.parametrize("group", ["task", "task_outcome", "batch"])
def test_skills_that_were_not_written_are_in_no_group(group: str) -> None:
    won, replays = np.array([1, 1, 0, 0] * 2, bool), np.array([1, 0, 1, 0] * 2, bool)
    outcomes, skills = evidence(won, replays, np.ones(8, bool), group)
    written = np.array([1, 1, 1, 1, 1, 1, 0, 0], bool)
    known = replace(skills, written=written)
    other = replace(known, rewards=np.where(written, skills.rewards, 7.0).astype(np.float32))
    found = skill_advantages(outcomes, known)
    assert not found[~written].any() and found[:4].all()
    np.testing.assert_array_equal(found, skill_advantages(outcomes, other))


@pytest.mark.parametrize("group", ["task", "task_outcome", "batch"])
def test_a_readable_skill_whose_replays_were_void_is_judged_by_nobody_and_judges_nobody(group: str) -> None:
    """Its reward of 0 would otherwise stand among the gains of the others."""
    won = np.asarray([True, True, True, True, False, False, False, False])
    played = np.asarray([1, 0, 0, 1, 1, 1, 0, 0], bool)
    readable, ids, valid = np.ones(8, bool), np.arange(8) // G, np.ones(8, bool)
    outcomes, skills = evidence(won, played, readable, group)
    measured = np.arange(8) != 1
    gains = replay_gains(won, valid, ids, played[:, None], measured[:, None], 2)
    rewards = np.asarray(skill_rewards(gains.skill_gain, readable, np.zeros(8, int), CFG), np.float32)
    assert rewards[1] == 0.0 and rewards[2] < 0.0
    found = skill_advantages(outcomes, replace(skills, gains=gains, rewards=rewards))
    judged = measured if group == "batch" else measured & (ids == 0)
    wanted = normal(rewards[judged].astype(np.float64))
    assert found[1] == 0.0
    np.testing.assert_allclose(found[judged], wanted, rtol=1e-4, atol=1e-6)
