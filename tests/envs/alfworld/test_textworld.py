"""The original engine as an environment, and what AlfredTWEnv makes of generated games."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from rsipo_jax.config import EnvConfig
from rsipo_jax.envs.alfworld import textworld
from rsipo_jax.envs.alfworld.data import FOLDER, SPLITS, find_tasks, load_game
from rsipo_jax.envs.alfworld.game import KINDS
from rsipo_jax.envs.alfworld.planner import solve
from rsipo_jax.envs.alfworld.pools import make_pool
from rsipo_jax.envs.alfworld.textworld import TextWorldGame
from rsipo_jax.envs.protocol import Task

pytest.importorskip("alfworld", reason="the original engine is not installed (pip install alfworld==0.4.2)")


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
