"""ALFWorld episodes as the rollout suite replays them: the games are played once, by an expert that slips.

What is read comes from the games; how long the responses are is drawn. Rollouts of one task have one opening and go
different ways after it.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.rollout_workers.episodes import Recording, Turn
from rsipo_jax.agents.context import make_context
from rsipo_jax.config import Config, ContextConfig
from rsipo_jax.envs.alfworld.data import Source, find_tasks, load_game
from rsipo_jax.envs.alfworld.engine import FastEpisode, intro
from rsipo_jax.envs.alfworld.experts import ExpertStep, SearchingExpert
from rsipo_jax.envs.alfworld.game import Game
from rsipo_jax.envs.protocol import Task
from rsipo_jax.evaluation.panels import make_panel
from rsipo_jax.text.sentencepiece_tokenizer import train_sentencepiece
from rsipo_jax.training.demonstrations.alfworld import response
from rsipo_jax.training.demonstrations.demonstration import Demonstration
from rsipo_jax.training.sft import as_trajectory

SLIPS = 0.25  # share of turns at which a random admissible action is taken
# The conversation tells observations only, the window lists the admissible actions, as the presets have it.
CONTEXTS = {
    "conversation": ContextConfig(kind="conversation", show_admissible=False, max_length=1 << 16),
    "window": ContextConfig(kind="window", show_admissible=True, max_length=1 << 16),
}


@dataclass(frozen=True)
class Loop:
    """The size of a recorded loop. Responses are log-normal in length, as thoughts are."""

    tasks: int = 16
    rollouts: int = 8  # of each task
    turns: int = 2  # an episode has at most; the first ones, so that all engines are through in half an hour
    median: int = 14  # tokens of a response
    spread: float = 0.6  # standard deviation of its logarithm
    shortest: int = 8
    longest: int = 24
    vocabulary: int = 4096  # of the tokenizer, trained on the texts themselves


def record(root: Source, loop: Loop) -> dict[str, Recording]:
    """The loop in every context of `CONTEXTS`: the same games, actions and response lengths."""
    demos = list(_play_all(root, loop))
    texts = sorted({text for demo in demos for text in (*demo.observations, *demo.responses)})
    actions = sorted({action for demo in demos for shown in demo.admissible for action in shown})
    with tempfile.TemporaryDirectory() as folder:
        tokenizer = train_sentencepiece([*texts, *actions], Path(folder) / "tokenizer", loop.vocabulary)
    rng = np.random.default_rng(0)
    drawn = np.exp(rng.normal(np.log(loop.median), loop.spread, (len(demos), loop.turns)))
    lengths = np.clip(np.rint(drawn), loop.shortest, loop.longest).astype(int).tolist()
    recordings = {}
    for kind, settings in CONTEXTS.items():
        context = make_context(tokenizer, Config(context=settings))
        episodes = []
        for demo, responses in zip(demos, lengths, strict=True):
            turns, held = list[Turn](), 0
            for turn, n in zip(as_trajectory(demo, context, tokenizer).turns, responses, strict=False):
                # Of the demonstrated response, what closes it is read and the rest is for the engine to sample.
                turns.append(Turn(turn.prompt.tokens[held:].tolist(), n))
                held = len(turn.prompt.tokens) + len(turn.response) - 1 if kind == "conversation" else 0
            episodes.append(turns)
        recordings[kind] = Recording(kind == "conversation", episodes)
    return recordings


def _play_all(root: Source, loop: Loop) -> Iterator[Demonstration]:
    """Rollouts of a task one after another, as the groups of an RL step."""
    for task in make_panel("rollout", find_tasks(root, "train"), loop.tasks).tasks:
        game = load_game(root, task)
        for rollout in range(loop.rollouts):
            yield _play(game, task, random.Random(f"{task.id}/{rollout}"), loop.turns)


def _play(game: Game, task: Task, rng: random.Random, turns: int) -> Demonstration:
    episode, expert = FastEpisode(game), SearchingExpert(game, rng)
    observation = episode.observe(intro(game))
    observations, admissible, responses = [observation.text], list[tuple[str, ...]](), list[str]()
    while not observation.won and len(responses) < turns:
        step = expert.act(observation)
        if rng.random() < SLIPS:
            step = ExpertStep(step.thought, rng.choice([a for a in observation.admissible if a != "help"]))
        admissible.append(observation.admissible)
        responses.append(response(step))
        observation = episode.observe(episode.step(step.action))
        observations.append(observation.text)
    return Demonstration(
        task.id, task.kind, "", tuple(observations), tuple(admissible), tuple(responses),
        (True,) * len(responses), observation.won, analysis="",
    )  # fmt: skip


def summary(recording: Recording) -> dict[str, float | int]:
    """What a recording asks of an engine, in tokens."""
    prompts, responses = (np.asarray(column) for column in zip(*recording.lengths(), strict=True))
    return {
        "episodes": len(recording.episodes),
        "requests": len(prompts),
        "prompt_tokens": int(prompts.sum()),
        "longest_prompt": int(prompts.max()),
        "different_prompt_tokens": different_tokens(recording),
        "new_tokens": int(responses.sum()),
        "mean_response": float(responses.mean()),
        "longest_response": int(responses.max()),
    }


def different_tokens(recording: Recording) -> int:
    """Prompt tokens that must be computed when all that is shared before them is reused.

    Of a growing prompt that is each turn's ids; prompts of one loop share what their ids share from the beginning.
    """
    if recording.grows:
        later = sum(len(turn.ids) for episode in recording.episodes for turn in episode[1:])
        return later + _trie_size([episode[0].ids for episode in recording.episodes])
    return _trie_size([turn.ids for episode in recording.episodes for turn in episode])


def _trie_size(prompts: Sequence[Sequence[int]]) -> int:
    """Nodes of the trie of these sequences: in sorted order each adds what it does not share with the one before it."""
    total, last = 0, list[int]()
    for prompt in sorted(map(list, prompts)):
        shared = 0
        while shared < min(len(last), len(prompt)) and last[shared] == prompt[shared]:
            shared += 1
        total, last = total + len(prompt) - shared, prompt
    return total
