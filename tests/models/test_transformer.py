"""The network against numpy: packing, padding, blocks of attention, architecture switches, log-probs and gradients."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import combinations
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rsipo_jax.models import blocks, vocabulary
from rsipo_jax.models.transformer import ModelConfig, Params, hidden_states, init_params
from rsipo_jax.models.vocabulary import embed_tokens, logits, token_logprobs
from rsipo_jax.planning.flops import count_flops
from tests.models import reference
from tests.models.reference import SMALL, make_params

LENGTH = 40
VARIANTS = {
    "qwen2": SMALL,
    "qwen2, scanned": replace(SMALL, scan_layers=True),
    "qwen3": replace(SMALL, qk_norm=True, qkv_bias=False, head_dim=12),
    "llama, untied": replace(SMALL, qkv_bias=False, tie_embeddings=False, rope_theta=500.0),
}
ROWS = st.lists(
    st.lists(st.integers(1, LENGTH), max_size=6).filter(lambda n: sum(n) <= LENGTH), min_size=2, max_size=2
)
IDS = np.random.default_rng(1).integers(0, SMALL.vocab_size, (2, LENGTH)).astype(np.int32)


def packed(rows: Sequence[Sequence[int]], width: int = LENGTH) -> tuple[np.ndarray, np.ndarray]:
    """Positions and segment ids [rows, width] of segments with these lengths."""
    positions, segments = np.zeros((len(rows), width), np.int32), np.zeros((len(rows), width), np.int32)
    for r, lengths in enumerate(rows):
        at = 0
        for segment, n in enumerate(lengths, 1):
            positions[r, at : at + n], segments[r, at : at + n] = np.arange(n), segment
            at += n
    return positions, segments


def all_logits(config: ModelConfig) -> Callable[..., jax.Array]:
    """A fresh jitted function, so that patched constants of the module are read anew."""

    def forward(params: Params, tokens: jax.Array, positions: jax.Array, segments: jax.Array) -> jax.Array:
        return logits(params, config, hidden_states(params, config, tokens, positions, segments))

    return jax.jit(forward)


forward = cache(all_logits)


@given(rows=ROWS)
@pytest.mark.parametrize("name", ["qwen2", "qwen3"])
def test_segments_of_packed_rows_are_sequences_of_their_own(name: str, rows: list[list[int]]) -> None:
    config, params = VARIANTS[name], make_params(VARIANTS[name])
    found = np.asarray(forward(config)(params, IDS, *packed(rows)))
    for r, lengths in enumerate(rows):
        ends = np.cumsum(lengths, dtype=int)
        for start, end in zip(ends - lengths, ends, strict=True):
            wanted = reference.logits(params, config, IDS[r, start:end])
            np.testing.assert_allclose(found[r, start:end], wanted, atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize("name", VARIANTS)
def test_every_architecture_is_the_one_of_the_reference(name: str) -> None:
    config, params = VARIANTS[name], make_params(VARIANTS[name])
    found = np.asarray(forward(config)(params, IDS, *packed([[LENGTH], [LENGTH]])))
    for row, tokens in zip(found, IDS, strict=True):
        np.testing.assert_allclose(row, reference.logits(params, config, tokens), atol=2e-4, rtol=1e-4)


@given(rows=ROWS, seed=st.integers(0, 2**31))
def test_padding_changes_nothing_whatever_its_ids(rows: list[list[int]], seed: int) -> None:
    params = make_params(SMALL)
    positions, segments = packed(rows)
    other = np.where(segments > 0, IDS, np.random.default_rng(seed).integers(0, SMALL.vocab_size, IDS.shape))
    found = [
        np.asarray(forward(SMALL)(params, ids.astype(np.int32), positions, segments)) for ids in (IDS, other)
    ]
    np.testing.assert_array_equal(found[0][segments > 0], found[1][segments > 0])
    assert np.isfinite(found[1]).all()


def test_a_longer_row_of_padding_gives_the_same_numbers() -> None:
    params, rows = make_params(SMALL), [[7, 12], [25]]
    wide = np.pad(IDS, ((0, 0), (0, 30)))
    short = np.asarray(forward(SMALL)(params, IDS, *packed(rows)))
    long = np.asarray(forward(SMALL)(params, wide, *packed(rows, LENGTH + 30)))[:, :LENGTH]
    _, segments = packed(rows)
    np.testing.assert_allclose(long[segments > 0], short[segments > 0], atol=2e-4)


def test_rows_do_not_see_one_another() -> None:
    params = make_params(SMALL)
    positions, segments = packed([[7, 12], [25]])
    found = forward(SMALL)(params, IDS, positions, segments)
    swapped = forward(SMALL)(params, IDS[::-1], positions[::-1], segments[::-1])
    np.testing.assert_array_equal(found, swapped[::-1])


def test_scanned_layers_are_the_unrolled_ones_and_so_are_their_gradients() -> None:
    params, (positions, segments) = make_params(SMALL), packed([[15, 20], [31]])

    def loss(params: Params, config: ModelConfig) -> jax.Array:
        hidden = hidden_states(params, config, IDS, positions, segments)
        logprobs, entropy = token_logprobs(
            params, config, hidden, jnp.roll(IDS, -1, axis=1), segments > 0, 0.7
        )
        return jnp.sum(jnp.where(segments > 0, logprobs + 0.3 * entropy, 0.0))

    both = [
        jax.jit(jax.value_and_grad(partial(loss, config=replace(SMALL, scan_layers=s))))(params)
        for s in (0, 1)
    ]
    jax.tree.map(partial(np.testing.assert_allclose, rtol=2e-3, atol=2e-3), *both)


def test_a_long_row_uses_several_blocks_of_the_real_size() -> None:
    length = 2 * blocks.LARGEST_BLOCK + 5
    ids = np.random.default_rng(3).integers(0, SMALL.vocab_size, (1, length)).astype(np.int32)
    params, cut = make_params(SMALL), blocks.LARGEST_BLOCK - 20
    found = np.asarray(forward(SMALL)(params, ids, *packed([[cut, length - cut]], length)))[0]
    np.testing.assert_allclose(
        found[:cut], reference.logits(params, SMALL, ids[0, :cut]), atol=2e-4, rtol=1e-4
    )
    np.testing.assert_allclose(
        found[cut:], reference.logits(params, SMALL, ids[0, cut:]), atol=2e-4, rtol=1e-4
    )


@pytest.mark.parametrize("temperature", [1.0, 0.4, 1.7])
def test_log_probabilities_and_entropy_at_a_temperature(temperature: float) -> None:
    params = make_params(SMALL)
    hidden = np.random.default_rng(0).normal(size=(2, 9, SMALL.hidden_size)).astype(np.float32)
    targets = np.random.default_rng(1).integers(0, SMALL.vocab_size, (2, 9)).astype(np.int32)
    scores = hidden.astype(np.float64) @ np.asarray(params["embed"], np.float64).T
    p = reference.softmax(scores / temperature)
    wanted = np.log(np.take_along_axis(p, targets[..., None], axis=-1))[..., 0]
    found, entropy = token_logprobs(
        params, SMALL, jnp.asarray(hidden), jnp.asarray(targets), np.ones((2, 9), bool), temperature
    )
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(entropy, -(p * np.log(p)).sum(axis=-1), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("tokens", [7, 9, 512])
@pytest.mark.parametrize("share", [0.0, 0.4, 1.0])
def test_the_gradient_of_the_head_is_that_of_its_formula(
    tokens: int, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chunks that divide the tokens, leave some over, and hold all of them; none, some and all wanted."""
    monkeypatch.setattr(vocabulary, "CHUNK", tokens)
    rng = np.random.default_rng(tokens)
    wanted = rng.random((2, 9)) < share
    hidden = rng.normal(size=(2, 9, SMALL.hidden_size)).astype(np.float32)
    targets = rng.integers(0, SMALL.vocab_size, (2, 9)).astype(np.int32)
    weight = rng.normal(size=(2, 2, 9)).astype(np.float32)

    def plainly(params: Params, hidden: jax.Array) -> tuple[jax.Array, jax.Array]:
        log_p = jax.nn.log_softmax(hidden @ params["embed"].T / 0.7, axis=-1)
        chosen = jnp.take_along_axis(log_p, targets[..., None], axis=-1)[..., 0]
        entropy = -jnp.sum(jnp.exp(log_p) * log_p, axis=-1)
        return jnp.where(wanted, chosen, 0.0), jnp.where(wanted, entropy, 0.0)

    def in_chunks(params: Params, hidden: jax.Array) -> tuple[jax.Array, jax.Array]:
        return token_logprobs(params, SMALL, hidden, jnp.asarray(targets), jnp.asarray(wanted), 0.7)

    def pulled(head: Callable[..., tuple[jax.Array, jax.Array]]) -> tuple[Any, ...]:
        out, pull = jax.vjp(head, {"embed": make_params(SMALL)["embed"]}, jnp.asarray(hidden))
        return out, pull((jnp.asarray(weight[0]), jnp.asarray(weight[1])))

    jax.tree.map(
        partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5), pulled(in_chunks), pulled(plainly)
    )


def test_no_array_has_rows_length_and_vocabulary() -> None:
    """Neither forward nor backward, with more tokens than a chunk holds."""
    wide = replace(SMALL, vocab_size=997, scan_layers=True)
    tokens = np.zeros((4, 300), np.int32)

    def loss(params: Params) -> jax.Array:
        hidden = hidden_states(params, wide, tokens, tokens, tokens + 1)
        logprobs, entropy = token_logprobs(params, wide, hidden, jnp.asarray(tokens), tokens == 0)
        return jnp.sum(logprobs) + jnp.sum(entropy)

    program = str(jax.make_jaxpr(jax.grad(loss))(init_params(wide, jax.random.key(0))))
    sizes = {int(n) for n in re.findall(r"f32\[(?:\d+,)*?(\d+),997\]", program)}
    assert sizes and max(sizes) <= vocabulary.CHUNK < tokens.size
    assert not re.search(r"\[\d+,300,997\]", program)


def test_embeddings_are_rows_of_the_table_and_their_gradients_add_up() -> None:
    table = make_params(SMALL)["embed"]
    tokens = np.asarray([[3, 3, 0], [60, 3, 0]], np.int32)
    gradient = np.random.default_rng(0).normal(size=(2, 3, SMALL.hidden_size)).astype(np.float32)
    found, pull = jax.vjp(lambda t: embed_tokens({"embed": t}, SMALL, jnp.asarray(tokens)), table)
    np.testing.assert_array_equal(found, np.asarray(table)[tokens])
    wanted = np.zeros_like(table)
    np.add.at(wanted, tokens, gradient)
    np.testing.assert_allclose(pull(jnp.asarray(gradient))[0], wanted, rtol=1e-6)


@pytest.mark.parametrize("scan_layers", [False, True])
@pytest.mark.parametrize("remat", ["none", "dots"])
def test_what_a_layer_keeps_changes_no_gradient(remat: str, scan_layers: bool) -> None:
    params, (positions, segments) = make_params(SMALL), packed([[15, 20], [31]])

    def gradient(config: ModelConfig) -> Params:
        def loss(params: Params) -> jax.Array:
            return jnp.sum(hidden_states(params, config, IDS, positions, segments) ** 2)

        return jax.jit(jax.grad(loss))(params)

    both = [gradient(replace(SMALL, remat=r, scan_layers=scan_layers)) for r in ("full", remat)]
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-3, atol=1e-3), *both)


@pytest.mark.parametrize(("remat", "passes"), [("none", 3), ("dots", 3), ("full", 4)])
def test_only_full_rematerialisation_multiplies_by_the_weights_again(remat: str, passes: int) -> None:
    """Products of tokens and weights in the gradient: forward, two backward, and those that are computed again."""
    config = replace(SMALL, remat=remat, scan_layers=True)
    positions, segments = packed([[15, 20], [31]])

    def loss(params: Params) -> jax.Array:
        return jnp.sum(hidden_states(params, config, IDS, positions, segments) ** 2)

    program = jax.jit(jax.grad(loss)).trace(make_params(SMALL)).jaxpr
    n, c = IDS.size, SMALL
    weights = (
        2 * c.hidden_size * (c.num_heads + c.num_kv_heads) * c.head_dim
        + 3 * c.hidden_size * c.intermediate_size
    )
    with_attention = count_flops(program)
    by_weights = passes * c.num_layers * 2 * n * weights
    if remat == "full":  # what a layer gives is not needed to go back through it
        by_weights -= c.num_layers * 2 * n * c.hidden_size * c.intermediate_size
    attention = with_attention - by_weights
    # Attention of these rows, one block of queries: forward 2 products, backward 5, and 2 again under "full".
    block = IDS.shape[0] * 48 * 48 * 2 * c.num_heads * c.head_dim
    assert attention == (9 if remat == "full" else 7) * block * c.num_layers


@pytest.mark.parametrize("name", ["qwen2", "qwen3", "llama, untied"])
def test_gradients_are_the_slopes_of_the_reference(name: str) -> None:
    """Along a random direction of every parameter, by central differences of the float64 network in NumPy."""
    config, rng = VARIANTS[name], np.random.default_rng(0)
    params, tokens = make_params(config), IDS[0, :12]
    weight = rng.normal(size=(len(tokens), config.vocab_size))
    ids, places = jnp.asarray(tokens[None]), jnp.arange(len(tokens))[None]

    def loss(params: Params) -> jax.Array:
        hidden = hidden_states(params, config, ids, places, jnp.ones_like(ids))
        return jnp.sum(jnp.asarray(weight, jnp.float32) * logits(params, config, hidden)[0])

    def slope(leaf: tuple[Any, ...], direction: np.ndarray) -> float:
        def moved(step: float) -> float:
            there = jax.tree_util.tree_map_with_path(
                lambda path, a: np.asarray(a, np.float64) + (step * direction if path == leaf else 0.0),
                params,
            )
            return float(np.sum(weight * reference.logits(there, config, tokens)))

        return (moved(1e-5) - moved(-1e-5)) / 2e-5

    for leaf, grad in jax.tree_util.tree_flatten_with_path(jax.jit(jax.grad(loss))(params))[0]:
        direction = rng.normal(size=grad.shape)
        found = float(np.sum(np.asarray(grad, np.float64) * direction))
        assert found == pytest.approx(slope(leaf, direction), rel=2e-3, abs=2e-2), leaf


def test_bfloat16_stays_close_to_float32() -> None:
    params, rows = init_params(SMALL, jax.random.key(0)), packed([[20, 20], [40]])
    half = forward(replace(SMALL, dtype="bfloat16"))(params, IDS, *rows)
    full = forward(SMALL)(params, IDS, *rows)
    assert half.dtype == jnp.float32  # logits are accumulated and kept in float32
    np.testing.assert_allclose(half, full, atol=0.05 * float(jnp.max(jnp.abs(full))))
    assert not np.allclose(half, full, atol=1e-4)


def test_fresh_matrices_are_drawn_independently() -> None:
    params = init_params(replace(SMALL, tie_embeddings=False), jax.random.key(0))
    names = ("wq", "wk", "wv", "wo", "w_gate", "w_up", "w_down")
    drawn = {
        **{n: params["layers"][n] for n in names},
        "embed": params["embed"],
        "lm_head": params["lm_head"],
    }
    for (a, x), (b, y) in combinations(drawn.items(), 2):
        n = min(x.size, y.size)
        assert abs(np.corrcoef(np.ravel(x)[:n], np.ravel(y)[:n])[0, 1]) < 0.15, (a, b)
    assert np.std(params["lm_head"]) == pytest.approx(SMALL.hidden_size**-0.5, rel=0.1)
