"""The retrieval suite: the same texts and queries for both sides, unequal results refused; never how fast anything is."""

from __future__ import annotations

import importlib.util
import json
import sys
from io import StringIO
from pathlib import Path

import pytest
from benchmarks import retrieval
from rich.console import Console

from rsipo_jax.validation import ConfigError
from tests.envs.search.test_dense import encoder_in
from tests.launch.launching import python


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """One search for each batch size."""
    for name, value in {"SECONDS": 0, "ROUNDS": 2, "QUERIES": 16, "BATCHES": (1, 8), "BLOCK": 100}.items():
        monkeypatch.setattr(retrieval, name, value)


def test_texts_are_a_function_of_their_number(small: None, tmp_path: Path) -> None:
    folders = tmp_path / "a", tmp_path / "b"
    for folder in folders:
        folder.mkdir()
    texts = [retrieval.write_texts(folder, 250) for folder in folders]
    assert texts[0].corpus.read_bytes() == texts[1].corpus.read_bytes()
    assert texts[0].queries.read_bytes() == texts[1].queries.read_bytes()
    records = [json.loads(line) for line in texts[0].corpus.read_text().splitlines()]
    assert [record["id"] for record in records] == [str(row) for row in range(250)]
    bags = [set(record["contents"].lower().split()) for record in records]
    assert all(len(record["contents"].split()) == 102 for record in records)
    queries = texts[0].queries.read_text().split("\n")
    assert len(queries) == 16
    for query in queries:
        words = query.split()
        assert len(words) == 8 and any(set(words[:7]) <= bag for bag in bags)


BEST = ([4, 2, 9], [3.0, 2.0, 1.0])


@pytest.mark.parametrize(
    ("found", "share"),
    [(BEST, 1), (([4, 2, 7], [3.0, 2.0, 1.0]), 2 / 3), (([2, 4, 9], [3.0, 3.0, 1.0]), None), (([4, 7, 9], [3.0, 2.0, 1.0]), None),
     (([4, 2, 9], [3.0, 2.0, 0.9]), None)],
)  # fmt: skip
def test_only_equals_at_the_end_may_differ(found: retrieval.Found, share: float | None) -> None:
    if share is None:
        with pytest.raises(ConfigError, match=r"query 1 finds rows .* would mean nothing"):
            retrieval.recall([BEST, found], [BEST, BEST], exact=True)
    else:
        assert retrieval.recall([BEST, found], [BEST, BEST], exact=True) == pytest.approx((1 + share) / 2)
    assert 0 < retrieval.recall([found], [BEST], exact=False) <= 1


def test_bm25_is_measured_beside_bm25s(small: None, tmp_path: Path) -> None:
    section = retrieval.compare_bm25(tmp_path, retrieval.write_texts(tmp_path, 300))
    assert section["recall_at_3"] > 0.9
    assert section["ours_index_mib"] == pytest.approx(section["alone_index_mib"], rel=0.2)
    for side in ("ours", "alone"):
        assert section[f"{side}_build_peak_mib"] > 0 and section[f"{side}_resident_mib"] > 0
    for batch in (1, 8):
        assert section[f"cached_known_batch_{batch}_per_s"] > 0 and section[f"overhead_batch_{batch}"] > -1


@pytest.mark.slow
def test_the_whole_suite(small: None, tmp_path: Path) -> None:
    """With an encoder, beside faiss where this Python has it, else with a sentence."""
    written = StringIO()
    encoder_in(tmp_path)
    sections = retrieval.measure([300], 16, "", str(tmp_path), Console(file=written))
    assert sections["encoder"].keys() == {"passages_per_s", "queries_per_s_batch_1"}
    has_faiss = importlib.util.find_spec("faiss") is not None
    assert ("faiss is left out: pip install faiss-cpu" in written.getvalue()) != has_faiss
    for dtype in ("float32", "bfloat16"):
        section = sections[f"dense {dtype}, 300 passages"]
        assert section["ours_batch_8_per_s"] > 0 and ("recall_at_3" in section) == has_faiss
    assert sections["targets"].keys() == {"largest_overhead", "of", "overhead_at_most_0.1"}


def test_a_python_without_faiss_is_one_sentence() -> None:
    if importlib.util.find_spec("faiss"):
        pytest.skip("this Python has faiss")
    with (
        pytest.raises(ConfigError, match=r"No module named 'faiss'.*pip install faiss-cpu"),
        retrieval.faiss_alone(sys.executable) as ask,
    ):
        ask({"do": "memory"})


def test_no_passages_are_one_sentence() -> None:
    result = python("launch/benchmark.py", "--suite=retrieval", "--passages=0")
    assert result.returncode == 2 and "passages" in result.stderr and result.stderr.count("\n") == 1
