"""Skills from finished episodes: what is asked, what is kept, and which slot serves whom."""

from __future__ import annotations

import json

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rsipo_jax.agents.rollout import ACT, WRITE, Agent, Episode, rollout
from rsipo_jax.agents.trajectory import Trajectory
from rsipo_jax.sampling.sampler import Address, Request
from rsipo_jax.skills.writing import Skill, write_skills
from rsipo_jax.text.sentencepiece_tokenizer import SentencePieceTokenizer
from tests.agents.episodes import act, make_agent, make_config, task

GOOD = json.dumps({"episode_summary": "sum", "episode_skill": "take mug 1"})
LONG = json.dumps({"episode_skill": "take mug 1, go to desk 1"})


def respond(address: Address) -> str:
    if address[0] != WRITE:
        return act(address)
    return ("broken", GOOD, LONG)[address[3]]


def played(agent: Agent, fates: list[str]) -> tuple[list[Trajectory], list[list[Request]]]:
    """The episodes of one group, and the list that will hold the requests that follow."""
    episodes = [Episode(task(fate, i), 0, i) for i, fate in enumerate(fates)]
    trajectories = rollout(agent, episodes, ACT, 2, 1.0)
    calls: list[list[Request]] = agent.sampler.calls  # type: ignore[attr-defined]
    calls.clear()
    return trajectories, calls


def test_each_finished_episode_gives_one_skill_and_keeps_the_sampled_turn(
    tokenizer: SentencePieceTokenizer,
) -> None:
    agent = make_agent(tokenizer, make_config(), respond)
    trajectories, calls = played(agent, ["win:1", "never", "win:2"])
    agent.context.reserve = len(agent.context.skill_tokens("take mug 1"))  # type: ignore[attr-defined]
    skills = write_skills(agent, trajectories, 2, 0.5)
    assert skills == [
        Skill("", "", False, "invalid"),
        Skill("take mug 1", "sum", True, "strict"),
        Skill("take mug 1, go to desk 1", "", False, "too_long"),
    ]
    ((*requests,),) = calls
    assert {r.address for r in requests} == {(WRITE, 2, 0, i, 0) for i in range(3)}
    assert all(r.max_new_tokens == 60 for r in requests)
    for trajectory, text in zip(trajectories, ("broken", GOOD, LONG), strict=True):
        writing, prompt = trajectory.writing, agent.context.analysis(trajectory)
        assert writing is not None and prompt is not None and writing.text == text
        np.testing.assert_array_equal(writing.prompt.tokens, prompt.tokens)
        assert writing.response.tolist() == [*tokenizer.encode(text), *tokenizer.stop_ids]
        assert len(writing.logprobs) == len(writing.response) and writing.logprobs[0] == -0.5


def test_void_episodes_and_those_without_room_write_nothing(tokenizer: SentencePieceTokenizer) -> None:
    agent = make_agent(tokenizer, make_config(), respond)
    trajectories, calls = played(agent, ["fail:1", "win:2", "fail:0"])
    agent.context.max_length = 100  # type: ignore[attr-defined]
    skills = write_skills(agent, trajectories, 2, 1.0)
    assert [s.status for s in skills] == ["void", "no_room", "void"]
    assert not any(s.valid or s.text for s in skills) and not calls
    assert all(t.writing is None for t in trajectories)


@given(slots=st.integers(1, 4), count=st.integers(0, 9))
def test_requests_of_one_slot_come_one_after_the_other_its_last_episode_first(
    tokenizer: SentencePieceTokenizer, slots: int, count: int
) -> None:
    agent = make_agent(
        tokenizer, make_config(env__max_turns=1), lambda a: act(a) if a[0] == ACT else GOOD, slots
    )
    trajectories, calls = played(agent, ["never"] * count)
    assert all(s.valid for s in write_skills(agent, trajectories, 2, 1.0))
    asked: dict[int, list[int]] = {}
    for call in calls:
        assert len({r.slot for r in call}) == len(call)
        for request in call:
            asked.setdefault(request.slot, []).append(request.address[3])
    of_slot = {slot: [t.rollout for t in trajectories if t.slot == slot] for slot in asked}
    assert asked == {slot: numbers[::-1] for slot, numbers in of_slot.items()}
    assert sum(map(len, asked.values())) == count
