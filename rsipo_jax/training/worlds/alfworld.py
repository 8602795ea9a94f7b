"""ALFWorld: the games a run names, else games made in its workdir."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from rsipo_jax.config import Config
from rsipo_jax.envs.alfworld.data import GameData, find_tasks, has_split, left_out, load_game, resolve_root
from rsipo_jax.envs.alfworld.game import GameDataError
from rsipo_jax.envs.alfworld.generator import generate_games
from rsipo_jax.envs.alfworld.planner import solve
from rsipo_jax.envs.alfworld.pools import make_pool
from rsipo_jax.envs.protocol import EnvPool, Task
from rsipo_jax.text.tags import TAGS
from rsipo_jax.training.demonstrations.alfworld import demonstrations, reading_questions
from rsipo_jax.training.demonstrations.demonstration import Demonstration
from rsipo_jax.training.demonstrations.demonstrations_dataset_builder import (
    AlfworldDemonstrations,
    chosen,
    load_demonstrations,
)

GAMES = "games"  # folder of the workdir


class Alfworld:
    """Implements `World`."""

    validation: str = "valid_seen"
    tags: tuple[str, ...] = TAGS

    def __init__(self, config: Config, workdir: Path) -> None:
        """Finds the games, or makes them in `workdir`. Raises ConfigError."""
        self._config = config
        root = resolve_root(config.env)
        if root is None:
            generate_games(workdir / GAMES, config.games)
            root = GameData(workdir / GAMES, config.env.version, config.env.goals)
        self.games = root

    def __str__(self) -> str:
        return str(self.games)

    def tasks(self, split: str) -> list[Task]:
        """See `World.tasks`."""
        return find_tasks(self.games, split)

    def has(self, split: str) -> bool:
        """See `World.has`."""
        return has_split(self.games, split)

    def left_out(self, split: str) -> str:
        """See `World.left_out`."""
        return left_out(self.games, split)

    def pool(self) -> EnvPool:
        """See `World.pool`."""
        return make_pool(self._config.env, self.games)

    def demonstrations(self, folder: Path) -> list[Demonstration]:
        """See `World.demonstrations`."""
        return load_demonstrations(AlfworldDemonstrations, folder, self._played)

    def _played(self) -> Iterator[tuple[str, Demonstration]]:
        sft, seed = self._config.sft, self._config.seed
        for task in chosen(self.tasks("train"), sft.games, seed):
            game = load_game(self.games, task)
            for i, demo in enumerate(demonstrations(game, task, seed, self._config.env.max_turns)):
                yield f"{task.id}/{i}", demo
            for i, demo in enumerate(reading_questions(game, task, seed, sft.reading_questions)):
                yield f"{task.id}/reading/{i}", demo

    def optimal_turns(self, tasks: Iterable[Task]) -> dict[str, int]:
        """See `World.optimal_turns`. Only the fast engine's games are known well enough."""
        if self._config.env.engine != "fast":
            return {}
        optimal = {}
        for task in dict.fromkeys(tasks):
            with suppress(GameDataError):  # its episode will be void, and say why
                if (plan := solve(load_game(self.games, task))) is not None:
                    optimal[task.id] = len(plan)
        return optimal
