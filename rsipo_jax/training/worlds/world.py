"""All that a run needs to know of its environment."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from rsipo_jax.envs.protocol import EnvPool, Task
from rsipo_jax.training.demonstrations.demonstration import Demonstration


class World(Protocol):
    """Tasks in splits, the environment that plays them, and experts' episodes. As text it says where the tasks are from."""

    validation: str  # the split of which a part is measured between RL steps
    tags: tuple[str, ...]  # of responses and observations; one token each for a fresh network

    def tasks(self, split: str) -> list[Task]:
        """The tasks of a split, sorted by id. Raises ConfigError when there is no such split."""

    def has(self, split: str) -> bool:
        """Whether there is such a split."""

    def left_out(self, split: str) -> str:
        """Which tasks of the split are not played, and why; "" when all are."""

    def pool(self) -> EnvPool:
        """A new environment. The caller closes it."""

    def demonstrations(self, folder: Path) -> list[Demonstration]:
        """The expert episodes of the SFT stage, kept in `folder`."""

    def optimal_turns(self, tasks: Iterable[Task]) -> dict[str, int]:
        """The fewest turns that win each task, by id; tasks of which that is not known are missing."""
