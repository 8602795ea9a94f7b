"""Skills from finished episodes: what is asked, what is kept, and in which order."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rsipo_jax.agents.rollout import ACT, WRITE, Agent, Episode, rollout
from rsipo_jax.agents.trajectory import Trajectory
from rsipo_jax.sampling.protocol import Address, Sampling
from rsipo_jax.skills.writing import Skill, draw_analysed, shuffled_authors, write_skills
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


def test_with_the_leak_guard_a_skill_that_tells_the_answer_is_invalid(
    tokenizer: SentencePieceTokenizer,
) -> None:
    for guard, answers, answer, status in (
        (True, ("the MUG 1!",), "", "leak"),
        (True, (), "Take  mug", "leak"),
        (True, ("mug 2",), "", "strict"),
        (False, ("mug 1",), "", "strict"),
    ):
        agent = make_agent(
            tokenizer, make_config(skill__leak_guard=guard), lambda a: GOOD if a[0] == WRITE else act(a)
        )
        trajectories, _ = played(agent, ["win:1"])
        trajectories[0].task = replace(trajectories[0].task, answers=answers)
        trajectories[0].answer = answer
        (skill,) = write_skills(agent, trajectories, 2, Sampling())
        assert (skill.status, skill.valid) == (status, status == "strict")


@given(groups=st.lists(st.integers(1, 6), min_size=1, max_size=5), per_task=st.integers(0, 4), data=st.data())
def test_so_many_episodes_of_each_task_are_analysed_void_ones_never(
    groups: list[int], per_task: int, data: st.DataObject
) -> None:
    group = [x for x, size in enumerate(groups) for _ in range(size)]
    void = data.draw(st.lists(st.booleans(), min_size=len(group), max_size=len(group)))
    trajectories = [
        Trajectory(task("never"), x, i, status="env_error" if v else "won")
        for i, (x, v) in enumerate(zip(group, void, strict=True))
    ]
    chosen = draw_analysed(trajectories, per_task, 0, 7)
    assert chosen == draw_analysed(trajectories, per_task, 0, 7)
    for x in range(len(groups)):
        playable = {i for i, (y, v) in enumerate(zip(group, void, strict=True)) if y == x and not v}
        mine = {i for i in chosen if group[i] == x}
        assert mine <= playable and len(mine) == (min(per_task, len(playable)) if per_task else len(playable))


def test_other_steps_analyse_other_episodes() -> None:
    trajectories = [Trajectory(task("never"), 0, i, status="won") for i in range(8)]
    drawn = [draw_analysed(trajectories, 1, 0, step) for step in range(200)]
    counts = np.bincount([min(d) for d in drawn], minlength=8)
    assert counts.min() > 5  # 25 expected


@given(tasks=st.integers(2, 8), size=st.integers(1, 4), step=st.integers(0, 50))
def test_shuffled_skills_stay_with_no_task_and_each_is_used_once(tasks: int, size: int, step: int) -> None:
    group = np.repeat(np.arange(tasks), size)
    authors = shuffled_authors(group, 0, step)
    assert sorted(authors) == list(range(tasks * size))
    assert (group[authors] != group).all()
