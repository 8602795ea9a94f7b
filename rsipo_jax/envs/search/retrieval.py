"""What finds passages: one protocol, so that an index in the process and a server elsewhere are the same to the environment."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rsipo_jax.envs.search.passages import Passage


class RetrievalError(Exception):
    """A search could not be made. One sentence; the episode is void, it has seen no wrong observation."""


@dataclass(frozen=True)
class Hit:
    passage: Passage
    score: float


class Retriever(Protocol):
    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """The best k passages or fewer for each query, best first; nothing for a query without a word that is known.

        Raises RetrievalError.
        """

    def describe(self) -> Mapping[str, Any]:
        """What results depend on: kind, corpus, versions. For records."""

    def close(self) -> None: ...


class Nothing:
    """A `Retriever` that never finds anything: what a policy answers without it is the floor of those that search."""

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """See `Retriever.search`."""
        return [[] for _ in queries]

    def describe(self) -> Mapping[str, Any]:
        return {"kind": "none"}

    def close(self) -> None: ...


def canonical(query: str) -> str:
    """Queries that differ in case and white space only are one search."""
    return " ".join(query.lower().split())


class Cached:
    """A retriever that remembers its last answers; what a batch asks twice is searched once."""

    def __init__(self, retriever: Retriever, capacity: int = 100_000) -> None:
        self._retriever, self._capacity = retriever, capacity
        self._known: OrderedDict[tuple[str, int], list[Hit]] = OrderedDict()  # the least recently used first
        self.asked = self.searched = 0

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """See `Retriever.search`."""
        keys = [(canonical(query), k) for query in queries]
        unknown = dict.fromkeys(key for key in keys if key not in self._known)
        found = {key: self._known[key] for key in keys if key in self._known}
        if unknown:
            new = self._retriever.search([query for query, _ in unknown], k)
            found |= dict(zip(unknown, new, strict=True))
        self.asked += len(keys)
        self.searched += len(unknown)
        for key in keys:
            self._known[key] = found[key]
            self._known.move_to_end(key)
        while len(self._known) > self._capacity:
            self._known.popitem(last=False)
        return [found[key] for key in keys]

    def describe(self) -> Mapping[str, Any]:
        return self._retriever.describe()

    def close(self) -> None:
        self._retriever.close()
