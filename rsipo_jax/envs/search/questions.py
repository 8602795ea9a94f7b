"""Questions in the formats people have: FlashRAG's jsonl, the parquet files of Search-R1, and one jsonl file a set."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from rsipo_jax.envs.search.packed import PACKINGS, ending, lines
from rsipo_jax.validation import ConfigError

SETS = ("nq", "triviaqa", "popqa", "hotpotqa", "2wikimultihopqa", "musique", "bamboogle")
SPLITS = ("train", "dev", "test")
_JSONL = (".jsonl", *(f".jsonl{packing}" for packing in PACKINGS))
_COLUMNS = (
    "id",
    "question",
    "golden_answers",
    "data_source",
    "reward_model",
    "metadata",
)  # of parquet: no prompts


@dataclass(frozen=True)
class Question:
    id: str
    source: str  # its data set, one of SETS, or another name
    text: str  # as it was asked
    answers: tuple[str, ...]  # golden ones
    kind: str = ""  # "2 hops", "comparison", ...: where the file says it
    split: str = ""  # where the file says it
    gold_ids: tuple[str, ...] = ()  # passages that tell the answer together: where the file says it
    answer_ids: tuple[str, ...] = ()  # passages that hold the answer's text each: where the file says it


def read_questions(path: Path, source: str = "") -> list[Question]:
    """The questions of a *.jsonl or *.parquet file, in its order. `source` where the records do not name it.

    Raises ConfigError: no such file, another ending, or a record, whose line (row) is named, without question or answers.
    """
    return [question for _, question in _read(path, source)]


def set_files(folder: Path) -> dict[str, tuple[Path, ...]]:
    """The files in `folder` that hold each of SETS, by set; those that it lacks are left out. Three layouts are known:

    * FlashRAG: NAME/train.jsonl, NAME/dev.jsonl, NAME/test.jsonl;
    * Search-R1: train.parquet, test.parquet, each with several sets told apart by `data_source`;
    * one file a set: NAME.jsonl, whose records have a `split`.

    A *.jsonl may be packed (.xz, .gz). Raises ConfigError: no such folder, none of the sets in it, or one of them twice.
    """
    if not folder.is_dir():
        raise ConfigError(
            f"config.search.questions={str(folder)!r} is not a folder: name one with files of questions"
        )
    shared = {path: _sources(path) for path in _existing(folder, SPLITS, (".parquet",))}
    found = {}
    for name in SETS:
        ways = (
            _existing(folder / name, SPLITS, _JSONL),
            [path for path, sources in shared.items() if name in sources],
            _existing(folder, (name,), _JSONL),
        )
        paths = [path for way in ways for path in way]
        if sum(map(bool, ways)) > 1 or len({path.name.partition(".")[0] for path in paths}) < len(paths):
            raise ConfigError(
                f"config.search.questions={str(folder)!r} holds {name} more than once, in "
                f"{', '.join(str(path.relative_to(folder)) for path in paths)}: keep one of them"
            )
        if paths:
            found[name] = tuple(paths)
    return found


def read_set(name: str, files: Sequence[Path]) -> dict[str, list[Question]]:
    """The questions of a set by split, from its `set_files`; a split without questions is left out.

    Ids are "<set>/<split>/<id of the file>", so that they are different in all sets. Raises ConfigError as
    `read_questions` does, and for a split other than those of SPLITS.
    """
    found: dict[str, list[Question]] = {split: [] for split in SPLITS}
    for path in files:
        own = path.name.partition(".")[0]
        for where, question in _read(path, name):
            if question.source != name:
                if ending(path) == ".parquet":
                    continue
                raise ConfigError(
                    f"{where} is of the data set {question.source!r}, in a file of {name}: move it there"
                )
            split = own if own in SPLITS else question.split
            if split not in found:
                raise ConfigError(f"{where} has the split {split!r}: give one of {', '.join(SPLITS)}")
            found[split].append(replace(question, id=f"{name}/{split}/{question.id}", split=split))
    return {split: questions for split, questions in found.items() if questions}


def asked(text: str) -> str:
    """A question as prompts show it: stripped, with a question mark (the rule of Search-R1)."""
    text = text.strip()
    return text if text.endswith("?") else text + "?"


def _existing(folder: Path, names: Sequence[str], endings: Sequence[str]) -> list[Path]:
    paths = [folder / f"{name}{end}" for name in names for end in endings]
    return [path for path in paths if path.is_file()]


def _read(path: Path, source: str) -> list[tuple[str, Question]]:
    """The questions, each with where it stands."""
    if not path.is_file():
        raise ConfigError(
            f"{path} is not a file: name a *.jsonl (FlashRAG) or *.parquet (Search-R1) file of questions"
        )
    if path.suffix == ".parquet":
        records = _parquet(path)
    elif ending(path) == ".jsonl":
        records = _jsonl(path)
    else:
        raise ConfigError(
            f"{path} ends with {path.suffix!r}: questions come as *.jsonl (FlashRAG) or *.parquet (Search-R1)"
        )
    found = [(where, _question(record, where, source)) for where, record in records]
    seen: dict[tuple[str, str, str], str] = {}
    for where, question in found:
        key = question.source, question.split, question.id  # files of several sets repeat the ids of each
        if key in seen:
            raise ConfigError(f"{where} has the id {question.id!r} of {seen[key]}: ids are given once")
        seen[key] = where
    return found


def _jsonl(path: Path) -> list[tuple[str, Any]]:
    records = []
    for number, line in lines(path):
        try:
            records.append((f"{path}, line {number}", json.loads(line)))
        except ValueError as error:
            raise ConfigError(f"{path}, line {number}: {error}; each line must be a JSON object") from error
    return records


def _parquet(path: Path) -> list[tuple[str, Any]]:
    table = _table(path, _COLUMNS)
    return [(f"{path}, row {number}", record) for number, record in enumerate(table.to_pylist())]


def _sources(path: Path) -> set[str]:
    """The data sets that the rows of a parquet file name."""
    table = _table(path, ("data_source",))
    if not table.num_columns:
        raise ConfigError(
            f"{path} has no column 'data_source', which tells the data sets of its rows apart: add it"
        )
    return {str(name) for name in table.column(0).unique().to_pylist()}


def _table(path: Path, columns: Sequence[str]) -> Any:
    import pyarrow.parquet as parquet  # nobody else needs it

    try:
        present = set(parquet.read_schema(path).names)
        return parquet.read_table(path, columns=[column for column in columns if column in present])
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read as parquet: {error}") from error


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
    return Question(
        str(record.get("id", where)), name, text, tuple(answers), str(kind or ""), str(record.get("split") or ""),
        _ids(record, "gold_ids", where), _ids(record, "answer_bearing_ids", where),
    )  # fmt: skip


def _ids(record: Mapping[str, Any], key: str, where: str) -> tuple[str, ...]:
    ids = record.get(key)
    if ids is not None and not isinstance(ids, list):
        raise ConfigError(f"{where} has {key}={ids!r}, which is not a list of passage ids")
    return tuple(map(str, ids or ()))


def _answers(record: Mapping[str, Any]) -> Iterator[Any]:
    answers = record.get("golden_answers")
    if answers is None:  # older parquet files of Search-R1 have them in the reward only
        truth = (record.get("reward_model") or {}).get("ground_truth") or {}
        answers = truth.get("target") if isinstance(truth, Mapping) else truth
    if isinstance(answers, str):
        answers = [answers]
    yield from (answers.tolist() if isinstance(answers, np.ndarray) else answers or ())
