"""Indexes are whole or absent: two builders, damage in any file, and indexes of something else."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rsipo_jax.envs.search import bm25, index
from rsipo_jax.envs.search.passages import Corpus, Passage, write_corpus
from rsipo_jax.validation import ConfigError
from tests.launch.launching import ROOT

PASSAGES = [Passage(str(i), f"Title {i}", f"word{i} word{i + 1} shared") for i in range(20)]
ANEW = "delete the folder, and the index is built anew"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Corpus, Path]]:
    folder = tmp_path_factory.mktemp("built")
    write_corpus(folder / "corpus.jsonl", PASSAGES)
    with Corpus(folder / "corpus.jsonl") as corpus:
        bm25.build(corpus, folder / "index")
        yield corpus, folder / "index"


@given(st.data())
def test_no_damage_goes_unnoticed(
    built: tuple[Corpus, Path], tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """One bit, or an end that is missing, or the whole file."""
    corpus, index_folder = built
    folder = tmp_path_factory.mktemp("damaged") / "index"
    shutil.copytree(index_folder, folder)
    file = data.draw(st.sampled_from(sorted(folder.iterdir())))
    content = bytearray(file.read_bytes())
    at = data.draw(st.integers(0, len(content) - 1))
    match data.draw(st.sampled_from(["flip", "cut", "remove"])):
        case "flip":
            content[at] ^= 1 << data.draw(st.integers(0, 7))
            file.write_bytes(content)
        case "cut":
            file.write_bytes(content[:at])
        case _:
            file.unlink()
    with pytest.raises(ConfigError, match=ANEW):
        bm25.BM25(corpus, folder)


@pytest.mark.parametrize("record", ["[]", '{"files": 3}', "{}", "7", ""])
def test_settings_that_are_none(tmp_path: Path, record: str) -> None:
    (tmp_path / "index.json").write_text(record)
    with pytest.raises(ConfigError, match=f"holds no index .*: {ANEW}"):
        index.check(tmp_path, {})


def test_words_must_lead_back_to_their_passages(built: tuple[Corpus, Path], tmp_path: Path) -> None:
    """A vocabulary beside its index, as a change of the library once made it: every query found the same passages."""
    corpus, folder = built
    shutil.copytree(folder, tmp_path / "index")
    path = tmp_path / "index/vocab.index.json"
    vocabulary = json.loads(path.read_text())
    path.write_text(
        json.dumps(dict(zip(vocabulary, np.roll(list(vocabulary.values()), 1).tolist(), strict=True)))
    )
    record = json.loads((tmp_path / "index/index.json").read_text())
    record["files"][path.name] = index.sha256(path)
    (tmp_path / "index/index.json").write_text(json.dumps(record))
    with pytest.raises(
        ConfigError, match=rf"does not find line \d+ of .*corpus\.jsonl by its word .*: {ANEW}"
    ):
        bm25.BM25(corpus, tmp_path / "index")


def test_a_corpus_without_words(tmp_path: Path) -> None:
    write_corpus(tmp_path / "corpus.jsonl", [Passage("0", "The", "a ?")])
    with (
        Corpus(tmp_path / "corpus.jsonl") as corpus,
        pytest.raises(ConfigError, match=r"corpus\.jsonl: no passage holds a word"),
    ):
        bm25.open_or_build(corpus, tmp_path / "index")
    assert not (tmp_path / "index").exists()


_SLOW_BUILDER = """
import sys, time
from pathlib import Path
from rsipo_jax.envs.search import index

def write(folder):
    (folder / "part").write_text("half")
    print("writing", flush=True)
    time.sleep(float(sys.argv[2]))
    (folder / "part").write_text("whole")

index.make(Path(sys.argv[1]), {}, write)
print("made", flush=True)
"""


def builder(folder: Path, seconds: float) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", _SLOW_BUILDER, str(folder), str(seconds)], text=True,
                            stdout=subprocess.PIPE, env=os.environ | {"PYTHONPATH": str(ROOT)})  # fmt: skip


def refuses_to_write(folder: Path) -> None:
    pytest.fail(f"{folder} is built a second time")


def test_a_second_builder_waits_for_the_first(tmp_path: Path) -> None:
    folder = tmp_path / "index"
    with builder(folder, 0.5) as first:
        assert first.stdout is not None and first.stdout.readline() == "writing\n"
        assert not folder.exists()
        index.make(folder, {}, refuses_to_write)
        assert (folder / "part").read_text() == "whole"
        index.check(folder, {})


def test_a_builder_that_dies_leaves_nothing_in_the_way(tmp_path: Path) -> None:
    folder = tmp_path / "index"
    with builder(folder, 60) as first:
        assert first.stdout is not None and first.stdout.readline() == "writing\n"
        first.send_signal(signal.SIGKILL)
    assert not folder.exists()
    index.make(folder, {}, lambda partial: (partial / "other").touch())
    index.check(folder, {})
    assert {path.name for path in folder.iterdir()} == {"index.json", "other"}


@given(st.lists(st.sampled_from([0.0, 0.5, 1.0, 1.5, 2.0]), max_size=300), st.integers(1, 5))
def test_the_best_rows_are_the_best(scores: list[float], k: int) -> None:
    array = np.asarray(scores, np.float32)
    order = [row for row in np.argsort(-array, kind="stable").tolist() if array[row] > 0][:k]
    assert bm25.best(array, k).tolist() == order


def test_search_is_bm25s_own(built: tuple[Corpus, Path]) -> None:
    """Rows and scores are those of the library's retrieval, which puts the lower of equal rows first, too."""
    corpus, folder = built
    ours, alone = bm25.BM25(corpus, folder), bm25.bm25s.BM25.load(folder)
    queries = ["word3 word4", "shared", "title word19 word1", "shared word7 shared"]
    rows, scores = alone.retrieve(bm25.words_of(queries), k=3, show_progress=False, backend_selection="jax")
    for hits, right, values in zip(ours.search(queries, 3), rows.tolist(), scores.tolist(), strict=True):
        assert [int(hit.passage.id) for hit in hits] == right
        assert [hit.score for hit in hits] == pytest.approx(values)
