"""Packing: ragged rows into bins of a few fixed lengths, and flat per-token arrays in and out of them.

Invariant: packing changes no number. Each row is one segment of one bin, with its own positions from 0; bins of equal
length are grouped into micro-batches of one shape, so that the number of compiled programs is the number of lengths.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

SHORTEST = 512  # bin lengths double from here to the context's maximum


@dataclass(frozen=True)
class MicroBatch:
    """Where the tokens of M bins of length L come from."""

    source: np.ndarray  # int64 [M, L] index into the flat token arrays, -1 for padding
    positions: np.ndarray  # int32 [M, L] position within the row
    segment_ids: np.ndarray  # int32 [M, L] from 1 within a bin, 0 for padding

    def take(self, flat: np.ndarray) -> np.ndarray:
        """A flat per-token array [N] in packed form [M, L]; zero at padding."""
        return np.where(self.source >= 0, flat[np.maximum(self.source, 0)], 0).astype(flat.dtype)

    def put(self, packed: np.ndarray, flat: np.ndarray) -> None:
        """Writes a packed array [M, L] back into a flat one [N], in place."""
        real = self.source >= 0
        flat[self.source[real]] = packed[real]


def bin_lengths(max_length: int) -> tuple[int, ...]:
    """The lengths of bins: 512, 1024, ... and `max_length` itself."""
    lengths = []
    n = SHORTEST
    while n < max_length:
        lengths.append(n)
        n *= 2
    return (*lengths, max_length)


def pack(starts: np.ndarray, rows: Sequence[int], max_length: int, microbatch_tokens: int) -> list[MicroBatch]:
    """Packs the given rows (indices; row r is [starts[r], starts[r + 1]) of the flat arrays) into micro-batches.

    First fit, longest first, each row in the shortest bins that hold it. A micro-batch has `microbatch_tokens // L` bins
    (at least one). Raises ValueError when a row is longer than `max_length`.
    """
    bins: dict[int, list[list[int]]] = {n: [] for n in bin_lengths(max_length)}
    lengths = {int(r): int(starts[r + 1] - starts[r]) for r in rows}
    for r in sorted(lengths, key=lambda r: (-lengths[r], r)):
        size = next((n for n in bins if n >= lengths[r]), None)
        if size is None:
            raise ValueError(
                f"a row of {lengths[r]} tokens is longer than config.context.max_length={max_length}: raise it"
            )
        for members in bins[size]:
            if sum(lengths[m] for m in members) + lengths[r] <= size:
                members.append(r)
                break
        else:
            bins[size].append([r])

    out = []
    for size, members in bins.items():
        per_batch = max(1, microbatch_tokens // size)
        for first in range(0, len(members), per_batch):
            out.append(_micro_batch(members[first : first + per_batch], per_batch, size, starts))
    return out


def _micro_batch(bins: Sequence[Sequence[int]], count: int, size: int, starts: np.ndarray) -> MicroBatch:
    source = np.full((count, size), -1, np.int64)
    positions, segments = np.zeros((count, size), np.int32), np.zeros((count, size), np.int32)
    for b, members in enumerate(bins):
        at = 0
        for segment, r in enumerate(members, 1):
            n = int(starts[r + 1] - starts[r])
            source[b, at : at + n] = np.arange(starts[r], starts[r + 1])
            positions[b, at : at + n] = np.arange(n)
            segments[b, at : at + n] = segment
            at += n
    return MicroBatch(source, positions, segments)
