"""Training rows: trajectories as flat token arrays, merged where one turn's prompt continues the last turn.

Everything per token lives in one flat [tokens] array over all rows ("ragged"), so that credit is array arithmetic.
Invariants: trained ids are the sampled ids; `kind` comes from lengths, never from ids; inserting a skill changes no
response token and no order, so teacher and student scores align by position among the generated tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from rsipo_jax.agents.trajectory import Trajectory, Turn

# What a token is: read (never trained by RL), sampled while acting, sampled while writing a skill, or part of a
# demonstrated response that shall be read but not learned from.
CONTEXT, ACTION, SKILL, NOISE = range(4)


@dataclass(frozen=True)
class Rows:
    tokens: np.ndarray  # int32 [N]
    kind: np.ndarray  # int8 [N]: CONTEXT, ACTION, SKILL or NOISE
    logprobs: np.ndarray  # float32 [N] behaviour log-probabilities of sampled tokens, 0 elsewhere
    starts: np.ndarray  # int64 [R + 1]; row r is [starts[r], starts[r + 1])
    episode: np.ndarray  # int32 [R], index of the trajectory a row comes from
    skill_at: np.ndarray  # int64 [R], index within the row where a skill stands or would be inserted

    def __len__(self) -> int:
        return len(self.episode)

    @property
    def lengths(self) -> np.ndarray:
        return np.diff(self.starts)

    @property
    def token_row(self) -> np.ndarray:
        """int64 [N]: the row of each token."""
        return np.repeat(np.arange(len(self)), self.lengths)

    @property
    def token_episode(self) -> np.ndarray:
        """int32 [N]: the episode of each token."""
        return np.repeat(self.episode, self.lengths)


def rows_from(trajectories: Sequence[Trajectory]) -> Rows:
    """Rows of all trajectories: acting turns, then the skill-writing turn if there is one.

    A turn whose prompt is exactly the previous prompt and response plus new tokens continues the same row; any other
    turn begins a row. So a conversation is one row and a window episode one row per turn. Void episodes give no rows.
    """
    pieces: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
    episode, skill_at, lengths = [], [], []
    for index, trajectory in enumerate(trajectories):
        if trajectory.void:
            continue
        for run in _runs(trajectory):
            n = 0
            for turn, kind in run:
                prompt, m = turn.prompt.tokens[n:], len(turn.response)
                pieces.append((prompt, np.zeros(len(prompt), np.int8), np.zeros(len(prompt), np.float32)))
                pieces.append(
                    (turn.response, np.full(m, kind if turn.imitate else NOISE, np.int8), turn.logprobs)
                )
                n = len(turn.prompt.tokens) + m
            episode.append(index)
            skill_at.append(run[0][0].prompt.skill_at)
            lengths.append(n)
    tokens, kinds, logprobs = (
        (np.concatenate(column) for column in zip(*pieces, strict=True)) if pieces else (np.zeros(0),) * 3
    )
    return Rows(
        tokens.astype(np.int32),
        kinds.astype(np.int8),
        logprobs.astype(np.float32),
        np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        np.asarray(episode, np.int32),
        np.asarray(skill_at, np.int64),
    )


def _runs(trajectory: Trajectory) -> Iterable[list[tuple[Turn, int]]]:
    """Maximal runs of turns in which each prompt continues the one before."""
    turns = [(turn, ACTION) for turn in trajectory.turns]
    if trajectory.writing is not None:
        turns.append((trajectory.writing, SKILL))
    run: list[tuple[Turn, int]] = []
    for turn, kind in turns:
        if run and not _continues(turn, run[-1][0]):
            yield run
            run = []
        run.append((turn, kind))
    if run:
        yield run


def _continues(turn: Turn, previous: Turn) -> bool:
    n = len(previous.prompt.tokens)
    whole = n + len(previous.response)
    tokens = turn.prompt.tokens
    return (
        len(tokens) >= whole
        and np.array_equal(tokens[:n], previous.prompt.tokens)
        and np.array_equal(tokens[n:whole], previous.response)
    )


def teacher_rows(rows: Rows, skill_tokens: Sequence[np.ndarray]) -> Rows:
    """The acting rows with a skill in context: `skill_tokens[e]` (int32, may be empty) inserted for episode e.

    Skill-writing turns are cut off (the teacher only judges actions), and rows without an action disappear. The ACTION
    tokens of the result are those of `rows`, in the same order.
    """
    # A merged row ends with the skill-writing turn: keep what stands before its request, up to the last action token.
    position = np.arange(len(rows.tokens)) - np.repeat(rows.starts[:-1], rows.lengths)
    last_action = np.full(len(rows), -1, np.int64)
    acting = rows.kind == ACTION
    np.maximum.at(last_action, rows.token_row[acting], position[acting])

    kept = np.flatnonzero(last_action >= 0)
    pieces: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
    lengths = []
    for r in kept:
        start, cut, end = (
            rows.starts[r],
            rows.starts[r] + rows.skill_at[r],
            rows.starts[r] + last_action[r] + 1,
        )
        block = skill_tokens[rows.episode[r]]
        before, after = (
            (rows.tokens[part], rows.kind[part], rows.logprobs[part])
            for part in (slice(start, cut), slice(cut, end))
        )
        pieces += [before, (block, np.zeros(len(block), np.int8), np.zeros(len(block), np.float32)), after]
        lengths.append(end - start + len(block))
    if not pieces:
        return rows_from([])
    tokens, kinds, logprobs = (np.concatenate(column) for column in zip(*pieces, strict=True))
    starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return replace(
        rows,
        tokens=tokens,
        kind=kinds,
        logprobs=logprobs,
        starts=starts,
        episode=rows.episode[kept],
        skill_at=rows.skill_at[kept],
    )
