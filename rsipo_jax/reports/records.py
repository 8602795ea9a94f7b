"""JSON-lines records: a record is one JSON object in one line, and equal records are equal bytes."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np


def plain(value: Any, where: str) -> Any:
    """`value` as plain JSON values: mappings sorted by key, NumPy and JAX scalars as Python numbers.

    Raises ValueError naming `where` and the path inside `value` for a NaN, an infinity, or a type that JSON
    does not have.
    """
    if isinstance(value, np.generic) or getattr(value, "ndim", None) == 0:
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(
            f"{where} is {value}, which JSON cannot hold: find where it comes from, "
            "and leave the value out where it is not defined"
        )
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, Mapping):
        return {name: plain(value[name], f"{where}: {name}") for name in sorted(value)}
    if isinstance(value, list | tuple):
        return [plain(item, f"{where}[{index}]") for index, item in enumerate(value)]
    raise ValueError(
        f"{where} is a {type(value).__name__}, which JSON cannot hold: give a number, string, list or mapping"
    )


def encode_line(record: Mapping[str, Any]) -> bytes:
    """The line of a record of plain values: keys in the record's order, floats as Python's shortest repr.

    ASCII only: a skill may hold exotic line ends and lone surrogates, which JSON can escape and UTF-8 cannot
    encode.
    """
    return (json.dumps(record, allow_nan=False) + "\n").encode("ascii")


def read_records(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """The records of a JSON-lines file, [] when it does not exist. Errors as in `read_lines`."""
    return [record for _, record in read_lines(Path(path))]


def read_lines(path: Path) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """The lines of a JSON-lines file with their records; none when it does not exist.

    A last line without its newline was cut off when the run was killed, and is left out. Any other line that
    is not a JSON object with a "step" raises ValueError naming file and line.
    """
    if not path.exists():
        return
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                return
            try:
                record = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise ValueError(
                    f"{path} line {number} is not JSON ({error}): repair or delete the line"
                ) from error
            if not isinstance(record, dict) or "step" not in record:
                raise ValueError(f"{path} line {number} is no record with a step: repair or delete the line")
            yield line, record


def leaves(tree: Mapping[str, Any], separator: str = ".", prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The values of a nested record with their names joined by `separator`."""
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from leaves(value, separator, f"{prefix}{name}{separator}")
        else:
            yield prefix + name, value


def replace_file(path: Path, lines: Iterable[bytes]) -> None:
    """Writes a whole file; a kill in between leaves the old one."""
    partial = path.with_name(path.name + ".partial")
    with partial.open("wb") as file:
        file.writelines(lines)
    partial.replace(path)
