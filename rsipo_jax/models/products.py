"""Matrix products with float32 accumulation, and their gradients as each platform computes them best."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax


def product(a: jax.Array, b: jax.Array, over: tuple[int, int]) -> jax.Array:
    """a . b over dimension over[0] of `a` and over[1] of `b`, accumulated and returned in float32.

    The explicit accumulator is what sends bfloat16 products to the fast kernels of XLA:CPU on every JAX version.
    """
    return lax.dot_general(a, b, (((over[0],), (over[1],)), ((), ())), preferred_element_type=jnp.float32)


@jax.custom_vjp
def matmul(x: jax.Array, w: jax.Array) -> jax.Array:
    """x [..., K] . w [K, N] of one dtype, accumulated in float32 and returned in it."""
    return product(x, w, (x.ndim - 1, 0)).astype(x.dtype)


def _forward(x: jax.Array, w: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return matmul(x, w), (x, w)


def _backward(kept: tuple[jax.Array, jax.Array], gradient: jax.Array) -> tuple[jax.Array, jax.Array]:
    x, w = kept
    dx = product(gradient, w, (gradient.ndim - 1, 1)).astype(x.dtype)
    flat = gradient.reshape(-1, gradient.shape[-1])
    dw = product(transposed(x), flat, (1, 0)).astype(w.dtype)
    return dx, dw


matmul.defvjp(_forward, _backward)


def transposed(x: jax.Array) -> jax.Array:
    """x [..., T, K] as [K, ... * T], the left side of a product over tokens."""

    def plainly(x: jax.Array) -> jax.Array:
        return x.reshape(-1, x.shape[-1]).T

    def in_halves(x: jax.Array) -> jax.Array:
        # XLA:CPU folds a transposition into the product, whose bfloat16 kernel then takes two to five times as long. It
        # cannot fold what comes out of a loop.
        t, k = x.shape[-2:]
        halves = jnp.moveaxis(x.reshape(-1, 2, t // 2, k), 1, 0)
        turned = lax.map(lambda half: jnp.moveaxis(half, -1, 0), halves)  # [2, K, rows, T / 2]
        return jnp.moveaxis(turned, 0, 2).reshape(k, -1)

    if x.dtype != jnp.bfloat16 or x.ndim < 2 or x.shape[-2] % 2:
        return plainly(x)
    return lax.platform_dependent(x, cpu=in_halves, default=plainly)
