"""A panel: the fixed, hashed set of games an evaluation plays.

Invariant: a panel's tasks are sorted by id and each occurs exactly once, so two runs whose panels have the
same hash played the same games and may be compared game by game.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable
from dataclasses import dataclass

from rsipo_jax.envs.protocol import Task


@dataclass(frozen=True)
class Panel:
    """The games of one evaluation; build it with `make_panel`, which sorts them."""

    name: str  # names the split; metrics of the panel carry it
    tasks: tuple[Task, ...]  # strictly increasing by id

    def __post_init__(self) -> None:
        if not self.tasks:
            raise ValueError(
                f"panel {self.name!r} has no games: check that the split exists in the data folder, "
                "or generate more games"
            )
        for left, right in itertools.pairwise(self.tasks):
            if left.id == right.id:
                raise ValueError(
                    f"panel {self.name!r} holds game {left.id!r} twice: every game is played exactly once"
                )
            if left.id > right.id:
                raise ValueError(
                    f"panel {self.name!r} is not sorted at {right.id!r}: build it with make_panel"
                )

    @property
    def hash(self) -> str:
        """sha256 (hex) of the sorted task ids joined by newlines, UTF-8; the name does not enter it."""
        return hashlib.sha256("\n".join(task.id for task in self.tasks).encode()).hexdigest()

    @property
    def short_hash(self) -> str:
        """The first 12 hex digits of `hash`, for people."""
        return self.hash[:12]


def make_panel(name: str, tasks: Iterable[Task], limit: int = 0) -> Panel:
    """A panel of `tasks`, in any order; `limit` > 0 keeps that many, spread evenly over the sorted list.

    Ids sort by split and game directory, which starts with the task kind, so the kinds are contiguous in the
    sorted list. With N games the panel takes the ones at floor((i + 1/2) N / limit) for i < limit: each kind
    keeps its share of the games to within one, and a kind with at least N / limit games is never missed. A
    limit of N or more keeps every game. A smaller panel is another panel: give it its own name. Raises
    ValueError for a negative limit, an empty panel, or a game that occurs twice.
    """
    if limit < 0:
        raise ValueError(
            f"panel {name!r}: limit is {limit}; use 0 for every game or a positive number of games"
        )
    ordered = sorted(tasks, key=lambda task: task.id)
    if 0 < limit < len(ordered):
        ordered = [ordered[(2 * i + 1) * len(ordered) // (2 * limit)] for i in range(limit)]
    return Panel(name, tuple(ordered))
