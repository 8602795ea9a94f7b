"""A fictional encyclopaedia on disk: made once for a run, and found again.

The folder holds corpus.jsonl, the questions of each split as <split>.jsonl in FlashRAG's form, whose metadata say which
searches lead to the answer, and settings.json, which says what it was made from.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rsipo_jax.config import SearchConfig
from rsipo_jax.envs.search.encyclopedia import (
    DEMONSTRATED,
    WORLDS,
    Encyclopedia,
    Example,
    Hop,
    make_encyclopedia,
)
from rsipo_jax.envs.search.packed import lines
from rsipo_jax.envs.search.passages import write_corpus
from rsipo_jax.envs.search.questions import read_questions
from rsipo_jax.validation import ConfigError

VERSION = 1  # raise it when the same settings come to give another encyclopaedia
CORPUS, SETTINGS = "corpus.jsonl", "settings.json"


def write_encyclopedia(folder: Path, search: SearchConfig) -> None:
    """Makes a run's encyclopaedia in `folder`, unless it is there already; the folder is complete or absent.

    Raises ConfigError when the folder holds one of other settings, or when `search` asks for one that cannot be made.
    """
    counts = {
        "train": search.train, "dev": search.dev, "test": search.test, DEMONSTRATED: search.demonstrated,
    }  # fmt: skip
    settings = {"version": VERSION, "seed": search.seed, "people": search.people, **counts}
    if folder.exists():
        _check_settings(folder, settings)
        return
    try:
        made = make_encyclopedia(search.seed, search.people, counts)
    except ValueError as error:
        raise ConfigError(f"config.search.people={search.people}: {error}") from error
    folder.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        draft.chmod(0o755)
        _write_all(draft, made)
        (draft / SETTINGS).write_text(json.dumps(settings) + "\n", encoding="utf-8")
        try:
            draft.rename(folder)
        except OSError:  # something has appeared there since: fine if another process made the same
            _check_settings(folder, settings)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def read_examples(folder: Path) -> dict[str, tuple[Example, ...]]:
    """The questions of a written encyclopaedia by split. Raises ConfigError, with the line, where they are damaged."""
    found = {}
    for split in WORLDS:
        path = folder / f"{split}.jsonl"
        questions = read_questions(path)
        found[split] = tuple(
            Example(question, hops) for question, hops in zip(questions, _hops(path), strict=True)
        )
    return found


def _write_all(folder: Path, made: Encyclopedia) -> None:
    write_corpus(folder / CORPUS, made.passages)
    for split, examples in made.examples.items():
        with (folder / f"{split}.jsonl").open("w", encoding="utf-8") as file:
            for example in examples:
                file.write(json.dumps(_record(example), ensure_ascii=False) + "\n")


def _record(example: Example) -> dict[str, Any]:
    question = example.question
    return {
        "id": question.id, "question": question.text, "golden_answers": list(question.answers),
        "data_source": question.source, "split": question.split, "gold_ids": list(question.gold_ids),
        "metadata": {"type": question.kind, "hops": [asdict(hop) for hop in example.hops]},
    }  # fmt: skip


def _hops(path: Path) -> Iterator[tuple[Hop, ...]]:
    for number, line in lines(path):
        try:
            yield tuple(Hop(**hop) for hop in json.loads(line)["metadata"]["hops"])
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(
                f"{path}, line {number} does not say its hops: delete {path.parent}, and it is made anew"
            ) from error


def _check_settings(folder: Path, settings: Mapping[str, Any]) -> None:
    path = folder / SETTINGS
    try:
        made_from = json.loads(path.read_text(encoding="utf-8"))
        changed = [key for key in settings if made_from.get(key) != settings[key]]
    except (OSError, ValueError, AttributeError) as error:
        raise ConfigError(
            f"{path} cannot be read ({error}): delete {folder}, and the encyclopaedia is made anew"
        ) from error
    if changed:
        key = changed[0]
        raise ConfigError(
            f"{folder} holds an encyclopaedia of {key}={made_from.get(key)!r}, and config.search.{key}={settings[key]!r}: "
            "choose another --workdir, or delete the folder"
        )
