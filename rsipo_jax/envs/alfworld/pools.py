"""Playing many ALFWorld games at once."""

from __future__ import annotations

import functools
from collections.abc import Collection

from rsipo_jax.config import EnvConfig
from rsipo_jax.envs.alfworld.data import Source, load_game
from rsipo_jax.envs.alfworld.engine import FastEpisode, intro
from rsipo_jax.envs.alfworld.game import GameDataError
from rsipo_jax.envs.alfworld.textworld import TextWorldGame, require_alfworld
from rsipo_jax.envs.pool import ProcessPool
from rsipo_jax.envs.protocol import EnvPool, Observation, Task, no_game

_PARSED_GAMES = 256  # kept in memory; about 50 kB each


class FastPool(EnvPool):
    """The fast engine: all slots in this process, a game parsed once for all its episodes.

    A game takes microseconds a step, so nothing is played before `receive`, which then plays all there is.
    """

    def __init__(self, root: Source) -> None:
        self._root = root
        self._start_of = functools.lru_cache(_PARSED_GAMES)(self._prepare)
        self._episodes: dict[int, FastEpisode] = {}
        self._sent: dict[int, Task | str] = {}  # commands to play, by slot, in the order sent

    def receive(self, wait: bool) -> dict[int, Observation]:
        """See `EnvPool.receive`: plays what was sent, in that order; nobody ever waits."""
        sent, self._sent = self._sent, {}
        return {
            slot: self._play(slot, command) if isinstance(command, str) else self._start(slot, command)
            for slot, command in sent.items()
        }

    @property
    def unanswered(self) -> Collection[int]:
        """See `EnvPool.unanswered`."""
        return self._sent.keys()

    def close(self) -> None:
        self._episodes.clear()
        self._sent.clear()

    def _take(self, slot: int, command: Task | str) -> None:
        self._sent[slot] = command

    def _prepare(self, task: Task) -> tuple[FastEpisode, Observation]:
        """An episode that is never played, of which every episode of the task is a copy, and what it shows."""
        episode = FastEpisode(load_game(self._root, task))
        return episode, episode.observe(intro(episode.game))

    def _start(self, slot: int, task: Task) -> Observation:
        self._episodes.pop(slot, None)
        try:
            start, observation = self._start_of(task)
        except GameDataError as error:
            return Observation("", (), won=False, error=str(error))
        self._episodes[slot] = start.copy()
        return observation

    def _play(self, slot: int, action: str) -> Observation:
        episode = self._episodes.get(slot)
        if episode is None:
            return no_game(slot)
        return episode.observe(episode.step(action))


def make_pool(env: EnvConfig, root: Source) -> EnvPool:
    """The pool a run asks for: in this process ("fast"), or in config.env.workers processes ("textworld").

    Raises EngineMissing with the fix where that engine is not installed, ValueError for an unknown one.
    """
    if env.engine == "fast":
        return FastPool(root)
    if env.engine == "textworld":
        require_alfworld()
        return ProcessPool(functools.partial(TextWorldGame, root), env.workers)
    raise ValueError(f"config.env.engine is {env.engine!r}; choose 'fast' or 'textworld'.")
