"""The original ALFWorld engine behind the Environment protocol: slow, and the fast one's measure.

A step takes about 75 ms, a reset 1 to 2 s. Only this file needs the packages alfworld and textworld. The
engine keeps global state that no thread may share, so it runs in worker processes (rsipo_jax.envs.pool).
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import sys
from collections.abc import Iterator
from typing import Any

from rsipo_jax.envs.alfworld.data import Source, read_game
from rsipo_jax.envs.protocol import Observation, Task
from rsipo_jax.validation import ConfigError


class EngineMissing(ConfigError, ImportError):
    """The original engine is asked for and not installed."""


def require_alfworld() -> None:
    """Raise EngineMissing with the fix where the original engine is not installed."""
    missing = [name for name in ("textworld", "alfworld") if importlib.util.find_spec(name) is None]
    if missing:
        raise EngineMissing(
            f"config.env.engine='textworld' needs the package {missing[-1]}: run `pip install alfworld==0.4.2` "
            "(it compiles C++), or use 'fast', which plays the same games."
        )


class TextWorldGame:
    """One game of the original engine, wrapped as AlfredTWEnv wraps it."""

    def __init__(self, root: Source) -> None:
        require_alfworld()
        import textworld
        from alfworld.agents.environment.alfred_tw_env import AlfredDemangler
        from textworld.envs import PddlEnv

        self._root = root
        self._loaded = ""
        infos = textworld.EnvInfos(won=True, admissible_commands=True)
        self._env: Any = AlfredDemangler(PddlEnv(infos), shuffle=False)

    def reset(self, task: Task) -> Observation:
        """Start a game anew. Raises GameDataError if its file is missing."""
        with _arguments_kept():
            if self._loaded != task.id:
                self._loaded = ""
                _forget_entities()
                self._env.load(read_game(self._root, task))
                self._loaded = task.id
            state = self._env.reset()
        return _observation(state)

    def step(self, action: str) -> Observation:
        state, _, _ = self._env.step(action)
        return _observation(state)

    def close(self) -> None:
        self._env.close()


def _observation(state: Any) -> Observation:
    return Observation(state.feedback, tuple(state["admissible_commands"]), bool(state["won"]))


@contextlib.contextmanager
def _arguments_kept() -> Iterator[None]:
    """The planner's translator overwrites sys.argv; put it back."""
    arguments = sys.argv
    try:
        yield
    finally:
        sys.argv = arguments


def _forget_entities() -> None:
    """Empty textworld's cache of every proposition of every game (about 1 MiB each), which it never does."""
    importlib.import_module("mementos.core")._memento_cache.clear()
