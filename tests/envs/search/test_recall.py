"""Recall of one search is what a plain script of bm25s counts."""

from __future__ import annotations

import json
import lzma
import os
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import bm25s
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rsipo_jax.config import Config, SearchConfig
from rsipo_jax.envs.search.data import open_data, open_retriever
from rsipo_jax.envs.search.passages import Passage
from rsipo_jax.envs.search.questions import SETS, Question
from rsipo_jax.envs.search.recall import Recall, recall
from rsipo_jax.envs.search.retrieval import Hit

PASSAGES = [str(i) for i in range(6)]


class Fixed:
    """Finds the passages whose ids are the words of the query."""

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        return [[Hit(Passage(id_, "", ""), 1.0) for id_ in query.split()[:k]] for query in queries]

    def describe(self) -> Mapping[str, Any]:
        return {}

    def close(self) -> None: ...


def question(source: str, found: Sequence[str], gold: Sequence[str], answer: Sequence[str] = ()) -> Question:
    return Question("q", source, " ".join(found), ("x",), gold_ids=tuple(gold), answer_ids=tuple(answer))


def test_recall() -> None:
    asked = [
        question("hotpotqa", ["1", "2", "3"], ["2", "1"]),
        question("hotpotqa", ["1", "3", "2"], ["2", "1"]),  # the third is not looked at
        question("hotpotqa", ["0", "3"], ["2", "1"]),
        question("hotpotqa", [], ["2"]),
        question("popqa", ["1"], [], ["1", "2"]),  # one that holds the answer is enough
        question("popqa", ["3"], [], ["1", "2"]),
        question("popqa", ["2"], ["1"], ["2"]),  # but does not count beside gold ones
        question("nq", ["1"], []),
    ]
    assert recall(asked, Fixed(), 2) == {"hotpotqa": Recall(4, 0.5, 0.25), "popqa": Recall(3, 1 / 3, 1 / 3)}
    assert recall([], Fixed(), 2) == {}


places = st.lists(st.sampled_from(PASSAGES), unique=True)


@given(st.lists(st.tuples(places, places.filter(bool)), min_size=1), st.integers(1, 6))
def test_all_is_no_more_than_any_and_both_grow_with_k(pairs: list[Any], k: int) -> None:
    asked = [question("nq", found, gold) for found, gold in pairs]
    (fewer,), (more,) = recall(asked, Fixed(), k).values(), recall(asked, Fixed(), k + 1).values()
    assert 0 <= fewer.all_golds <= fewer.any_gold <= 1
    assert fewer.any_gold <= more.any_gold and fewer.all_golds <= more.all_golds
    (whole,) = recall([question("nq", PASSAGES, gold) for _, gold in pairs], Fixed(), len(PASSAGES)).values()
    assert whole == Recall(len(pairs), 1.0, 1.0)


@pytest.mark.slow
def test_real_questions_over_a_real_corpus(tmp_path: Path) -> None:
    """All seven data sets, read here with nothing but json: the same shares, and a ranking worth something."""
    if not (where := os.environ.get("SEARCH_QA_DATA")):
        pytest.skip(
            "SEARCH_QA_DATA names no folder with corpus.jsonl.xz and NAME.jsonl.xz of the seven data sets"
        )
    folder, k = Path(where), 3
    config = Config(search=SearchConfig(questions=where, corpus=str(folder / "corpus.jsonl.xz")))
    data = open_data(config, tmp_path)
    asked = [data.question(task.id) for name in SETS for task in data.tasks(name)]
    retriever = open_retriever(config, data, tmp_path, lambda _: nullcontext(lambda _: None))
    found = recall(asked, retriever, k)
    retriever.close()

    def read(name: str) -> list[dict[str, Any]]:
        with lzma.open(folder / f"{name}.jsonl.xz") as file:
            return [json.loads(line) for line in file]

    records = read("corpus")
    texts = []
    for record in records:  # titles of several words stand in quotes
        title, _, text = record["contents"].partition("\n")
        quoted = len(title) > 1 and title[0] == title[-1] == '"'
        texts.append((title[1:-1].replace('""', '"') if quoted else title) + "\n" + text)
    index = bm25s.BM25(k1=0.9, b=0.4)
    index.index(bm25s.tokenize(texts, stopwords="en", show_progress=False), show_progress=False)
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for name in SETS:
        for record in read(name):
            wanted = set(record["gold_ids"]) or set(record["answer_bearing_ids"])
            if record["split"] == "train" or not wanted:
                continue
            words = bm25s.tokenize(record["question"], stopwords="en", return_ids=False, show_progress=False)
            rows, scores = index.retrieve(words, k=k, show_progress=False)
            hits = {records[row]["id"] for row, score in zip(rows[0], scores[0], strict=True) if score > 0}
            counts[name]["questions"] += 1
            counts[name]["any"] += bool(hits & wanted)
            counts[name]["all"] += hits >= wanted if record["gold_ids"] else bool(hits & wanted)
    assert found == {
        name: Recall(own["questions"], own["any"] / own["questions"], own["all"] / own["questions"])
        for name, own in counts.items()
    }
    assert set(found) == set(SETS) and found["nq"].any_gold > 0.6 and found["hotpotqa"].any_gold > 0.6
    print(
        {
            name: (own.questions, round(own.any_gold, 3), round(own.all_golds, 3))
            for name, own in found.items()
        }
    )
