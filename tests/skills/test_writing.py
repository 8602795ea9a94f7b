"""Skills from finished episodes: what is asked, what is kept, and in which order."""

from __future__ import annotations

import json

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rsipo_jax.agents.rollout import ACT, WRITE, Agent, Episode, rollout
from rsipo_jax.agents.trajectory import Trajectory
from rsipo_jax.sampling.protocol import Address, Sampling
from rsipo_jax.skills.writing import Skill, write_skills
from rsipo_jax.text.sentencepiece_tokenizer import SentencePieceTokenizer
from tests.agents.episodes import ScriptedSampler, act, make_agent, make_config, task

GOOD = json.dumps({"episode_summary": "sum", "episode_skill": "take mug 1"})
LONG = json.dumps({"episode_skill": "take mug 1, go to desk 1"})


def respond(address: Address) -> str:
    if address[0] != WRITE:
        return act(address)
    return ("broken", GOOD, LONG)[address[3]]


def played(agent: Agent, fates: list[str]) -> tuple[list[Trajectory], ScriptedSampler]:
    """The episodes of one group, and the sampler, which has forgotten their requests."""
    episodes = [Episode(task(fate, i), 0, i) for i, fate in enumerate(fates)]
    trajectories, sampler = rollout(agent, episodes, ACT, 2, Sampling()), agent.sampler
    assert isinstance(sampler, ScriptedSampler)
    sampler.requests.clear()
    sampler.polled.clear()
    return trajectories, sampler


def test_each_finished_episode_gives_one_skill_and_keeps_the_sampled_turn(
    tokenizer: SentencePieceTokenizer,
) -> None:
    agent = make_agent(tokenizer, make_config(), respond)
    trajectories, sampler = played(agent, ["win:1", "never", "win:2"])
    agent.context.reserve = len(agent.context.skill_tokens("take mug 1"))  # type: ignore[attr-defined]
    skills = write_skills(agent, trajectories, 2, Sampling(0.5))
    assert skills == [
        Skill("", "", False, "invalid"),
        Skill("take mug 1", "sum", True, "strict"),
        Skill("take mug 1, go to desk 1", "", False, "too_long"),
    ]
    assert [r.address for r in sampler.requests] == [(WRITE, 2, 0, i, 0) for i in range(3)]
    assert all(r.max_new_tokens == 60 and r.sampling == Sampling(0.5) for r in sampler.requests)
    for trajectory, text in zip(trajectories, ("broken", GOOD, LONG), strict=True):
        writing, prompt = trajectory.writing, agent.context.analysis(trajectory)
        assert writing is not None and prompt is not None and writing.text == text
        np.testing.assert_array_equal(writing.prompt.tokens, prompt.tokens)
        assert writing.response.tolist() == [*tokenizer.encode(text), *tokenizer.stop_ids]
        assert len(writing.logprobs) == len(writing.response) and writing.logprobs[0] == -0.5
        assert writing.raw_logprobs is not None and len(writing.raw_logprobs) == len(writing.response)


def test_void_episodes_and_those_without_room_write_nothing(tokenizer: SentencePieceTokenizer) -> None:
    agent = make_agent(tokenizer, make_config(), respond)
    trajectories, sampler = played(agent, ["fail:1", "win:2", "fail:0"])
    agent.context.max_length = 100  # type: ignore[attr-defined]
    skills = write_skills(agent, trajectories, 2, Sampling())
    assert [s.status for s in skills] == ["void", "no_room", "void"]
    assert not any(s.valid or s.text for s in skills) and not sampler.requests
    assert all(t.writing is None for t in trajectories)


@given(count=st.integers(0, 9), late=st.integers(0, 2**32))
def test_all_are_asked_for_at_once_and_each_episode_gets_its_own(
    tokenizer: SentencePieceTokenizer, count: int, late: int
) -> None:
    def own(address: Address) -> str:
        return act(address) if address[0] == ACT else GOOD.replace("1", str(address[3]))

    agent = make_agent(tokenizer, make_config(env__max_turns=1, rollout__slots=2), own, late_sampler=late)
    trajectories, sampler = played(agent, ["never"] * count)
    skills = write_skills(agent, trajectories, 2, Sampling())
    assert sampler.polled[:1] == [count] * bool(count)
    assert skills == [Skill(f"take mug {i}", "sum", True, "strict") for i in range(count)]
    assert [t.writing.text for t in trajectories if t.writing] == [
        GOOD.replace("1", str(i)) for i in range(count)
    ]
