"""Causal attention within the segments of packed rows in plain JAX, a block of scores at a time; its loops suit CPUs.

FlashAttention-2 (https://arxiv.org/abs/2307.08691): the softmax is summed up block by block of keys, and the backward
pass computes the scores again from the log-sum-exp that the forward pass leaves. No [T, T] array exists. Blocks of keys
behind the queries, or before the first token of their segments, are never computed.
"""

from __future__ import annotations

import math
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name

LARGEST_BLOCK = 128  # of queries and of keys: the scores of a block stay in cache
MULTIPLE = 16  # of which blocks are, for the vector units
NEGATIVE = -1e30  # a finite "minus infinity": rows that are masked so far must not turn into NaN

# Arrays of one row: queries [n, K, G * block, h], where the G heads that share keys lie one after the other; keys and
# values [n, K, block, h]; segments [n, block]. `i` is a block of queries and `j` one of keys.


def block_size(length: int, largest: int, multiple: int) -> int:
    """The block, at most `largest`, that cuts `length` into the fewest blocks, and of these the smallest."""
    blocks = math.ceil(length / largest)
    return math.ceil(length / (blocks * multiple)) * multiple


def attend(q: jax.Array, k: jax.Array, v: jax.Array, segment_ids: jax.Array, residuals: str) -> jax.Array:
    """Causal attention within segments. q [B, T, H, h]; k, v [B, T, K, h]; segment_ids [B, T]. Returns [B, T, H * h].

    What the backward pass needs and cannot cheaply compute again, the output and the log-sum-exp of the scores, carries
    `residuals` as its name for policies of `jax.checkpoint`.
    """
    batch, t, heads, h = q.shape
    kv_heads = k.shape[2]
    block = block_size(t, LARGEST_BLOCK, MULTIPLE)
    n = math.ceil(t / block)

    def cut(x: jax.Array) -> jax.Array:
        # Rows are filled up at their end, where causality hides it.
        x = jnp.pad(x, [(0, 0), (0, n * block - t)] + [(0, 0)] * (x.ndim - 2))
        return x.reshape(batch, n, block, *x.shape[2:])

    q = cut(q).reshape(batch, n, block, kv_heads, heads // kv_heads, h).transpose(0, 1, 3, 4, 2, 5)
    q = q.reshape(batch, n, kv_heads, -1, h)
    k, v = (cut(x).swapaxes(2, 3) for x in (k, v))
    out = _attend(q, k, v, cut(segment_ids), residuals)
    out = out.reshape(batch, n, kv_heads, heads // kv_heads, block, h).transpose(0, 1, 4, 2, 3, 5)
    return out.reshape(batch, n * block, heads * h)[:, :t]


@partial(jax.custom_vjp, nondiff_argnums=(4,))
def _attend(q: jax.Array, k: jax.Array, v: jax.Array, segments: jax.Array, residuals: str) -> jax.Array:
    return _forward(q, k, v, segments, residuals)[0]


def _forward(
    q: jax.Array, k: jax.Array, v: jax.Array, segments: jax.Array, residuals: str
) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    out, logsumexp = (checkpoint_name(x, residuals) for x in lax.map(_forward_row, (q, k, v, segments)))
    return out, (q, k, v, segments, out, logsumexp)


def _backward(
    residuals: str, saved: tuple[jax.Array, ...], gradient: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array, None]:
    dq, dk, dv = lax.map(_backward_row, (*saved, gradient))
    return dq, dk, dv, None


_attend.defvjp(_forward, _backward)


def _forward_row(row: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
    """Output [n, K, G * block, h] of one row, and log-sum-exp of the scores [n, K, G * block, 1]."""
    q, k, v, segments = row
    first = _first_keys(segments)

    def queries(i: jax.Array) -> tuple[jax.Array, jax.Array]:
        def keys(j: jax.Array, sums: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
            highest, total, out = sums
            scores = jnp.where(_seen(q, segments, i, j), _scores(q[i], k[j]), NEGATIVE)
            higher = jnp.maximum(highest, scores.max(axis=-1, keepdims=True))
            weights, shrink = jnp.exp(scores - higher), jnp.exp(highest - higher)
            out = out * shrink + _product("kqs,ksh->kqh", weights.astype(v.dtype), v[j])
            return higher, total * shrink + weights.sum(axis=-1, keepdims=True), out

        none = jnp.zeros((*q.shape[1:3], 1))
        start = none + NEGATIVE, none, jnp.zeros(q.shape[1:])
        highest, total, out = lax.fori_loop(first[i], i + 1, keys, start)
        return (out / total).astype(q.dtype), highest + jnp.log(total)

    return lax.map(queries, jnp.arange(len(q)))


def _backward_row(row: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Gradients of the queries, keys and values of one row, given that of its output."""
    q, k, v, segments, out, logsumexp, gradient = row
    first = _first_keys(segments)
    # Of a softmax p: ds = p (dp - sum p dp), and the sum is that of the output times its gradient.
    mean = (out.astype(jnp.float32) * gradient.astype(jnp.float32)).sum(axis=-1, keepdims=True)

    def queries(
        dkv: tuple[jax.Array, jax.Array], i: jax.Array
    ) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
        def keys(j: jax.Array, sums: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
            dq, dk, dv = sums
            probs = jnp.where(_seen(q, segments, i, j), jnp.exp(_scores(q[i], k[j]) - logsumexp[i]), 0.0)
            dprobs = _product("kqh,ksh->kqs", gradient[i], v[j])
            dscores = (probs * (dprobs - mean[i]) * q.shape[-1] ** -0.5).astype(q.dtype)
            dq += _product("kqs,ksh->kqh", dscores, k[j])
            dk = dk.at[j].add(_product("kqs,kqh->ksh", dscores, q[i]))
            dv = dv.at[j].add(_product("kqs,kqh->ksh", probs.astype(q.dtype), gradient[i]))
            return dq, dk, dv

        dq, dk, dv = lax.fori_loop(first[i], i + 1, keys, (jnp.zeros(q.shape[1:]), *dkv))
        return (dk, dv), dq.astype(q.dtype)

    (dk, dv), dq = lax.scan(queries, (jnp.zeros(k.shape), jnp.zeros(v.shape)), jnp.arange(len(q)))
    return dq, dk.astype(k.dtype), dv.astype(v.dtype)


def _first_keys(segments: jax.Array) -> jax.Array:
    """A block of keys [n] before which none has a token of the segments of each block of queries.

    It is the first whose span of segment ids meets that of the queries, and so the best one for ids in ascending order.
    """
    ordered = jnp.where(segments == 0, jnp.iinfo(segments.dtype).max, segments)  # padding is last in its row
    low, high = ordered.min(axis=1), ordered.max(axis=1)
    return jnp.argmax((low[:, None] <= high) & (low <= high[:, None]), axis=1)


def _seen(q: jax.Array, segments: jax.Array, i: jax.Array, j: jax.Array) -> jax.Array:
    """Which keys [G * block, block] the queries attend to."""
    block = segments.shape[1]
    at = jnp.arange(block)
    causal = (i * block + at)[:, None] >= j * block + at
    return jnp.tile(causal & (segments[i][:, None] == segments[j]), (q.shape[2] // block, 1))


def _scores(q: jax.Array, k: jax.Array) -> jax.Array:
    return _product("kqh,ksh->kqs", q, k) * q.shape[-1] ** -0.5


def _product(axes: str, a: jax.Array, b: jax.Array) -> jax.Array:
    return jnp.einsum(axes, a, b, preferred_element_type=jnp.float32)
