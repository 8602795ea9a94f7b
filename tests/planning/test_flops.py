"""The FLOP counter against counts by hand, and against XLA's of products that stand alone."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax import lax

from rsipo_jax.models.transformer import ModelConfig, hidden_states, init_params
from rsipo_jax.planning.estimate import attention_flops, useful_flops
from rsipo_jax.planning.flops import causal_share, count_flops
from rsipo_jax.planning.networks import PUBLISHED, matmul_params


def counted(f: Callable, *shapes: tuple[int, ...], turns: float = 1.0) -> float:
    arrays = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    return count_flops(jax.jit(f).trace(*arrays).jaxpr, turns=turns)


@pytest.mark.parametrize(
    ("equation", "shapes", "flops"),
    [
        ("mk,kn->mn", [(3, 5), (5, 7)], 2 * 3 * 5 * 7),
        ("bmk,bkn->bmn", [(2, 3, 5), (2, 5, 7)], 2 * 2 * 3 * 5 * 7),
        ("bthd,bshd->bhts", [(2, 6, 4, 8), (2, 6, 4, 8)], 2 * 2 * 4 * 6 * 6 * 8),
    ],
)
def test_a_product_by_hand_and_by_the_compiler(
    equation: str, shapes: list[tuple[int, ...]], flops: int
) -> None:
    def product(a: jax.Array, b: jax.Array) -> jax.Array:
        return jnp.einsum(equation, a, b)

    arrays = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    analysis = jax.jit(product).lower(*arrays).compile().cost_analysis()
    assert counted(product, *shapes) == flops == analysis["flops"]


def test_scans_count_every_turn_and_loops_on_data_one() -> None:
    w = jnp.eye(4)
    turn = 2 * 4 * 4 * 4

    def scanned(x: jax.Array) -> jax.Array:
        return lax.scan(lambda x, _: (x @ w, None), x, None, length=7)[0]

    def until(x: jax.Array) -> jax.Array:
        return lax.while_loop(lambda x: jnp.sum(x) < 1, lambda x: x @ w, x)

    def either(x: jax.Array) -> jax.Array:
        return lax.cond(jnp.sum(x) > 0, lambda x: x @ w @ w, lambda x: x @ w, x)

    assert counted(scanned, (4, 4)) == 7 * turn
    assert counted(until, (4, 4)) == turn
    assert counted(until, (4, 4), turns=16) == 16 * turn
    assert counted(scanned, (4, 4), turns=16) == 7 * turn
    assert counted(either, (4, 4)) == 2 * turn


def test_the_backward_pass_doubles_and_recomputation_adds_one() -> None:
    forward = 2 * 4 * 4 * 4

    def twice(x: jax.Array, w: jax.Array) -> jax.Array:
        return jnp.sum(jnp.tanh(jnp.tanh(x @ w) @ w))

    plain = counted(lambda x, w: jax.grad(twice, (0, 1))(x, w), (4, 4), (4, 4))
    again = counted(lambda x, w: jax.grad(jax.checkpoint(twice), (0, 1))(x, w), (4, 4), (4, 4))
    assert plain == 3 * 2 * forward
    assert again == 4 * 2 * forward


def test_a_part_of_a_mesh_counts_for_every_device() -> None:
    mesh = jax.make_mesh((1,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    whole = jax.sharding.PartitionSpec()

    def product(a: jax.Array) -> jax.Array:
        return jax.shard_map(lambda a: a @ a, mesh=mesh, in_specs=whole, out_specs=whole)(a)

    assert counted(product, (4, 4)) == 2 * 4**3


@given(st.integers(1, 12), st.integers(1, 12))
def test_causality_leaves_the_blocks_that_hold_a_score(queries: int, keys: int) -> None:
    n = queries * keys  # scores a side: both cut it evenly
    kept = {
        (q * queries // n, k * keys // n)
        for q in range(n)
        for k in (0, q)
        for k in range(k + 1 if k == q else 1)
    }
    assert causal_share(queries, keys) == pytest.approx(len(kept) / (queries * keys))


@pytest.mark.parametrize("scan", [True, False])
def test_a_network_counts_all_its_layers(scan: bool) -> None:
    model = ModelConfig(
        32, 16, 24, 3, 2, 1, 8, tie_embeddings=False, qkv_bias=False, scan_layers=scan, attention="xla"
    )
    rows, length = 2, 16
    params = jax.eval_shape(lambda: init_params(model, jax.random.key(0)))
    ids = jax.ShapeDtypeStruct((rows, length), jnp.int32)
    traced = jax.jit(hidden_states, static_argnums=1).trace(params, model, ids, ids, ids)
    tokens = rows * length
    layers = 2 * tokens * (matmul_params(model) - 32 * 16)
    # One block of queries: all scores are computed, not only those that causality leaves.
    scores = 2 * attention_flops(model, tokens, length)
    assert count_flops(traced.jaxpr) == layers + scores
    assert useful_flops(model, tokens, length, 0.25) == layers + 2 * tokens / 4 * 32 * 16 + scores / 2


def test_a_condition_counts_as_often_as_it_holds() -> None:
    def some(a: jax.Array) -> jax.Array:
        return jax.lax.cond(a[0, 0] > 0, lambda a: a @ a, lambda a: a, a)

    traced = jax.jit(some).trace(jax.ShapeDtypeStruct((4, 4), jnp.float32))
    assert count_flops(traced.jaxpr) == 2 * 4**3
    assert count_flops(traced.jaxpr, taken=0.25) == 2 * 4**3 / 4


def test_the_published_sizes_are_those_of_the_names() -> None:
    billions = {
        "HuggingFaceTB/SmolLM2-135M-Instruct": 0.1345, "HuggingFaceTB/SmolLM2-360M-Instruct": 0.3618,
        "HuggingFaceTB/SmolLM2-1.7B-Instruct": 1.711, "Qwen/Qwen2.5-0.5B-Instruct": 0.494,
        "Qwen/Qwen2.5-1.5B-Instruct": 1.544, "Qwen/Qwen2.5-3B-Instruct": 3.086, "Qwen/Qwen2.5-7B-Instruct": 7.616,
        "Qwen/Qwen3-0.6B": 0.596, "Qwen/Qwen3-1.7B": 1.721, "Qwen/Qwen3-4B": 4.022, "Qwen/Qwen3-8B": 8.191,
    }  # fmt: skip
    counted = {}
    for name, model in PUBLISHED.items():
        params = jax.eval_shape(lambda m=model: init_params(m, jax.random.key(0)))
        counted[name] = sum(a.size for a in jax.tree.leaves(params)) / 1e9
    assert counted == pytest.approx(billions, rel=2e-3)
