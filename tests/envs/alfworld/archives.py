"""Packing games of the standard layout into an archive, as the reader expects it."""

from __future__ import annotations

import json
import lzma
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rsipo_jax.envs.alfworld.data import find_tasks, read_game
from rsipo_jax.envs.alfworld.layout import FOLDER
from rsipo_jax.envs.alfworld.versions import split_grammar


def records(root: Path, splits: Iterable[str]) -> list[dict[str, Any]]:
    """The lines of an archive of the splits, the first one included."""
    head: dict[str, Any] = {}
    games = []
    for task in (task for split in splits for task in find_tasks(root, split)):
        game = read_game(root, task)
        trajectory = json.loads((root / FOLDER / task.id / "traj_data.json").read_text())
        grammar, sentence = split_grammar(game["grammar"]) or ("", "")
        head = {"pddl_domain": game["pddl_domain"], "grammar": grammar}
        split, folder, trial = task.id.split("/")
        games.append(
            {
                "split": split,
                "dir": folder,
                "trial": trial,
                "task_desc": sentence,
                "anns": [annotation["task_desc"] for annotation in trajectory["turk_annotations"]["anns"]],
                "problem": game["pddl_problem"],
            }
        )
    return [head, *games]


def write(path: Path, lines: Iterable[object]) -> Path:
    """An archive of these JSON values, a line each."""
    with lzma.open(path, "wt", preset=0) as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)
    return path


def pack(root: Path, path: Path, splits: Iterable[str]) -> Path:
    """An archive of the games of a folder."""
    return write(path, records(root, splits))
