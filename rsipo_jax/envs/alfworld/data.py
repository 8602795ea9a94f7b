"""The games a run plays: which there are, and the content of each, from the standard folder or from an archive.

Which games of a folder count is AlfredTWEnv's choice: those with traj_data.json and game.tw-pddl, without a movable
receptacle or slicing, whose game file says they are solvable. The others are left out and counted by reason.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rsipo_jax.config import EnvConfig
from rsipo_jax.envs.alfworld.archive import SUFFIX, open_archive
from rsipo_jax.envs.alfworld.game import KINDS, Game, GameDataError, parse_game, unknown_version
from rsipo_jax.envs.alfworld.layout import (
    FOLDER,
    GAME_FILE,
    SPLITS,
    TRAJECTORY_FILE,
    excluded,
    parse_game_file,
    parse_json,
    read_file,
)
from rsipo_jax.envs.alfworld.manifest import (
    WITHOUT_GAME,
    Entry,
    LeftOut,
    Manifest,
    game_version,
    load_manifest,
    manifest_of,
)
from rsipo_jax.envs.alfworld.versions import PLACEHOLDER, VERSIONS, converted, plain, split_grammar
from rsipo_jax.envs.protocol import Task

# Games of each kind (in the order of KINDS) in ALFWorld's own data set, any version: 3,553, 140 and 134 in all.
OFFICIAL: Mapping[str, Mapping[str, int]] = {
    split: dict(zip(KINDS, counts, strict=True))
    for split, counts in {
        "train": (790, 308, 650, 459, 533, 813),
        "valid_seen": (35, 13, 27, 16, 25, 24),
        "valid_unseen": (24, 18, 31, 23, 21, 17),
    }.items()
}


@dataclass(frozen=True)
class GameData:
    """Where games lie and how they are played. Small and picklable: worker processes get it."""

    path: Path  # folder that holds json_2.1.1, or an archive
    version: str = "as_is"  # config.env.version
    goals: str = "templated"  # config.env.goals
    official: bool = False  # every split must hold the official games
    fast: bool = False  # every game must be one that the fast engine can play

    def __str__(self) -> str:
        return str(self.path)


Source = GameData | Path  # a path alone: all its games as they are


def resolve_root(env: EnvConfig) -> GameData | None:
    """The games that config.env.data names, None for generated ones. The launchers write $ALFWORLD_DATA there.

    Raises GameDataError when there are none.
    """
    if not env.data:
        return None
    try:
        path = Path(env.data).expanduser()
        standard = (path / FOLDER).is_dir()
    except (OSError, RuntimeError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise GameDataError(
            f"config.env.data (or $ALFWORLD_DATA) is {env.data}, which cannot be looked at ({reason}); "
            f"name a folder that holds {FOLDER}, or an archive."
        ) from error
    if not standard:
        archives = sorted(path.glob(f"*{SUFFIX}")) if path.is_dir() else [path]
        if len(archives) != 1 or not (archives[0].name.endswith(SUFFIX) and archives[0].is_file()):
            several = f"{len(archives)} archives" if len(archives) > 1 else "no archive"
            raise GameDataError(
                f"config.env.data (or $ALFWORLD_DATA) is {env.data}, but there is no folder {FOLDER} in it and "
                f"{several} *{SUFFIX}; name the folder that holds {FOLDER}, or one archive."
            )
        path = archives[0]
    return GameData(path, env.version, env.goals, env.official, env.engine == "fast")


def has_split(source: Source, split: str) -> bool:
    """Whether the data have this split at all. Raises GameDataError for a damaged archive."""
    path = _data(source).path
    if path.is_dir():
        return (path / FOLDER / split).is_dir()
    return any(task_id.startswith(f"{split}/") for task_id in open_archive(path).lines)


def find_tasks(source: Source, split: str) -> list[Task]:
    """The games of a split sorted by id. Raises GameDataError."""
    return list(manifest(source, split).tasks)


def left_out(source: Source, split: str) -> str:
    """How many trials of a split are not played, by reason; "" for none. Raises GameDataError."""
    skipped = sorted(manifest(source, split).skipped.items())
    return ", ".join(f"{count} {reason}" for reason, count in skipped)


def manifest(source: Source, split: str) -> Manifest:
    """What a split holds, checked as the data ask for.

    Raises GameDataError for a split that is missing, empty, damaged, not the official one (if `official`), with a game
    that the fast engine does not know (if `fast`), or one that has not the version or the goals asked for.
    """
    data = _data(source)
    if data.path.is_dir():
        found = load_manifest(data.path, split, data.official)
    else:
        found = _archive_manifest(data.path, split)
    if not found.entries:
        raise GameDataError(f"{data} holds no playable {split} game; unpack the {split} games there.")
    if data.official:
        _check_official(data, found)
    unknown = next((entry.id for entry in found.entries if not entry.version), None)
    if data.fast and unknown is not None:
        raise GameDataError(unknown_version(_place(data, unknown)))
    if data.version != "as_is" and unknown is not None:
        raise GameDataError(_not_convertible(data, unknown))
    if data.goals == "human":
        _check_annotations(data, found.split, found.sha256)
    return found


def read_game(source: Source, task: Task) -> dict[str, Any]:
    """What a task's game file says (pddl_domain, grammar, pddl_problem), in the version and with the goal asked for.

    Raises GameDataError.
    """
    data = _data(source)
    if data.path.is_dir():
        path = data.path / FOLDER / task.id / GAME_FILE
        if not path.exists():
            raise GameDataError(
                f"There is no game {task.id}: {path} does not exist; check the task id and the data folder."
            )
        game = parse_game_file(read_file(path), path)
    else:
        game = open_archive(data.path).game(task.id)
    if data.version == "as_is" and data.goals == "templated":
        return game
    place = _place(data, task.id)
    parts = split_grammar(game["grammar"])
    if parts is None:
        raise GameDataError(
            f"{place} names no task ('Your task is to: ...') in its grammar; restore the file."
        )
    domain, (template, sentence) = game["pddl_domain"], parts
    if data.version != "as_is":
        logic = converted(domain, template, data.version)
        if logic is None:
            raise GameDataError(_not_convertible(data, task.id))
        domain, template = logic
    if data.goals == "human":
        sentence = _human_sentence(data, task, place)
    return {**game, "pddl_domain": domain, "grammar": template.replace(PLACEHOLDER, sentence)}


def load_game(source: Source, task: Task) -> Game:
    """Read and parse a task's game. Raises GameDataError."""
    data = _data(source)
    game = read_game(data, task)
    return parse_game(game["pddl_domain"], game["grammar"], game["pddl_problem"], _place(data, task.id))


def _data(source: Source) -> GameData:
    return GameData(source) if isinstance(source, Path) else source


def _place(data: GameData, task_id: str) -> str:
    """Where a game lies, for errors."""
    return (
        str(data.path / FOLDER / task_id / GAME_FILE) if data.path.is_dir() else f"{task_id} in {data.path}"
    )


def _archive_manifest(path: Path, split: str) -> Manifest:
    """The manifest of an archive's split. Raises GameDataError."""
    if split not in SPLITS:
        raise GameDataError(f"There is no split {split!r}; choose one of {', '.join(SPLITS)}.")
    archive = open_archive(path)
    ids = [task_id for task_id in archive.lines if task_id.startswith(f"{split}/")]
    if not ids:
        raise GameDataError(
            f"The split {split} is missing: {path} has no such games; choose another archive or split."
        )
    reasons = {task_id: excluded(task_id.split("/")[1]) for task_id in ids}
    version = game_version(archive.game(ids[0]))  # the same for all: they share domain and grammar
    return manifest_of(
        split,
        (Entry(task_id, version, archive.digests[task_id]) for task_id in ids if not reasons[task_id]),
        (LeftOut(task_id, reason) for task_id, reason in reasons.items() if reason),
    )


def _check_official(data: GameData, found: Manifest) -> None:
    """Raise GameDataError unless the split holds as many games of each kind as ALFWorld's own data set."""
    wanted = OFFICIAL[found.split]
    kind = next((kind for kind in KINDS if found.kinds[kind] != wanted[kind]), None)
    if kind is None:
        return
    incomplete = [trial.id for trial in found.left_out if trial.reason == WITHOUT_GAME]
    incomplete.sort(key=lambda trial: (f"/{kind}-" not in trial, trial))
    missing = f"; there is no {_place(data, incomplete[0])}" if incomplete else ""
    raise GameDataError(
        f"{data} holds {len(found.entries)} {found.split} games instead of the official {sum(wanted.values())} "
        f"({kind}: {found.kinds[kind]} instead of {wanted[kind]}{missing}): complete them, or set "
        "config.env.official=False to play any games of this layout."
    )


def _not_convertible(data: GameData, task_id: str) -> str:
    return (
        f"{_place(data, task_id)} is of a version other than {' and '.join(VERSIONS)}, so config.env.version="
        f"{data.version!r} cannot be made of it; set 'as_is'."
    )


@functools.lru_cache(16)
def _check_annotations(data: GameData, split: str, sha256: str) -> None:
    """Raise GameDataError if a game has no human sentence: once a process, as it reads every game of this `sha256`."""
    for task in manifest(replace(data, goals="templated"), split).tasks:
        _human_sentence(data, task, _place(data, task.id))


def _human_sentence(data: GameData, task: Task, place: str) -> str:
    """One of people's sentences for the task: the one at sha256(task id) modulo their number.

    It is put into the grammar as alfworld-generate does it, unchanged, so the sentence shown may end in two full
    stops; only characters that the grammar would take for markup become spaces. Raises GameDataError.
    """
    if data.path.is_dir():
        path = data.path / FOLDER / task.id / TRAJECTORY_FILE
        found = _annotations(parse_json(read_file(path), path))
    else:
        found = open_archive(data.path).annotations(task.id)
    sentences = [sentence for sentence in map(plain, found) if sentence.strip()]
    if not sentences:
        raise GameDataError(
            f"{place} comes without people's task descriptions (turk_annotations), which config.env.goals='human' "
            "plays; set config.env.goals='templated'."
        )
    return sentences[int(hashlib.sha256(task.id.encode()).hexdigest(), 16) % len(sentences)]


def _annotations(trajectory: Mapping[str, Any]) -> list[str]:
    """The task descriptions in a traj_data.json; none where it has another shape."""
    try:
        found = [annotation["task_desc"] for annotation in trajectory["turk_annotations"]["anns"]]
    except (KeyError, TypeError):
        return []
    return [text for text in found if isinstance(text, str)]
