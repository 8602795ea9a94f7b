"""The folder of an index: there as a whole or not at all, built by one process at a time, checked when it is opened.

`index.json` in it says what the index was made of, and the SHA-256 of every other file.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rsipo_jax.validation import ConfigError

SETTINGS = "index.json"
FILES = "files"  # its key for the checksums
ANEW = "delete the folder, and the index is built anew"


def make(folder: Path, settings: Mapping[str, Any], write: Callable[[Path], None]) -> None:
    """Lets `write` fill a folder that becomes `folder` when it is complete; does nothing where there is one already.

    A second builder waits for the first one and takes its index. What an interrupted build left is removed by the next.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(folder.name + ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # until the file is closed, also by the death of this process
        if folder.exists():
            return
        partial = folder.with_name(folder.name + ".partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        write(partial)
        record = {**settings, FILES: {path.name: sha256(path) for path in sorted(partial.iterdir())}}
        (partial / SETTINGS).write_text(json.dumps(record, indent=2), encoding="utf-8")
        partial.rename(folder)


def check(folder: Path, settings: Mapping[str, Any]) -> None:
    """Raises ConfigError unless `folder` holds an index that was made of this, whose files are as they were written."""
    try:
        made_of = json.loads((folder / SETTINGS).read_text(encoding="utf-8"))
        checksums = dict(made_of[FILES])
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ConfigError(f"{folder} holds no index ({type(error).__name__}: {error}): {ANEW}") from error
    for key, value in settings.items():
        if made_of.get(key) != value:
            raise ConfigError(
                f"the index in {folder} was made with {key}={made_of.get(key)!r}, here it is {value!r}: {ANEW}"
            )
    for name, checksum in checksums.items():
        try:
            same = sha256(folder / name) == checksum
        except OSError as error:
            raise ConfigError(f"{folder / name} cannot be read ({error.strerror}): {ANEW}") from error
        if not same:
            raise ConfigError(f"{folder / name} is not as it was written (its SHA-256 differs): {ANEW}")


def sha256(path: Path) -> str:
    """Of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
