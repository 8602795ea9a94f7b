"""The fast engine against the original, step by step, and what AlfredTWEnv makes of generated games."""

from __future__ import annotations

import os
import random
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from rsipo_jax.config import EnvConfig, GamesConfig
from rsipo_jax.envs.alfworld import textworld
from rsipo_jax.envs.alfworld.data import FOLDER, SPLITS, find_tasks, load_game
from rsipo_jax.envs.alfworld.engine import FastEpisode, intro
from rsipo_jax.envs.alfworld.game import KINDS
from rsipo_jax.envs.alfworld.generator import generate_games
from rsipo_jax.envs.alfworld.planner import shortest_plan, solve
from rsipo_jax.envs.alfworld.pools import make_pool
from rsipo_jax.envs.alfworld.textworld import TextWorldGame
from rsipo_jax.envs.protocol import Task

pytest.importorskip("alfworld", reason="the original engine is not installed (pip install alfworld==0.4.2)")

JUNK = ("xyzzy", "go to", "take all", "LOOK", " look ", "examine", "")
LOCAL = (
    "take",
    "move",
    "put",
    "open",
    "close",
    "use",
    "clean",
    "heat",
    "cool",
    "slice",
    "examine",
    "inventory",
)


def assert_same_game(root: Path, task: Task, steps: int, seed: int) -> Counter[str]:
    """Play one game on both engines with expert, random and junk commands; how often each verb was played."""
    rng = random.Random(f"{seed}/{task.id}")
    original, game = TextWorldGame(root), load_game(root, task)
    episode = FastEpisode(game)
    expected = original.reset(task)
    assert episode.observe(intro(game)) == expected
    played: list[str] = []
    for _ in range(steps):
        local = [command for command in expected.admissible if command.startswith(LOCAL)]
        draw = rng.random()
        if draw < 0.5 and not episode.won:
            command = (shortest_plan(episode) or ["look"])[0]
        elif draw < 0.6:
            command = rng.choice(JUNK)
        else:
            command = rng.choice(local if draw < 0.9 else expected.admissible)
        played.append(command)
        expected = original.step(command)
        assert episode.observe(episode.step(command)) == expected, (task.id, played)
    return Counter(command.split()[0] if command.strip() else "" for command in played)


@pytest.mark.parametrize("kind", KINDS)
def test_generated_games_play_alike_on_both_engines(
    kind: str, games_root: Path, one_of_each_kind: Callable[[Path, str], list[Task]]
) -> None:
    task = next(task for task in one_of_each_kind(games_root, "train") if task.kind == kind)
    assert_same_game(games_root, task, steps=16, seed=0)


@pytest.fixture
def real_root() -> Path:
    root = Path(os.environ.get("ALFWORLD_DATA", ""))
    if not os.environ.get("ALFWORLD_DATA") or not (root / FOLDER / "valid_seen").is_dir():
        pytest.skip(f"$ALFWORLD_DATA names no folder with the real games ({FOLDER}/valid_seen)")
    return root


@pytest.mark.parametrize("number", range(3))
def test_real_games_play_alike_on_both_engines(number: int, real_root: Path) -> None:
    tasks = find_tasks(real_root, "valid_seen")
    assert_same_game(real_root, tasks[number * len(tasks) // 3], steps=16, seed=1)


@pytest.mark.slow
def test_many_games_play_alike_on_both_engines(tmp_path: Path) -> None:
    root = tmp_path / "games"
    generate_games(root, GamesConfig(train=18, valid_seen=0, valid_unseen=6, seed=11))
    verbs: Counter[str] = Counter()
    for split in ("train", "valid_unseen"):
        for task in find_tasks(root, split):
            verbs += assert_same_game(root, task, steps=40, seed=2)
    assert {"go", "take", "move", "open", "close", "use", "clean", "heat", "cool"} <= verbs.keys()


def test_plans_win_in_the_original_engine(
    games_root: Path, one_of_each_kind: Callable[[Path, str], list[Task]]
) -> None:
    """Unseen-room games of every kind, played side by side in worker processes."""
    tasks = dict(enumerate(one_of_each_kind(games_root, "valid_unseen")))
    plans = {slot: solve(load_game(games_root, task)) or [] for slot, task in tasks.items()}
    assert {task.kind for task in tasks.values()} == set(KINDS)
    pool = make_pool(EnvConfig(engine="textworld", workers=2), games_root)
    try:
        latest = pool.reset(tasks)
        for turn in range(max(map(len, plans.values()))):
            assert not any(latest[slot].won for slot, plan in plans.items() if turn < len(plan))
            latest |= pool.step({slot: plan[turn] for slot, plan in plans.items() if turn < len(plan)})
    finally:
        pool.close()
    assert all(observation.won and not observation.error for observation in latest.values())


def test_a_second_reset_starts_the_same_game_anew(games_root: Path) -> None:
    task = find_tasks(games_root, "train")[0]
    arguments = list(sys.argv)
    game = TextWorldGame(games_root)
    first = game.reset(task)
    moved = game.step(first.admissible[0])
    assert game.reset(task) == first
    assert game.step(first.admissible[0]) == moved
    assert sys.argv == arguments  # the engine's translator would overwrite them


def test_alfworld_collects_every_generated_game(games_root: Path) -> None:
    from alfworld.agents.environment.alfred_tw_env import AlfredTWEnv

    folders = {
        f"{name}data_path": str(games_root / FOLDER / split)
        for name, split in zip(("", "eval_id_", "eval_ood_"), SPLITS, strict=True)
    }
    config = {
        "dataset": {**folders, "num_train_games": -1, "num_eval_games": -1},
        "env": {"goal_desc_human_anns_prob": 0, "task_types": [1, 2, 3, 4, 5, 6]},
    }
    for split, name in zip(
        SPLITS, ("train", "eval_in_distribution", "eval_out_of_distribution"), strict=True
    ):
        collected = {str(Path(file).parent) for file in AlfredTWEnv(config, name).game_files}
        assert collected == {str(games_root / FOLDER / task.id) for task in find_tasks(games_root, split)}


def test_a_missing_installation_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(textworld.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"needs the package alfworld: run `pip install alfworld==0\.4\.2`"):
        textworld.require_alfworld()
