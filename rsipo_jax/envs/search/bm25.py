"""BM25 in the process: bm25s with a memory-mapped index that is built once and kept.

The folder of an index holds bm25s' own files and `index.json`, which says what they were made of; an index of another
corpus, of other settings or by another version of bm25s is not used.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import bm25s
import numpy as np

from rsipo_jax.envs.search import index
from rsipo_jax.envs.search.passages import Corpus
from rsipo_jax.envs.search.retrieval import Hit
from rsipo_jax.validation import ConfigError

K1, B = 0.9, 0.4  # Anserini's, as the family's BM25 baselines have it
STOP_WORDS = "en"
PARTS = 64  # of the scores, see `best`


def settings_of(corpus: Corpus) -> dict[str, Any]:
    """What an index depends on."""
    return {
        "kind": "bm25", "bm25s": importlib.metadata.version("bm25s"), "k1": K1, "b": B, "stop_words": STOP_WORDS,
        "passages": len(corpus), "corpus_sha256": corpus.fingerprint(),
    }  # fmt: skip


def words_of(texts: Iterable[str]) -> list[list[str]]:
    """The words of each text that are searched for: of two letters or more, in lower case, without stop words."""
    return bm25s.tokenize(texts, stopwords=STOP_WORDS, return_ids=False, show_progress=False)


def build(corpus: Corpus, folder: Path) -> None:
    """Makes the index of a corpus in `folder`, see `index.make`. Raises ConfigError for a corrupt line."""

    def write(partial: Path) -> None:
        contents = (passage.contents for passage in corpus)
        tokens = bm25s.tokenize(contents, stopwords=STOP_WORDS, show_progress=False)
        if not tokens.vocab:
            raise ConfigError(f"{corpus.path}: no passage holds a word that could be searched for")
        made = bm25s.BM25(k1=K1, b=B)
        made.index(tokens, show_progress=False)
        made.save(partial)

    index.make(folder, settings_of(corpus), write)


class BM25:
    """A `Retriever` over the index in a folder."""

    def __init__(self, corpus: Corpus, folder: Path) -> None:
        """Raises ConfigError when the folder has no index, one of something else, or a damaged one."""
        self._settings = settings_of(corpus)
        index.check(folder, self._settings)
        self._corpus = corpus
        self._index = bm25s.BM25.load(folder, mmap=True)
        for row in {0, len(corpus) // 2, len(corpus) - 1}:
            for word in set(words_of([corpus[row].contents])[0]):
                if row not in self._rows_with(word):
                    raise ConfigError(
                        f"the index in {folder} does not find line {row + 1} of {corpus.path} by its word {word!r}: "
                        f"{index.ANEW}"
                    )

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """See `Retriever.search`. Rows without a word of the query are never hits, though bm25s fills up with them."""
        found: list[list[Hit]] = []
        for words in words_of(queries):
            known = [word for word in words if word in self._index.vocab_dict]
            scores = self._index.get_scores(known) if known else np.zeros(0, np.float32)
            found.append([Hit(self._corpus[row], float(scores[row])) for row in best(scores, k).tolist()])
        return found

    def describe(self) -> Mapping[str, Any]:
        return self._settings

    def close(self) -> None:
        self._corpus.close()

    def _rows_with(self, word: str) -> np.ndarray:
        """Rows whose passages have the word."""
        if (column := self._index.vocab_dict.get(word)) is None:
            return np.zeros(0, np.int32)
        bounds = self._index.scores["indptr"][
            column : column + 2
        ]  # one only for bm25s' word of no passage, ""
        return self._index.scores["indices"][bounds[0] : bounds[-1]]


def best(scores: np.ndarray, k: int) -> np.ndarray:
    """Rows of the k largest scores [n] above 0, best first; of equal ones the lower row comes first.

    Few rows are sorted: those that reach the k-th largest of many maxima, each of other rows. It is several times as
    fast as bm25s' selection, which moves all scores to JAX's device.
    """
    maxima = scores[: len(scores) // PARTS * PARTS].reshape(PARTS, -1).max(axis=0)
    floor = np.partition(maxima, -k)[-k] if len(maxima) >= k else 0
    rows = np.flatnonzero(scores >= floor if floor > 0 else scores > 0)
    return rows[np.argsort(-scores[rows], kind="stable")[:k]]


def open_or_build(corpus: Corpus, folder: Path) -> BM25:
    """The index of the corpus in `folder`, built first when the folder does not exist."""
    if not folder.exists():
        build(corpus, folder)
    return BM25(corpus, folder)
