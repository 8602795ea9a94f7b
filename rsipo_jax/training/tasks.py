"""Which tasks a step trains on: a pure function of (seed, step)."""

from __future__ import annotations

from collections.abc import Sequence

from rsipo_jax.envs.protocol import Task
from rsipo_jax.orders import order_stream


def draw_tasks(tasks: Sequence[Task], count: int, seed: int, step: int) -> list[Task]:
    """The `count` tasks of RL step `step` (from 1): the tasks are dealt in shuffled order, reshuffled every epoch.

    A step that spans two epochs may meet a task twice; so does one with more tasks than there are.
    """
    places = range((step - 1) * count, step * count)
    orders = {
        epoch: order_stream(seed, "tasks", epoch).permutation(len(tasks))
        for epoch in {place // len(tasks) for place in places}
    }
    return [tasks[orders[place // len(tasks)][place % len(tasks)]] for place in places]
