"""Questions in the formats people have."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rsipo_jax.envs.search.questions import Question, asked, read_questions
from rsipo_jax.validation import ConfigError

FLASHRAG = {
    "id": "test_0",
    "question": "who got it",
    "golden_answers": ["Röntgen", "W. Röntgen"],
    "metadata": {"type": "bridge"},
}
SEARCH_R1 = {
    "id": "test_1", "question": "when was it?", "golden_answers": ["1901"], "data_source": "nq", "ability": "fact-reasoning",
    "prompt": [{"role": "user", "content": "..."}], "reward_model": {"style": "rule", "ground_truth": {"target": ["1901"]}},
    "extra_info": {"split": "test", "index": 1},
}  # fmt: skip


def write(path: Path, *records: Any) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


def test_flashrag(tmp_path: Path) -> None:
    assert read_questions(write(tmp_path / "q.jsonl", FLASHRAG), "nq") == [
        Question("test_0", "nq", "who got it", ("Röntgen", "W. Röntgen"), "bridge")
    ]


def test_search_r1(tmp_path: Path) -> None:
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    older = SEARCH_R1 | {"id": "test_2", "golden_answers": None, "data_source": "musique"}
    parquet.write_table(pa.Table.from_pylist([SEARCH_R1, older]), tmp_path / "q.parquet")
    assert read_questions(tmp_path / "q.parquet") == [
        Question("test_1", "nq", "when was it?", ("1901",)), Question("test_2", "musique", "when was it?", ("1901",))
    ]  # fmt: skip
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(ConfigError, match="cannot be read as parquet"):
        read_questions(tmp_path / "bad.parquet")


@pytest.mark.parametrize(
    ("record", "sentence"),
    [([], "line 2 is not an object"), ({"golden_answers": ["x"]}, "line 2 has no text 'question'"),
     (FLASHRAG | {"golden_answers": []}, "line 2 has no list of texts"), (FLASHRAG | {"golden_answers": [1]}, "no list of texts"),
     (FLASHRAG, r"line 2 has the id 'test_0' of .*line 1")],
)  # fmt: skip
def test_a_bad_record_is_named(tmp_path: Path, record: Any, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        read_questions(write(tmp_path / "q.jsonl", FLASHRAG, record), "nq")


def test_bad_files(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not a file"):
        read_questions(tmp_path / "none.jsonl")
    (tmp_path / "q.csv").touch()
    with pytest.raises(ConfigError, match=r"ends with '\.csv'"):
        read_questions(tmp_path / "q.csv")
    (tmp_path / "q.jsonl").write_text(json.dumps(FLASHRAG) + "\n\n{broken\n")
    with pytest.raises(ConfigError, match=r"line 3: .* each line must be a JSON object"):
        read_questions(tmp_path / "q.jsonl", "nq")
    with pytest.raises(ConfigError, match="does not say its 'data_source'"):
        read_questions(write(tmp_path / "q.jsonl", FLASHRAG))


def test_questions_end_with_a_mark() -> None:
    assert asked(" who is it ") == asked("who is it?") == "who is it?"
