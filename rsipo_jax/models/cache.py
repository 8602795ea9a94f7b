"""Keys and values of sequences that grow: slots by columns, and attention of new tokens over them.

A slot holds one sequence. The cache of a layer is cut into columns, each with so many consecutive positions of every
slot (`_together` says which of them share an array). While a program computes new tokens it only reads them: the keys
and values of the new tokens stand beside the cache, and are written into it in the end, once. So a column that no
sequence reaches costs nothing (a branch is not taken), the others are read where they lie, and nothing is ever copied
to grow.

Invariant: a slot's result depends on that slot alone. A position is written exactly at its own index, padding is never
written, and nothing at or behind a slot's length is seen, so neither padding nor neighbours can leak into a row.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax

from rsipo_jax.models.attention import NEGATIVE, kv_copies
from rsipo_jax.models.transformer import ModelConfig
from rsipo_jax.parallel.sharding import TENSOR, Names, axis_sizes, constrain, platform, spec

COLUMNS = 8  # of a cache, at most: each is a branch of its own in every layer of every program
COLUMN_MULTIPLE = 64  # positions
QUERY_BLOCK = 128  # new tokens of a sequence whose scores are computed at once: they stay in cache

Array = jax.Array
ROWS = ("batch",)
HEADS = ("batch", "kv_heads", None, None)
CACHED = (None, *HEADS)


@struct.dataclass
class KVCache:
    """Per layer, arrays of consecutive columns: [columns, slots, kv_heads, width, head_dim]."""

    keys: list[list[Array]]
    values: list[list[Array]]

    @property
    def slots(self) -> int:
        return self.keys[0][0].shape[1]

    @property
    def capacity(self) -> int:
        """Positions of a slot."""
        return sum(array.shape[0] * array.shape[3] for array in self.values[0])


@struct.dataclass
class Fresh:
    """Keys and values of R new tokens a row; row i continues one slot."""

    keys: list[Array]  # per layer: [n, kv_heads, R, head_dim]
    values: list[Array]


def column_width(capacity: int) -> int:
    """Positions of a column, for slots of at least `capacity`."""
    return max(2, math.ceil(capacity / COLUMNS / COLUMN_MULTIPLE)) * COLUMN_MULTIPLE


def _together(columns: int) -> list[int]:
    """How many of a layer's columns lie in each of its arrays.

    On TPU all in one, since the compiler moves arrays between its memories: a small one goes to VMEM whenever a program
    uses it, and back, also where the branch with the column is not taken or only a few positions are written. Elsewhere
    every column has its own: a part of a larger array would be copied before it is multiplied.
    """
    return [columns] if platform() == "tpu" else [1] * columns


@partial(jax.jit, static_argnums=(0, 1, 2))
def init_cache(config: ModelConfig, slots: int, capacity: int) -> KVCache:
    """An empty cache for `slots` sequences of up to `capacity` tokens, cut by slots and heads."""
    width = column_width(capacity)
    arrays = _together(math.ceil(capacity / width))

    def layers() -> list[list[Array]]:
        def zeros(columns: int) -> Array:
            shape = columns, slots, cached_heads(config), width, config.head_dim
            return constrain(jnp.zeros(shape, config.dtype), *CACHED)

        return [[zeros(columns) for columns in arrays] for _ in range(config.num_layers)]

    return KVCache(layers(), layers())


def init_fresh(config: ModelConfig, rows: int, tokens: int) -> Fresh:
    """Room for the keys and values of `tokens` new tokens a row."""
    zeros = jnp.zeros((rows, cached_heads(config), tokens, config.head_dim), config.dtype)
    layers = [constrain(zeros, *HEADS)] * config.num_layers
    return Fresh(layers, layers)


def cached_heads(config: ModelConfig) -> int:
    """Key/value heads in the cache: repeated, if there are fewer than devices that share the heads."""
    return config.num_kv_heads * _copies(config.num_kv_heads)


def _copies(kv_heads: int) -> int:
    return kv_copies(kv_heads, axis_sizes().get(TENSOR, 1))


def as_cached(k: Array, v: Array) -> tuple[Array, Array]:
    """Keys and values [n, T, K, h] of new tokens as `Fresh` has them."""
    k, v = (jnp.repeat(a.swapaxes(1, 2), _copies(a.shape[2]), axis=1) for a in (k, v))
    return constrain(k, *HEADS), constrain(v, *HEADS)


def attend_cached(
    q: Array,
    keys: list[Array],
    values: list[Array],
    lengths: Array,
    fresh_keys: Array,
    fresh_values: Array,
    seen: Array,
    slots: Array | None = None,
) -> Array:
    """Attention of new tokens over their slot's first `lengths` positions and over the new ones that they see.

    q [n, C, H, h]; lengths int32 [n]; keys, values, fresh ones as in `KVCache` and `Fresh`;
    seen bool [n, C, R], at least one a query. Row i continues slot `slots[i]` int32 (on a mesh: of its device's slots);
    None: the rows are all slots in order, whose columns are read in place. Returns [n, C, H * h].
    """

    def local(q: Array, lengths: Array, seen: Array, slots: Array | None, *cached: Any) -> Array:
        def read(column: Array) -> Array:
            return column if slots is None else column.at[slots].get(mode="clip")

        keys, values, fresh_keys, fresh_values = cached
        return _attend_rows(q, keys, values, fresh_keys, fresh_values, lengths, seen, read)

    return on_devices(
        local,
        (q.shape[0], q.shape[1], q.shape[2] * q.shape[3]),
        ("batch", None, "heads"),
        (q, ("batch", None, "heads", None)),
        (lengths, ROWS),
        (seen, ("batch", None, None)),
        (slots, ROWS),
        (keys, CACHED),
        (values, CACHED),
        (fresh_keys, HEADS),
        (fresh_values, HEADS),
    )


def on_devices(local: Callable, shape: Sequence[int], names: Names, *arguments: tuple[Any, Names]) -> Any:
    """`local` on every device's own rows, slots and heads. Arguments are trees of like arrays with their logical axes.

    What comes out are arrays of that shape, with those axes.
    """
    sizes = axis_sizes()
    trees = [tree for tree, _ in arguments]
    if max(sizes.values(), default=1) == 1:
        return local(*trees)
    into = [
        spec(names, leaves[0].shape, sizes) if (leaves := jax.tree.leaves(tree)) else None
        for tree, names in arguments
    ]
    return jax.shard_map(local, in_specs=tuple(into), out_specs=spec(names, shape, sizes), check_vma=False)(
        *trees
    )


def _attend_rows(
    q: Array,
    keys: list[Array],
    values: list[Array],
    fresh_keys: Array,
    fresh_values: Array,
    lengths: Array,
    seen: Array,
    read: Callable[[Array], Array],
) -> Array:
    """As `attend_cached`; `read` gives these rows of a column."""
    n, c, heads, h = q.shape
    kv_heads = fresh_keys.shape[1]
    groups = heads // kv_heads
    q = q.reshape(n, c, kv_heads, groups, h).transpose(0, 2, 3, 1, 4)
    longest, width = jnp.max(lengths), values[0].shape[3]
    columns = [(k, v, i) for k, v in zip(keys, values, strict=True) for i in range(k.shape[0])]
    blocks = []
    for first in range(0, c, QUERY_BLOCK):
        block = q[:, :, :, first : first + QUERY_BLOCK]
        size = block.shape[3]
        block = block.reshape(n, kv_heads, groups * size, h)
        sums = _nothing(block)
        for index, (k, v, i) in enumerate(columns):
            start = index * width

            def add(
                sums: Sums, k: Array = k, v: Array = v, i: int = i, block: Array = block, start: int = start
            ) -> Sums:
                visible = start + jnp.arange(width) < lengths[:, None]
                return _add(sums, block, read(k[i]), read(v[i]), visible[:, None, None, :])

            # The column is taken out of its array inside of the branch, where the product may read it in place.
            sums = lax.cond(start < longest, add, lambda sums: sums, sums)
        visible = jnp.tile(seen[:, first : first + size], (1, groups, 1))[:, None]
        _, total, out = _add(sums, block, fresh_keys, fresh_values, visible)
        out = (out / total).astype(q.dtype).reshape(n, kv_heads, groups, size, h)
        blocks.append(out.transpose(0, 3, 1, 2, 4).reshape(n, size, heads * h))
    return jnp.concatenate(blocks, axis=1)


# Of a softmax over keys that come in parts (see blocks.py): highest score, sum of weights, weighted sum of values.
Sums = tuple[Array, Array, Array]


def _nothing(q: Array) -> Sums:
    none = jnp.zeros((*q.shape[:3], 1))
    return none + NEGATIVE, none, jnp.zeros(q.shape)


def _add(sums: Sums, q: Array, k: Array, v: Array, visible: Array) -> Sums:
    """q [n, K, M, h]; k, v [n, K, T, h]; visible [n, 1, M or 1, T]."""
    highest, total, out = sums
    scores = _product("nkmh,nkth->nkmt", q, k) * q.shape[-1] ** -0.5
    scores = jnp.where(visible, scores, NEGATIVE)
    higher = jnp.maximum(highest, scores.max(axis=-1, keepdims=True))
    weights, shrink = jnp.exp(scores - higher), jnp.exp(highest - higher)
    # Where nothing is visible yet, every weight is 1; the first visible key shrinks them to nothing.
    out = out * shrink + _product("nkmt,nkth->nkmh", weights.astype(v.dtype), v)
    return higher, total * shrink + weights.sum(axis=-1, keepdims=True), out


def _product(axes: str, a: Array, b: Array) -> Array:
    return jnp.einsum(axes, a, b, preferred_element_type=jnp.float32)


def write(cache: KVCache, fresh: Fresh, starts: Array, counts: Array, slots: Array | None = None) -> KVCache:
    """The cache with the first `counts` new tokens of every row at its slot's positions from `starts` on.

    starts, counts, slots int32 [n], slots as in `attend_cached`; one out of range is a row of padding.
    """

    def local(layers: list, fresh: list[Array], starts: Array, counts: Array, slots: Any) -> Any:
        index = jnp.arange(fresh[0].shape[2])
        positions = jnp.where(index < counts[:, None], starts[:, None] + index, -1)
        rows = jnp.arange(len(starts)) if slots is None else slots
        return [_write(arrays, new, rows, positions) for arrays, new in zip(layers, fresh, strict=True)]

    def written(layers: list, fresh: list[Array]) -> Any:
        rows = (starts, ROWS), (counts, ROWS), (slots, ROWS)
        return on_devices(local, layers[0][0].shape, CACHED, (layers, CACHED), (fresh, HEADS), *rows)

    return KVCache(written(cache.keys, fresh.keys), written(cache.values, fresh.values))


def _write(arrays: list[Array], new: Array, rows: Array, positions: Array) -> list[Array]:
    written, start = [], 0
    rows, new = rows[:, None], new.swapaxes(1, 2)
    for array in arrays:
        columns, width = array.shape[0], array.shape[3]
        own = (positions >= start) & (positions < start + columns * width)
        column = jnp.where(own, (positions - start) // width, columns)  # out of range: dropped
        written.append(array.at[column, rows, :, positions % width].set(new, mode="drop"))
        start += columns * width
    return written


def copy(cache: KVCache, sources: Array, targets: Array, lengths: Array) -> KVCache:
    """The cache with (at least) the first `lengths` positions of slot `sources[i]` in slot `targets[i]` too.

    All int32 [n], slots as in `attend_cached`; a target out of range is padding. No target is a source.
    """

    def local(layers: list, sources: Array, targets: Array, lengths: Array) -> Any:
        return [_copy(arrays, sources, targets, lengths) for arrays in layers]

    def copied(layers: list) -> Any:
        rows = (sources, ROWS), (targets, ROWS), (lengths, ROWS)
        return on_devices(local, layers[0][0].shape, CACHED, (layers, CACHED), *rows)

    return KVCache(copied(cache.keys), copied(cache.values))


def _copy(arrays: list[Array], sources: Array, targets: Array, lengths: Array) -> list[Array]:
    copied, start = [], 0
    for array in arrays:
        columns, width = array.shape[0], array.shape[3]
        index = jnp.arange(columns)[:, None]
        into = jnp.where(lengths > start + index * width, targets, array.shape[1])  # out of range: dropped
        copied.append(array.at[index, into].set(array[:, sources], mode="drop"))
        start += columns * width
    return copied
