"""Causal attention within the segments of packed rows, and attention over a cache.

Packed rows have three implementations: "xla", in blocks, anywhere; "splash", a Pallas kernel, on TPU; "cudnn" on CUDA
GPUs. "auto" takes the platform's. A program that is compiled ahead of time for another machine names its own.

Invariant: a token attends to the tokens of its own segment at or before it, nothing else. On a mesh every device
attends for its own rows and heads, without communication.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from rsipo_jax.models import blocks, splash
from rsipo_jax.parallel.sharding import TENSOR, axis_sizes, spec
from rsipo_jax.validation import ConfigError

# What a policy of `jax.checkpoint` must save by name, so that the backward pass does not attend once more to find it.
ATTENTION_RESIDUALS = "attention_residuals"
NEGATIVE = -1e30  # a finite "minus infinity": fully masked rows give a uniform softmax instead of NaN
CUDNN_LARGEST_HEAD = 128  # channels of a head; more need a Hopper GPU

Kernel = Callable[[jax.Array, jax.Array, jax.Array, jax.Array], jax.Array]


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
    """Causal attention within segments. q [B, T, H, h]; k, v [B, T, K, h]; segment_ids [B, T]. Returns [B, T, H * h].

    Raises ConfigError for an implementation that does not exist, or that cannot take these arrays.
    """
    kernel = _kernel(implementation, q)
    sizes = axis_sizes()
    if max(sizes.values(), default=1) == 1:
        return kernel(q, k, v, segment_ids)
    queries = spec(("batch", None, "heads", None), q.shape, sizes)
    if queries[2] is not None and (more := kv_copies(k.shape[2], sizes[TENSOR])) > 1:
        # A device needs the keys of its own query heads only: with fewer of them than devices, each gets a copy.
        k, v = jnp.repeat(k, more, axis=2), jnp.repeat(v, more, axis=2)
    keys = spec(("batch", None, "heads" if queries[2] is not None else None, None), k.shape, sizes)
    rows = spec(("batch", None), segment_ids.shape, sizes)
    return jax.shard_map(
        kernel, in_specs=(queries, keys, keys, rows), out_specs=type(queries)(*queries[:3]), check_vma=False
    )(q, k, v, segment_ids)


def kv_copies(kv_heads: int, devices: int) -> int:
    """How often each key/value head is repeated so that `devices` can share the heads evenly."""
    copies = 1
    while kv_heads * copies % devices:
        copies += 1
    return copies


def _kernel(implementation: str, q: jax.Array) -> Kernel:
    """The implementation of that name; for "auto" that of JAX's platform.

    cuDNN computes in 16 bits only: on a GPU, "auto" sends float32 and unusual heads to "xla".
    """
    if implementation == "auto":
        if jax.default_backend() == "tpu":
            implementation = "splash"
        elif _is_cuda() and _cudnn_takes(q):
            implementation = "cudnn"
        else:
            implementation = "xla"
    if implementation not in KERNELS:
        raise ConfigError(
            f"model.attention={implementation!r} is not one of {', '.join(ATTENTION)}: choose one"
        )
    if implementation == "cudnn" and not _cudnn_takes(q):
        raise ConfigError(
            f"model.attention='cudnn' computes in 16 bits with heads of 8, 16, ... {CUDNN_LARGEST_HEAD} channels, not in "
            f"{q.dtype} with heads of {q.shape[-1]}: set model.dtype='bfloat16', or model.attention='xla'"
        )
    return KERNELS[implementation]


def _is_cuda() -> bool:
    return jax.default_backend() == "gpu" and "cuda" in jax.devices()[0].client.platform_version


def _cudnn_takes(q: jax.Array) -> bool:
    h = q.shape[-1]
    return q.dtype in (jnp.bfloat16, jnp.float16) and h % 8 == 0 and h <= CUDNN_LARGEST_HEAD


def _flash(
    q: jax.Array, k: jax.Array, v: jax.Array, segment_ids: jax.Array, implementation: Any
) -> jax.Array:
    """JAX's attention; as "cudnn" a fused kernel that holds no scores but takes the segments as a bias [B, 1, T, T].

    That bias is two bytes a pair of tokens, 32 MiB for a row of 4,096, shared by the heads.
    """
    batch, t, heads, h = q.shape
    even = [(0, 0), (0, t % 2)]  # cuDNN's backward pass takes even lengths only
    q, k, v = (jnp.pad(x, [*even, (0, 0), (0, 0)]) for x in (q, k, v))
    ids = jnp.pad(segment_ids, even)
    same = ids[:, None, :, None] == ids[:, None, None, :]
    out = jax.nn.dot_product_attention(q, k, v, mask=same, is_causal=True, implementation=implementation)
    return out.reshape(batch, -1, heads * h)[:, :t]


KERNELS: Mapping[str, Kernel] = {
    "xla": partial(blocks.attend, residuals=ATTENTION_RESIDUALS),
    "splash": partial(splash.attend, residuals=ATTENTION_RESIDUALS),
    "cudnn": partial(_flash, implementation="cudnn"),
}
ATTENTION = ("auto", *KERNELS)
