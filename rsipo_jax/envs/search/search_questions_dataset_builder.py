"""The seven data sets of questions as TFDS data sets (array_record files; no TensorFlow needed to write or read them).

They are made of files that people have; nothing is ever downloaded. Natural Questions and TriviaQA are also read as TFDS
itself prepares them.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import tensorflow_datasets as tfds

from rsipo_jax.envs.search.packed import digest
from rsipo_jax.envs.search.questions import SETS, Question, read_set
from rsipo_jax.validation import ConfigError

OWN_SETS = {"nq": "natural_questions_open", "triviaqa": "trivia_qa/unfiltered.nocontext"}  # TFDS's names
_OWN_SPLITS = {"train": "train", "validation": "dev"}  # the answers of TriviaQA's test split are not public
_FORMAT = "array_record"
_READ_TOGETHER = 1000

Splits = Mapping[str, Sequence[Any]]  # records by split, read when they are asked for


class SearchQuestions(tfds.core.GeneratorBasedBuilder):
    """Questions with golden answers; the config is the data set, and `files` hold it (see `questions.set_files`)."""

    VERSION = tfds.core.Version("1.0.0")
    RELEASE_NOTES: ClassVar[dict[str, str]] = {"1.0.0": "First version."}
    BUILDER_CONFIGS: ClassVar[list[tfds.core.BuilderConfig]] = [
        tfds.core.BuilderConfig(name=name) for name in SETS
    ]

    def __init__(self, *, files: Sequence[Path], **kwargs: Any) -> None:
        self._files = files
        super().__init__(**kwargs)

    def _info(self) -> tfds.core.DatasetInfo:
        text = tfds.features.Text()
        return self.dataset_info_from_configs(
            features=tfds.features.FeaturesDict(
                {
                    "id": text,
                    "question": text,
                    "golden_answers": tfds.features.Sequence(text),
                    "kind": text,
                    "gold_ids": tfds.features.Sequence(text),
                    "answer_ids": tfds.features.Sequence(text),
                }
            ),
        )

    def _split_generators(self, dl_manager: Any) -> dict[str, Iterator[tuple[str, dict[str, Any]]]]:
        splits = read_set(self.builder_config.name, self._files)
        return {split: self._generate_examples(questions) for split, questions in splits.items()}

    def _generate_examples(self, questions: Sequence[Question]) -> Iterator[tuple[str, dict[str, Any]]]:
        for question in questions:
            yield (
                question.id,
                {
                    "id": question.id,
                    "question": question.text,
                    "golden_answers": list(question.answers),
                    "kind": question.kind,
                    "gold_ids": list(question.gold_ids),
                    "answer_ids": list(question.answer_ids),
                },
            )


def prepare_set(name: str, files: Sequence[Path], folder: Path) -> Splits:
    """The records of a set by split; built in `folder` unless what these very files hold was built there.

    Raises ConfigError as `questions.read_set` does.
    """
    builder = SearchQuestions(
        files=files, config=name, data_dir=folder / digest(*files)[:16], file_format=_FORMAT
    )
    tfds.disable_progress_bar()
    with contextlib.redirect_stdout(io.StringIO()):  # TFDS talks of downloads; there are none
        builder.download_and_prepare()
    return {split: builder.as_data_source(split) for split in builder.info.splits}


def decode(name: str, split: str, records: Sequence[Any]) -> list[Question]:
    """The questions of a split of a prepared set, sorted by id."""
    questions = []
    for first in range(0, len(records), _READ_TOGETHER):
        places = range(first, min(first + _READ_TOGETHER, len(records)))
        for record in records.__getitems__(places):  # type: ignore[attr-defined]
            texts = {key: _texts(value) for key, value in record.items()}
            (id_,), (text,), (kind,) = texts["id"], texts["question"], texts["kind"]
            questions.append(
                Question(
                    id_,
                    name,
                    text,
                    texts["golden_answers"],
                    kind,
                    split,
                    texts["gold_ids"],
                    texts["answer_ids"],
                )
            )
    return sorted(questions, key=lambda question: question.id)


def own_set(name: str, data_dir: Path) -> dict[str, list[Question]]:
    """The questions of a set by split, as TFDS itself has prepared it in `data_dir`; none where it has not.

    Raises ConfigError when it was prepared in a format that needs TensorFlow.
    """
    if name not in OWN_SETS:
        return {}
    versions = sorted((data_dir / OWN_SETS[name]).glob("*/dataset_info.json"))
    if not versions:
        return {}
    builder = tfds.builder_from_directory(versions[-1].parent)
    if builder.info.file_format.value != _FORMAT:
        raise ConfigError(
            f"{versions[-1].parent} holds {builder.info.file_format.value} files, which only TensorFlow reads: prepare it "
            f"with file_format={_FORMAT!r}, or put {name}.jsonl into config.search.questions"
        )
    found = {}
    for theirs, split in _OWN_SPLITS.items():
        if theirs in builder.info.splits:
            records = builder.as_data_source(theirs)
            found[split] = [
                _own_question(name, split, number, record) for number, record in enumerate(records)
            ]
    return found


def _own_question(name: str, split: str, number: int, record: Mapping[str, Any]) -> Question:
    """A record of natural_questions_open ("answer": texts) or of trivia_qa ("answer": {"value", "aliases"})."""
    answer = record["answer"]
    if isinstance(answer, Mapping):
        answers = tuple(dict.fromkeys((*_texts(answer["value"]), *_texts(answer["aliases"]))))
    else:
        answers = _texts(answer)
    id_ = f"{number:06}" if "question_id" not in record else _texts(record["question_id"])[0]
    return Question(f"{name}/{split}/{id_}", name, _texts(record["question"])[0], answers, split=split)


def _texts(value: Any) -> tuple[str, ...]:
    """TFDS's bytes, or a sequence of them, as texts."""
    return tuple(text.decode("utf-8") for text in ([value] if isinstance(value, bytes) else value))
