"""Attention of 8 devices against one, forward and backward: run by test_attention_on_meshes.py in its own process."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import jax
import numpy as np

from rsipo_jax.models import attention
from rsipo_jax.models.attention import attend_packed
from rsipo_jax.parallel.sharding import make_mesh, place, sharding

ROWS, LENGTH, HEAD_DIM = 8, 150, 8
QUERIES, KEYS, OUTPUT, IDS = (
    ("batch", None, "heads", None),
    ("batch", None, "kv_heads", None),
    ("batch", None, "heads"),
    ("batch", None),
)
COLLECTIVES = "all-gather", "all-reduce", "all-to-all", "collective-permute", "reduce-scatter"


def program(implementation: str) -> tuple[Callable, Callable]:
    """Jitted output, and gradients of q, k and v."""

    def forward(q: jax.Array, k: jax.Array, v: jax.Array, segments: jax.Array) -> jax.Array:
        return attend_packed(q, k, v, segments, implementation)

    def backward(*arrays: jax.Array) -> tuple[jax.Array, ...]:
        *qkv, segments, g = arrays
        return jax.vjp(lambda *x: forward(*x, segments), *qkv)[1](g)

    return jax.jit(forward), jax.jit(backward)


def check(mesh_shape: tuple[int, int, int], heads: int, kv_heads: int, implementation: str) -> None:
    rng = np.random.default_rng(heads)
    q, k, v = (
        rng.normal(size=(ROWS, LENGTH, n, HEAD_DIM)).astype(np.float32) for n in (heads, kv_heads, kv_heads)
    )
    g = rng.normal(size=(ROWS, LENGTH, heads * HEAD_DIM)).astype(np.float32)
    segments = np.sort(rng.integers(1, 5, (ROWS, LENGTH)), axis=1).astype(np.int32)
    segments[:, -20:] = 0
    forward, backward = program(implementation)
    wanted = forward(q, k, v, segments), *backward(q, k, v, segments, g)

    mesh = make_mesh(*mesh_shape)
    with jax.set_mesh(mesh):
        placed = place(q, *QUERIES), place(k, *KEYS), place(v, *KEYS), place(segments, *IDS)
        forward, backward = program(implementation)
        compiled = forward.lower(*placed).compile()
        found = compiled(*placed), *backward(*placed, place(g, *OUTPUT))
    case = f"{implementation} on {mesh_shape} with {heads}/{kv_heads} heads"
    assert not any(word in compiled.as_text() for word in COLLECTIVES), f"{case} communicates"
    # Heads that the devices cannot share evenly are attended to by all of them.
    names = OUTPUT if heads % mesh_shape[2] == 0 else ("batch", None, None)
    layout = sharding(mesh, names, g.shape)
    assert found[0].sharding.is_equivalent_to(layout, g.ndim), f"{case}: {found[0].sharding}"
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5, rtol=1e-5, err_msg=case)


assert jax.device_count() == 8
check((4, 2, 1), 8, 2, "xla")
check((1, 1, 8), 8, 2, "xla")  # more devices than key/value heads
check((2, 2, 2), 6, 3, "xla")  # a number of key/value heads that the devices cannot share
check((2, 1, 4), 6, 3, "xla")  # nor these query heads
attention.KERNELS = {"splash": partial(attention.KERNELS["splash"], interpret=True)}
check((2, 1, 4), 8, 2, "splash")
