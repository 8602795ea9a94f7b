"""A seeded generator of ALFWorld games in the real on-disk format.

Game i of a split is a function of (seed, split, i, max_per_kind) and nothing else. Train and valid_seen share
rooms; valid_unseen plays in rooms that neither of them uses. A game is kept only if the planner solves it.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.resources
import json
import os
import random
import shutil
import tempfile
from pathlib import Path

from rsipo_jax.config import GamesConfig
from rsipo_jax.envs.alfworld import vocabulary as v
from rsipo_jax.envs.alfworld.game import KINDS, VERSION_2_1_2, GameDataError, build_game
from rsipo_jax.envs.alfworld.layout import FOLDER, GAME_FILE
from rsipo_jax.envs.alfworld.planner import solve
from rsipo_jax.envs.alfworld.scenes import DrawnGame, draw_game

VERSION = 1  # raise it when the same settings come to give other games
SETTINGS_FILE = "generator.json"


def generate_games(root: Path, games: GamesConfig) -> None:
    """Make a run's games in `root` (json_2.1.1/, logic/, generator.json), unless they are there already.

    Everything is written beside `root` and moved there in one rename, so the folder is complete or absent.
    Raises GameDataError if `root` holds something else.
    """
    settings = {"version": VERSION, **dataclasses.asdict(games)}
    if _is_complete(root, settings):
        return
    root.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{root.name}-", dir=root.parent))
    try:
        draft.chmod(0o755)
        _write_all(draft, games)
        (draft / SETTINGS_FILE).write_text(json.dumps(settings) + "\n", encoding="utf-8")
        try:
            draft.rename(root)
        except OSError:  # something has appeared there since: fine if another process made the same games
            if not _is_complete(root, settings):
                raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def make_game(games: GamesConfig, split: str, index: int) -> DrawnGame:
    """Game `index` of a split: the first draw that the planner solves."""
    rng = random.Random(f"alfworld/{games.seed}/{split}/{index}")
    kind = _kind_cycle()[index % 100]
    scenes = [
        scene
        for room in v.ROOMS_OF[kind]
        for scene in v.SCENES[room]
        if (scene in v.UNSEEN_SCENES) == (split == "valid_unseen")
    ]
    trial = f"trial_T{20300101 + games.seed:08d}_{index:06d}_{rng.randrange(10**6):06d}"
    while True:
        game = draw_game(kind, rng.choice(scenes), games.max_per_kind, trial, rng)
        if game and solve(build_game(game.problem, game.sentence, VERSION_2_1_2, game.folder)):
            return game


@functools.cache
def _kind_cycle() -> tuple[str, ...]:
    """A hundred task types in their shares, mixed so that every beginning of the cycle is close to them."""
    made = dict.fromkeys(KINDS, 0)
    cycle = []
    for length in range(1, 101):
        kind = max(KINDS, key=lambda k: v.SHARES[k] * length - made[k])
        made[kind] += 1
        cycle.append(kind)
    return tuple(cycle)


def _write_all(root: Path, games: GamesConfig) -> None:
    """Write every game of every split, and the domain and grammar they embed."""
    shipped = importlib.resources.files("rsipo_jax.envs.alfworld") / "logic"
    (root / "logic").mkdir()
    logic = {}
    for name in ("alfred.pddl", "alfred.twl2"):
        logic[name] = (shipped / name).read_text(encoding="utf-8")
        (root / "logic" / name).write_text(logic[name], encoding="utf-8")
    for split in ("train", "valid_seen", "valid_unseen"):
        folder = root / FOLDER / split
        folder.mkdir(parents=True)
        for index in range(getattr(games, split)):
            _write_game(folder, make_game(games, split, index), logic["alfred.pddl"], logic["alfred.twl2"])


def _write_game(split_folder: Path, game: DrawnGame, domain: str, grammar: str) -> None:
    folder = split_folder / game.folder / game.trial
    folder.mkdir(parents=True)
    trajectory = {
        "task_id": game.trial,
        "task_type": game.kind,
        "pddl_params": {
            "object_target": game.thing,
            "parent_target": game.target,
            "toggle_target": game.lamp,
            "mrecep_target": "",
            "object_sliced": False,
        },
        "scene": {"floor_plan": f"FloorPlan{game.scene}", "scene_num": game.scene},
        "turk_annotations": {"anns": [{"task_desc": f"{game.sentence.capitalize()}."}]},
    }
    content = {
        "pddl_domain": domain,
        "grammar": grammar.replace("UNKNOWN GOAL", game.sentence),
        "pddl_problem": game.problem,
        "solvable": True,
    }
    (folder / "traj_data.json").write_text(json.dumps(trajectory), encoding="utf-8")
    (folder / "initial_state.pddl").write_text(game.problem, encoding="utf-8")
    (folder / GAME_FILE).write_text(json.dumps(content), encoding="utf-8")


def _is_complete(root: Path, settings: dict[str, int]) -> bool:
    """Whether `root` holds these games; False if it is empty. Raises GameDataError if it holds others."""
    if not root.exists() or (root.is_dir() and not os.listdir(root)):
        return False
    try:
        found = json.loads((root / SETTINGS_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise GameDataError(
            f"{root} exists but holds no generated games; delete it or name another folder."
        ) from error
    if found != settings:
        changed = [f"{key}={found.get(key)}" for key, value in settings.items() if found.get(key) != value]
        wanted = [f"{key}={value}" for key, value in settings.items() if found.get(key) != value]
        raise GameDataError(
            f"The games in {root} were made with {', '.join(changed)}, but {', '.join(wanted)} is asked for; "
            "delete the folder to make them anew."
        )
    return True
