"""The standard layout of ALFWorld data: its names, and reading one game file.

<root>/json_2.1.1/<split>/<kind>-<Object>-<Movable|None>-<Receptacle|Lamp>-<scene>/<trial>/, where a trial holds
traj_data.json, initial_state.pddl and game.tw-pddl. The folder is called json_2.1.1 for every version.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rsipo_jax.envs.alfworld.game import KINDS, GameDataError

FOLDER = "json_2.1.1"
SPLITS = ("train", "valid_seen", "valid_unseen")
GAME_FILE = "game.tw-pddl"
TRAJECTORY_FILE = "traj_data.json"

_KEYS = ("pddl_domain", "grammar", "pddl_problem")


def excluded(game_folder: str) -> str:
    """Why AlfredTWEnv plays no game of a folder with this name; "" if it does."""
    if "movable" in game_folder:
        return "with a movable receptacle"
    if "Sliced" in game_folder:
        return "with slicing"
    return "" if game_folder.split("-")[0] in KINDS else "of an unknown kind"


def read_file(path: Path) -> bytes:
    """The bytes of a file. Raises GameDataError."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise GameDataError(f"{path} cannot be read ({error.strerror}); restore the file.") from error


def parse_json(content: bytes, path: Path) -> dict[str, Any]:
    """The JSON object in a file's content; `path` names it in errors. Raises GameDataError."""
    try:
        parsed = json.loads(content.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise GameDataError(f"{path} is not UTF-8 text ({error.reason}); restore the file.") from error
    except json.JSONDecodeError as error:
        raise GameDataError(
            f"{path} is not complete JSON ({error.msg} at character {error.pos}); restore the file."
        ) from error
    except ValueError as error:  # a number of thousands of digits
        raise GameDataError(f"{path} holds JSON that cannot be read ({error}); restore the file.") from error
    except RecursionError as error:
        raise GameDataError(f"{path} nests JSON too deeply for a data file; restore the file.") from error
    if not isinstance(parsed, dict):
        raise GameDataError(f"{path} holds no JSON object; restore the file.")
    return parsed


def parse_game_file(content: bytes, path: Path) -> dict[str, Any]:
    """What a game file says: pddl_domain, grammar, pddl_problem and, mostly, solvable. Raises GameDataError."""
    game = parse_json(content, path)
    for key in _KEYS:
        if not isinstance(game.get(key), str):
            raise GameDataError(f"{path} has no text under the key {key!r}; it is not an ALFWorld game file.")
    return game
