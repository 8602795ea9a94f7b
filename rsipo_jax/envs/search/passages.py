"""A corpus of passages: one JSON object a line, `{"id", "contents"}`, as FlashRAG and Search-R1 have it.

The first line of `contents` is the title, the rest the text. Only the places of the lines are held in memory (8 bytes a
passage); lines are read from the file when they are asked for. A passage is known by its row.
"""

from __future__ import annotations

import json
import os
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from rsipo_jax.envs.search.index import sha256
from rsipo_jax.validation import ConfigError


@dataclass(frozen=True)
class Passage:
    id: str
    title: str
    text: str

    @property
    def contents(self) -> str:
        return f"{self.title}\n{self.text}"


class Corpus:
    """Passages by row. Use as a context manager, or `close` it."""

    def __init__(self, path: Path) -> None:
        """Finds the lines of `path`. Raises ConfigError when there is no such file, or when it is empty."""
        if not path.is_file():
            raise ConfigError(
                f"{path} is not a file: name a corpus with one JSON object a line, {{'id', 'contents'}}"
            )
        self.path = path
        self._file = path.open("rb")
        places, at = array("q", [0]), 0
        for line in self._file:
            at += len(line)
            places.append(at)
        if len(places) == 1:
            raise ConfigError(f"{path} holds no passage")
        self._places = np.frombuffer(places, np.int64)

    def __len__(self) -> int:
        return len(self._places) - 1

    def __enter__(self) -> Corpus:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._file.close()

    def __getitem__(self, row: int) -> Passage:
        """Raises ConfigError, with the number of the line, when it cannot be read, and IndexError when there is no such row."""
        if not 0 <= row < len(self):
            raise IndexError(f"row {row} of {len(self)} passages")
        start, end = self._places[row : row + 2].tolist()
        line = os.pread(self._file.fileno(), end - start, start)
        return parse_passage(line, f"{self.path}, line {row + 1}")

    def __iter__(self) -> Iterator[Passage]:
        return (self[row] for row in range(len(self)))

    def fingerprint(self) -> str:
        """SHA-256 of the file: an index belongs to a corpus of these very bytes."""
        return sha256(self.path)


def parse_passage(line: bytes, where: str) -> Passage:
    """Raises ConfigError that begins with `where` when the line is not a passage."""
    try:
        record: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            f"{where}: {error}; each line must be a JSON object with 'id' and 'contents'"
        ) from error
    if not isinstance(record, dict) or not isinstance(record.get("contents"), str) or "id" not in record:
        raise ConfigError(f"{where}: each line must be a JSON object with 'id' and a text 'contents'")
    title, _, text = record["contents"].partition("\n")
    return Passage(str(record["id"]), unquoted(title), text)


def unquoted(title: str) -> str:
    """A title of the Wikipedia dump of 2018 as people read it: the quotes around titles of several words come off."""
    title = title.strip()
    if len(title) >= 2 and title[0] == title[-1] == '"':
        title = title[1:-1].replace('""', '"')
    return title


def write_corpus(path: Path, passages: Sequence[Passage]) -> None:
    """The inverse of reading."""
    with path.open("w", encoding="utf-8") as file:
        for passage in passages:
            file.write(
                json.dumps({"id": passage.id, "contents": passage.contents}, ensure_ascii=False) + "\n"
            )
