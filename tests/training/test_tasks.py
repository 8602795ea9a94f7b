"""The tasks of a step are a pure function of (seed, step) and deal every game once an epoch."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from rsipo_jax.envs.protocol import Task
from rsipo_jax.training.tasks import draw_tasks


def games(n: int) -> list[Task]:
    return [Task(f"train/{i:03d}", "kind", "train") for i in range(n)]


@given(n=st.integers(1, 40), count=st.integers(1, 12), seed=st.integers(0, 5), epochs=st.integers(1, 3))
def test_every_game_once_an_epoch(n: int, count: int, seed: int, epochs: int) -> None:
    steps = -(-n * epochs // count)
    dealt = [task for step in range(1, steps + 1) for task in draw_tasks(games(n), count, seed, step)]
    assert Counter(dealt[: n * epochs]) == Counter(games(n) * epochs)


def test_a_step_does_not_depend_on_those_before() -> None:
    assert draw_tasks(games(50), 8, 3, 7) == draw_tasks(games(50), 8, 3, 7)
    assert draw_tasks(games(50), 8, 3, 7) != draw_tasks(games(50), 8, 4, 7)
    assert draw_tasks(games(50), 8, 3, 7) != draw_tasks(games(50), 8, 3, 8)
