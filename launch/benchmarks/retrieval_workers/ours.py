"""Our retrievers as the environment uses them: queries in, passages out, with their text."""

from __future__ import annotations

import time
import zlib
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from benchmarks.retrieval_workers.measuring import Found, peak_mib, resident_mib, searched
from benchmarks.rollout_workers.serving import serve
from rsipo_jax.envs.search import bm25, dense
from rsipo_jax.envs.search.passages import Corpus
from rsipo_jax.envs.search.retrieval import Cached, Retriever

CLUSTERS = 1000  # of made-up vectors
SPREAD = 0.7  # length of what is added to a cluster's centre, which has length 1


class MadeUp:
    """In an encoder's place: unit vectors in clusters, a function of the text. Those of queries are known beforehand."""

    def __init__(self, size: int, queries: Sequence[str]) -> None:
        self.size = size
        centres = np.random.default_rng(0).normal(size=(CLUSTERS, size))
        self._centres = centres / np.linalg.norm(centres, axis=1, keepdims=True)
        self._known = dict(zip(queries, self.passages(queries), strict=True))

    def describe(self) -> dict[str, Any]:
        return {"encoder": "made up", "size": self.size}

    def queries(self, texts: Sequence[str]) -> np.ndarray:
        return np.stack([self._known[text] for text in texts])

    def passages(self, texts: Sequence[str]) -> np.ndarray:
        vectors = np.empty((len(texts), self.size), np.float32)
        for row, text in enumerate(texts):
            seed = zlib.crc32(text.encode())
            noise = np.random.default_rng(seed).normal(size=self.size, scale=SPREAD / self.size**0.5)
            vectors[row] = self._centres[seed % CLUSTERS] + noise
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


class Ours:
    def build_bm25(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        start = time.perf_counter()
        with Corpus(Path(asked["corpus"])) as corpus:
            bm25.build(corpus, Path(asked["index"]))
        return {"seconds": time.perf_counter() - start, "peak_mib": peak_mib()}

    def build_dense(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Also writes the queries' vectors."""
        queries = _lines(asked["queries"])
        encoder: Any = MadeUp(asked["size"], queries)
        np.save(asked["query_vectors"], encoder.queries(queries))
        with Corpus(Path(asked["corpus"])) as corpus:
            dense.build(corpus, encoder, Path(asked["index"]), lambda _: None)
        return {}

    def load_bm25(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        start = time.perf_counter()
        retriever = bm25.BM25(Corpus(Path(asked["corpus"])), Path(asked["index"]))
        return self._loaded(retriever, start, asked)

    def load_dense(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        encoder: Any = MadeUp(asked["size"], _lines(asked["queries"]))
        mesh = jax.make_mesh((jax.device_count(),), (dense.ROWS,))
        start = time.perf_counter()
        corpus = Corpus(Path(asked["corpus"]))
        retriever = dense.Dense(corpus, encoder, Path(asked["index"]), mesh, asked["dtype"])
        return self._loaded(retriever, start, asked)

    def search(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """`cache`: "none", "new" (what it is asked it does not know), or "kept" since the last search."""
        if asked["cache"] == "new":
            self.cached = Cached(self.retriever)
        retriever = self.retriever if asked["cache"] == "none" else self.cached
        queries = self.queries[asked["first"] : asked["first"] + asked["count"]]
        return searched(partial(self._search, retriever), queries, asked["batch"])

    def memory(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        return {"resident_mib": resident_mib()}

    def encode(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Queries a second in batches, and passages a second, after a first time that compiles."""
        encoder = dense.Encoder(Path(asked["encoder"]), dense.Prefixes())
        queries = _lines(asked["queries"])
        with Corpus(Path(asked["corpus"])) as corpus:
            passages = [corpus[row].contents for row in range(min(asked["passages"], len(corpus)))]
        rates = {"passages_per_s": _rate(encoder.passages, [passages])}
        for batch in asked["batches"]:
            batches = [queries[first : first + batch] for first in range(0, max(batch, 64), batch)]
            rates[f"queries_per_s_batch_{batch}"] = _rate(encoder.queries, batches)
        return rates

    def _loaded(self, retriever: Retriever, start: float, asked: Mapping[str, Any]) -> dict[str, Any]:
        self.retriever, self.cached, self.k = retriever, Cached(retriever), asked["k"]
        self.queries = _lines(asked["queries"])
        return {"seconds": time.perf_counter() - start}

    def _search(self, retriever: Retriever, queries: Sequence[str]) -> list[Found]:
        hits = retriever.search(queries, self.k)
        return [([int(hit.passage.id) for hit in own], [hit.score for hit in own]) for own in hits]


def _lines(path: str) -> list[str]:
    return Path(path).read_text(encoding="utf-8").splitlines()


def _rate(encode: Any, batches: Sequence[Sequence[str]]) -> float:
    for batch in batches:
        encode(batch)
    start = time.perf_counter()
    for batch in batches:
        encode(batch)
    return sum(map(len, batches)) / (time.perf_counter() - start)


if __name__ == "__main__":
    ours = Ours()
    serve({name: getattr(ours, name) for name in
           ("build_bm25", "build_dense", "load_bm25", "load_dense", "search", "memory", "encode")})  # fmt: skip
