"""bm25s as its own documentation has it, with the settings of ours: rows and scores, no passages."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import bm25s

from benchmarks.retrieval_workers.measuring import Found, peak_mib, resident_mib, searched
from benchmarks.rollout_workers.serving import serve


class Alone:
    def build(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        start = time.perf_counter()
        with Path(asked["corpus"]).open(encoding="utf-8") as file:
            texts = [json.loads(line)["contents"] for line in file]
        index = bm25s.BM25(k1=asked["k1"], b=asked["b"])
        index.index(
            bm25s.tokenize(texts, stopwords=asked["stop_words"], show_progress=False), show_progress=False
        )
        index.save(asked["index"])
        return {"seconds": time.perf_counter() - start, "peak_mib": peak_mib()}

    def load(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        start = time.perf_counter()
        self.index = bm25s.BM25.load(asked["index"], mmap=True)
        self.k, self.stop_words = asked["k"], asked["stop_words"]
        seconds = time.perf_counter() - start
        self.queries = Path(asked["queries"]).read_text(encoding="utf-8").splitlines()
        return {"seconds": seconds}

    def search(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        queries = self.queries[asked["first"] : asked["first"] + asked["count"]]
        return searched(self._search, queries, asked["batch"])

    def memory(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        return {"resident_mib": resident_mib()}

    def _search(self, queries: Sequence[str]) -> list[Found]:
        words = bm25s.tokenize(
            list(queries), stopwords=self.stop_words, return_ids=False, show_progress=False
        )
        rows, scores = self.index.retrieve(words, k=self.k, show_progress=False)
        return list(zip(rows.tolist(), scores.tolist(), strict=True))


if __name__ == "__main__":
    alone = Alone()
    serve({"build": alone.build, "load": alone.load, "search": alone.search, "memory": alone.memory})
