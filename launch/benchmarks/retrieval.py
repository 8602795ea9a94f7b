"""Retrievers beside the libraries that they use: our BM25 and bm25s alone, our exact dense search and faiss alone.

Each side is a process of its own, and both take turns with the same queries, so that a busy machine is busy for both.
Ours answers with passages and their text, as the environment asks for them; a library alone gives rows and scores. What
is found must be the same. `overhead` is the median over the rounds of (seconds of ours / seconds alone) - 1, so -0.3 says
that ours takes 30 % less time; `overhead_cpu` is the same of the processes' CPU seconds, with what threads spin.

The text is made up: seeded words by Zipf's law in passages of 100 words, as the Wikipedia dump of the family has them
(the fictional encyclopaedia has a third of that, and not enough names). Encoders are not needed: vectors are made up
too, in clusters. A million passages take 3 GB on the disk and 6 GB of memory.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from rich.console import Console

from benchmarks.pipes import Ask, answering
from benchmarks.retrieval_workers.measuring import Found
from rsipo_jax.envs.search import bm25
from rsipo_jax.validation import ConfigError

WORKERS = Path(__file__).with_name("retrieval_workers")
K = 3
BATCHES = (1, 8, 64, 512)
ROUNDS = 9
SECONDS = 0.5  # that a measurement takes at least, if there are queries enough
LARGEST_OVERHEAD = 0.1
TOLERANCE = 1e-4  # of scores that should be the same

QUERIES = 2048  # a multiple of every batch
ENCODED = 64  # passages that the encoder is measured with
BLOCK = 10_000  # passages made together
WORDS, TITLE = 100, 2  # of a passage
TYPES, SHIFT = 500_000, 2.7  # of Zipf and Mandelbrot's law: p(rank) ~ 1 / (rank + SHIFT)
FREQUENT = (
    "the",
    "of",
    "and",
    "in",
    "to",
    "was",
    "is",
    "for",
    "as",
    "on",
    "with",
    "by",
    "at",
    "it",
    "an",
    "are",
)  # stop words
LETTERS = "etaoinshrdlu"
ASKED, FOREIGN = 7, 1  # words of a query that are in a passage, and that are not

FAISS = "pip install faiss-cpu numpy in an environment of its own, and name its Python with --faiss"

Sections = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Texts:
    """Files of a made-up corpus."""

    corpus: Path
    queries: Path


def measure(
    passages: Sequence[int], size: int, faiss_python: str, encoder: str, console: Console
) -> Sections:
    """Sections for every number of passages, with vectors of `size` numbers. Without a Python that has faiss it is left out.

    Raises ConfigError when a process fails, and when the sides do not find the same.
    """
    if not faiss_python and importlib.util.find_spec("faiss"):
        faiss_python = sys.executable
    if not faiss_python:
        console.print(f"faiss is left out: {FAISS}", soft_wrap=True)
    sections: Sections = {}
    for count in passages:
        with tempfile.TemporaryDirectory() as made:
            folder = Path(made)
            texts = write_texts(folder, count)
            console.print(
                f"{count:,} passages: {texts.corpus.stat().st_size / 2**20:,.0f} MiB", highlight=False
            )
            sections[f"bm25, {count:,} passages"] = compare_bm25(folder, texts)
            sections |= compare_dense(folder, texts, size, faiss_python, count)
            if encoder and not any(title.startswith("encoder") for title in sections):
                with ours() as ask:
                    asked = {"corpus": str(texts.corpus), "queries": str(texts.queries), "encoder": encoder}
                    sections["encoder"] = ask(
                        {"do": "encode", "passages": ENCODED, "batches": BATCHES[:-1], **asked}
                    )
    overheads = {
        f"{title}, batch {batch}": section[f"overhead_batch_{batch}"]
        for title, section in sections.items()
        for batch in BATCHES
        if f"overhead_batch_{batch}" in section
    }
    return sections | {
        "targets": {
            "largest_overhead": max(overheads.values()),
            "of": max(overheads, key=overheads.__getitem__),
            f"overhead_at_most_{LARGEST_OVERHEAD}": max(overheads.values()) <= LARGEST_OVERHEAD,
        },
        "software": {
            "numpy": np.__version__,
            "bm25s": importlib.metadata.version("bm25s"),
            "cores_usable": _cores(),
        },
    }


def compare_bm25(folder: Path, texts: Texts) -> dict[str, Any]:
    """Building, loading and searching; every part of each side in a process that does nothing else before it."""
    settings = {"k1": bm25.K1, "b": bm25.B, "stop_words": bm25.STOP_WORDS}
    corpus, queries = str(texts.corpus), str(texts.queries)
    indexes = {side: folder / f"bm25-{side}" for side in ("ours", "alone")}
    with ours() as ask:
        built = {"ours": ask({"do": "build_bm25", "corpus": corpus, "index": str(indexes["ours"])})}
    with bm25s_alone() as ask:
        asked = {"do": "build", "corpus": corpus, "index": str(indexes["alone"]), **settings}
        built["alone"] = ask(asked)
    section: dict[str, Any] = {}
    for side, index in indexes.items():
        section |= {f"{side}_build_{what}": value for what, value in built[side].items()}
        section[f"{side}_index_mib"] = sum(path.stat().st_size for path in index.iterdir()) / 2**20
    section["overhead_build"] = section["ours_build_seconds"] / section["alone_build_seconds"] - 1
    with ours() as ask_ours, bm25s_alone() as ask_alone:
        loaded = {
            "ours": ask_ours({"do": "load_bm25", "corpus": corpus, "index": str(indexes["ours"]), "queries": queries, "k": K}),
            "alone": ask_alone({"do": "load", "index": str(indexes["alone"]), "queries": queries, "k": K, **settings}),
        }  # fmt: skip
        section |= {f"{side}_load_seconds": loaded[side]["seconds"] for side in loaded}
        section |= in_turns(ask_ours, ask_alone, exact=True)
        for side, ask in (("ours", ask_ours), ("alone", ask_alone)):
            section[f"{side}_resident_mib"] = ask({"do": "memory"})["resident_mib"]
    return section


def compare_dense(folder: Path, texts: Texts, size: int, faiss_python: str, count: int) -> Sections:
    """In float32, as faiss has it, and in bfloat16, as vectors lie on the devices by default."""
    corpus, queries, index = str(texts.corpus), str(texts.queries), folder / "dense"
    vectors = str(folder / "queries.npy")
    given = {"corpus": corpus, "queries": queries, "index": str(index), "size": size}
    with ours() as ask:
        ask({"do": "build_dense", "query_vectors": vectors, **given})
    sections: Sections = {}
    for dtype in ("float32", "bfloat16"):
        section: dict[str, Any] = {
            "vector_size": size,
            "ours_index_mib": sum(path.stat().st_size for path in index.iterdir()) / 2**20,
        }
        with ours() as ask_ours:
            section["ours_load_seconds"] = ask_ours({"do": "load_dense", "dtype": dtype, "k": K, **given})[
                "seconds"
            ]
            if faiss_python:
                with faiss_alone(faiss_python) as ask_alone:
                    loaded = ask_alone(
                        {"do": "load", "vectors": str(index / "vectors.npy"), "queries": vectors, "k": K, "threads": _cores()}
                    )  # fmt: skip
                    section["alone_load_seconds"], section["faiss"] = loaded["seconds"], loaded["version"]
                    section |= in_turns(ask_ours, ask_alone, exact=dtype == "float32")
                    section["alone_resident_mib"] = ask_alone({"do": "memory"})["resident_mib"]
            else:
                section |= in_turns(ask_ours, None, exact=False)
            section["ours_resident_mib"] = ask_ours({"do": "memory"})["resident_mib"]
        sections[f"dense {dtype}, {count:,} passages"] = section
    return sections


def in_turns(ask_ours: Ask, ask_alone: Ask | None, exact: bool) -> dict[str, Any]:
    """Queries a second for every batch size: ours, through an empty cache, from a full one, and the library alone.

    Raises ConfigError when the two should find exactly the same and do not.
    """
    section: dict[str, Any] = {}
    recalls = list[float]()
    for batch in BATCHES:
        count = _enough(ask_alone or ask_ours, batch)
        seconds, cpu_seconds = defaultdict[str, list[float]](list), defaultdict[str, list[float]](list)
        for turn in range(ROUNDS):
            asked = {
                "do": "search",
                "first": turn * count % (QUERIES - count + 1),
                "count": count,
                "batch": batch,
            }
            found = {}
            for name, cache in (("ours", "none"), ("cached_new", "new"), ("cached_known", "kept")):
                found[name] = ask_ours({**asked, "cache": cache})
            if ask_alone:
                found["alone"] = ask_alone(asked)
                recalls.append(recall(found["ours"]["found"], found["alone"]["found"], exact))
            for name, result in found.items():
                seconds[name].append(result["seconds"])
                cpu_seconds[name].append(result["cpu_seconds"])
        for name, taken in seconds.items():
            section[f"{name}_batch_{batch}_per_s"] = count / median(taken)
        if ask_alone:
            section[f"overhead_batch_{batch}"] = _overhead(seconds["ours"], seconds["alone"])
            section[f"overhead_cached_new_batch_{batch}"] = _overhead(seconds["cached_new"], seconds["alone"])
            section[f"overhead_cpu_batch_{batch}"] = _overhead(cpu_seconds["ours"], cpu_seconds["alone"])
    return section | ({f"recall_at_{K}": float(np.mean(recalls))} if recalls else {})


def _overhead(ours: Sequence[float], alone: Sequence[float]) -> float:
    return median(a / b for a, b in zip(ours, alone, strict=True)) - 1


def _enough(ask: Ask, batch: int) -> int:
    """How many queries take long enough to be measured; asking warms up, too."""
    asked = {"do": "search", "first": 0, "batch": batch, "cache": "none"}
    ask({**asked, "count": batch})
    seconds = ask({**asked, "count": batch})["seconds"]
    batches = min(max(int(SECONDS / seconds), 1), QUERIES // batch)
    return batches * batch


def recall(found: Sequence[Found], wanted: Sequence[Found], exact: bool) -> float:
    """Mean share of the rows wanted that were found.

    Raises ConfigError when they should be the same and are not: equal scores may come in any order, also at the end.
    """
    shares = []
    for number, ((rows, scores), (right, values)) in enumerate(zip(found, wanted, strict=True)):
        shares.append(len(set(rows) & set(right)) / len(right))
        if not exact:
            continue
        above = [row for row, value in zip(right, values, strict=True) if value > values[-1] + TOLERANCE]
        if not set(above) <= set(rows) or not np.allclose(scores, values, rtol=0, atol=TOLERANCE):
            raise ConfigError(
                f"query {number} finds rows {rows} with {scores} by ours, {right} with {values} by the library alone: "
                "what is measured would mean nothing"
            )
    return float(np.mean(shares))


# Processes


def ours() -> AbstractContextManager[Ask]:
    return _worker("ours.py", sys.executable, "our retriever needs memory for the passages")


def bm25s_alone() -> AbstractContextManager[Ask]:
    return _worker("bm25s_alone.py", sys.executable, "bm25s needs memory for the passages")


def faiss_alone(python: str) -> AbstractContextManager[Ask]:
    return _worker("faiss_alone.py", python, FAISS)


def _worker(script: str, python: str, needs: str) -> AbstractContextManager[Ask]:
    launch = WORKERS.parents[1]
    return answering(
        [python, "-P", str(WORKERS / script)],
        lambda reason: f"{python} cannot be run ({reason}): {needs}",
        lambda last: f"{script} ended early ({last}): {needs}",
        os.environ | {"PYTHONPATH": os.pathsep.join([str(launch), str(launch.parent)])},
    )


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# Texts


def write_texts(folder: Path, passages: int) -> Texts:
    """A corpus of so many passages and the queries about it; the same for the same number."""
    texts = Texts(folder / "corpus.jsonl", folder / "queries.txt")
    words = np.asarray([*FREQUENT, *(_word(rank) for rank in range(len(FREQUENT), TYPES))], object)
    rng = np.random.default_rng(passages)
    asked = defaultdict[int, list[int]](list)  # row -> the queries about it
    for query, row in enumerate(rng.integers(passages, size=QUERIES).tolist()):
        asked[row].append(query)
    queries = [""] * QUERIES
    with texts.corpus.open("w", encoding="utf-8") as file:
        for first in range(0, passages, BLOCK):
            block = range(first, min(first + BLOCK, passages))
            for row, ranks in zip(block, _ranks(rng, len(block), TITLE + WORDS), strict=True):
                own = words[ranks].tolist()
                title, text = " ".join(own[:TITLE]).title(), " ".join(own[TITLE:])
                file.write(json.dumps({"id": str(row), "contents": f"{title}\n{text}"}) + "\n")
                for query in asked.get(row, ()):
                    foreign = words[_ranks(rng, 1, FOREIGN)[0]].tolist()
                    queries[query] = " ".join([*rng.choice(own, ASKED, replace=False).tolist(), *foreign])
    texts.queries.write_text("\n".join(queries), encoding="utf-8")
    return texts


def _ranks(rng: np.random.Generator, rows: int, columns: int) -> np.ndarray:
    """Ranks [rows, columns] of words, by the inverse of the law's distribution taken as continuous."""
    spread = ((TYPES + SHIFT) / (1 + SHIFT)) ** rng.random((rows, columns))
    return np.minimum((1 + SHIFT) * spread - SHIFT, TYPES).astype(np.int64) - 1


def _word(rank: int) -> str:
    letters = ""
    while rank or len(letters) < 3:
        rank, letter = divmod(rank, len(LETTERS))
        letters += LETTERS[letter]
    return letters
