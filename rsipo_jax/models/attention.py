"""Causal attention within the segments of packed rows, and attention over a cache.

Invariant: a token attends to the tokens of its own segment at or before it, nothing else. On a mesh every device
attends for its own rows and heads, without communication.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from rsipo_jax.parallel.sharding import TENSOR, axis_sizes, spec

NEGATIVE = -1e30  # a finite "minus infinity": fully masked rows give a uniform softmax instead of NaN
QUERY_BLOCK = 128  # queries of one attention block: its scores stay in cache, keys after it are skipped


def attend(q: jax.Array, k: jax.Array, v: jax.Array, mask: jax.Array) -> jax.Array:
    """Grouped-query attention. q [B, T, H, h]; k, v [B, K, S, h]; mask [B, T, S] bool. Returns [B, T, H * h]."""
    batch, t, heads, h = q.shape
    groups = heads // k.shape[1]
    q = q.reshape(batch, t, k.shape[1], groups, h)
    scores = jnp.einsum("btkgh,bksh->bkgts", q, k, preferred_element_type=jnp.float32) * h**-0.5
    probs = jax.nn.softmax(jnp.where(mask[:, None, None], scores, NEGATIVE), axis=-1).astype(v.dtype)
    # The transpose stands outside of the einsum: XLA:CPU has no bfloat16 kernel for the product in that order.
    out = jnp.einsum("bkgts,bksh->bkgth", probs, v, preferred_element_type=jnp.float32)
    return out.transpose(0, 3, 1, 2, 4).reshape(batch, t, heads * h).astype(q.dtype)


def attend_packed(
    q: jax.Array, k: jax.Array, v: jax.Array, segment_ids: jax.Array, implementation: str = "auto"
) -> jax.Array:
    """Causal attention within segments. q [B, T, H, h]; k, v [B, T, K, h]; segment_ids [B, T]. Returns [B, T, H * h]."""
    kernel = _in_blocks
    sizes = axis_sizes()
    if max(sizes.values(), default=1) == 1:
        return kernel(q, k, v, segment_ids)
    queries = spec(("batch", None, "heads", None), q.shape, sizes)
    if queries[2] is not None and (more := _copies(k.shape[2], sizes[TENSOR])) > 1:
        # A device needs the keys of its own query heads only: with fewer of them than devices, each gets a copy.
        k, v = jnp.repeat(k, more, axis=2), jnp.repeat(v, more, axis=2)
    keys = spec(("batch", None, "heads" if queries[2] is not None else None, None), k.shape, sizes)
    rows = spec(("batch", None), segment_ids.shape, sizes)
    return jax.shard_map(
        kernel, in_specs=(queries, keys, keys, rows), out_specs=type(queries)(*queries[:3]), check_vma=False
    )(q, k, v, segment_ids)


def _copies(kv_heads: int, devices: int) -> int:
    """How often each key/value head is repeated so that `devices` can share the heads evenly."""
    copies = 1
    while kv_heads * copies % devices:
        copies += 1
    return copies


def _in_blocks(q: jax.Array, k: jax.Array, v: jax.Array, segment_ids: jax.Array) -> jax.Array:
    """One row and one block of queries at a time, recomputed in the backward pass.

    No [B, H, T, T] array exists, and half of the scores (keys behind the block) are never computed.
    """
    t = q.shape[1]

    @jax.checkpoint
    def one_row(row: tuple[jax.Array, ...]) -> jax.Array:
        q, k, v, segments = (a[None] for a in row)
        k, v = k.swapaxes(1, 2), v.swapaxes(1, 2)
        blocks = []
        for start in range(0, t, QUERY_BLOCK):
            end = min(start + QUERY_BLOCK, t)
            causal = jnp.arange(end)[None, :] <= jnp.arange(start, end)[:, None]
            mask = causal & (segments[:, start:end, None] == segments[:, None, :end])
            blocks.append(attend(q[:, start:end], k[:, :, :end], v[:, :, :end], mask))
        return jnp.concatenate(blocks, axis=1)[0]

    return lax.map(one_row, (q, k, v, segment_ids))
