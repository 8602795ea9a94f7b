"""The agent loop: episodes end as they should, in order, and neither slots nor neighbours change them."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rsipo_jax.agents.actions import ParsedAction
from rsipo_jax.agents.context import make_context
from rsipo_jax.agents.rollout import ACT, REPLAY, Agent, Episode, rollout
from rsipo_jax.agents.trajectory import Trajectory
from rsipo_jax.models.transformer import ModelConfig
from rsipo_jax.parallel.sharding import sampling_mesh
from rsipo_jax.sampling.sampler import Address, Sampler
from rsipo_jax.text.sentencepiece_tokenizer import SentencePieceTokenizer
from tests.agents.episodes import FIRST, ScriptedPool, make_agent, make_config, task
from tests.models.reference import make_params

FATES = ("win:1", "win:3", "win:9", "never", "fail:0", "fail:2")
TURNS = 4  # env.max_turns of `make_config`


def episodes(fates: list[str]) -> list[Episode]:
    return [Episode(task(fate, i), group=i // 2, rollout=i % 2) for i, fate in enumerate(fates)]


def told(trajectory: Trajectory) -> tuple:
    """All of a trajectory but its slot."""
    turns = [
        (*turn.prompt.tokens, -1, *turn.response, *turn.logprobs, turn.command, turn.valid, turn.admissible)
        for turn in trajectory.turns
    ]
    return (
        trajectory.task,
        trajectory.status,
        trajectory.won,
        trajectory.error,
        trajectory.observations,
        turns,
    )


@given(fates=st.lists(st.sampled_from(FATES), max_size=12), slots=st.integers(1, 5))
def test_every_episode_meets_its_fate_in_order_whatever_the_slots(
    tokenizer: SentencePieceTokenizer, fates: list[str], slots: int
) -> None:
    agent, done = make_agent(tokenizer, make_config(), slots=slots), list[Trajectory]()
    played = rollout(agent, episodes(fates), ACT, 7, 0.5, done.append)
    for i, (fate, trajectory) in enumerate(zip(fates, played, strict=True)):
        kind, _, at = fate.partition(":")
        assert trajectory.task == task(fate, i) and (trajectory.group, trajectory.rollout) == (i // 2, i % 2)
        assert trajectory.policy_version == 7 and trajectory.skill == ""
        turns = {"never": TURNS, "fail": int(at or 0), "win": min(int(at or 0), TURNS)}[kind]
        won = kind == "win" and int(at) <= TURNS
        assert trajectory.status == ("env_error" if kind == "fail" else "won" if won else "out_of_turns")
        assert trajectory.won == won and trajectory.void == (kind == "fail") == bool(trajectory.error)
        assert len(trajectory.turns) == turns
        assert len(trajectory.observations) == turns + (kind != "fail")
        assert not trajectory.error or f"game {i} broke" in trajectory.error
    assert Counter(map(id, done)) == Counter(map(id, played))
    # Only running episodes are generated for, each turn once, under its own address.
    requests = [r for call in agent.sampler.calls for r in call]  # type: ignore[attr-defined]
    wanted = {(ACT, 7, t.group, t.rollout, turn) for t in played for turn in range(len(t.turns))}
    assert Counter(r.address for r in requests) == Counter(wanted)
    assert all(len({r.slot for r in call}) == len(call) <= slots for call in agent.sampler.calls)  # type: ignore[attr-defined]
    assert all(r.max_new_tokens == 24 for r in requests)
    alone = rollout(make_agent(tokenizer, make_config(), slots=16), episodes(fates), ACT, 7, 0.5)
    assert [told(t) for t in played] == [told(t) for t in alone]


def test_a_turn_holds_what_was_read_sampled_and_done(tokenizer: SentencePieceTokenizer) -> None:
    def respond(address: Address) -> str:
        return ("<think> a</think><action> look</action>", "<action>fly</action>", "mumble " * 40)[
            address[-1] % 3
        ]

    agent = make_agent(tokenizer, make_config(context__max_length=2000, env__max_turns=3), respond)
    (trajectory,) = rollout(agent, [Episode(task("never"), 0, 0, "take mug 1")], REPLAY, 1, 0.5)
    parsed = [ParsedAction(t.command, t.valid, t.admissible) for t in trajectory.turns]
    assert parsed[:2] == [ParsedAction("look", True, True), ParsedAction("fly", False, False)]
    assert trajectory.invalid_actions == 2 and trajectory.skill == "take mug 1"
    for turn, request in zip(trajectory.turns, (r for (r,) in agent.sampler.calls), strict=True):  # type: ignore[attr-defined]
        np.testing.assert_array_equal(turn.prompt.tokens, request.prompt)
        assert turn.text == tokenizer.decode(turn.response.tolist())
        assert len(turn.logprobs) == len(turn.response) and turn.logprobs[0] == -0.5
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
    (trajectory,) = rollout(agent, episodes(["never"]), ACT, 0, 1.0)
    assert trajectory.turns[0].command == "" and not trajectory.turns[0].valid


@pytest.mark.parametrize("kind", ["conversation", "window"])
def test_an_episode_without_room_ends_and_the_others_go_on(
    tokenizer: SentencePieceTokenizer, kind: str
) -> None:
    config = make_config(kind, context__max_length=700 if kind == "window" else 330)
    # The first two talk too much for one conversation; in a window only what the game says adds up.
    agent = make_agent(tokenizer, config, lambda a: "mug " * (1 if a[2] else 40), slots=2)
    plan = episodes(["never"] * 6)
    if kind == "window":
        plan[0] = replace(plan[0], task=task("never", 10**600))
    played = rollout(agent, plan, ACT, 0, 1.0)
    full = [t for t in played if t.status == "context_full"]
    assert full and all(len(t.observations) == len(t.turns) + 1 < TURNS + 1 and not t.won for t in full)
    assert {t.group for t in full} == {0}
    assert all(t.status == "out_of_turns" for t in played if t not in full)


def test_two_episodes_of_one_address_are_refused(tokenizer: SentencePieceTokenizer) -> None:
    agent = make_agent(tokenizer, make_config())
    with pytest.raises(ValueError, match=r"two episodes have one \(group, rollout\)"):
        rollout(agent, [Episode(task("never"), 1, 1), Episode(task("win:1"), 1, 1)], ACT, 0, 1.0)


@pytest.mark.parametrize("kind", ["conversation", "window"])
def test_a_real_policy_plays_the_same_episodes_in_three_slots_and_in_eight(
    tokenizer: SentencePieceTokenizer, kind: str
) -> None:
    model = ModelConfig(tokenizer.vocab_size, 32, 48, 1, 2, 1, 16, scan_layers=False)
    config = make_config(kind, rollout__max_new_tokens=6, env__max_turns=3)
    params, context = make_params(model), make_context(tokenizer, config)
    fates = ["never", "win:2", "fail:1", "never", "win:1", "never", "fail:0", "win:9", "win:2", "never"]
    results = []
    for slots in (3, 8):
        sampler = Sampler(
            model, sampling_mesh(1), slots, config.context.max_length, 6, tokenizer.stop_ids, seed=0
        )
        sampler.load(params)
        agent = Agent(sampler, ScriptedPool(), context, tokenizer, config)
        results.append(rollout(agent, episodes(fates), ACT, 3, 1.0))
    for few, many in zip(*results, strict=True):
        assert few.observations == many.observations and few.status == many.status
        for a, b in zip(few.turns, many.turns, strict=True):
            assert a.response.tolist() == b.response.tolist()
            np.testing.assert_allclose(a.logprobs, b.logprobs, atol=1e-4)
    assert {t.status for t in results[0]} == {"won", "out_of_turns", "env_error"}
