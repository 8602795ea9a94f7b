"""Packing: ragged rows into bins of one length, and flat per-token arrays in and out of them.

Invariant: packing changes no number. Each row is one segment of one bin, with its own positions from 0. All
micro-batches have one shape, so each jitted function is compiled once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


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


def microbatch_bins(microbatch_tokens: int, length: int, shards: int) -> int:
    """Bins of `length` tokens in one micro-batch, of which each of the `shards` computes `microbatch_tokens` at most."""
    return shards * max(1, microbatch_tokens // length)


def pack(
    starts: np.ndarray, rows: Sequence[int], length: int, count: int, shards: int = 1
) -> list[MicroBatch]:
    """Packs the given rows (indices; row r is [starts[r], starts[r + 1]) of the flat arrays) into micro-batches.

    First fit, longest first, into bins of `length` tokens; a micro-batch is `count` bins, and empty ones up to a
    multiple of the `shards` into which the devices cut it. Raises ValueError when a row is longer than a bin.
    """
    lengths = {int(r): int(starts[r + 1] - starts[r]) for r in rows}
    bins: list[list[int]] = []
    room = np.full(len(lengths), length)  # a bin for every row, if it comes to that
    for r in sorted(lengths, key=lambda r: (-lengths[r], r)):
        if lengths[r] > length:
            raise ValueError(
                f"a row of {lengths[r]} tokens is longer than config.context.max_length={length}: raise it"
            )
        place = int(np.argmax(room >= lengths[r]))
        if place == len(bins):
            bins.append([])
        bins[place].append(r)
        room[place] -= lengths[r]
    padded = -(-count // shards) * shards
    return [_micro_batch(bins[i : i + count], padded, length, starts) for i in range(0, len(bins), count)]


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
