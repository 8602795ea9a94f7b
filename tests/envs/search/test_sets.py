"""The data sets in every layout that people have, as TFDS data sets and straight from their files."""

from __future__ import annotations

import json
import lzma
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow_datasets as tfds
from hypothesis import given, settings
from hypothesis import strategies as st

from rsipo_jax.envs.search import search_questions_dataset_builder as builder
from rsipo_jax.envs.search.questions import SETS, Question, read_set, set_files
from rsipo_jax.validation import ConfigError


def record(id_: str, **more: Any) -> dict[str, Any]:
    return {"id": id_, "question": f"question {id_}", "golden_answers": [f"answer {id_}", "Röntgen"], **more}


def write(path: Path, *records: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(r) + "\n" for r in records).encode()
    path.write_bytes(lzma.compress(text) if path.suffix == ".xz" else text)
    return path


def write_parquet(path: Path, *records: Any) -> Path:
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pa.Table.from_pylist(list(records)), path)
    return path


def ids(found: dict[str, list[Question]]) -> dict[str, list[str]]:
    return {split: [question.id for question in questions] for split, questions in found.items()}


def test_flashrag(tmp_path: Path) -> None:
    dev, train = (
        write(tmp_path / "musique/dev.jsonl", record("dev_0", metadata={"type": "2 hops"}), record("dev_1")),
        write(tmp_path / "musique/train.jsonl.xz", record("train_0")),
    )
    assert set_files(tmp_path) == {"musique": (train, dev)}
    found = read_set("musique", (train, dev))
    assert ids(found) == {
        "train": ["musique/train/train_0"],
        "dev": ["musique/dev/dev_0", "musique/dev/dev_1"],
    }
    assert found["dev"][0] == Question(
        "musique/dev/dev_0", "musique", "question dev_0", ("answer dev_0", "Röntgen"), "2 hops", "dev"
    )


def test_search_r1(tmp_path: Path) -> None:
    """Its ids start anew in every data set, and prompts are not read."""
    rows = [
        record("test_0", data_source=name, prompt=[{"role": "user", "content": "x"}])
        for name in ("nq", "popqa")
    ]
    test = write_parquet(tmp_path / "test.parquet", *rows)
    train = write_parquet(tmp_path / "train.parquet", record("train_0", data_source="nq"))
    assert set_files(tmp_path) == {"nq": (train, test), "popqa": (test,)}
    assert ids(read_set("nq", (train, test))) == {"train": ["nq/train/train_0"], "test": ["nq/test/test_0"]}
    assert ids(read_set("popqa", (test,))) == {"test": ["popqa/test/test_0"]}
    write_parquet(tmp_path / "dev.parquet", record("0"))
    with pytest.raises(ConfigError, match=r"dev\.parquet has no column 'data_source'"):
        set_files(tmp_path)


def test_one_file_a_set(tmp_path: Path) -> None:
    path = write(
        tmp_path / "nq.jsonl.xz",
        record("a", split="dev", gold_ids=["7"], answer_bearing_ids=[8, "9"]),
        record("a", split="train", data_source="nq"),
    )
    assert set_files(tmp_path) == {"nq": (path,)}
    found = read_set("nq", (path,))
    assert ids(found) == {"train": ["nq/train/a"], "dev": ["nq/dev/a"]}
    assert (found["dev"][0].gold_ids, found["dev"][0].answer_ids) == (("7",), ("8", "9"))


@pytest.mark.parametrize(
    ("bad", "sentence"),
    [
        (record("b"), "line 2 has the split ''"),
        (record("b", split="valid"), "line 2 has the split 'valid': give one of train, dev, test"),
        (record("b", split="dev", data_source="popqa"), "line 2 is of the data set 'popqa', in a file of nq"),
        (record("a", split="dev"), "line 2 has the id 'a' of .*line 1"),
        (record("b", split="dev", gold_ids="7"), "line 2 has gold_ids='7', which is not a list"),
        (record("b", split="dev", question=" "), "line 2 has no text 'question'"),
        ([], "line 2 is not an object"),
    ],
)
def test_a_bad_record_is_named_and_nothing_is_prepared(tmp_path: Path, bad: Any, sentence: str) -> None:
    path = write(tmp_path / "nq.jsonl.xz", record("a", split="dev"), bad)
    with pytest.raises(ConfigError, match=sentence):
        read_set("nq", (path,))
    for _ in range(2):
        with pytest.raises(ConfigError, match=sentence):
            builder.prepare_set("nq", (path,), tmp_path / "out")


def test_a_set_is_there_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not a folder: name one"):
        set_files(tmp_path / "none")
    assert set_files(tmp_path) == {}
    write(tmp_path / "nq.jsonl", record("a", split="dev"))
    write(tmp_path / "nq/dev.jsonl", record("a"))
    with pytest.raises(ConfigError, match=r"holds nq more than once, in nq/dev\.jsonl, nq\.jsonl: keep one"):
        set_files(tmp_path)
    (tmp_path / "nq.jsonl").unlink()
    write(tmp_path / "nq/dev.jsonl.xz", record("a"))
    with pytest.raises(ConfigError, match=r"nq/dev\.jsonl, nq/dev\.jsonl\.xz: keep one"):
        set_files(tmp_path)


texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
filled = texts.filter(lambda text: bool(text.strip()))
questions = st.builds(
    Question,
    id=texts,
    source=st.just("popqa"),
    text=filled,
    answers=st.lists(texts, min_size=1, max_size=3).map(tuple),
    kind=texts,
    split=st.sampled_from(("train", "dev", "test")),
    gold_ids=st.lists(texts, max_size=3).map(tuple),
    answer_ids=st.lists(texts, max_size=3).map(tuple),
)


@settings(max_examples=25)
@given(st.lists(questions, min_size=1, max_size=6, unique_by=lambda q: (q.split, q.id)))
def test_a_prepared_set_is_its_file(tmp_path_factory: pytest.TempPathFactory, asked: list[Question]) -> None:
    folder = tmp_path_factory.mktemp("set")
    path = write(
        folder / "popqa.jsonl",
        *(
            {
                "id": q.id, "question": q.text, "golden_answers": q.answers, "split": q.split, "gold_ids": q.gold_ids,
                "answer_bearing_ids": q.answer_ids, "metadata": {"type": q.kind},
            }
            for q in asked
        ),
    )  # fmt: skip
    read = read_set("popqa", (path,))
    assert sorted(q.id for own in read.values() for q in own) == sorted(
        f"popqa/{q.split}/{q.id}" for q in asked
    )
    prepared = builder.prepare_set("popqa", (path,), folder)
    assert set(prepared) == set(read)
    for split, own in read.items():
        assert builder.decode("popqa", split, prepared[split]) == sorted(own, key=lambda q: q.id)


def test_a_set_is_prepared_once_and_anew_when_its_file_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "nq.jsonl", record("a", split="dev"))
    assert len(builder.prepare_set("nq", (path,), tmp_path)["dev"]) == 1
    with monkeypatch.context() as patched:
        patched.setattr(builder, "read_set", lambda *_: pytest.fail("read again"))
        assert len(builder.prepare_set("nq", (path,), tmp_path)["dev"]) == 1
    write(path, record("a", split="dev"), record("b", split="dev"))
    assert len(builder.prepare_set("nq", (path,), tmp_path)["dev"]) == 2
    assert capsys.readouterr().out == "" and "tensorflow" not in sys.modules


def test_every_set_is_a_config() -> None:
    assert {config.name for config in builder.SearchQuestions.BUILDER_CONFIGS} == set(SETS)


class NaturalQuestionsOpen(tfds.core.GeneratorBasedBuilder):
    """Of the features that TFDS's own has."""

    VERSION = tfds.core.Version("1.0.0")

    def _info(self) -> tfds.core.DatasetInfo:
        text = tfds.features.Text()
        features = {"question": text, "answer": tfds.features.Sequence(text)}
        return self.dataset_info_from_configs(features=tfds.features.FeaturesDict(features))

    def _split_generators(self, dl_manager: Any) -> dict[str, Any]:
        return {"train": self._generate_examples(3), "validation": self._generate_examples(2)}

    def _generate_examples(self, count: int) -> Any:
        for i in range(count):
            yield i, {"question": f"question {i}", "answer": [f"answer {i}", "Röntgen"]}


class TriviaQA(tfds.core.GeneratorBasedBuilder):
    """Of those features of TFDS's own that are read."""

    name = "trivia_qa"
    VERSION = tfds.core.Version("1.1.0")
    BUILDER_CONFIGS = [tfds.core.BuilderConfig(name="unfiltered.nocontext")]  # noqa: RUF012

    def _info(self) -> tfds.core.DatasetInfo:
        text = tfds.features.Text()
        answer = {"value": text, "aliases": tfds.features.Sequence(text), "normalized_value": text}
        features = {"question": text, "question_id": text, "answer": answer, "score": np.float32}
        return self.dataset_info_from_configs(features=tfds.features.FeaturesDict(features))

    def _split_generators(self, dl_manager: Any) -> dict[str, Any]:
        return {split: self._generate_examples() for split in ("train", "validation", "test")}

    def _generate_examples(self) -> Any:
        answer = {"value": "Ada", "aliases": ["Lovelace", "Ada"], "normalized_value": "ada"}
        yield 0, {"question": "who", "question_id": "tc_1", "answer": answer, "score": 0.0}


def test_tfds_own_sets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `tfds build --file_format=array_record` leaves them; made here from two small sets, as there is no network."""
    assert builder.own_set("nq", tmp_path) == builder.own_set("popqa", tmp_path) == {}
    for made in (NaturalQuestionsOpen, TriviaQA):
        made(data_dir=tmp_path, file_format="array_record").download_and_prepare()
    found = builder.own_set("nq", tmp_path)
    assert ids(found) == {
        "train": [f"nq/train/{i:06}" for i in range(3)],
        "dev": [f"nq/dev/{i:06}" for i in range(2)],
    }
    assert {(q.text, q.answers) for q in found["dev"]} == {
        (f"question {i}", (f"answer {i}", "Röntgen")) for i in range(2)
    }
    assert builder.own_set("triviaqa", tmp_path) == {
        split: [Question(f"triviaqa/{split}/tc_1", "triviaqa", "who", ("Ada", "Lovelace"), split=split)]
        for split in ("train", "dev")
    }  # the answers of the test split are not public
    info = tmp_path / "natural_questions_open/1.0.0/dataset_info.json"
    info.write_text(info.read_text().replace("array_record", "tfrecord"))
    with pytest.raises(ConfigError, match="holds tfrecord files, which only TensorFlow reads: prepare it"):
        builder.own_set("nq", tmp_path)
