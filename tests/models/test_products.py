"""The product's own derivative against JAX's, whatever the shape: XLA:CPU takes another way for even lengths in bfloat16."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rsipo_jax.models.products import matmul


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("shape", [(6, 5), (7, 5), (2, 8, 5), (3, 7, 5)])
def test_gradients_are_those_of_the_plain_product(shape: tuple[int, ...], dtype: str) -> None:
    rng = np.random.default_rng(0)
    x, w, weight = (jnp.asarray(rng.normal(size=s), dtype) for s in (shape, (5, 4), (*shape[:-1], 4)))

    def pulled(product) -> tuple:  # type: ignore[no-untyped-def]
        out, pull = jax.vjp(product, x, w)
        return out, *pull(weight.astype(out.dtype))

    def plainly(x: jax.Array, w: jax.Array) -> jax.Array:
        return x.astype(jnp.float32) @ w.astype(jnp.float32)

    close = 1e-5 if dtype == "float32" else 2e-2
    for found, wanted in zip(jax.jit(lambda: pulled(matmul))(), pulled(plainly), strict=True):
        np.testing.assert_allclose(
            np.asarray(found, np.float32), np.asarray(wanted, np.float32), rtol=close, atol=close
        )
