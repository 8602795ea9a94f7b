"""What a split holds, from one look through its folder that is kept for later runs.

The first scan reads every game file, so one that is cut off is found before training; it takes seconds. Its result is kept
as JSON next to the data, or in the user's cache where the data cannot be written to, and nowhere if neither can. A
later run only asks the file system for size and time of what was read (tens of milliseconds) and scans again when
anything has changed or the kept file is damaged.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import stat
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rsipo_jax.envs.alfworld.game import GameDataError
from rsipo_jax.envs.alfworld.layout import (
    FOLDER,
    GAME_FILE,
    SPLITS,
    TRAJECTORY_FILE,
    excluded,
    parse_game_file,
    read_file,
)
from rsipo_jax.envs.alfworld.versions import split_grammar, version_of
from rsipo_jax.envs.protocol import Task

FORMAT = 2  # of the kept file; raise it when its content, or what a version is, changes
WITHOUT_GAME = "without game.tw-pddl"

_FOLDER_SIZE = -1  # in place of a folder's size, which depends on the file system


@dataclass(frozen=True)
class Entry:
    """A game that is played."""

    id: str  # of its task
    version: str  # "2.1.1", "2.1.2", or "" for rules or wording that the fast engine does not know
    sha256: str  # of its file, or of its line in an archive (hex)


@dataclass(frozen=True)
class LeftOut:
    """A trial that is not played."""

    id: str
    reason: str


@dataclass(frozen=True)
class Manifest:
    """The games of a split. Entries and trials left out are sorted by id."""

    split: str
    entries: tuple[Entry, ...]
    left_out: tuple[LeftOut, ...]

    @property
    def tasks(self) -> tuple[Task, ...]:
        return tuple(Task(entry.id, _kind(entry.id), self.split) for entry in self.entries)

    @property
    def kinds(self) -> Counter[str]:
        """Number of games of each task kind."""
        return Counter(_kind(entry.id) for entry in self.entries)

    @property
    def skipped(self) -> Counter[str]:
        """Number of trials left out for each reason."""
        return Counter(trial.reason for trial in self.left_out)

    @property
    def sha256(self) -> str:
        """Of the sorted ids and the content of every game (hex): equal for equal games only."""
        lines = "".join(f"{entry.id} {entry.sha256}\n" for entry in self.entries)
        return hashlib.sha256(lines.encode()).hexdigest()


# Path in the split's folder ("" for itself) -> size and time (ns) of the files and folders that a scan depends on.
Stamps = dict[str, tuple[int, int]]


def manifest_of(split: str, entries: Iterable[Entry], left_out: Iterable[LeftOut]) -> Manifest:
    """A manifest of games in any order."""
    return Manifest(
        split,
        tuple(sorted(entries, key=lambda entry: entry.id)),
        tuple(sorted(left_out, key=lambda trial: trial.id)),
    )


def split_folder(root: Path, split: str) -> Path:
    """The folder of a split in the standard layout. Raises GameDataError if there is no such split."""
    if split not in SPLITS:
        raise GameDataError(f"There is no split {split!r}; choose one of {', '.join(SPLITS)}.")
    folder = root / FOLDER / split
    if not folder.is_dir():
        raise GameDataError(
            f"The split {split} is missing: there is no folder {folder}; unpack it or choose another split."
        )
    return folder


def load_manifest(root: Path, split: str, complete: bool) -> Manifest:
    """The manifest of a split in the standard layout: the kept one while it holds, else a new one, then kept.

    `complete`: the data set is not meant to change, so a game that the kept manifest lists and that is gone is an
    error. Raises GameDataError, also for a damaged game file.
    """
    folder = split_folder(root, split)
    places = list(_places(root, split))
    for place in places:
        kept = _load(place, split)
        if kept is None:
            continue
        manifest, stamps = kept
        if all(_stamp(f"{folder}/{name}") == stamp for name, stamp in stamps.items()):
            return manifest
        games = (root / FOLDER / entry.id / GAME_FILE for entry in manifest.entries)
        gone = next((path for path in games if not path.exists()), None)
        if complete and gone is not None:
            raise GameDataError(
                f"{gone} is missing, which {place} lists: restore the file, or, if it is not meant to be there, "
                "delete that list."
            )
        logging.info("%s has changed since %s was written: reading its games again", folder, place)
    manifest, stamps = scan_split(root, split)
    _keep(places, manifest, stamps)
    return manifest


def scan_split(root: Path, split: str) -> tuple[Manifest, Stamps]:
    """Look through a split's folder and read its games. Raises GameDataError."""
    folder = split_folder(root, split)
    entries, left_out, stamps = list[Entry](), list[LeftOut](), Stamps()

    def note(name: str) -> None:
        """Remember the state of a path before it is read; one that is gone by then will count as changed."""
        stamps[name] = _stamp(f"{folder}/{name}") or (0, 0)

    note("")
    for game_folder in _folders(folder):
        note(game_folder)
        reason = excluded(game_folder)
        for trial in _folders(folder / game_folder):
            trial_id = f"{split}/{game_folder}/{trial}"
            why = reason or _missing(folder / game_folder / trial)
            if not reason:  # files may come and go
                note(f"{game_folder}/{trial}")
            if why:
                left_out.append(LeftOut(trial_id, why))
                continue
            note(f"{game_folder}/{trial}/{GAME_FILE}")
            path = folder / game_folder / trial / GAME_FILE
            content = read_file(path)
            game = parse_game_file(content, path)
            if game.get("solvable") is not True:
                left_out.append(LeftOut(trial_id, "not solvable"))
                continue
            entries.append(Entry(trial_id, game_version(game), hashlib.sha256(content).hexdigest()))
    return manifest_of(split, entries, left_out), stamps


def game_version(game: dict[str, Any]) -> str:
    """The version of a game file's content; "" for one that the fast engine does not know."""
    parts = split_grammar(game["grammar"])
    return version_of(game["pddl_domain"], parts[0]) if parts else ""


def _kind(task_id: str) -> str:
    return task_id.split("/")[1].split("-")[0]


def _folders(folder: Path) -> list[str]:
    """The names of the folders in a folder, sorted. Raises GameDataError."""
    try:
        with os.scandir(folder) as entries:
            names = sorted(entry.name for entry in entries if entry.is_dir())
    except OSError as error:
        raise GameDataError(f"{folder} cannot be listed ({error.strerror}); check the folder.") from error
    for name in names:
        if not name.isprintable():  # bytes that are no UTF-8 are not, either
            raise GameDataError(
                f"{folder} has a folder named {name!r}, which no game can be called; rename it."
            )
    return names


def _missing(trial: Path) -> str:
    """Which file a trial lacks; "" for none. AlfredTWEnv plays a trial only if it has both."""
    try:
        if not (trial / TRAJECTORY_FILE).is_file():
            return "without traj_data.json"
        return "" if (trial / GAME_FILE).is_file() else WITHOUT_GAME
    except OSError as error:
        raise GameDataError(f"{trial} cannot be read ({error.strerror}); check the folder.") from error


def _stamp(path: str) -> tuple[int, int] | None:
    """Size and time of a file or folder; None if there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return _FOLDER_SIZE if stat.S_ISDIR(found.st_mode) else found.st_size, found.st_mtime_ns


def _places(root: Path, split: str) -> Iterator[Path]:
    """Where the manifest of a split may be kept, best first."""
    yield root / FOLDER / f".manifest-{split}.json"
    key = hashlib.sha256(str((root / FOLDER / split).resolve()).encode()).hexdigest()[:32]
    try:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    except RuntimeError:  # a user without a home
        return
    yield cache / "rsipo_jax" / f"manifest-{key}.json"


def _keep(places: Iterable[Path], manifest: Manifest, stamps: Stamps) -> None:
    """Write the manifest to the first place that takes it; readers see the old file or the whole new one."""
    content = {
        "format": FORMAT,
        "split": manifest.split,
        "sha256": manifest.sha256,
        "kinds": manifest.kinds,
        "skipped": manifest.skipped,
        "games": [[entry.id, entry.version, entry.sha256] for entry in manifest.entries],
        "left_out": [[trial.id, trial.reason] for trial in manifest.left_out],
        "stamps": stamps,
    }
    for place in places:
        draft = ""
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            handle, draft = tempfile.mkstemp(prefix=f"{place.name}-", dir=place.parent)
            with open(handle, "w", encoding="utf-8") as file:
                json.dump(content, file)
            Path(draft).chmod(0o644)  # the data may be shared
            os.replace(draft, place)
            return
        except OSError:
            if draft:
                Path(draft).unlink(missing_ok=True)
    logging.info("The list of the %s games could not be kept: the next run reads them again", manifest.split)


def _load(place: Path, split: str) -> tuple[Manifest, Stamps] | None:
    """A kept manifest and its stamps; None if it is not there, damaged, or of another format."""
    try:
        content = json.loads(place.read_bytes())
        if content["format"] != FORMAT or content["split"] != split:
            return None
        if not (isinstance(content["games"], list) and isinstance(content["left_out"], list)):
            return None
        entries = [Entry(*_texts(fields)) for fields in content["games"]]
        left_out = [LeftOut(*_texts(fields)) for fields in content["left_out"]]
        stamps = {name: (int(size), int(time)) for name, (size, time) in content["stamps"].items()}
        manifest = manifest_of(split, entries, left_out)
        stamped = {"", *(f"{entry.id.removeprefix(f'{split}/')}/{GAME_FILE}" for entry in entries)}
        whole = manifest.sha256 == content["sha256"] and stamped <= stamps.keys()
        return (manifest, stamps) if whole else None
    except (OSError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError):
        return None


def _texts(fields: object) -> list[str]:
    if not isinstance(fields, list) or not all(isinstance(field, str) for field in fields):
        raise TypeError(f"{fields!r} is not a list of texts")
    return fields
