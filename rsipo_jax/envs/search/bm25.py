"""BM25 in the process: bm25s with a memory-mapped index that is built once and kept.

The folder of an index holds bm25s' own files and `index.json`, which says what they were made of; an index of another
corpus, of other settings or by another version of bm25s is not used.
"""

from __future__ import annotations

import importlib.metadata
import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import bm25s
import numpy as np

from rsipo_jax.envs.search.passages import Corpus
from rsipo_jax.envs.search.retrieval import Hit
from rsipo_jax.validation import ConfigError

K1, B = 0.9, 0.4  # Anserini's, as the family's BM25 baselines have it
STOP_WORDS = "en"
SETTINGS = "index.json"


def settings_of(corpus: Corpus) -> dict[str, Any]:
    """What an index depends on."""
    return {
        "kind": "bm25", "bm25s": importlib.metadata.version("bm25s"), "k1": K1, "b": B, "stop_words": STOP_WORDS,
        "passages": len(corpus), "corpus_sha256": corpus.fingerprint(),
    }  # fmt: skip


def build(corpus: Corpus, folder: Path) -> None:
    """Makes the index of a corpus in `folder`; an interrupted build leaves none. Raises ConfigError for a corrupt line."""
    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    tokens = bm25s.tokenize([p.contents for p in corpus], stopwords=STOP_WORDS, show_progress=False)
    index = bm25s.BM25(k1=K1, b=B)
    index.index(tokens, show_progress=False)
    index.save(partial)
    (partial / SETTINGS).write_text(json.dumps(settings_of(corpus), indent=2), encoding="utf-8")
    shutil.rmtree(folder, ignore_errors=True)
    partial.rename(folder)


class BM25:
    """A `Retriever` over the index in a folder."""

    def __init__(self, corpus: Corpus, folder: Path) -> None:
        """Raises ConfigError when the folder has no index, or one of something else."""
        try:
            made_of = json.loads((folder / SETTINGS).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"{folder} holds no index: {error}; build one with launch/retriever.py --build"
            ) from error
        self._settings = settings_of(corpus)
        for key, value in self._settings.items():
            if made_of.get(key) != value:
                raise ConfigError(
                    f"the index in {folder} was made with {key}={made_of.get(key)!r}, here it is {value!r}: delete the folder, "
                    "and it is built anew"
                )
        self._corpus = corpus
        self._index = bm25s.BM25.load(folder, mmap=True)

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """See `Retriever.search`. Rows without a word of the query are never hits, though bm25s fills up with them."""
        if not queries:
            return []
        words = bm25s.tokenize(list(queries), stopwords=STOP_WORDS, return_ids=False, show_progress=False)
        wanted = min(k, len(self._corpus))
        known = [i for i, query in enumerate(words) if any(word in self._index.vocab_dict for word in query)]
        found: list[list[Hit]] = [[] for _ in queries]
        if known:
            rows, scores = self._index.retrieve([words[i] for i in known], k=wanted, show_progress=False)
            for i, own, values in zip(known, np.asarray(rows), np.asarray(scores), strict=True):
                found[i] = [
                    Hit(self._corpus[int(row)], float(score))
                    for row, score in zip(own, values, strict=True)
                    if score > 0
                ]
        return found

    def describe(self) -> Mapping[str, Any]:
        return self._settings

    def close(self) -> None:
        self._corpus.close()


def open_or_build(corpus: Corpus, folder: Path) -> BM25:
    """The index of the corpus in `folder`, built first when the folder does not exist."""
    if not folder.exists():
        build(corpus, folder)
    return BM25(corpus, folder)
