"""What the rollout loop asks of an environment, and nothing more.

An environment is replayable: `reset(task)` followed by the same actions gives the same bytes. It knows
nothing of step limits, rewards or prompts; those belong to the rollout loop.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Task:
    """One game, named so that sorting by id is the canonical order of a split."""

    id: str  # "<split>/<game folder>/<trial>"
    kind: str  # task type, e.g. "pick_and_place_simple"
    split: str  # train | valid_seen | valid_unseen


@dataclass(frozen=True)
class Observation:
    """What the environment shows after a reset or a step."""

    text: str
    admissible: tuple[str, ...]  # actions that would do something now, sorted
    won: bool  # whether the goal holds in this state
    error: str = ""  # not empty: the environment failed and the episode is void; one sentence
    trace: str = ""  # the stack trace behind an error, where there is one


class Environment(Protocol):
    """One running game."""

    def reset(self, task: Task) -> Observation: ...

    def step(self, action: str) -> Observation: ...

    def close(self) -> None: ...


class EnvPool(Protocol):
    """Many running games. Keys are slot numbers; a slot's answer does not depend on the others."""

    def reset(self, tasks: Mapping[int, Task]) -> dict[int, Observation]: ...

    def step(self, actions: Mapping[int, str]) -> dict[int, Observation]: ...

    def close(self) -> None: ...
