"""The original ALFWorld engine behind the Environment protocol: slow, and the fast one's measure.

A step takes about 75 ms and a reset 1 to 2 s as it is, 5 ms and 0.5 s sped up. Only this file, the speed-ups and the handcoded
expert need the packages alfworld and textworld. The engine keeps global state that no thread may share, so it runs in worker
processes (rsipo_jax.envs.pool).
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from rsipo_jax.envs.alfworld.data import Source, read_game
from rsipo_jax.envs.alfworld.original_speedups import sped_up
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
    """One game of the original engine, wrapped as AlfredTWEnv wraps it.

    `untouched` plays it exactly as it is installed, otherwise its repeated work is left out.
    """

    def __init__(self, root: Source, untouched: bool = False) -> None:
        require_alfworld()
        import textworld
        from alfworld.agents.environment.alfred_tw_env import AlfredDemangler
        from textworld.envs import PddlEnv

        self._root = root
        self._loaded = ""
        self._untouched = untouched
        infos = textworld.EnvInfos(won=True, admissible_commands=True)
        self._env: Any = AlfredDemangler(PddlEnv(infos), shuffle=False)

    def reset(self, task: Task) -> Observation:
        """Start a game anew. Raises GameDataError if its file is missing."""
        if self._loaded != task.id:
            self._loaded = ""
            self.load(read_game(self._root, task))
            self._loaded = task.id
        return self.start()

    def load(self, content: Mapping[str, Any]) -> None:
        """Take up the game of a game file's content."""
        _forget_entities()
        with self._running():
            self._env.load(content)

    def start(self) -> Observation:
        """Start the loaded game anew."""
        with self._running():
            state = self._env.reset()
        return _observation(state)

    def step(self, action: str) -> Observation:
        with self._running():
            state, _, _ = self._env.step(action)
        return _observation(state)

    def close(self) -> None:
        self._env.close()

    @contextlib.contextmanager
    def _running(self) -> Iterator[None]:
        """Around every call of the engine: its planner's translator overwrites sys.argv, which is put back."""
        arguments = sys.argv
        try:
            with contextlib.nullcontext() if self._untouched else sped_up(self._env):
                yield
        finally:
            sys.argv = arguments


def _observation(state: Any) -> Observation:
    return Observation(state.feedback, tuple(state["admissible_commands"]), bool(state["won"]))


def _forget_entities() -> None:
    """Empty textworld's cache of every proposition of every game (about 1 MiB each), which it never does."""
    importlib.import_module("mementos.core")._memento_cache.clear()
