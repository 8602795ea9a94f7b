"""The agent loop: episodes end as they should, in order, and neither slots, neighbours nor anybody's pace change them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rsipo_jax.agents.actions import ParsedAction
from rsipo_jax.agents.context import make_context
from rsipo_jax.agents.rollout import ACT, REPLAY, Agent, Episode, rollout, sampling_of
from rsipo_jax.agents.trajectory import Trajectory
from rsipo_jax.config import EvalConfig, RolloutConfig
from rsipo_jax.models.transformer import ModelConfig
from rsipo_jax.parallel.sharding import sampling_mesh
from rsipo_jax.sampling.engine import Engine
from rsipo_jax.sampling.protocol import Address, Sampling
from rsipo_jax.text.sentencepiece_tokenizer import SentencePieceTokenizer
from tests.agents.episodes import (
    FIRST,
    ScriptedPool,
    ScriptedSampler,
    act,
    make_agent,
    make_config,
    task,
    told,
)
from tests.models.reference import make_params

FATES = ("win:1", "win:3", "win:9", "never", "fail:0", "fail:2")
TURNS = 4  # env.max_turns of `make_config`
LATE = st.none() | st.integers(0, 2**32)  # nobody is late, or all are, by the schedule of a seed


def episodes(fates: list[str]) -> list[Episode]:
    return [Episode(task(fate, i), group=i // 2, rollout=i % 2) for i, fate in enumerate(fates)]


def scripted(agent: Agent) -> tuple[ScriptedSampler, ScriptedPool]:
    assert isinstance(agent.sampler, ScriptedSampler) and isinstance(agent.pool, ScriptedPool)
    return agent.sampler, agent.pool


@given(fates=st.lists(st.sampled_from(FATES), max_size=12), slots=st.integers(1, 5), sampler=LATE, pool=LATE)
def test_every_episode_meets_its_fate_in_order_whatever_the_slots_and_the_pace(
    tokenizer: SentencePieceTokenizer, fates: list[str], slots: int, sampler: int | None, pool: int | None
) -> None:
    agent = make_agent(tokenizer, make_config(rollout__slots=slots), late_sampler=sampler, late_pool=pool)
    agent.sampler.load({}, 5)
    done = list[Trajectory]()
    played = rollout(agent, episodes(fates), ACT, 7, Sampling(0.5), done.append)
    for i, (fate, trajectory) in enumerate(zip(fates, played, strict=True)):
        kind, _, at = fate.partition(":")
        assert trajectory.task == task(fate, i) and (trajectory.group, trajectory.rollout) == (i // 2, i % 2)
        assert trajectory.skill == ""
        assert trajectory.policy_version == (5 if trajectory.turns else -1)
        turns = {"never": TURNS, "fail": int(at or 0), "win": min(int(at or 0), TURNS)}[kind]
        won = kind == "win" and int(at) <= TURNS
        assert trajectory.status == ("env_error" if kind == "fail" else "won" if won else "out_of_turns")
        assert trajectory.won == won and trajectory.void == (kind == "fail") == bool(trajectory.error)
        assert len(trajectory.turns) == turns
        assert len(trajectory.observations) == turns + (kind != "fail")
        assert not trajectory.error or f"game {i} broke" in trajectory.error
    assert Counter(map(id, done)) == Counter(map(id, played))
    # Only running episodes are generated for, each turn once, under its own address.
    asked, environments = scripted(agent)
    wanted = {(ACT, 7, t.group, t.rollout, turn) for t in played for turn in range(len(t.turns))}
    assert Counter(r.address for r in asked.requests) == Counter(wanted)
    assert all(r.max_new_tokens == 24 and r.sampling == Sampling(0.5) for r in asked.requests)
    # No more episodes play together than there are slots, and as many as there can.
    assert max(asked.polled, default=0) <= slots
    assert environments.playing.keys() == set(range(min(slots, len(fates))))
    assert not asked.waiting and not environments.unanswered

    alone = make_agent(tokenizer, make_config(rollout__slots=16))
    alone.sampler.load({}, 5)
    assert [told(t) for t in played] == [
        told(t) for t in rollout(alone, episodes(fates), ACT, 7, Sampling(0.5))
    ]


@dataclass
class FirstIsLast(ScriptedSampler):
    """Does not answer the first group while `waits`."""

    waits: Callable[[], bool] = lambda: True

    def come(self) -> list[Address]:
        return [address for address in self.waiting if address[2] or not self.waits()]


class FirstSlotIsLast(ScriptedPool):
    """Answers slot 0 when nobody else asks anything and the sampler has nothing to do."""

    def come(self, wait: bool) -> list[int]:
        others = [slot for slot in self.sent if slot]
        return others or (list(self.sent) if wait else [])


@pytest.mark.parametrize("slow", ["sampler", "environment"])
def test_nobody_waits_for_another_s_turn(tokenizer: SentencePieceTokenizer, slow: str) -> None:
    """One episode has no answer to its first question until all others, also those that start later, have ended."""
    agent, done = make_agent(tokenizer, make_config(rollout__slots=3)), list[int]()
    if slow == "sampler":
        agent = replace(agent, sampler=FirstIsLast(tokenizer, act, waits=lambda: len(done) < 6))
    else:
        agent = replace(agent, pool=FirstSlotIsLast(late=0))
    plan = [Episode(task("never", i), group=i, rollout=0) for i in range(7)]
    asked: list[int] = []  # questions of the first episode by the time that each one ends

    def on_done(trajectory: Trajectory) -> None:
        done.append(trajectory.group)
        asked.append(sum(request.address[2] == 0 for request in scripted(agent)[0].requests))

    played = rollout(agent, plan, ACT, 0, Sampling(), on_done)
    assert done == [1, 2, 3, 4, 5, 6, 0]
    assert asked == [int(slow == "sampler")] * 6 + [TURNS]
    assert [t.group for t in played] == list(range(7)) and all(t.status == "out_of_turns" for t in played)


def test_a_turn_holds_what_was_read_sampled_and_done(tokenizer: SentencePieceTokenizer) -> None:
    def respond(address: Address) -> str:
        return ("<think> a</think><action> look</action>", "<action>fly</action>", "mumble " * 40)[
            address[-1] % 3
        ]

    agent = make_agent(tokenizer, make_config(context__max_length=2000, env__max_turns=3), respond)
    (trajectory,) = rollout(agent, [Episode(task("never"), 0, 0, "take mug 1")], REPLAY, 1, Sampling(0.5))
    parsed = [ParsedAction(t.command, t.valid, t.admissible) for t in trajectory.turns]
    assert parsed[:2] == [ParsedAction("look", True, True), ParsedAction("fly", False, False)]
    assert trajectory.invalid_actions == 2 and trajectory.skill == "take mug 1"
    for turn, request in zip(trajectory.turns, scripted(agent)[0].requests, strict=True):
        np.testing.assert_array_equal(turn.prompt.tokens, request.prompt)
        assert turn.text == tokenizer.decode(turn.response.tolist())
        assert len(turn.logprobs) == len(turn.response) and turn.logprobs[0] == -0.5
        assert turn.raw_logprobs is not None and turn.raw_logprobs.tolist() == (turn.logprobs - 1).tolist()
    assert (
        len(trajectory.turns[2].response) == 24 and trajectory.turns[2].response[-1] != tokenizer.stop_ids[0]
    )
    assert (
        trajectory.observations[0].startswith(FIRST)
        and "You did 'fly', your action 2" in trajectory.observations[2]
    )
    assert [(e.observation, e.command) for e in trajectory.exchanges()] == list(
        zip(trajectory.observations, ("look", "fly", trajectory.turns[2].command), strict=False)
    )


def test_the_parser_is_the_one_that_the_settings_name(tokenizer: SentencePieceTokenizer) -> None:
    config = make_config(env__max_turns=1)
    config = replace(config, context=replace(config.context, parser="strict"))
    agent = make_agent(tokenizer, config, lambda _: "<action> look</action>")
    (trajectory,) = rollout(agent, episodes(["never"]), ACT, 0, Sampling())
    assert trajectory.turns[0].command == "" and not trajectory.turns[0].valid


@pytest.mark.parametrize("kind", ["conversation", "window"])
def test_an_episode_without_room_ends_and_the_others_go_on(
    tokenizer: SentencePieceTokenizer, kind: str
) -> None:
    config = make_config(kind, context__max_length=700 if kind == "window" else 330, rollout__slots=2)
    # The first two talk too much for one conversation; in a window only what the game says adds up.
    agent = make_agent(tokenizer, config, lambda a: "mug " * (1 if a[2] else 40))
    plan = episodes(["never"] * 6)
    if kind == "window":
        plan[0] = replace(plan[0], task=task("never", 10**600))
    played = rollout(agent, plan, ACT, 0, Sampling())
    full = [t for t in played if t.status == "context_full"]
    assert full and all(len(t.observations) == len(t.turns) + 1 < TURNS + 1 and not t.won for t in full)
    assert {t.group for t in full} == {0}
    assert all(t.status == "out_of_turns" for t in played if t not in full)


def test_two_episodes_of_one_address_are_refused(tokenizer: SentencePieceTokenizer) -> None:
    agent = make_agent(tokenizer, make_config())
    with pytest.raises(ValueError, match=r"two episodes have one \(group, rollout\)"):
        rollout(agent, [Episode(task("never"), 1, 1), Episode(task("win:1"), 1, 1)], ACT, 0, Sampling())


def test_tokens_are_drawn_as_the_section_says() -> None:
    expected = Sampling(temperature=0.7, top_k=5, top_p=0.9, min_p=0.1)
    settings = {"temperature": 0.7, "top_k": 5, "top_p": 0.9, "min_p": 0.1}
    assert sampling_of(RolloutConfig(**settings)) == sampling_of(EvalConfig(**settings)) == expected  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["conversation", "window"])
def test_a_real_policy_plays_the_same_episodes_whatever_the_slots_and_the_pace(
    tokenizer: SentencePieceTokenizer, kind: str
) -> None:
    # Shapes as in test_real_games.py, whose compiled programs serve here too.
    model = ModelConfig(tokenizer.vocab_size, 32, 48, 1, 2, 1, 16, scan_layers=False)
    config = make_config(kind, rollout__max_new_tokens=6, env__max_turns=3, context__max_length=1024)
    params, context = make_params(model), make_context(tokenizer, config)
    fates = ["never", "win:2", "fail:1", "never", "win:1", "never", "fail:0", "win:9", "win:2", "never"]
    results = []
    for slots, together, late in ((64, 10, None), (8, 8, None), (8, 3, 1)):
        engine = Engine(model, sampling_mesh(1), slots, 1024, tokenizer.stop_ids, seed=0)
        engine.load(params, 3)
        playing = replace(config, rollout=replace(config.rollout, slots=together))
        agent = Agent(engine, ScriptedPool(late=late), context, tokenizer, playing)
        results.append(rollout(agent, episodes(fates), ACT, 3, Sampling(top_k=8)))
    for other in results[1:]:
        assert [told(t) for t in results[0]] == [told(t) for t in other]
        for a, b in zip(results[0], other, strict=True):
            for x, y in zip(a.turns, b.turns, strict=True):
                np.testing.assert_allclose(x.logprobs, y.logprobs, atol=1e-4)
    assert {t.status for t in results[0]} == {"won", "out_of_turns", "env_error"}
    assert {t.policy_version for t in results[0] if t.turns} == {3}
