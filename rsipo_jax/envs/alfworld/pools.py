"""Playing many ALFWorld games at once."""

from __future__ import annotations

import functools
from collections.abc import Mapping

from rsipo_jax.config import EnvConfig
from rsipo_jax.envs.alfworld.data import Source, load_game
from rsipo_jax.envs.alfworld.engine import FastEpisode, intro
from rsipo_jax.envs.alfworld.game import GameDataError
from rsipo_jax.envs.alfworld.textworld import TextWorldGame, require_alfworld
from rsipo_jax.envs.pool import ProcessPool
from rsipo_jax.envs.protocol import EnvPool, Observation, Task

_PARSED_GAMES = 256  # kept in memory; about 50 kB each


class FastPool:
    """An EnvPool on the fast engine: all slots in this process, a game parsed once for all its episodes."""

    def __init__(self, root: Source) -> None:
        self._root = root
        self._start_of = functools.lru_cache(_PARSED_GAMES)(self._prepare)
        self._episodes: dict[int, FastEpisode] = {}

    def reset(self, tasks: Mapping[int, Task]) -> dict[int, Observation]:
        return {slot: self._start(slot, task) for slot, task in tasks.items()}

    def step(self, actions: Mapping[int, str]) -> dict[int, Observation]:
        """Play one action a slot; a slot whose reset failed or that was never reset answers with an error."""
        return {slot: self._play(slot, action) for slot, action in actions.items()}

    def close(self) -> None:
        self._episodes.clear()

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
            return Observation("", (), won=False, error=f"Slot {slot} has no running game; reset it first.")
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
