"""Which counts make a unit: pooled or not, with or without the source, by class."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rsipo_jax.config import TrustConfig
from rsipo_jax.skills.units import Units, count_units
from rsipo_jax.validation import ConfigError
from tests.training.tiny_run import config

# Two tasks of four episodes. Task 0: won, lost, won, void. Task 1: all lost.
WON = np.array([1, 0, 1, 1, 0, 0, 0, 0], bool)
VALID = np.array([1, 1, 1, 0, 1, 1, 1, 1], bool)
TASK = np.repeat([0, 1], 4)
# Two replays of each skill; episodes 3 (void) and 6 have no skill, and one replay of skill 1 was voided.
REPLAY_WON = np.array([[1, 1], [0, 1], [1, 0], [0, 0], [0, 1], [0, 0], [1, 1], [1, 0]], bool)
REPLAY_VALID = np.array([[1, 1], [1, 0], [1, 1], [0, 0], [1, 1], [1, 1], [0, 0], [1, 1]], bool)


def count(unit: str, prior_class: str = "none") -> Units:
    cfg = replace(TrustConfig(), unit=unit, prior_class=prior_class)
    return count_units(WON, VALID, TASK, REPLAY_WON, REPLAY_VALID, 2, cfg)


def rows(units: Units) -> list[list[float]]:
    return np.stack(units.counts).T.tolist()


def test_a_task_pools_its_skills() -> None:
    units = count("task")
    assert rows(units) == [[3, 5, 2, 3, 1], [2, 6, 0, 4, 1]]
    assert units.of_episode.tolist() == TASK.tolist() and units.classes.tolist() == [-1, -1]


@pytest.mark.parametrize("unit", ["skill", "hier"])
def test_a_skill_has_its_own_replays_and_the_episodes_of_its_task(unit: str) -> None:
    units = count(unit)
    assert rows(units)[:4] == [[2, 2, 2, 3, 1], [0, 1, 2, 3, 1], [1, 2, 2, 3, 1], [0, 0, 2, 3, 0]]
    assert units.of_episode.tolist() == list(range(8)) and units.task.tolist() == TASK.tolist()


def test_classes_by_outcome_leave_the_source_out() -> None:
    units = count("task", "outcome")
    # task 0: the skill of the lost episode against 2 of 2, those of the won ones against 1 of 2
    assert rows(units) == [[0, 1, 2, 2, 1], [3, 4, 1, 2, 1], [2, 6, 0, 3, 1], [0, 0, 0, 3, 0]]
    assert units.classes.tolist() == [0, 1, 0, 1]
    assert units.of_episode.tolist() == [1, 0, 1, 0, 2, 2, 2, 2]  # the void episode has no skill
    units = count("skill", "outcome")
    assert rows(units)[:3] == [[2, 2, 1, 2, 1], [0, 1, 2, 2, 1], [1, 2, 1, 2, 1]]
    assert units.classes[:3].tolist() == [1, 0, 1]


def test_classes_by_a_held_out_half_do_not_read_the_other() -> None:
    units = count("task", "split_success")
    # task 0 holds out its second valid episode (lost), task 1 its second and fourth
    assert rows(units) == [[3, 5, 2, 2, 1], [2, 6, 0, 2, 1]]
    assert units.classes.tolist() == [0, 0]
    won = np.array([0, 1, 0, 1, 0, 1, 1, 0], bool)
    every = np.ones(8, bool)
    cfg = replace(TrustConfig(), unit="skill", prior_class="split_success")
    units = count_units(won, every, TASK, REPLAY_WON, REPLAY_VALID, 2, cfg)
    assert units.classes.tolist() == [2] * 4 + [1] * 4  # all, and some, of the held-out ones were won
    assert units.s0.tolist() == [0] * 4 + [1] * 4 and units.n0.tolist() == [2] * 8


episodes = st.lists(st.booleans(), min_size=8, max_size=8)


@given(episodes, st.permutations(range(4)))
def test_leave_one_out_rates_average_to_the_rate_and_skills_may_stand_in_any_order(
    won: list[bool], order: list[int]
) -> None:
    outcomes, every = np.array(won), np.ones(8, bool)
    replays, valid = np.ones((8, 1), bool), np.ones((8, 1), bool)
    cfg = replace(TrustConfig(), unit="skill", prior_class="outcome")
    left_out = count_units(outcomes, every, TASK, replays, valid, 2, cfg)
    rate = (left_out.s0 / left_out.n0).reshape(2, 4).mean(1)
    np.testing.assert_allclose(rate, outcomes.reshape(2, 4).mean(1), rtol=1e-6)

    shuffled = np.concatenate([order, np.arange(4, 8)])
    cfg = replace(TrustConfig(), unit="skill")
    one = count_units(outcomes, every, TASK, REPLAY_WON, valid | REPLAY_VALID, 2, cfg)
    other = count_units(
        outcomes[shuffled], every, TASK, REPLAY_WON[shuffled], (valid | REPLAY_VALID)[shuffled], 2, cfg
    )
    np.testing.assert_array_equal(np.stack(one.counts)[:, shuffled], np.stack(other.counts))


@pytest.mark.parametrize(
    ("changes", "replays", "message"),
    [
        (
            {"unit": "skill"},
            1,
            r"config\.trust\.unit='skill' needs config\.skill\.replays of 2 or more, not 1",
        ),
        ({"unit": "hier"}, 1, r"config\.trust\.unit='hier' needs config\.skill\.replays of 2 or more"),
        (
            {"unit": "hier", "prior_class": "outcome"},
            2,
            r"config\.trust\.prior_class='outcome' is not defined",
        ),
        (
            {"unit": "hier", "estimator": "dersimonian_laird"},
            2,
            r"config\.trust\.estimator='dersimonian_laird' is not defined",
        ),
        ({"signed": True, "function": "prob"}, 1, r"config\.trust\.signed=True .* choose one of pos_mean"),
        ({"unit": "token"}, 2, r"config\.trust\.unit='token' is unknown: choose one of task, skill, hier"),
    ],
)
def test_what_does_not_go_together_is_refused(changes: dict, replays: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config(**{"skill.replays": replays, **{f"trust.{key}": value for key, value in changes.items()}})


def test_classes_by_outcome_need_skills_of_the_episode_itself() -> None:
    settings = {"trust.prior_class": "outcome"}
    with pytest.raises(ConfigError, match=r"skill\.source='shuffled' is not the one it teaches"):
        config(**settings, **{"skill.source": "shuffled"})
    for source in ("own", "static"):
        config(**settings, **{"skill.source": source})
