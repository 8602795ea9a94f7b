"""What every process of the suite measures. Nothing but the standard library: faiss may have a Python of its own."""

from __future__ import annotations

import os
import resource
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

Query = TypeVar("Query")
Found = tuple[list[int], list[float]]  # rows and scores of a query, best first


def searched(
    search: Callable[[Sequence[Query]], list[Found]], queries: Sequence[Query], batch: int
) -> dict[str, Any]:
    """The seconds that all queries took, so many at a time, those of the CPU, and what was found."""
    found = list[Found]()
    start, cpu_start = time.perf_counter(), time.process_time()
    for first in range(0, len(queries), batch):
        found += search(queries[first : first + batch])
    seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu_start
    return {"seconds": seconds, "cpu_seconds": cpu_seconds, "found": found}


def resident_mib() -> float:
    """Memory of this process now, with what it has mapped and read of files; its peak where the system has no /proc."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1])
    except OSError:
        return peak_mib()
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def peak_mib() -> float:
    """The most memory that this process has had."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if sys.platform == "darwin" else 2**10)
