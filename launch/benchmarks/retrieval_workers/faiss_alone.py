"""faiss' exact index of inner products in float32: rows and scores, no passages. Needs numpy and faiss-cpu only."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import faiss
import numpy as np

from benchmarks.retrieval_workers.measuring import Found, resident_mib, searched
from benchmarks.rollout_workers.serving import serve

STEP = 1 << 16  # vectors added together


class Alone:
    def load(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        faiss.omp_set_num_threads(asked["threads"])
        vectors = np.load(asked["vectors"], mmap_mode="r")
        self.queries, self.k = np.load(asked["queries"]), asked["k"]
        start = time.perf_counter()
        self.index = faiss.IndexFlatIP(vectors.shape[1])
        for first in range(0, len(vectors), STEP):
            self.index.add(np.asarray(vectors[first : first + STEP], np.float32))
        return {"seconds": time.perf_counter() - start, "version": faiss.__version__}

    def search(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        queries = self.queries[asked["first"] : asked["first"] + asked["count"]]
        return searched(self._search, queries, asked["batch"])

    def memory(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        return {"resident_mib": resident_mib()}

    def _search(self, queries: Sequence[np.ndarray]) -> list[Found]:
        scores, rows = self.index.search(np.asarray(queries), self.k)
        return list(zip(rows.tolist(), scores.tolist(), strict=True))


if __name__ == "__main__":
    alone = Alone()
    serve({"load": alone.load, "search": alone.search, "memory": alone.memory})
