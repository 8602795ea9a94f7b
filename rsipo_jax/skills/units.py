"""From episodes and replays to units: whose gain is measured, against which plain episodes, and in which class.

`trust.unit` "task" pools the replays of a task's skills; "skill" and "hier" count those of each skill. The plain
episodes of the task give the rate without a skill.

`trust.prior_class` gives classes of units a prior each, since the gain of a task that is always won cannot be above 0,
nor below 0 where it never is. A class must not be told by the same episodes that enter the gain (regression to the mean):

* "outcome": of the episode that the skill was written from, which is left out of its rate (p0_loo). Of a task, the
  skills of won and of lost episodes are two units.
* "split_success": every other plain episode of the task is held out and tells the class: none of them won, some, or
  all (three, whatever the size of the group). The rest give the rate.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rsipo_jax.config import TrustConfig

Counts = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]


class Units(NamedTuple):
    """U units with their counts, and which of them each of E episodes belongs to."""

    s1: np.ndarray  # float32 [U] replays won
    n1: np.ndarray  # float32 [U] valid replays
    s0: np.ndarray  # float32 [U] plain episodes won
    n0: np.ndarray  # float32 [U] plain episodes
    valid: np.ndarray  # bool [U], there are both
    classes: np.ndarray  # int32 [U], -1: none
    task: np.ndarray  # int32 [U]
    of_episode: np.ndarray  # int32 [E]

    @property
    def counts(self) -> Counts:
        """(s1, n1, s0, n0, valid), the first arguments of `trust` after the state."""
        return self.s1, self.n1, self.s0, self.n0, self.valid


def count_units(
    won: np.ndarray,
    valid: np.ndarray,
    task: np.ndarray,
    replay_won: np.ndarray,
    replay_valid: np.ndarray,
    num_tasks: int,
    cfg: TrustConfig,
) -> Units:
    """The units of a step.

    Args:
        won, valid: bool [E] plain episodes; not `valid` means voided.
        task: int [E] in [0, num_tasks).
        replay_won, replay_valid: bool [E, K] replays with the skill of episode e.
    """
    wins, episodes = np.asarray(won & valid, np.float32), np.asarray(valid, np.float32)
    s1, n1 = (replay_won & replay_valid).sum(1), replay_valid.sum(1)
    by_task = cfg.unit == "task"
    # of a task's two units the first is that of lost episodes; a skill has a unit of its own
    cells = 2 if by_task and cfg.prior_class == "outcome" else 1
    own = np.asarray(won & valid, np.int32)
    unit = task * cells + (own if cells == 2 else 0) if by_task else np.arange(len(task))
    size = num_tasks * cells if by_task else len(task)
    unit_task = np.arange(size) // cells if by_task else task

    def over(ids: np.ndarray, values: np.ndarray, length: int) -> np.ndarray:
        return np.bincount(ids, weights=values, minlength=length)

    classes, counted = np.full(size, -1), episodes
    if cfg.prior_class == "split_success":
        held = _every_other(valid, task, num_tasks)
        counted = episodes * ~held
        h, k = over(task, episodes * held, num_tasks), over(task, wins * held, num_tasks)
        kind = np.where(k == 0, 0, np.where(k == h, 2, 1))
        classes = np.where(h > 0, kind, -1)[unit_task]
    s0, n0 = (over(task, x * counted, num_tasks)[unit_task] for x in (wins, episodes))
    if cfg.prior_class == "outcome":
        classes = np.arange(size) % 2 if by_task else own
        s0, n0 = np.maximum(s0 - classes, 0), np.maximum(n0 - 1, 0)
    s1, n1 = over(unit, s1, size), over(unit, n1, size)
    s1, n1, s0, n0 = (np.asarray(x, np.float32) for x in (s1, n1, s0, n0))
    classes, unit_task, unit = (np.asarray(x, np.int32) for x in (classes, unit_task, unit))
    return Units(s1, n1, s0, n0, (n1 > 0) & (n0 > 0), classes, unit_task, unit)


def _every_other(valid: np.ndarray, task: np.ndarray, num_tasks: int) -> np.ndarray:
    """bool [E]: the second, fourth, ... valid episode of each task."""
    of_task = (task[:, None] == np.arange(num_tasks)) & valid[:, None]
    rank = np.cumsum(of_task, axis=0)[np.arange(len(task)), task]
    return valid & (rank % 2 == 0)
