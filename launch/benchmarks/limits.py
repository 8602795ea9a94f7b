"""What a machine can do at most, measured, and how long a decode step or a prefill takes at that."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rsipo_jax.models.products import product
from rsipo_jax.models.transformer import ModelConfig

ARRAY_BYTES = 1 << 30  # read for the bandwidth: far more than any cache holds
READS, PRODUCTS = 8, 5  # repetitions, of which the fastest counts
# Bytes/s of a device's memory, by a part of its name; the vendors' data sheets.
BANDWIDTHS: Mapping[str, float] = {
    "H200": 4.8e12,
    "H100": 3.35e12,
    "A100": 2.04e12,
    "v4": 1.2e12,
    "v5 lite": 0.82e12,  # v5e
    "v5": 2.77e12,  # v5p
    "v6": 1.64e12,
}


def read_bandwidth(array_bytes: int = ARRAY_BYTES) -> float:
    """Bytes/s that all cores read together: each has a thread that squares and sums its part of one float32 array.

    The loop is that of BLAS, which reads everything once and writes nothing.
    """
    array, cores = np.ones(array_bytes // 4, np.float32), len(os.sched_getaffinity(0))
    parts = np.array_split(array, cores)
    with ThreadPoolExecutor(cores) as pool:
        seconds = _fastest(lambda: list(pool.map(lambda part: np.dot(part, part), parts)), READS)
    return array.nbytes / seconds


def products_of(config: ModelConfig) -> list[tuple[int, int, int]]:
    """(in, out, how many) of the matrices that a token is multiplied with; those with one input count as one."""
    c = config
    heads, kv = c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim
    layer = [
        (c.hidden_size, heads + 2 * kv),
        (heads, c.hidden_size),
        (c.hidden_size, 2 * c.intermediate_size),
        (c.intermediate_size, c.hidden_size),
    ]
    return [(k, n, c.num_layers) for k, n in layer] + [(c.hidden_size, c.vocab_size, 1)]


def product_rate(config: ModelConfig, rows: int, dtype: str) -> float:
    """FLOP/s of JAX's matrix products at the network's shapes for `rows` tokens, weights in the layout of a checkpoint."""
    flops = seconds = 0.0
    multiply = jax.jit(lambda x, w: product(x, w, (1, 1)))
    for k, n, count in products_of(config):
        x, w = jnp.ones((rows, k), dtype), jnp.ones((n, k), dtype)
        _ready(multiply, x, w)  # compiles
        fastest = _fastest(partial(_ready, multiply, x, w), PRODUCTS)
        flops, seconds = flops + 2.0 * rows * k * n * count, seconds + fastest * count
    return flops / seconds


def _ready(do: Callable[..., jax.Array], *arguments: jax.Array) -> None:
    do(*arguments).block_until_ready()


def _fastest(do: Callable[[], Any], times: int) -> float:
    best = float("inf")
    for _ in range(times):
        start = time.perf_counter()
        do()
        best = min(best, time.perf_counter() - start)
    return best


@dataclass(frozen=True)
class Needs:
    """What a piece of work needs at least."""

    bytes_read: float
    flops: float

    def seconds(self, bandwidth: float, flop_rate: float) -> float:
        """The binding limit: the slower of reading everything and computing everything."""
        return max(self.bytes_read / bandwidth, self.flops / flop_rate)


def decode_step(config: ModelConfig, batch: int, context: float, itemsize: int = 2) -> Needs:
    """One token for each of `batch` sequences of `context` tokens: every weight once, and every sequence's keys and values."""
    c = config
    weights = sum(k * n * count for k, n, count in products_of(c))
    cached = batch * context * 2 * c.num_layers * c.num_kv_heads * c.head_dim
    return Needs(itemsize * (weights + cached), batch * (2 * weights + _attention_flops(c, context)))


def prefill(config: ModelConfig, batch: int, prompt: int, itemsize: int = 2) -> Needs:
    """`batch` prompts, with the head for the last token of each only."""
    c = config
    *body, (k, n, _) = products_of(c)
    matrices = sum(k * n * count for k, n, count in body)
    flops = batch * (prompt * (2.0 * matrices + _attention_flops(c, prompt / 2)) + 2.0 * k * n)
    return Needs(itemsize * (matrices + k * n), flops)


def _attention_flops(config: ModelConfig, context: float) -> float:
    """Of one token: scores against `context` keys and the mean of as many values, 2 FLOPs each."""
    return 4.0 * context * config.num_layers * config.num_heads * config.head_dim


def device_bandwidth(kind: str) -> float | None:
    """Of an accelerator by its name, None for one that the table lacks."""
    known = [bandwidth for name, bandwidth in BANDWIDTHS.items() if name.lower() in kind.lower()]
    return known[0] if known else None
