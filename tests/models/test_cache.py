"""The cache: pieces, copies and single tokens give the logits of the whole sequence and touch only their own positions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rsipo_jax.models import cache as module
from rsipo_jax.models.cache import KVCache, attend_cached, init_cache, init_fresh, write
from rsipo_jax.models.decode import next_token, serving_params
from rsipo_jax.models.transformer import ModelConfig, Params, hidden_states
from rsipo_jax.models.vocabulary import logits
from rsipo_jax.sampling.programs import copy_prefixes, prefill
from tests.models import reference
from tests.models.reference import SMALL, make_params

SLOTS, CAPACITY, WIDTH, PIECE, STEPS = 4, 32, 8, 12, 3
QWEN3 = replace(SMALL, qk_norm=True, qkv_bias=False, tie_embeddings=False)
LLAMA = replace(SMALL, qkv_bias=False, rope_theta=500.0, num_kv_heads=1)
SEQUENCES = [
    np.random.default_rng(i).integers(0, SMALL.vocab_size, CAPACITY).astype(np.int32) for i in range(SLOTS)
]


@pytest.fixture(autouse=True)
def narrow_columns(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Columns of a few positions, so that every sequence here crosses several."""
    init_cache.clear_cache()
    monkeypatch.setattr(module, "column_width", lambda capacity: WIDTH)
    yield
    init_cache.clear_cache()


@pytest.fixture(params=["cpu", "tpu"])
def columns_of(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Columns lie as on that platform."""
    monkeypatch.setattr(module, "platform", lambda: request.param)
    return request.param


def serving(config: ModelConfig = SMALL) -> Params:
    return serving_params(make_params(config), config)


def put(
    cache: KVCache, pieces: Mapping[int, tuple[int, int]], config: ModelConfig = SMALL, rows: int = SLOTS
) -> KVCache:
    """Slot s with SEQUENCES[s][start:end] for each s: (start, end), in one call of `rows` rows."""
    slots, tokens = np.full(rows, SLOTS, np.int32), np.full((rows, PIECE), 7, np.int32)
    starts, counts = np.zeros(rows, np.int32), np.ones(rows, np.int32)
    for i, (s, (a, b)) in enumerate(pieces.items()):
        slots[i], starts[i], counts[i] = s, a, b - a
        tokens[i, : b - a] = SEQUENCES[s][a:b]
    return prefill(serving(config), config, cache, slots, tokens, starts, counts)


def share(cache: KVCache, *copies: tuple[int, int, int]) -> KVCache:
    """Copies (source, target, length), in a call with spare rows."""
    spare = [(0, SLOTS, 0)] * (3 - len(copies))
    sources, targets, lengths = np.array([*copies, *spare], np.int32).T
    return copy_prefixes(cache, sources, targets, lengths)


def go_on(
    cache: KVCache, rows: Mapping[int, tuple[int, Sequence[int]]], config: ModelConfig = SMALL
) -> tuple[KVCache, dict[int, np.ndarray]]:
    """Runs STEPS tokens behind the first `length` positions of slot s, for each s: (length, tokens).

    The cache with them, and the logits [STEPS, V] that follow each.
    """
    lengths, tokens = np.zeros(SLOTS, np.int32), np.full((SLOTS, STEPS), 3, np.int32)
    counts = np.zeros(SLOTS, np.int32)
    for s, (length, new) in rows.items():
        lengths[s], counts[s], tokens[s, : len(new)] = length, len(new), new
    params, fresh, found = serving(config), init_fresh(config, SLOTS, STEPS), []
    for step in range(STEPS):
        fresh, hidden = _next(params, config, cache, fresh, tokens[:, step], lengths, np.int32(step))
        found.append(np.asarray(logits(params, config, hidden)))
    scores = np.stack(found, axis=1)
    return write(cache, fresh, lengths, counts), {s: scores[s, : counts[s]] for s in rows}


_next = jax.jit(next_token, static_argnums=1)


def arrays(cache: KVCache) -> np.ndarray:
    """[2 * layers, slots, kv_heads, capacity, head_dim]"""
    layers = [[c for a in arrays for c in np.asarray(a)] for arrays in (*cache.keys, *cache.values)]
    return np.stack([np.concatenate(columns, axis=2) for columns in layers])


@pytest.mark.parametrize("config", [SMALL, QWEN3, LLAMA], ids=["qwen2", "qwen3", "llama"])
def test_pieces_copies_and_single_tokens_give_the_logits_of_the_whole_sequence(
    config: ModelConfig, columns_of: str
) -> None:
    params, cache = make_params(config), init_cache(config, SLOTS, CAPACITY)
    together = {"cpu": [1] * (CAPACITY // WIDTH), "tpu": [CAPACITY // WIDTH]}[columns_of]
    assert (cache.slots, cache.capacity) == (SLOTS, CAPACITY)
    assert [len(array) for array in cache.keys[0]] == [len(array) for array in cache.values[0]] == together
    held = {s: SEQUENCES[s] for s in range(SLOTS)}  # what the slots hold, as far as they are filled

    def check(rows: Mapping[int, tuple[int, int]]) -> None:
        nonlocal cache
        cache, scores = go_on(cache, {s: (a, held[s][a:b].tolist()) for s, (a, b) in rows.items()}, config)
        for s, (a, b) in rows.items():
            wanted = reference.logits(params, config, held[s][:b])[a:]
            np.testing.assert_allclose(scores[s], wanted, atol=2e-4, rtol=1e-4)

    # Ragged pieces in any order of slots, in calls with spare rows, without, and for one slot alone.
    for pieces in ({3: (0, 7), 0: (0, 1)}, {1: (0, 8), 0: (1, 13), 3: (7, 19), 2: (0, 5)}, {1: (8, 10)}):
        cache = put(cache, pieces, config)
    check({0: (13, 16), 3: (19, 22), 1: (10, 12), 2: (5, 6)})
    check({0: (16, 19), 2: (6, 9)})  # the others stand still
    cache = put(cache, {3: (22, 31), 1: (12, 16)}, config)
    check({3: (31, 32), 1: (16, 18)})
    # A slot goes on from another one's beginning: within a column, to the end of one, and from nothing at all.
    cache = share(cache, (3, 2, 16), (0, 1, 11))
    held[2] = np.concatenate([SEQUENCES[3][:16], SEQUENCES[2][16:]])
    held[1] = np.concatenate([SEQUENCES[0][:11], SEQUENCES[1][11:]])
    cache = put(cache, {1: (11, 14)}, config)
    check({2: (16, 19), 1: (14, 17), 0: (0, 3)})
    check({2: (19, 20), 3: (31, 32)})


def test_a_piece_longer_than_a_block_of_queries() -> None:
    config, n = replace(SMALL, num_layers=1), module.QUERY_BLOCK + 20
    params, served = make_params(config), serving(config)
    whole = np.random.default_rng(0).integers(0, config.vocab_size, n + 31).astype(np.int32)
    cache, fresh = init_cache(config, 2, n + 31), init_fresh(config, 2, 1)
    one = np.ones(1, np.int32)
    for start, end in ((0, 30), (30, n + 30)):
        piece = np.zeros((1, n), np.int32)
        piece[0, : end - start] = whole[start:end]
        cache = prefill(served, config, cache, one, piece, one * start, one * (end - start))
    token, lengths = np.array([0, whole[-1]], np.int32), np.array([0, n + 30], np.int32)
    _, hidden = _next(served, config, cache, fresh, token, lengths, np.int32(0))
    wanted = reference.logits(params, config, whole)[-1]
    np.testing.assert_allclose(logits(served, config, hidden)[1], wanted, atol=2e-4, rtol=1e-4)


@pytest.mark.usefixtures("columns_of")
def test_padding_and_other_slots_are_never_written() -> None:
    cache = put(init_cache(SMALL, SLOTS, CAPACITY), {2: (0, 5)})
    before = arrays(cache)
    assert (np.abs(before[:, 2, :, :5]) > 0).all()
    assert not before[:, 2, :, 5:].any() and not before[:, [0, 1, 3]].any()
    cache = put(cache, {3: (0, 11), 2: (5, 10)})
    cache, _ = go_on(cache, {2: (10, [1]), 3: (11, [1, 2, 3])})
    after = arrays(cache)
    assert (np.abs(after[:, 3, :, :14]) > 0).all() and not after[:, 3, :, 14:].any()
    np.testing.assert_array_equal(after[:, :2], before[:, :2])
    np.testing.assert_array_equal(after[:, 2, :, :5], before[:, 2, :, :5])
    assert (np.abs(after[:, 2, :, :11]) > 0).all() and not after[:, 2, :, 11:].any()


@pytest.mark.usefixtures("columns_of")
def test_a_copy_changes_its_target_alone() -> None:
    cache = put(init_cache(SMALL, SLOTS, CAPACITY), {0: (0, 12), 1: (0, 9), 3: (0, 4)})
    before = arrays(cache)
    after = arrays(share(cache, (0, 2, 10), (1, 3, 3)))
    np.testing.assert_array_equal(after[:, :2], before[:, :2])
    np.testing.assert_array_equal(after[:, 2, :, :10], before[:, 0, :, :10])
    np.testing.assert_array_equal(after[:, 3, :, :3], before[:, 1, :, :3])


@pytest.mark.parametrize("rows", [SLOTS, 2])
def test_a_slot_gets_the_same_numbers_alone_and_among_others(rows: int) -> None:
    empty = init_cache(SMALL, SLOTS, CAPACITY)
    ways = [
        ({2: (0, 6)}, {2: (6, [1, 2, 3])}),
        ({3: (0, 12), 2: (0, 6)}, {2: (6, [1, 2, 3]), 3: (12, [4, 5])}),  # beside a longer one
        ({2: (0, 6), 0: (0, 1)}, {2: (6, [1, 2, 3]), 0: (1, [6])}),
    ]
    made = []
    for pieces, rows_on in ways:
        cache = put(jax.tree.map(jnp.copy, empty), pieces, rows=rows)
        cache, scores = go_on(cache, rows_on)
        made.append((arrays(cache)[:, 2], scores[2]))
    for cached, scores in made[1:]:
        np.testing.assert_array_equal(scores, made[0][1])
        np.testing.assert_array_equal(cached, made[0][0])


@settings(max_examples=25)
@given(
    st.lists(st.integers(0, 3 * WIDTH), min_size=SLOTS, max_size=SLOTS),
    st.lists(st.integers(0, SLOTS - 1), min_size=SLOTS, max_size=SLOTS),
    st.sampled_from([[1, 1, 1], [1, 2], [3]]),
    st.integers(0, 2**32),
)
def test_attention_sees_the_first_positions_of_its_slot_and_the_new_ones_it_is_shown(
    lengths: list[int], slots: list[int], together: list[int], seed: int
) -> None:
    rng = np.random.default_rng(seed)
    n, c, heads, kv_heads, h, r = SLOTS, 5, 4, 2, 8, 6

    def normal(*shape: int) -> np.ndarray:
        return rng.normal(0, 2, shape).astype(np.float32)

    q, fresh_k, fresh_v = normal(n, c, heads, h), normal(n, kv_heads, r, h), normal(n, kv_heads, r, h)
    keys, values = ([normal(n, kv_heads, WIDTH, h) for _ in range(3)] for _ in range(2))
    seen = rng.random((n, c, r)) < 0.5
    seen[..., 0] = True
    for rows in (None, np.array(slots, np.int32)):
        cut = np.cumsum(together)[:-1]
        lying = (np.split(np.stack(columns), cut) for columns in (keys, values))
        found = _attend(q, *lying, np.array(lengths, np.int32), fresh_k, fresh_v, seen, rows)
        for i in range(n):
            slot, length = i if rows is None else slots[i], lengths[i]
            k, v = (
                np.concatenate([np.concatenate(old, axis=2)[slot, :, :length], new[i]], axis=1)
                for old, new in ((keys, fresh_k), (values, fresh_v))
            )
            k, v = (np.repeat(a, heads // kv_heads, axis=0).astype(np.float64) for a in (k, v))
            scores = np.einsum("chd,htd->hct", q[i], k) / np.sqrt(h)
            visible = np.concatenate([np.ones((c, length), bool), seen[i]], axis=1)
            weights = reference.softmax(np.where(visible, scores, -np.inf))
            wanted = np.einsum("hct,htd->chd", weights, v).reshape(c, heads * h)
            np.testing.assert_allclose(found[i], wanted, atol=1e-4)


_attend = jax.jit(attend_cached)


def test_bfloat16_serving_keeps_norms_in_float32_and_agrees_with_the_training_pass() -> None:
    half = replace(QWEN3, dtype="bfloat16")
    served, params = serving(half), make_params(half)
    norms = {"input_norm", "post_norm", "q_norm", "k_norm"}
    assert {name for name, a in served["layers"][0].items() if a.dtype == jnp.float32} == norms
    assert served["final_norm"].dtype == jnp.float32 and served["embed"].dtype == jnp.bfloat16
    cache = init_cache(half, SLOTS, CAPACITY)
    assert {a.dtype for a in jax.tree.leaves(cache)} == {jnp.dtype(jnp.bfloat16)}
    _, scores = go_on(put(cache, {1: (0, 10)}, half), {1: (10, SEQUENCES[1][10:13].tolist())}, half)
    row = SEQUENCES[1][None, :13]
    hidden = hidden_states(params, half, row, np.arange(13)[None], np.ones((1, 13), np.int32))
    np.testing.assert_allclose(scores[1], logits(params, half, hidden)[0, 10:], atol=0.15)
