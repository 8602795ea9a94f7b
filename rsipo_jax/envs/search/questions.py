"""Questions in the formats people have: FlashRAG's jsonl and the parquet files of Search-R1."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rsipo_jax.validation import ConfigError

SETS = ("nq", "triviaqa", "popqa", "hotpotqa", "2wikimultihopqa", "musique", "bamboogle")


@dataclass(frozen=True)
class Question:
    id: str
    source: str  # its data set, one of SETS, or another name
    text: str  # as it was asked
    answers: tuple[str, ...]  # golden ones
    kind: str = ""  # "2 hops", "comparison", ...: where the file says it


def read_questions(path: Path, source: str = "") -> list[Question]:
    """The questions of a *.jsonl or *.parquet file, in its order. `source` where the records do not name it.

    Raises ConfigError: no such file, another ending, or a record, whose line (row) is named, without question or answers.
    """
    if not path.is_file():
        raise ConfigError(
            f"{path} is not a file: name a *.jsonl (FlashRAG) or *.parquet (Search-R1) file of questions"
        )
    if path.suffix == ".parquet":
        records = _parquet(path)
    elif path.suffix == ".jsonl":
        records = _jsonl(path)
    else:
        raise ConfigError(
            f"{path} ends with {path.suffix!r}: questions come as *.jsonl (FlashRAG) or *.parquet (Search-R1)"
        )
    found = [_question(record, where, source) for where, record in records]
    seen: dict[str, str] = {}
    for question, (where, _) in zip(found, records, strict=True):
        if question.id in seen:
            raise ConfigError(
                f"{where} has the id {question.id!r} of {seen[question.id]}: ids are given once"
            )
        seen[question.id] = where
    return found


def asked(text: str) -> str:
    """A question as prompts show it: stripped, with a question mark (the rule of Search-R1)."""
    text = text.strip()
    return text if text.endswith("?") else text + "?"


def _jsonl(path: Path) -> list[tuple[str, Any]]:
    records = []
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                records.append((f"{path}, line {number}", json.loads(line)))
            except ValueError as error:
                raise ConfigError(
                    f"{path}, line {number}: {error}; each line must be a JSON object"
                ) from error
    return records


def _parquet(path: Path) -> list[tuple[str, Any]]:
    import pyarrow.parquet as parquet  # nobody else needs it

    try:
        table = parquet.read_table(path)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read as parquet: {error}") from error
    return [(f"{path}, row {number}", record) for number, record in enumerate(table.to_pylist())]


def _question(record: Any, where: str, source: str) -> Question:
    if not isinstance(record, Mapping):
        raise ConfigError(f"{where} is not an object with 'question' and 'golden_answers'")
    text, answers = record.get("question"), list(_answers(record))
    if not isinstance(text, str) or not text.strip():
        raise ConfigError(f"{where} has no text 'question'")
    if not answers or not all(isinstance(answer, str) for answer in answers):
        raise ConfigError(f"{where} has no list of texts 'golden_answers'")
    metadata = record.get("metadata")
    kind = metadata.get("type") if isinstance(metadata, Mapping) else None
    name = str(record.get("data_source") or source)
    if not name:
        raise ConfigError(f"{where} does not say its 'data_source': name the data set of the file")
    return Question(str(record.get("id", where)), name, text, tuple(answers), str(kind or ""))


def _answers(record: Mapping[str, Any]) -> Iterator[Any]:
    answers = record.get("golden_answers")
    if answers is None:  # older parquet files of Search-R1 have them in the reward only
        truth = (record.get("reward_model") or {}).get("ground_truth") or {}
        answers = truth.get("target") if isinstance(truth, Mapping) else truth
    if isinstance(answers, str):
        answers = [answers]
    yield from (answers.tolist() if isinstance(answers, np.ndarray) else answers or ())
