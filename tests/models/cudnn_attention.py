"""cuDNN's attention against the one in blocks, forward and backward: run by test_attention.py where a GPU is."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from rsipo_jax.models.attention import attend_packed

ROWS, LENGTH, HEADS, KV_HEADS, HEAD_DIM = 2, 301, 6, 2, 64


@jax.jit(static_argnames="implementation")
def attention_and_gradients(
    q: jax.Array, k: jax.Array, v: jax.Array, g: jax.Array, segments: jax.Array, implementation: str
) -> tuple[jax.Array, ...]:
    out, backward = jax.vjp(lambda *x: attend_packed(*x, segments, implementation), q, k, v)
    return out, *backward(g)


rng = np.random.default_rng(0)
shapes = [(ROWS, LENGTH, n, HEAD_DIM) for n in (HEADS, KV_HEADS, KV_HEADS)] + [
    (ROWS, LENGTH, HEADS * HEAD_DIM)
]
arrays = [jnp.asarray(rng.normal(size=shape), jnp.bfloat16) for shape in shapes]
segments = np.repeat([[1, 2, 0]], [150, 100, 51], axis=1).repeat(ROWS, axis=0).astype(np.int32)
found = attention_and_gradients(*arrays, segments, implementation="cudnn")
wanted = attention_and_gradients(*arrays, segments, implementation="xla")
for a, b in zip(found, wanted, strict=True):
    np.testing.assert_allclose(a.astype(jnp.float32), b.astype(jnp.float32), atol=0.05, rtol=0.05)
