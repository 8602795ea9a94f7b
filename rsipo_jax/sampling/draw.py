"""Drawing tokens from logits, without a sort: filters are thresholds on logits, found by bisection.

Invariant: a draw is a function of the row's logits, its parameters and its random number; rows do not meet.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax import lax

BLOCK = 256  # tokens whose probabilities are summed before one of them is looked for
NOTHING = -np.inf

Array = jax.Array


@struct.dataclass
class Drawing:
    """How each row draws, see `Sampling`. NumPy arrays on the host."""

    temperature: Any  # float32 [n]
    top_k: Any  # int32 [n]
    top_p: Any  # float32 [n]
    min_p: Any  # float32 [n]


@struct.dataclass
class Drawn:
    token: Array  # int32 [n]
    logprob: Array  # float32 [n], under the distribution that was drawn from (temperature 0: as for 1)
    raw_logprob: Array  # float32 [n], under softmax(scores)


def draw(raw: Array, scores: Array, drawing: Drawing, uniform: Array) -> Drawn:
    """One token a row from its scores, which are the network's logits `raw` but for tokens that are forbidden (-inf).

    raw, scores float32 [n, V]; uniform float32 [n] in [0, 1).
    """
    greedy = drawing.temperature <= 0
    inverse = 1.0 / jnp.where(greedy, 1.0, drawing.temperature)
    some = jnp.any((drawing.top_k > 0) | (drawing.top_p < 1) | (drawing.min_p > 0))
    scores = lax.cond(
        some, lambda z: jnp.where(z >= threshold(z, drawing)[:, None], z, NOTHING), lambda z: z, scores
    )

    blocks = _in_blocks(scores)
    top = jnp.max(blocks, axis=(1, 2))

    def weights(z: Array) -> Array:
        return jnp.exp((z - top[:, None]) * inverse[:, None])

    sums = jnp.sum(jnp.exp((blocks - top[:, None, None]) * inverse[:, None, None]), axis=2)
    total = jnp.sum(sums, axis=1)
    block, passed = _find(sums, uniform * total)
    chosen = jnp.take_along_axis(blocks, block[:, None, None], axis=1)[:, 0]
    place, _ = _find(weights(chosen), uniform * total - passed)
    drawn = block * BLOCK + place
    token = lax.cond(
        jnp.any(greedy), lambda: jnp.where(greedy, jnp.argmax(scores, axis=1), drawn), lambda: drawn
    ).astype(jnp.int32)

    def of_token(z: Array) -> Array:
        return jnp.take_along_axis(z, token[:, None], axis=1)[:, 0]

    logprob = (of_token(scores) - top) * inverse - jnp.log(total)
    return Drawn(token, logprob, of_token(raw) - jax.nn.logsumexp(raw, axis=1))


def _in_blocks(scores: Array) -> Array:
    padding = -scores.shape[1] % BLOCK
    return jnp.pad(scores, ((0, 0), (0, padding)), constant_values=NOTHING).reshape(len(scores), -1, BLOCK)


def _find(weights: Array, target: Array) -> tuple[Array, Array]:
    """Where the cumulative weights [n, m] pass `target` [n], at a weight above 0, and their sum before."""
    sums = jnp.cumsum(weights, axis=1)
    passes = (sums > target[:, None]) & (weights > 0)
    # By rounding, sums may grow where a weight is 0, and the target may lie at or behind the end.
    last = weights.shape[1] - 1 - jnp.argmax(weights[:, ::-1] > 0, axis=1)
    place = jnp.where(jnp.any(passes, axis=1), jnp.argmax(passes, axis=1), last)
    before = jnp.take_along_axis(sums - weights, place[:, None], axis=1)[:, 0]
    return place, before


def threshold(scores: Array, drawing: Drawing) -> Array:
    """The lowest score float32 [n] that the filters of each row keep. scores float32 [n, V]."""
    top = jnp.max(scores, axis=1)
    scaled = (scores - top[:, None]) / jnp.where(drawing.temperature > 0, drawing.temperature, 1.0)[:, None]
    ordered = _ordered(scores)
    wanted = jnp.where(drawing.top_k > 0, drawing.top_k, scores.shape[1])
    k = _highest(ordered, lambda kept: jnp.sum(kept, axis=1) >= wanted)
    # As usual, top_p is a share of what top_k has kept.
    weights = jnp.where(ordered >= k[:, None], jnp.exp(scaled), 0.0)
    enough = jnp.where(drawing.top_p < 1, drawing.top_p * jnp.sum(weights, axis=1), jnp.inf)
    p = _highest(ordered, lambda kept: jnp.sum(jnp.where(kept, weights, 0.0), axis=1) >= enough)
    least = jnp.where(drawing.min_p > 0, jnp.log(drawing.min_p), -jnp.inf)
    m = jnp.min(jnp.where(scaled >= least[:, None], scores, jnp.inf), axis=1)
    return jnp.maximum(_scores(jnp.maximum(k, p)), m)


def _highest(ordered: Array, enough: Callable[[Array], Array]) -> Array:
    """The highest threshold int32 [n] at which what is kept of `ordered` [n, V] is enough; the lowest one if none is."""
    n = len(ordered)

    def halve(_: int, bounds: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = bounds
        middle = (low | high) - ((low ^ high) >> 1)  # of two integers, rounded up, without overflow
        good = enough(ordered >= middle[:, None])
        return jnp.where(good, middle, low), jnp.where(good, high, middle - 1)

    limits = jnp.iinfo(jnp.int32)
    low, _ = lax.fori_loop(0, 32, halve, (jnp.full(n, limits.min), jnp.full(n, limits.max)))
    return low


def _ordered(scores: Array) -> Array:
    """int32 in the order of the float32 scores."""
    bits = lax.bitcast_convert_type(scores, jnp.int32)
    return jnp.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


def _scores(ordered: Array) -> Array:
    """The inverse of `_ordered`; -inf for what is below all scores."""
    bits = jnp.where(ordered < 0, ordered ^ 0x7FFFFFFF, ordered)
    scores = lax.bitcast_convert_type(bits, jnp.float32)
    return jnp.where(jnp.isnan(scores), -jnp.inf, scores)
