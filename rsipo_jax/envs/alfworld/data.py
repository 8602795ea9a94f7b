"""The standard ALFWorld data folder: finding the games of a split and loading them.

Layout: <root>/json_2.1.1/<split>/<kind>-<Object>-<Movable|None>-<Receptacle|Lamp>-<scene>/<trial>/, where a
trial holds traj_data.json, initial_state.pddl and game.tw-pddl. Which games count is AlfredTWEnv's choice:
those with the first and the last file, without a movable receptacle or slicing, whose game file says it is
solvable.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rsipo_jax.config import EnvConfig
from rsipo_jax.envs.alfworld.game import KINDS, Game, GameDataError, parse_game
from rsipo_jax.envs.protocol import Task

FOLDER = "json_2.1.1"
SPLITS = ("train", "valid_seen", "valid_unseen")
GAME_FILE = "game.tw-pddl"

_KEYS = ("pddl_domain", "grammar", "pddl_problem")
_TAIL_BYTES = 4096
# a quote inside a JSON string is escaped, so an unescaped "solvable" is the key itself
_SOLVABLE = re.compile(rb'(?<!\\)"solvable"\s*:\s*(true|false)')


@dataclass(frozen=True)
class SplitScan:
    """The games of a split, and how many folders were left out for which reason."""

    tasks: tuple[Task, ...]  # sorted by id
    skipped: Counter[str]


def resolve_root(env: EnvConfig) -> Path | None:
    """The data folder that config.env.data names, None for generated games. The launchers write $ALFWORLD_DATA there.

    Raises GameDataError when the folder holds no games.
    """
    if not env.data:
        return None
    root = Path(env.data).expanduser()
    if not (root / FOLDER).is_dir():
        raise GameDataError(
            f"config.env.data (or $ALFWORLD_DATA) is {env.data}, but there is no folder {FOLDER} in it; "
            f"name the folder that holds {FOLDER}."
        )
    return root


def has_split(root: Path, split: str) -> bool:
    """Whether the data folder has this split at all."""
    return (root / FOLDER / split).is_dir()


def find_tasks(root: Path, split: str) -> list[Task]:
    """The games of a split sorted by id; what was skipped, and why, goes to the log. Raises GameDataError."""
    scan = scan_split(root, split)
    if scan.skipped:
        reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(scan.skipped.items()))
        logging.info("%s: %d games; skipped %s", split, len(scan.tasks), reasons)
    return list(scan.tasks)


def scan_split(root: Path, split: str) -> SplitScan:
    """Look through a split's folder. Raises GameDataError for a missing split or a damaged game file."""
    if split not in SPLITS:
        raise GameDataError(f"There is no split {split!r}; choose one of {', '.join(SPLITS)}.")
    folder = root / FOLDER / split
    if not folder.is_dir():
        raise GameDataError(
            f"The split {split} is missing: there is no folder {folder}; unpack it or choose another split."
        )
    tasks, skipped = [], Counter[str]()
    for game_folder in sorted(entry.name for entry in os.scandir(folder) if entry.is_dir()):
        for trial in sorted(entry.name for entry in os.scandir(folder / game_folder) if entry.is_dir()):
            reason = _reason_to_skip(folder / game_folder / trial)
            if reason:
                skipped[reason] += 1
            else:
                tasks.append(Task(f"{split}/{game_folder}/{trial}", game_folder.split("-")[0], split))
    if not tasks:
        raise GameDataError(f"{folder} holds no playable game; unpack the {split} games there.")
    return SplitScan(tuple(sorted(tasks, key=lambda task: task.id)), skipped)


def read_game(root: Path, task: Task) -> dict[str, Any]:
    """The content of a task's game file. Raises GameDataError."""
    path = root / FOLDER / task.id / GAME_FILE
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise GameDataError(
            f"There is no game {task.id}: {path} does not exist; check the task id and the data folder."
        ) from error
    except UnicodeDecodeError as error:
        raise GameDataError(f"{path} is not UTF-8 text ({error.reason}); restore the file.") from error
    except json.JSONDecodeError as error:
        raise GameDataError(
            f"{path} is not complete JSON ({error.msg} at character {error.pos}); restore the file."
        ) from error
    missing = [key for key in _KEYS if not isinstance(content, dict) or key not in content]
    if missing:
        raise GameDataError(f"{path} has no key {missing[0]!r}; it is not an ALFWorld game file.")
    return content


def load_game(root: Path, task: Task) -> Game:
    """Read and parse a task's game. Raises GameDataError."""
    content = read_game(root, task)
    return parse_game(content["pddl_problem"], content["grammar"], task.id)


def _reason_to_skip(folder: Path) -> str:
    """Why AlfredTWEnv would not play this folder; "" if it would."""
    game_folder = folder.parent.name
    if "movable" in game_folder:
        return "with a movable receptacle"
    if "Sliced" in game_folder:
        return "with slicing"
    if game_folder.split("-")[0] not in KINDS:
        return "of an unknown kind"
    if not (folder / "traj_data.json").is_file() or not (folder / GAME_FILE).is_file():
        return "without game files"
    return "" if _is_solvable(folder / GAME_FILE) else "not solvable"


def _is_solvable(path: Path) -> bool:
    """Read the `solvable` key, which stands at the end of the file, without parsing the rest."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _TAIL_BYTES))
        tail = file.read()
        if not tail.rstrip().endswith(b"}"):
            raise GameDataError(f"{path} is cut off (it does not end with '}}'); restore the file.")
        found = _SOLVABLE.search(tail)
        if found is None:
            file.seek(0)
            found = _SOLVABLE.search(file.read())
    return found is not None and found.group(1) == b"true"
