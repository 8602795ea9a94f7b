"""A panel: the fixed, hashed set of games an evaluation plays.

Invariant: a panel's tasks are sorted by id and each occurs exactly once, so two runs whose panels have the
same hash played the same games and may be compared game by game. The one exception is `literature`, the
sampled protocol of published rows, which says so wherever it is shown.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from rsipo_jax.envs.protocol import Task
from rsipo_jax.envs.search.questions import SETS
from rsipo_jax.orders import order_stream

PROBE = 128  # games of train_probe
DRAWS = 128  # games of one literature evaluation: the family's val_data_size

# panel -> the split it plays
SPLIT_OF = {
    "train": "train",
    "train_probe": "train",
    "valid_seen": "valid_seen",
    "valid_unseen": "valid_unseen",
    "literature": "valid_seen",
    # of questions: the encyclopaedia's, and those of each data set
    "dev": "dev",
    "test": "test",
    **{name: name for name in SETS},
}


@dataclass(frozen=True)
class Panel:
    """The games of one evaluation; build it with `build_panel` or `make_panel`, which sort them."""

    name: str  # metrics of the panel carry it
    tasks: tuple[Task, ...]  # increasing by id, strictly so unless the games are drawn
    drawn: str = ""  # how the games were drawn, with repetitions; "" when every game is played once

    def __post_init__(self) -> None:
        if not self.tasks:
            raise ValueError(
                f"panel {self.name!r} has no games: check that the split exists in the data folder, "
                "or generate more games"
            )
        for left, right in itertools.pairwise(self.tasks):
            if left.id == right.id and not self.drawn:
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

    def draws(self) -> list[tuple[Task, int]]:
        """Every task with how often it occurred before: (id, draw) names an episode of the panel."""
        seen: dict[str, int] = {}
        rows = []
        for task in self.tasks:
            rows.append((task, seen.get(task.id, 0)))
            seen[task.id] = rows[-1][1] + 1
        return rows


def build_panel(name: str, find: Callable[[str], Sequence[Task]], seed: int, step: int) -> Panel:
    """The panel of that name in `SPLIT_OF`; `find(split)` gives a split's games.

    A panel of its split's name is all games (questions) of it; train_probe is `PROBE` of the training games, spread
    evenly, to tell what was learned by heart; literature (the only one that depends on `seed` and `step`) is described
    at `literature_panel`. Raises ValueError.
    """
    tasks = find(SPLIT_OF[name])
    if name == "literature":
        return literature_panel(tasks, seed, step)
    return make_panel(name, tasks, PROBE if name == "train_probe" else 0)


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


def literature_panel(tasks: Sequence[Task], seed: int, step: int) -> Panel:
    """The sampled protocol behind most published ALFWorld rows: `DRAWS` draws from the seen games, with repetitions.

    There `DRAWS` environments each deal their own shuffled order of the games and play the next one at every
    evaluation; environment i plays its game number `step` here. Of 140 games about 84 are met, other ones at every
    evaluation, so two such results differ by the luck of the draw too. To be set beside published rows only.
    """
    ordered = sorted(tasks, key=lambda task: task.id)
    chosen = [
        ordered[order_stream(seed, "literature", i).permutation(len(ordered))[step % len(ordered)]]
        for i in range(DRAWS * bool(ordered))
    ]
    distinct = len({task.id for task in chosen})
    drawn = (
        f"{DRAWS} draws with repetition, {distinct} distinct games of {len(ordered)}; for published rows only"
    )
    return Panel("literature", tuple(sorted(chosen, key=lambda task: task.id)), drawn)
