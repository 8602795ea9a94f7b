"""Rows: every token once and in order, kinds from lengths, conversations merged, skills inserted at one place."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rsipo_jax.agents.context import make_context
from rsipo_jax.agents.rollout import ACT, Episode, rollout
from rsipo_jax.agents.trajectory import Prompt, Trajectory, Turn
from rsipo_jax.sampling.protocol import Sampling
from rsipo_jax.skills.writing import write_skills
from rsipo_jax.text.sentencepiece_tokenizer import SentencePieceTokenizer
from rsipo_jax.training.rows import ACTION, CONTEXT, NOISE, SKILL, Rows, rows_from, teacher_rows
from tests.agents.episodes import make_agent, make_config, task
from tests.training.trajectories import TASK, trajectories


def row(rows: Rows, r: int) -> tuple[list[int], list[int], list[float]]:
    span = slice(rows.starts[r], rows.starts[r + 1])
    return rows.tokens[span].tolist(), rows.kind[span].tolist(), rows.logprobs[span].tolist()


def wanted_rows(trajectory: Trajectory) -> list[tuple[list[int], list[int], list[float]]]:
    """The rows of a trajectory, a token at a time."""
    made: list[tuple[list[int], list[int], list[float]]] = []
    turns = [(turn, ACTION) for turn in trajectory.turns]
    if trajectory.writing:
        turns.append((trajectory.writing, SKILL))
    for turn, kind in turns:
        prompt, response = turn.prompt.tokens.tolist(), turn.response.tolist()
        if not made or prompt[: len(made[-1][0])] != made[-1][0]:
            made.append(([], [], []))
        tokens, kinds, logprobs = made[-1]
        for token in prompt[len(tokens) :]:
            tokens.append(token)
            kinds.append(CONTEXT)
            logprobs.append(0.0)
        tokens += response
        kinds += [kind if turn.imitate else NOISE] * len(response)
        logprobs += turn.logprobs.tolist()
    return made


@given(trajectories())
def test_rows_are_the_trajectories_token_by_token(played: list[Trajectory]) -> None:
    rows = rows_from(played)
    wanted = [(e, *made) for e, t in enumerate(played) if not t.void for made in wanted_rows(t)]
    assert len(rows) == len(wanted) == len(rows.starts) - 1
    for r, (episode, *made) in enumerate(wanted):
        assert row(rows, r) == tuple(made)
        assert rows.episode[r] == episode
    np.testing.assert_array_equal(rows.lengths, [len(tokens) for _, tokens, _, _ in wanted])
    np.testing.assert_array_equal(rows.token_episode, [e for e, tokens, _, _ in wanted for _ in tokens])
    np.testing.assert_array_equal(
        rows.token_row, [r for r, (_, tokens, _, _) in enumerate(wanted) for _ in tokens]
    )
    assert (rows.tokens.dtype, rows.kind.dtype, rows.logprobs.dtype) == (np.int32, np.int8, np.float32)
    assert rows.starts[0] == 0 and rows.starts[-1] == len(rows.tokens) == len(rows.kind) == len(rows.logprobs)


@given(trajectories(), st.integers(0, 2**32))
def test_teacher_rows_insert_the_skill_and_keep_action_tokens_and_their_order(
    played: list[Trajectory], seed: int
) -> None:
    rng = np.random.default_rng(seed)
    blocks = [rng.integers(100, 200, rng.integers(0, 5)).astype(np.int32) for _ in played]
    rows = rows_from(played)
    taught = teacher_rows(rows, blocks)
    np.testing.assert_array_equal(taught.tokens[taught.kind == ACTION], rows.tokens[rows.kind == ACTION])
    np.testing.assert_array_equal(taught.logprobs[taught.kind == ACTION], rows.logprobs[rows.kind == ACTION])
    np.testing.assert_array_equal(
        taught.token_episode[taught.kind == ACTION], rows.token_episode[rows.kind == ACTION]
    )
    assert not np.any(taught.kind == SKILL)
    acting = [r for r in range(len(rows)) if ACTION in row(rows, r)[1]]
    assert len(taught) == len(acting)
    for t, r in enumerate(acting):
        assert taught.episode[t] == rows.episode[r] and taught.skill_at[t] == rows.skill_at[r]
        at, block = taught.skill_at[t], blocks[rows.episode[r]]
        tokens, kinds, _ = row(taught, t)
        assert tokens[at : at + len(block)] == block.tolist()
        assert kinds[at : at + len(block)] == [CONTEXT] * len(block)
        bare_tokens, bare_kinds, _ = row(rows, r)
        end = len(tokens) - len(block)  # after the last action token
        assert tokens[:at] + tokens[at + len(block) :] == bare_tokens[:end]
        assert kinds[:at] + kinds[at + len(block) :] == bare_kinds[:end]
        assert bare_kinds[end - 1] == ACTION and ACTION not in bare_kinds[end:]


def test_no_trajectory_gives_no_row() -> None:
    rows = rows_from([])
    assert len(rows) == 0 and rows.starts.tolist() == [0] and len(rows.tokens) == len(rows.token_row) == 0
    assert len(teacher_rows(rows, [])) == 0


def test_a_prompt_that_differs_anywhere_begins_a_row() -> None:
    def turn(prompt: list[int], response: list[int], imitate: bool = True) -> Turn:
        return Turn(
            Prompt(np.array(prompt, np.int32), 1),
            np.array(response, np.int32),
            np.ones(len(response), np.float32),
            "",
            imitate=imitate,
        )

    continued = [turn([1, 2], [3]), turn([1, 2, 3, 4], [5], imitate=False), turn([1, 2, 3, 4, 5], [6])]
    assert row(rows_from([Trajectory(TASK, 0, 0, turns=continued)]), 0)[:2] == (
        [1, 2, 3, 4, 5, 6],
        [CONTEXT, CONTEXT, ACTION, CONTEXT, NOISE, ACTION],
    )
    for other in ([1, 9, 3, 4], [1, 2, 9, 4], [1, 2], [9, 1, 2, 3]):
        rows = rows_from([Trajectory(TASK, 0, 0, turns=[turn([1, 2], [3]), turn(other, [5])])])
        assert len(rows) == 2 and row(rows, 1)[0] == [*other, 5]


def test_a_conversation_is_one_row_and_a_window_episode_one_row_per_turn(
    tokenizer: SentencePieceTokenizer,
) -> None:
    plan = [Episode(task("never"), 0, 0), Episode(task("win:2"), 0, 1), Episode(task("fail:1"), 0, 2)]
    for kind, lengths in (("conversation", [0, 1]), ("window", [0] * 5 + [1] * 3)):
        config = make_config(kind)
        agent = make_agent(tokenizer, config)
        played = rollout(agent, plan, ACT, 0, Sampling())
        write_skills(agent, played, 0, Sampling())
        rows = rows_from(played)
        assert rows.episode.tolist() == lengths
        sampled = np.concatenate([t.response for p in played[:2] for t in (*p.turns, p.writing) if t])
        np.testing.assert_array_equal(rows.tokens[rows.kind != CONTEXT], sampled)
        # The rows with a skill are those of an episode that was played with it.
        context = make_context(tokenizer, config)
        block = context.skill_tokens("take mug 1")
        taught = teacher_rows(rows, [block] * 3)
        agent = make_agent(tokenizer, config)
        with_skill = rollout(agent, [replace(e, skill="take mug 1") for e in plan], ACT, 0, Sampling())
        theirs = rows_from(with_skill)
        np.testing.assert_array_equal(taught.tokens, theirs.tokens)
        np.testing.assert_array_equal(taught.kind, theirs.kind)
        np.testing.assert_array_equal(taught.starts, theirs.starts)
        np.testing.assert_array_equal(taught.skill_at, theirs.skill_at)
