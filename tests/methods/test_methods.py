"""What each method does with one step: which tokens it credits, and by how much its teacher is trusted."""

from __future__ import annotations

import numpy as np
import pytest

from rsipo_jax.config import LossConfig
from rsipo_jax.methods import METHODS
from rsipo_jax.methods.advantages import ReplayGains
from rsipo_jax.methods.method import ADVANTAGES, Outcomes, SkillEvidence, Tokens, Turns, acting_advantages
from rsipo_jax.skills.trust import Trust
from rsipo_jax.validation.choices import CHOICES

# Four episodes of one task with 2, 1, 1, 3 turns; the first two won. Two tokens a turn, then one of a skill.
TURNS = np.repeat(np.arange(4, dtype=np.int32), [2, 1, 1, 3])
SEEN = ["room", "table", "room", "room", "room", "table", "shelf"]
WON = np.array([0, 10, 10, 0, 0, 0, 0], np.float32)
FINE = np.array([0, 0, 0, 0, 1, 0, 0], np.float32)
EPISODE = np.concatenate([np.repeat(TURNS, 2), np.arange(4, dtype=np.int32)])
ACTION = np.arange(len(EPISODE)) < 2 * len(TURNS)
TURN = np.concatenate([np.repeat(np.arange(7), 2), np.full(4, -1)])
TOKENS = Tokens(EPISODE, ACTION, ~ACTION, TURN)


def outcomes(**loss: object) -> Outcomes:
    returns = np.array([10, 10, 0, -1], np.float32)
    cfg = LossConfig(**loss)  # type: ignore[arg-type]
    turns = Turns(TURNS, SEEN, WON, FINE)
    return Outcomes(returns, np.zeros(4, np.int32), np.ones(4, bool), 1, cfg, turns)


def evidence() -> SkillEvidence:
    """Skills that nobody measured; the third cannot be read."""
    readable, none = np.array([True, True, False, True]), np.zeros(1, np.float32)
    each = np.zeros(4, np.float32)
    gains = ReplayGains(each, each, each > 0, none, none, none > 0, none, none, none, none)
    return SkillEvidence(
        np.ones(4, bool), readable, each, gains, Trust(*[none] * 11), np.zeros(4, np.int32), each > 0
    )


def test_the_advantages_are_those_that_validation_knows() -> None:
    assert set(CHOICES["loss.advantage"]) == set(ADVANTAGES)


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        ({"mean_norm": True}, [5.25, 5.25, -4.75, -5.75]),
        # over the seven turns the mean is (20 + 10 + 0 - 3) / 7
        ({"mean_norm": True, "adv_stat": "rows"}, [10 - 27 / 7, 10 - 27 / 7, -27 / 7, -1 - 27 / 7]),
        ({"advantage": "rloo"}, [7, 7, -19 / 3, -23 / 3]),
        ({"advantage": "rloo", "adv_stat": "rows"}, [10 - 7 / 5, 10 - 17 / 6, -27 / 6, -1 - 30 / 4]),
        ({"advantage": "none"}, [0, 0, 0, 0]),
    ],
)
def test_every_action_token_has_the_advantage_of_its_episode(
    loss: dict[str, object], expected: list[float]
) -> None:
    found = acting_advantages(outcomes(**loss), TOKENS)
    np.testing.assert_allclose(found, np.where(ACTION, np.array(expected)[EPISODE], 0), atol=1e-5)


def test_gigpo_adds_what_a_turn_did_better_than_others_from_the_same_observation() -> None:
    found = acting_advantages(outcomes(advantage="gigpo", omega=2.0, gamma=0.5, mean_norm=True), TOKENS)
    # From "room": 0.5 * 10, 10, 0, and -1 for the malformed action; from "table" 10 and 0; "shelf" is alone.
    room, table = np.array([5, 10, 0, -1]) - 3.5, np.array([10, 0]) - 5.0
    steps = np.array([room[0], table[0], room[1], room[2], room[3], table[1], 0])
    episodes = np.array([5.25, 5.25, -4.75, -5.75])[TURNS]
    np.testing.assert_allclose(found[ACTION], np.repeat(episodes + 2 * steps, 2), atol=1e-5)
    assert not found[~ACTION].any()


@pytest.mark.parametrize("name", ["hybrid", "opsd"])
def test_a_static_teacher_is_trusted_where_there_is_a_skill_to_read(name: str) -> None:
    credit = METHODS[name].credit(outcomes(), evidence(), TOKENS)
    np.testing.assert_array_equal(credit.trust, (ACTION & (EPISODE != 2)).astype(np.float32))
    wanted = acting_advantages(outcomes(), TOKENS) if name == "hybrid" else np.zeros(len(EPISODE))
    np.testing.assert_array_equal(credit.advantages, wanted)


def test_what_the_methods_declare_goes_together() -> None:
    for method in METHODS.values():
        assert method.writes_skills or not method.replays
        assert method.trains or not method.writes_skills
    assert [name for name, m in METHODS.items() if m.replays] == ["rsipo"]
