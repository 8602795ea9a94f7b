"""The cache: extending and decoding give the logits of the whole sequence and touch only their slots and positions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rsipo_jax.models.decode import KVCache, decode, extend, init_cache, sample_token, serving_params
from rsipo_jax.models.transformer import ModelConfig, Params, hidden_states
from rsipo_jax.models.vocabulary import logits
from tests.models import reference
from tests.models.reference import SMALL, make_params

SLOTS, CAPACITY, CHUNK, MAX_NEW = 4, 32, 8, 6
QWEN3 = replace(SMALL, qk_norm=True, qkv_bias=False, tie_embeddings=False)
SEQUENCES = [
    np.random.default_rng(i).integers(0, SMALL.vocab_size, 24).astype(np.int32) for i in range(SLOTS)
]


def serving(config: ModelConfig = SMALL) -> Params:
    return serving_params(make_params(config), config)


def put(
    cache: KVCache, pieces: Mapping[int, tuple[int, int]], config: ModelConfig = SMALL, rows: int = SLOTS
) -> tuple[KVCache, dict[int, np.ndarray]]:
    """Extends slot s by SEQUENCES[s][start:end] for each s: (start, end), in one call of `rows` rows."""
    slots, tokens = np.full(rows, SLOTS, np.int32), np.full((rows, CHUNK), 7, np.int32)
    start, count = np.zeros(rows, np.int32), np.ones(rows, np.int32)
    for i, (s, (a, b)) in enumerate(pieces.items()):
        slots[i], start[i], count[i] = s, a, b - a
        tokens[i, : b - a] = SEQUENCES[s][a:b]
    cache, scores = extend(serving(config), config, cache, slots, tokens, start, count)
    return cache, {s: np.asarray(scores[i]) for i, s in enumerate(pieces)}


def arrays(cache: KVCache) -> np.ndarray:
    """[2 * layers, slots, kv_heads, capacity, head_dim]"""
    return np.stack([np.asarray(a) for a in (*cache.keys, *cache.values)])


@pytest.mark.parametrize("config", [SMALL, QWEN3], ids=["qwen2", "qwen3"])
def test_pieces_and_single_tokens_give_the_logits_of_the_whole_sequence(config: ModelConfig) -> None:
    params = make_params(config)
    cache, at = init_cache(config, SLOTS, CAPACITY), dict.fromkeys(range(SLOTS), 0)
    # Ragged pieces in any order of slots, in calls with spare rows, without, and for one slot alone.
    for ends in ({3: 8, 0: 1, 2: 5}, {1: 7, 0: 9, 3: 9, 2: 13}, {2: 14, 3: 17, 1: 8}, {2: 15}):
        cache, scores = put(cache, {s: (at[s], end) for s, end in ends.items()}, config)
        at |= ends
        for s, end in ends.items():
            wanted = reference.logits(params, config, SEQUENCES[s][:end])[-1]
            np.testing.assert_allclose(scores[s], wanted, atol=2e-4, rtol=1e-4)


def test_prefill_in_chunks_is_prefill_at_once() -> None:
    cache, _ = put(init_cache(SMALL, SLOTS, CAPACITY), {1: (0, 8), 2: (0, 3)})
    cache, (in_chunks) = put(cache, {2: (3, 8), 1: (8, 9)})
    whole, at_once = put(init_cache(SMALL, SLOTS, CAPACITY), {2: (0, 8)})
    np.testing.assert_allclose(in_chunks[2], at_once[2], atol=5e-5)
    np.testing.assert_allclose(arrays(cache)[:, 2], arrays(whole)[:, 2], atol=5e-5)


def test_padding_and_other_slots_are_never_written() -> None:
    cache, _ = put(init_cache(SMALL, SLOTS, CAPACITY), {2: (0, 5)})
    before = arrays(cache)
    assert (np.abs(before[:, 2, :, :5]) > 0).all()
    assert not before[:, 2, :, 5:].any() and not before[:, [0, 1, 3]].any()
    cache, _ = put(cache, {3: (0, 8), 2: (5, 7)})
    after = arrays(cache)
    assert (np.abs(after[:, 3, :, :8]) > 0).all() and not after[:, 3, :, 8:].any()
    np.testing.assert_array_equal(after[:, :2], before[:, :2])
    np.testing.assert_array_equal(after[:, 2, :, :5], before[:, 2, :, :5])
    assert not after[:, 2, :, 7:].any()


@pytest.mark.parametrize("rows", [SLOTS, 2])
def test_a_slot_gets_the_same_numbers_alone_and_among_others(rows: int) -> None:
    _, alone = put(init_cache(SMALL, SLOTS, CAPACITY), {2: (0, 6)}, rows=rows)
    _, among = put(init_cache(SMALL, SLOTS, CAPACITY), {3: (0, 8), 2: (0, 6)}, rows=rows)
    _, first = put(init_cache(SMALL, SLOTS, CAPACITY), {2: (0, 6), 0: (0, 1)}, rows=rows)
    np.testing.assert_array_equal(alone[2], among[2])
    np.testing.assert_array_equal(alone[2], first[2])


def test_decoding_samples_what_the_whole_sequence_predicts_and_leaves_idle_slots_alone() -> None:
    prompts, limits, temperature = {0: 5, 1: 8, 3: 2}, np.array([6, 3, 0, 1], np.int32), 0.7
    cache, scores = put(
        init_cache(SMALL, SLOTS, CAPACITY), {s: (0, n) for s, n in (prompts | {2: 4}).items()}
    )
    before = arrays(cache)
    lengths = np.array([5, 8, 0, 2], np.int32)
    all_scores = jnp.asarray(np.stack([scores[s] for s in range(SLOTS)]))
    keys = jax.random.split(jax.random.key(0), SLOTS)
    cache, out = decode(
        serving(), SMALL, MAX_NEW, (), cache, all_scores, lengths, limits, keys, jnp.float32(temperature)
    )
    np.testing.assert_array_equal(out.counts, limits)
    after = arrays(cache)
    np.testing.assert_array_equal(after[:, 2], before[:, 2])
    for s, n in prompts.items():
        m = limits[s]
        tokens = np.concatenate([SEQUENCES[s][:n], out.tokens[s, :m]])
        wanted = reference.token_logprobs(make_params(SMALL), SMALL, tokens, temperature)[n:]
        np.testing.assert_allclose(out.logprobs[s, :m], wanted, atol=1e-4)
        assert not np.any(out.tokens[s, m:]) and not np.any(out.logprobs[s, m:])
        # The prompt is kept, every token but the last is cached, and nothing lies behind it.
        np.testing.assert_array_equal(after[:, s, :, :n], before[:, s, :, :n])
        assert (np.abs(after[:, s, :, : n + m - 1]) > 0).all() and not after[:, s, :, n + m - 1 :].any()


def test_greedy_takes_the_likeliest_token_with_its_log_probability_at_temperature_one() -> None:
    scores = np.random.default_rng(0).normal(size=(5, 11)).astype(np.float32)
    keys = jax.random.split(jax.random.key(1), 5)
    token, logprob = sample_token(jnp.asarray(scores), keys, jnp.int32(3), jnp.float32(0.0))
    np.testing.assert_array_equal(token, scores.argmax(axis=-1))
    np.testing.assert_allclose(logprob, np.log(reference.softmax(scores).max(axis=-1)), rtol=1e-5)


def test_bfloat16_serving_keeps_norms_in_float32_and_agrees_with_the_training_pass() -> None:
    half = replace(QWEN3, dtype="bfloat16")
    served, params = serving(half), make_params(half)
    norms = {"input_norm", "post_norm", "q_norm", "k_norm"}
    assert {name for name, a in served["layers"][0].items() if a.dtype == jnp.float32} == norms
    assert served["final_norm"].dtype == jnp.float32 and served["embed"].dtype == jnp.bfloat16
    _, scores = put(init_cache(half, SLOTS, CAPACITY), {1: (0, 8)}, half)
    row = SEQUENCES[1][None, :8]
    hidden = hidden_states(params, half, row, np.arange(8)[None], np.ones((1, 8), np.int32))
    np.testing.assert_allclose(scores[1], logits(params, half, hidden)[0, -1], atol=0.15)
