"""What the rollout loop asks of an environment, and nothing more.

An environment is replayable: `reset(task)` followed by the same actions gives the same bytes. It knows
nothing of step limits, rewards or prompts; those belong to the rollout loop.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Task:
    """One game or question, named so that sorting by id is the canonical order of a split."""

    id: str  # "<split>/<game folder>/<trial>", "<data set or split>/<question>"
    kind: str  # task type, e.g. "pick_and_place_simple", "bridge"
    split: str  # train | valid_seen | valid_unseen; search: train | dev | test, or a data set
    answers: tuple[str, ...] = ()  # what a right answer is, where the task asks for one


@dataclass(frozen=True)
class Observation:
    """What the environment shows after a reset or a step."""

    text: str
    admissible: tuple[str, ...]  # actions that would do something now, sorted
    won: bool  # whether the goal holds in this state
    error: str = ""  # not empty: the environment failed and the episode is void; one sentence
    trace: str = ""  # the stack trace behind an error, where there is one
    done: bool = False  # the episode is over although its goal does not hold
    answer: str = ""  # what was answered, where an answer ended the episode


class Environment(Protocol):
    """One running game."""

    def reset(self, task: Task) -> Observation: ...

    def step(self, action: str) -> Observation: ...

    def close(self) -> None: ...


class EnvPool(ABC):
    """Many running games in numbered slots. A slot's answer depends on its own commands only.

    Whoever plays need not wait for the slowest game: `send` commands as they are decided, `receive` what has been
    answered by now. Every command is answered exactly once. `reset` and `step` do a whole batch at a time.
    """

    def send(self, slot: int, command: Task | str) -> None:
        """Start a task or play an action in a slot, without waiting for what it shows.

        An action in a slot whose episode failed or was never started is answered with an error.
        Raises ValueError while the slot's last command has not been received.
        """
        if slot in self.unanswered:
            raise ValueError(f"Slot {slot} has an unanswered command: receive it before the next one.")
        self._take(slot, command)

    @abstractmethod
    def receive(self, wait: bool) -> dict[int, Observation]:
        """The answers that have come since the last call, by slot, in the order in which they were asked for.

        With `wait` there is at least one, unless nothing is unanswered; without, the call never blocks. A pool works
        through its queue here, so call it often.
        """

    @property
    @abstractmethod
    def unanswered(self) -> Collection[int]:
        """The slots whose last command has not been received."""

    @abstractmethod
    def close(self) -> None: ...

    @abstractmethod
    def _take(self, slot: int, command: Task | str) -> None:
        """`send` in a slot that has no unanswered command."""

    def reset(self, tasks: Mapping[int, Task]) -> dict[int, Observation]:
        """Start a task in each named slot and wait for all; the answers come in the order of the tasks."""
        return self._ask(tasks)

    def step(self, actions: Mapping[int, str]) -> dict[int, Observation]:
        """Play one action in each named slot and wait for all; the answers come in the order of the actions."""
        return self._ask(actions)

    def _ask(self, commands: Mapping[int, Task] | Mapping[int, str]) -> dict[int, Observation]:
        if self.unanswered:
            raise ValueError(f"Slots {sorted(self.unanswered)} have unanswered commands: receive them first.")
        for slot, command in commands.items():
            self.send(slot, command)
        answers: dict[int, Observation] = {}
        while self.unanswered:
            answers |= self.receive(wait=True)
        return {slot: answers[slot] for slot in commands}


def no_game(slot: int) -> Observation:
    """The answer to an action in a slot whose episode failed or was never started."""
    return Observation("", (), won=False, error=f"Slot {slot} has no running game; reset it first.")
