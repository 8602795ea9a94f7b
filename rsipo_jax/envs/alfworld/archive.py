"""Many games in one file, read without unpacking: `*.jsonl.xz`, an xz-compressed text of JSON lines.

The first line is {"pddl_domain", "grammar"}, the grammar with UNKNOWN GOAL for the task sentence. Each further line is
a game: "split", "dir" and "trial" (together its task id), "task_desc" (the sentence), "problem" (the PDDL problem) and
"anns" (people's sentences for the task); other keys are not read. An archive holds playable games only.
"""

from __future__ import annotations

import functools
import hashlib
import json
import lzma
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rsipo_jax.envs.alfworld.game import GameDataError
from rsipo_jax.envs.alfworld.layout import SPLITS
from rsipo_jax.envs.alfworld.versions import PLACEHOLDER, plain

SUFFIX = ".jsonl.xz"

_TEXTS = ("split", "dir", "trial", "task_desc", "problem")
_ZLIB_LEVEL = 1  # a tenth of the text; higher levels save a third of that and take twice as long


@dataclass(frozen=True)
class Archive:
    """An open archive; the games' lines stay compressed in memory."""

    path: Path
    domain: str
    grammar: str  # with PLACEHOLDER for the sentence
    lines: Mapping[str, bytes]  # task id -> the game's line, zlib-compressed; in the order of the file
    digests: Mapping[str, str]  # task id -> sha256 (hex) of the game's line

    def game(self, task_id: str) -> dict[str, Any]:
        """What the game's file in the standard layout says. Raises GameDataError for a game that is not there."""
        record = self._record(task_id)
        return {
            "pddl_domain": self.domain,
            "grammar": self.grammar.replace(PLACEHOLDER, plain(record["task_desc"])),
            "pddl_problem": record["problem"],
            "solvable": True,
        }

    def annotations(self, task_id: str) -> list[str]:
        """People's sentences for the game's task. Raises GameDataError for a game that is not there."""
        found: list[str] = self._record(task_id)["anns"]
        return found

    def _record(self, task_id: str) -> dict[str, Any]:
        if task_id not in self.lines:
            raise GameDataError(f"There is no game {task_id} in {self.path}; check the task id.")
        record: dict[str, Any] = json.loads(zlib.decompress(self.lines[task_id]))
        return record


def open_archive(path: Path) -> Archive:
    """The archive, read through and checked once a process. Raises GameDataError for a damaged one."""
    try:
        stat = path.stat()
    except OSError as error:
        raise GameDataError(f"{path} cannot be read ({error.strerror}); check config.env.data.") from error
    return _opened(path, stat.st_size, stat.st_mtime_ns)


@functools.lru_cache(4)
def _opened(path: Path, size: int, mtime_ns: int) -> Archive:
    """`size` and `mtime_ns` tell a file from another that has taken its place."""
    lines = _lines(path)
    _, head = next(lines, (0, b""))
    logic = _object(head, path, 1)
    for key in ("pddl_domain", "grammar"):
        if not isinstance(logic.get(key), str):
            raise GameDataError(
                f"{path} is no archive of ALFWorld games: its first line has no text {key!r}."
            )
    if logic["grammar"].count(PLACEHOLDER) != 1:
        raise GameDataError(f"{path} is no archive of ALFWorld games: its grammar has no {PLACEHOLDER}.")
    packed: dict[str, bytes] = {}
    digests: dict[str, str] = {}
    for number, line in lines:
        task_id = _task_id(_object(line, path, number), path, number)
        if task_id in packed:
            raise GameDataError(f"Line {number} of {path} repeats the game {task_id}; restore the file.")
        packed[task_id] = zlib.compress(line, _ZLIB_LEVEL)
        digests[task_id] = hashlib.sha256(line).hexdigest()
    return Archive(path, logic["pddl_domain"], logic["grammar"], packed, digests)


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """The lines with their numbers, from 1, without line ends."""
    number = 0
    try:
        with lzma.open(path) as file:
            for number, line in enumerate(file, 1):
                yield number, line.rstrip(b"\r\n")
    except EOFError as error:
        raise GameDataError(f"{path} is cut off after line {number}; copy the file again.") from error
    except lzma.LZMAError as error:
        raise GameDataError(
            f"{path} is no intact xz file (after line {number}: {error}); copy it again."
        ) from error
    except OSError as error:
        raise GameDataError(f"{path} cannot be read ({error.strerror}); check config.env.data.") from error


def _object(line: bytes, path: Path, number: int) -> dict[str, Any]:
    try:
        parsed = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise GameDataError(f"Line {number} of {path} is not complete JSON; copy the file again.") from error
    if not isinstance(parsed, dict):
        raise GameDataError(f"Line {number} of {path} is not a JSON object; restore the file.")
    return parsed


def _task_id(record: dict[str, Any], path: Path, number: int) -> str:
    """The task id of a game's line, after a check of its keys."""
    for key in _TEXTS:
        if not isinstance(record.get(key), str):
            raise GameDataError(f"Line {number} of {path} has no text {key!r}; it is not a game.")
    annotations = record.get("anns")
    if not isinstance(annotations, list) or not all(isinstance(text, str) for text in annotations):
        raise GameDataError(f"Line {number} of {path} has no list of texts 'anns'; it is not a game.")
    if record["split"] not in SPLITS:
        raise GameDataError(
            f"Line {number} of {path} has the unknown split {record['split']!r}; use one of {', '.join(SPLITS)}."
        )
    for key in ("dir", "trial"):
        if "/" in record[key] or record[key] in ("", ".", "..") or not record[key].isprintable():
            raise GameDataError(
                f"Line {number} of {path} has {record[key]!r} for {key!r}; no game is called so."
            )
    return f"{record['split']}/{record['dir']}/{record['trial']}"
