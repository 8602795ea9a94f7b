"""Packing: every token of the chosen rows exactly once, with its own position, and nothing else."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rsipo_jax.training.packing import microbatch_bins, pack

LENGTHS = st.lists(st.integers(1, 20), max_size=30)


def offsets(lengths: list[int]) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


@given(lengths=LENGTHS, longer=st.integers(0, 20), tokens=st.integers(1, 200), data=st.data())
def test_every_token_of_the_chosen_rows_is_packed_once(
    lengths: list[int], longer: int, tokens: int, data: st.DataObject
) -> None:
    length = max(lengths, default=1) + longer
    starts = offsets(lengths)
    chosen = data.draw(st.permutations(range(len(lengths))))[: data.draw(st.integers(0, len(lengths)))]
    batches = pack(starts, chosen, length, microbatch_bins(tokens, length, 1))
    assert {b.source.shape for b in batches} <= {(max(1, tokens // length), length)}
    found = np.concatenate([b.source[b.source >= 0] for b in batches] or [np.zeros(0, int)])
    wanted = np.concatenate([np.arange(starts[r], starts[r + 1]) for r in chosen] or [np.zeros(0, int)])
    np.testing.assert_array_equal(np.sort(found), np.sort(wanted))
    row_of = np.repeat(np.arange(len(lengths)), lengths)
    for b in batches:
        real = b.source >= 0
        np.testing.assert_array_equal(real, b.segment_ids > 0)
        assert not b.positions[~real].any()
        for bin_source, bin_positions, bin_segments in zip(b.source, b.positions, b.segment_ids, strict=True):
            for segment in range(1, bin_segments.max(initial=0) + 1):
                at = np.flatnonzero(bin_segments == segment)
                r = row_of[bin_source[at[0]]]
                # One whole row, in one piece, in order, at positions from 0.
                np.testing.assert_array_equal(at, np.arange(at[0], at[0] + lengths[r]))
                np.testing.assert_array_equal(bin_source[at], np.arange(starts[r], starts[r + 1]))
                np.testing.assert_array_equal(bin_positions[at], np.arange(lengths[r]))
    again = pack(starts, list(reversed(chosen)), length, microbatch_bins(tokens, length, 1))
    assert all(np.array_equal(a.source, b.source) for a, b in zip(batches, again, strict=True))


@given(lengths=LENGTHS, tokens=st.integers(1, 200))
def test_flat_arrays_come_back_as_they_were(lengths: list[int], tokens: int) -> None:
    starts = offsets(lengths)
    n = int(starts[-1])
    rng = np.random.default_rng(n)
    for flat in (
        rng.normal(size=n).astype(np.float32),
        rng.integers(1, 9, n).astype(np.int8),
        np.arange(1, n + 1),
    ):
        back = np.zeros_like(flat)
        for batch in pack(starts, range(len(lengths)), 20, 1 + tokens // 20):
            packed = batch.take(flat)
            assert packed.dtype == flat.dtype and not packed[batch.source < 0].any()
            batch.put(packed, back)
        np.testing.assert_array_equal(back, flat)


def test_rows_fill_bins_first_fit_longest_first() -> None:
    batches = pack(offsets([3, 8, 5, 2, 10]), range(5), 10, 2)
    assert [b.segment_ids.max(axis=1).tolist() for b in batches] == [[1, 2], [2, 0]]
    assert [int((b.source >= 0).sum()) for b in batches] == [20, 8]


@given(lengths=LENGTHS.filter(len), tokens=st.integers(1, 200), shards=st.integers(1, 8))
def test_devices_share_micro_batches_evenly_and_change_nothing_else(
    lengths: list[int], tokens: int, shards: int
) -> None:
    starts, rows = offsets(lengths), range(len(lengths))
    for alone, shared in zip(
        pack(starts, rows, 20, 1 + tokens // 20),
        pack(starts, rows, 20, 1 + tokens // 20, shards),
        strict=True,
    ):
        n = len(alone.source)
        assert 0 <= len(shared.source) - n < shards and len(shared.source) % shards == 0
        np.testing.assert_array_equal(shared.source[:n], alone.source)
        assert (shared.source[n:] == -1).all() and not shared.segment_ids[n:].any()


def test_a_row_longer_than_a_bin_is_refused_with_the_numbers() -> None:
    with pytest.raises(
        ValueError, match=r"a row of 12 tokens is longer than config\.context\.max_length=10: raise it"
    ):
        pack(offsets([3, 12]), [0, 1], 10, 2)
