"""Causal attention within the segments of packed rows on TPU: the "splash" kernel of JAX's Pallas operations.

The kernel keeps a block of scores at a time on chip, in float32, and skips the blocks that causality empties. It wants
lengths in whole blocks of a multiple of 128, so rows are filled up at their end, where causality hides it. Its
multi-query form attends with the query heads of one key/value head, so keys and values are never repeated.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

from rsipo_jax.models.blocks import block_size

LANES = 128  # of a TPU's vector registers: blocks are multiples of it
LARGEST_BLOCK = 512  # of queries and of keys


def attend(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    segment_ids: jax.Array,
    residuals: str,
    interpret: bool = False,
) -> jax.Array:
    """Causal attention within segments. q [B, T, H, h]; k, v [B, T, K, h]; segment_ids [B, T]. Returns [B, T, H * h].

    What the backward pass needs and cannot cheaply compute again, the output and the log-sum-exp of the scores, carries
    `residuals` as its name for policies of `jax.checkpoint`. `interpret` runs the kernel without a TPU, for tests.
    """
    batch, t, heads, h = q.shape
    kv_heads = k.shape[2]
    block = block_size(t, LARGEST_BLOCK, LANES)
    padding = -t % block

    def padded(x: jax.Array) -> jax.Array:
        return jnp.pad(x, [(0, 0), (0, padding)] + [(0, 0)] * (x.ndim - 2))

    # The kernel does not scale the scores.
    q = (q.astype(jnp.float32) * h**-0.5).astype(q.dtype)
    q = padded(q).reshape(batch, -1, kv_heads, heads // kv_heads, h).transpose(0, 2, 3, 1, 4)
    k, v = (padded(x).swapaxes(1, 2) for x in (k, v))
    ids = padded(segment_ids)
    kernel = _kernel(heads // kv_heads, t + padding, block, residuals, interpret)
    one_row = jax.vmap(kernel, in_axes=(0, 0, 0, None))
    out = jax.vmap(one_row)(q, k, v, splash.SegmentIds(ids, ids))  # [B, K, H / K, T + padding, h]
    return out.transpose(0, 3, 1, 2, 4).reshape(batch, t + padding, heads * h)[:, :t]


def _kernel(heads: int, length: int, block: int, residuals: str, interpret: bool) -> Callable[..., jax.Array]:
    """The kernel of q [heads, length, h] and k, v [length, h]."""
    # The fused backward kernel leaves q's gradient in one part per block of keys, to be summed: larger ones, fewer parts.
    keys = 2 * block if length % (2 * block) == 0 else block
    sizes = splash.BlockSizes(
        block_q=block,
        block_kv=block,
        block_q_dkv=block,
        block_kv_dkv=keys,
        block_kv_dkv_compute=block,
        use_fused_bwd_kernel=True,
    )
    mask = masks.MultiHeadMask([masks.CausalMask((length, length))] * heads)
    return splash.make_splash_mqa_single_device(
        mask, block_sizes=sizes, residual_checkpoint_name=residuals, interpret=interpret
    )
