"""Games the ALFWorld tests share: a small generated data folder, made once a session."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from rsipo_jax.config import EnvConfig, GamesConfig
from rsipo_jax.envs.alfworld.data import GameData, find_tasks, resolve_root
from rsipo_jax.envs.alfworld.game import GameDataError
from rsipo_jax.envs.alfworld.generator import generate_games
from rsipo_jax.envs.protocol import Task


@pytest.fixture(scope="session")
def games_config() -> GamesConfig:
    return GamesConfig(train=24, valid_seen=6, valid_unseen=12, seed=5)


@pytest.fixture(scope="session")
def games_root(games_config: GamesConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("alfworld") / "games"
    generate_games(root, games_config)
    return root


@pytest.fixture(scope="session")
def one_of_each_kind() -> Callable[[Path, str], list[Task]]:
    """The first game of every task type in a split."""

    def choose(root: Path, split: str) -> list[Task]:
        first: dict[str, Task] = {}
        for task in find_tasks(root, split):
            first.setdefault(task.kind, task)
        return list(first.values())

    return choose


@pytest.fixture(scope="session")
def real_data() -> GameData:
    """The real games of $ALFWORLD_DATA. (The package alfworld sets it to a folder that mostly is not there.)"""
    try:
        found = resolve_root(EnvConfig(data=os.environ.get("ALFWORLD_DATA", "")))
    except GameDataError:
        found = None
    if found is None:
        pytest.skip("$ALFWORLD_DATA names no real games")
    return found
