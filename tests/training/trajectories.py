"""Made-up trajectories, drawn token by token: what rows, packing and the update are tried on."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

from rsipo_jax.agents.trajectory import Prompt, Trajectory, Turn
from rsipo_jax.envs.protocol import Task
from rsipo_jax.methods.method import Credit
from rsipo_jax.training.rows import ACTION, CONTEXT, Rows
from rsipo_jax.training.update import TokenScores

VOCAB = 61
TASK = Task("train/game/trial", "pick_and_place_simple", "train")


def ids(rng: np.random.Generator, n: int) -> np.ndarray:
    return rng.integers(1, VOCAB, n).astype(np.int32)


def make_trajectory(
    rng: np.random.Generator, turns: int, writes: bool, conversation: bool, void: bool = False
) -> Trajectory:
    """A trajectory of random ids; in a conversation each prompt continues the last turn."""
    trajectory = Trajectory(TASK, 0, 0, status="env_error" if void else "won")
    head, skill_at = ids(rng, int(rng.integers(2, 9))), int(rng.integers(0, 3))
    for i in range(turns + writes):
        response = ids(rng, int(rng.integers(1, 6)))
        prompt = Prompt(head, skill_at)
        turn = Turn(prompt, response, rng.normal(-2, 1, len(response)).astype(np.float32), "")
        if i < turns:
            trajectory.turns.append(turn)
        else:
            trajectory.writing = turn
        following = ids(rng, int(rng.integers(1, 5)))
        head = np.concatenate([head, response, following]) if conversation else following
    return trajectory


def unmerged(trajectory: Trajectory) -> list[Trajectory]:
    """One trajectory for each turn: the same tokens, each turn a row of its own."""
    alone = [replace(trajectory, turns=[turn], writing=None) for turn in trajectory.turns]
    if trajectory.writing:
        alone.append(replace(trajectory, turns=[], writing=trajectory.writing))
    return alone


def some_trajectories(conversation: bool = True) -> list[Trajectory]:
    """Five episodes with ragged turns, four of which wrote a skill."""
    rng = np.random.default_rng(0)
    return [make_trajectory(rng, turns, turns != 2, conversation) for turns in (3, 1, 2, 4, 1)]


def credit_of(rows: Rows) -> tuple[TokenScores, Credit]:
    """Scores near the policy's own, advantages and trust drawn per episode: the same however turns are split."""
    rng = np.random.default_rng(1)
    sampled = rows.kind != CONTEXT
    n = int(sampled.sum())
    per_episode = rng.normal(size=(2, 10)).astype(np.float32)[:, rows.token_episode % 10]
    noise = rng.normal(0, 0.1, (2, n)).astype(np.float32)
    old, ref, teacher = (np.zeros(len(rows.tokens), np.float32) for _ in range(3))
    old[sampled] = rows.logprobs[sampled]
    ref[sampled], teacher[sampled] = rows.logprobs[sampled] + noise
    advantages = np.where(sampled, per_episode[0], 0).astype(np.float32)
    trust = np.where(rows.kind == ACTION, np.abs(per_episode[1]).clip(0, 1), 0).astype(np.float32)
    return TokenScores(old, ref, teacher), Credit(advantages, trust)


@st.composite
def trajectories(draw: st.DrawFn, most: int = 6) -> list[Trajectory]:
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    shapes = draw(
        st.lists(st.tuples(st.integers(0, 4), st.booleans(), st.booleans(), st.integers(0, 5)), max_size=most)
    )
    return [make_trajectory(rng, turns, writes, talk, void == 0) for turns, writes, talk, void in shapes]
