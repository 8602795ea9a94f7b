"""The fast pool: slots do not touch one another, and a broken game costs its own slot."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rsipo_jax.config import EnvConfig
from rsipo_jax.envs.alfworld.data import find_tasks, load_game
from rsipo_jax.envs.alfworld.planner import solve
from rsipo_jax.envs.alfworld.pools import FastPool, make_pool
from rsipo_jax.envs.protocol import Observation, Task
from tests.envs.interleaving import MOVES, play_interleaved


def play_alone(root: Path, task: Task, actions: list[str]) -> list[Observation]:
    pool = FastPool(root)
    return [pool.reset({0: task})[0], *(pool.step({0: action})[0] for action in actions)]


def test_slots_are_isolated(games_root: Path) -> None:
    one, other = find_tasks(games_root, "train")[:2]
    tasks = {7: one, 2: other, 4: one}  # 7 and 4 play the same game at different paces
    pool = FastPool(games_root)
    seen = {slot: [observation] for slot, observation in pool.reset(tasks).items()}
    actions: dict[int, list[str]] = {slot: [] for slot in tasks}
    for turn in range(12):
        chosen = {
            slot: history[-1].admissible[(turn * 5 + slot) % len(history[-1].admissible)]
            for slot, history in seen.items()
            if slot != 4 or turn % 2
        }
        for slot, observation in pool.step(chosen).items():
            seen[slot].append(observation)
            actions[slot].append(chosen[slot])
    for slot, task in tasks.items():
        assert seen[slot] == play_alone(games_root, task, actions[slot])


@given(
    scripts=st.lists(st.lists(st.integers(0, 2) | st.integers(3, 99), max_size=6), min_size=1, max_size=4),
    moves=MOVES,
)
def test_any_interleaving_answers_as_a_lone_slot_would(
    games_root: Path, scripts: list[list[int]], moves: list[int]
) -> None:
    """Numbers up to 1 start a task, 2 one that is missing; the others choose an action of the first task's start."""
    tasks = [*find_tasks(games_root, "train")[:2], Task("train/no/game", "pick_and_place_simple", "train")]
    options = FastPool(games_root).reset({0: tasks[0]})[0].admissible
    commands = {
        slot: [tasks[n] if n < 3 else options[n % len(options)] for n in script]
        for slot, script in enumerate(scripts)
    }
    seen = play_interleaved(FastPool(games_root), commands, moves)
    for slot, script in commands.items():
        lone = FastPool(games_root)
        for command, answer in zip(script, seen[slot], strict=True):
            expected = (
                lone.reset({slot: command}) if isinstance(command, Task) else lone.step({slot: command})
            )
            assert answer == expected[slot]


def test_receiving_plays_all_that_was_sent_in_that_order(games_root: Path) -> None:
    task = find_tasks(games_root, "train")[0]
    pool = FastPool(games_root)
    for slot in (3, 1, 2):
        pool.send(slot, task)
    with pytest.raises(ValueError, match="Slot 1 has an unanswered command"):
        pool.send(1, "look")
    assert list(pool.receive(wait=False)) == [3, 1, 2] and not pool.unanswered


def test_playing_leaves_the_start_as_it_was(games_root: Path) -> None:
    """All episodes of a task are copies of one start."""
    task = find_tasks(games_root, "train")[0]
    plan = solve(load_game(games_root, task)) or []
    pool = FastPool(games_root)
    for _ in range(2):
        seen = [pool.reset({0: task})[0], *(pool.step({0: action})[0] for action in plan)]
        assert seen == play_alone(games_root, task, plan)
        assert seen[-1].won and not seen[0].won


def test_a_missing_game_costs_its_own_slot(games_root: Path) -> None:
    task = find_tasks(games_root, "train")[0]
    pool = FastPool(games_root)
    answers = pool.reset({0: task, 1: Task("train/no/game", task.kind, "train")})
    assert answers[0] == play_alone(games_root, task, [])[0]
    assert "There is no game train/no/game" in answers[1].error
    after = pool.step({0: "inventory", 1: "inventory"})
    assert after[0].text == "You are not carrying anything."
    assert "reset it first" in after[1].error


def test_the_engine_is_chosen_by_name(games_root: Path) -> None:
    assert isinstance(make_pool(EnvConfig(engine="fast"), games_root), FastPool)
    with pytest.raises(ValueError, match=r"config\.env\.engine is 'slow'; choose 'fast' or 'textworld'"):
        make_pool(EnvConfig(engine="slow"), games_root)
