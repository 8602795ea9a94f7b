"""Files of lines, as they are or packed (*.xz, *.gz)."""

from __future__ import annotations

import gzip
import hashlib
import lzma
import os
import shutil
import tempfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from rsipo_jax.validation import ConfigError

_OPENERS: Mapping[str, Callable[..., Any]] = {".xz": lzma.open, ".gz": gzip.open}
PACKINGS = tuple(_OPENERS)
_DAMAGES = (lzma.LZMAError, zlib.error, EOFError, OSError)


def ending(path: Path) -> str:
    """What kind of file it is, packed or not: ".jsonl" of a.jsonl.xz."""
    return (path.with_suffix("") if path.suffix in PACKINGS else path).suffix


def lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """(number from 1, line) of every line that is not blank. Raises ConfigError for a file that cannot be read."""
    number = 0
    try:
        with _opened(path) as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield number, line
    except _DAMAGES as error:
        raise ConfigError(
            f"{path} cannot be read after line {number}: {error or type(error).__name__}; copy it anew"
        ) from error


def unpacked(path: Path, folder: Path) -> Path:
    """The plain file: `path` itself, or what it holds, written to `folder` once under a name that tells its content.

    Raises ConfigError for a file that cannot be read.
    """
    if path.suffix not in PACKINGS:
        return path
    plain = folder / f"{path.name.partition('.')[0]}-{digest(path)[:16]}{ending(path)}"
    if plain.exists():
        return plain
    folder.mkdir(parents=True, exist_ok=True)
    descriptor, draft = tempfile.mkstemp(prefix=f".{plain.name}-", dir=folder)
    try:
        with os.fdopen(descriptor, "wb") as file, _opened(path) as source:
            shutil.copyfileobj(source, file)
        Path(draft).chmod(0o644)
        Path(draft).replace(plain)
    except _DAMAGES as error:
        Path(draft).unlink()
        raise ConfigError(
            f"{path} cannot be unpacked to {plain}: {error or type(error).__name__}; copy it anew, or make room"
        ) from error
    return plain


def digest(*paths: Path) -> str:
    """SHA-256 (hex) of files, one after the other; another one for every way to cut the same bytes into files.

    Raises ConfigError for what is no file.
    """
    whole = hashlib.sha256()
    for path in paths:
        try:
            with path.open("rb") as file:
                whole.update(hashlib.file_digest(file, "sha256").digest())
        except OSError as error:
            raise ConfigError(f"{path} cannot be read: {error.strerror}; name a file") from error
    return whole.hexdigest()


def _opened(path: Path) -> IO[bytes]:
    return _OPENERS.get(path.suffix, open)(path, "rb")
