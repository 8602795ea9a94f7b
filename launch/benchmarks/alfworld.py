"""The ALFWorld engines side by side, and what many environments cost on the fast one."""

from __future__ import annotations

import os
import random
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median, quantiles
from typing import Any, TypeVar

from rich.console import Console

from rsipo_jax.config import EnvConfig, GamesConfig
from rsipo_jax.envs.alfworld import data
from rsipo_jax.envs.alfworld.data import Source
from rsipo_jax.envs.alfworld.engine import FastEpisode
from rsipo_jax.envs.alfworld.generator import generate_games
from rsipo_jax.envs.alfworld.manifest import scan_split
from rsipo_jax.envs.alfworld.pools import FastPool
from rsipo_jax.envs.alfworld.textworld import TextWorldGame
from rsipo_jax.envs.protocol import Environment, Observation, Task
from rsipo_jax.evaluation.panels import make_panel
from rsipo_jax.reports.console import progress
from rsipo_jax.validation import ConfigError

STEPS = 20  # of a game, when engines are compared
ENVIRONMENTS = 128  # side by side in the pool
TURNS = 50  # an episode's limit
EPISODES = 1_000  # alive at once, when memory is measured
GENERATED = GamesConfig(train=240, valid_seen=24, valid_unseen=24, seed=0)

T = TypeVar("T")


def measure(folder: str, games: int, console: Console) -> dict[str, dict[str, Any]]:
    """Everything about the games of `folder`, or of generated ones. Raises GameDataError, EngineMissing."""
    real = data.resolve_root(EnvConfig(data=folder, official=False))
    if real is not None:
        return _measure(real, games, console)
    with tempfile.TemporaryDirectory() as made:
        generate_games(Path(made) / "games", GENERATED)
        return _measure(Path(made) / "games", games, console)


def _measure(root: Source, games: int, console: Console) -> dict[str, dict[str, Any]]:
    opening, tasks = measure_opening(root)
    if not tasks:
        raise ConfigError(f"{root} holds no games to measure: name another folder")
    sample = list(make_panel("benchmark", tasks, games).tasks)
    side_by_side = list(make_panel("benchmark", tasks, ENVIRONMENTS).tasks)
    return {
        "games": {"kind": "generated" if isinstance(root, Path) else "named", **opening},
        "parsing": measure_parsing(root, tasks, console),
        "memory": measure_memory(root, sample),
        "engines": compare_engines(root, sample, console),
        "pool": measure_pool(root, side_by_side, console),
    }


def measure_opening(root: Source) -> tuple[dict[str, Any], list[Task]]:
    """Finding all games: cold, by reading every one, and from the kept manifest (a folder) or once open (an archive).

    Files may be in the system's cache.
    """

    def find() -> list[Task]:
        return [task for split in splits for task in data.find_tasks(root, split)]

    path = root if isinstance(root, Path) else root.path
    splits, first = _timed(lambda: [split for split in data.SPLITS if data.has_split(root, split)])
    if path.is_dir():
        first += sum(_timed(scan_split, path, split)[1] for split in splits)
    tasks, more = _timed(find)  # of an archive, opened above; of a folder, this keeps the manifest
    _, again = _timed(find)
    cold = first if path.is_dir() else first + more
    return {"count": len(tasks), "open_cold_s": cold, "open_kept_s": again}, tasks


def measure_parsing(root: Source, tasks: Sequence[Task], console: Console) -> dict[str, float]:
    """Reading and parsing every game, none of which is kept."""
    total = 0.0
    with progress(console, "games parsed", len(tasks)) as advance:
        for task in tasks:
            total += _timed(data.load_game, root, task)[1]
            advance(1)
    return {"all_games_s": total, "per_game_ms": 1e3 * total / len(tasks)}


def measure_memory(root: Source, tasks: Sequence[Task]) -> dict[str, float | None]:
    """Memory of `EPISODES` running episodes of a few games, and of a parsed game."""
    tracemalloc.start()
    games = [data.load_game(root, task) for task in tasks]
    of_games = tracemalloc.get_traced_memory()[0]
    episodes = [FastEpisode(games[i % len(games)]) for i in range(EPISODES)]
    of_episodes = tracemalloc.get_traced_memory()[0] - of_games
    tracemalloc.stop()
    before = _resident_bytes()
    more = [FastEpisode(games[i % len(games)]) for i in range(EPISODES)]
    after = _resident_bytes()
    del episodes, more  # both were alive, so that the second thousand could not take the room of the first
    return {
        "game_kib": of_games / len(games) / 1024,
        "episode_kib": of_episodes / EPISODES / 1024,
        "episode_resident_kib": None
        if before is None or after is None
        else (after - before) / EPISODES / 1024,
    }


def compare_engines(root: Source, tasks: Sequence[Task], console: Console) -> dict[str, Any]:
    """Median times of the same games and actions: the original as installed, sped up, and the fast engine.

    A reset is that of a game the engine has loaded already. Raises AssertionError if two engines differ in a text.
    """
    walks = {task: _walk(root, task) for task in tasks}
    engines: dict[str, Callable[[], Environment]] = {
        "original": lambda: TextWorldGame(root, untouched=True),
        "sped_up": lambda: TextWorldGame(root),
        "fast": lambda: _OneSlot(root),
    }
    results: dict[str, Any] = {"games": len(tasks), "steps_per_game": STEPS}
    shown: dict[str, list[Observation]] = {}
    for name, make in engines.items():
        environment, loads, resets, steps = make(), list[float](), list[float](), list[float]()
        shown[name] = []
        with progress(console, f"games on {name}", len(tasks)) as advance:
            for task in tasks:
                loads.append(_timed(environment.reset, task)[1])
                observation, seconds = _timed(environment.reset, task)
                resets.append(seconds)
                shown[name].append(observation)
                for action in walks[task]:
                    observation, seconds = _timed(environment.step, action)
                    steps.append(seconds)
                    shown[name].append(observation)
                advance(1)
        environment.close()
        for what, seconds_of in {"load": loads, "reset": resets, "step": steps}.items():
            results[f"{name}_{what}_ms"] = 1e3 * median(seconds_of)
    assert shown["original"] == shown["sped_up"] == shown["fast"], (
        "the engines differ: run the differential tests"
    )
    for slow in ("original", "sped_up"):
        for what in ("reset", "step"):
            results[f"{slow}_to_fast_{what}"] = results[f"{slow}_{what}_ms"] / results[f"fast_{what}_ms"]
    return results


def measure_pool(root: Source, tasks: Sequence[Task], console: Console) -> dict[str, float]:
    """`ENVIRONMENTS` games side by side for `TURNS` turns of random admissible commands, in one process."""
    rng = random.Random(0)
    slots = {slot: tasks[slot % len(tasks)] for slot in range(ENVIRONMENTS)}
    pool = FastPool(root)
    _, first = _timed(pool.reset, slots)
    seen, again = _timed(pool.reset, slots)
    turns = []
    with progress(console, "turns of the pool", TURNS) as advance:
        for _ in range(TURNS):
            actions = {slot: rng.choice(observation.admissible) for slot, observation in seen.items()}
            seen, seconds = _timed(pool.step, actions)
            turns.append(1e3 * seconds)
            advance(1)
    pool.close()
    return {
        "environments": ENVIRONMENTS,
        "first_reset_ms": 1e3 * first,
        "reset_ms": 1e3 * again,
        "turn_median_ms": median(turns),
        "turn_p95_ms": quantiles(turns, n=20)[-1],
        "turn_max_ms": max(turns),
    }


class _OneSlot:
    """The fast pool as an Environment, to be timed like the others."""

    def __init__(self, root: Source) -> None:
        self._pool = FastPool(root)

    def reset(self, task: Task) -> Observation:
        return self._pool.reset({0: task})[0]

    def step(self, action: str) -> Observation:
        return self._pool.step({0: action})[0]

    def close(self) -> None:
        self._pool.close()


def _walk(root: Source, task: Task) -> list[str]:
    """Random admissible commands, every second one local: what a policy does, more or less."""
    rng, episode = random.Random(task.id), FastEpisode(data.load_game(root, task))
    commands = []
    for step in range(STEPS):
        local = [command for command in episode.admissible if not command.startswith("go to ")]
        commands.append(rng.choice(local if step % 2 else episode.admissible))
        episode.step(commands[-1])
    return commands


def _timed(do: Callable[..., T], *arguments: Any) -> tuple[T, float]:
    """What `do` gives, and the seconds it took."""
    start = time.perf_counter()
    result = do(*arguments)
    return result, time.perf_counter() - start


def _resident_bytes() -> int | None:
    """This process's memory, where the system tells it (Linux)."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except OSError:
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")
