"""The two ends of the network, where arrays have the size of the vocabulary: embeddings, logits, log-probabilities.

The last matrix product makes vocabulary-sized rows, far larger than anything before it. `token_logprobs` goes over the
tokens that it is asked for in chunks, keeps two numbers of each row, and computes the chunk again in the backward pass,
where the gradient of the logits has a closed form. Gradients of the tables are summed in float32 over all tokens of a
device. On a mesh every device works on its own rows and its own part of the vocabulary; what is exchanged is written out
here: a table once in each direction, and for each token its embedding and a few numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec

from rsipo_jax.models.products import product, transposed
from rsipo_jax.parallel.sharding import DATA, FSDP, TENSOR, axis_sizes, spec

if TYPE_CHECKING:
    from rsipo_jax.models.transformer import ModelConfig, Params

CHUNK = 512  # tokens whose logits a device holds at once: enough to keep a matrix unit busy on its table
Array = jax.Array


def embed_tokens(params: Params, config: ModelConfig, tokens: Array) -> Array:
    """Embeddings [B, T, D], in the compute dtype, of tokens int32 [B, T]."""
    return _embed(params["embed"].astype(config.dtype), tokens)


@jax.custom_vjp
def _embed(table: Array, tokens: Array) -> Array:
    table_spec, rows, cut = _layout(table, tokens.shape)

    def local(table: Array, tokens: Array) -> Array:
        own, place = _places(tokens, table.shape[0], cut)
        return _across(lax.psum, jnp.where(own[..., None], _gather(table, table_spec)[place], 0), cut)

    return _on_mesh(local, (table_spec, rows), PartitionSpec(*rows, None))(table, tokens)


def _embed_forward(table: Array, tokens: Array) -> tuple[Array, tuple[Array, Array]]:
    return _embed(table, tokens), (table, tokens)


def _embed_backward(kept: tuple[Array, Array], gradient: Array) -> tuple[Array, None]:
    table, tokens = kept
    table_spec, rows, cut = _layout(table, tokens.shape)

    def local(tokens: Array, gradient: Array, like: Array) -> Array:
        own, place = _places(tokens, like.shape[0], cut)
        total = jnp.zeros((like.shape[0], gradient.shape[-1]), jnp.float32)
        total = total.at[place].add(jnp.where(own[..., None], gradient, 0).astype(jnp.float32))
        return _scatter(total.astype(gradient.dtype), table_spec, rows)

    into = rows, PartitionSpec(*rows, None), table_spec
    return _on_mesh(local, into, table_spec)(tokens, gradient, table), None


_embed.defvjp(_embed_forward, _embed_backward)


def output_table(params: Params, config: ModelConfig) -> Array:
    """The matrix [V, D] that turns hidden states into logits."""
    return params["embed"] if config.tie_embeddings else params["lm_head"]


def logits(params: Params, config: ModelConfig, hidden: Array) -> Array:
    """Float32 logits [..., V] of hidden states [..., D]."""
    return product(hidden, output_table(params, config).astype(hidden.dtype), (hidden.ndim - 1, 1))


def token_logprobs(
    params: Params,
    config: ModelConfig,
    hidden: Array,
    targets: Array,
    wanted: Array,
    temperature: float = 1.0,
) -> tuple[Array, Array]:
    """Log-probability of `targets` and entropy (nats) of softmax(logits / temperature), float32 [B, T], where `wanted`.

    hidden [B, T, D], targets int32 [B, T], wanted bool [B, T]; elsewhere both are 0. No [B, T, V] array exists in either
    direction, and unless all are wanted not all logits are computed: of an agent's tokens most are read, not sampled.
    """
    table = output_table(params, config).astype(hidden.dtype)
    return _logprobs(temperature, table, hidden, targets, wanted)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _logprobs(
    temperature: float, table: Array, hidden: Array, targets: Array, wanted: Array
) -> tuple[Array, Array]:
    return _forward(temperature, table, hidden, targets, wanted)[0]


def _forward(
    temperature: float, table: Array, hidden: Array, targets: Array, wanted: Array
) -> tuple[tuple[Array, Array], tuple]:
    table_spec, rows, cut = _layout(table, hidden.shape)

    def local(table: Array, hidden: Array, targets: Array, wanted: Array) -> tuple[Array, ...]:
        table = _gather(table, table_spec)

        def chunk(out: tuple[Array, ...], at: Array) -> tuple[Array, ...]:
            h, target = _take((hidden, targets), at)
            z = product(h, table, (1, 1)) / temperature
            top = _across(lax.pmax, jnp.max(z, axis=-1), cut)
            weights = jnp.exp(z - top[:, None])
            total = _across(lax.psum, jnp.sum(weights, axis=-1), cut)
            mean = _across(lax.psum, jnp.sum(weights * z, axis=-1), cut) / total
            own, place = _places(target, table.shape[0], cut)
            chosen = jnp.take_along_axis(z, place[:, None], axis=-1)[:, 0]
            chosen = _across(lax.psum, jnp.where(own, chosen, 0.0), cut)
            normaliser = top + jnp.log(total)
            new = chosen - normaliser, normaliser - mean, normaliser
            return tuple(a.at[at].set(b, mode="drop") for a, b in zip(out, new, strict=True))

        zeros = jnp.zeros(targets.size, jnp.float32)
        out = _over_wanted(chunk, (zeros, zeros, zeros), wanted)
        return tuple(a.reshape(targets.shape) for a in out)

    into = (table_spec, PartitionSpec(*rows, None), rows, rows)
    logprobs, entropy, normaliser = _on_mesh(local, into, (rows, rows, rows))(table, hidden, targets, wanted)
    return (logprobs, entropy), (table, hidden, targets, wanted, normaliser, entropy)


def _backward(
    temperature: float, kept: tuple, gradients: tuple[Array, Array]
) -> tuple[Array, Array, None, None]:
    """With p = softmax(z): d logp_y / dz = 1[y] - p and dH / dz = -p (log p + H), both / temperature."""
    table, hidden, targets, wanted, normaliser, entropy = kept
    table_spec, rows, cut = _layout(table, hidden.shape)
    states = PartitionSpec(*rows, None)

    def local(table: Array, hidden: Array, wanted: Array, *per_token: Array) -> tuple[Array, Array]:
        whole = _gather(table, table_spec)

        def chunk(sums: tuple[Array, Array], at: Array) -> tuple[Array, Array]:
            d_table, d_hidden = sums
            h, target, normaliser, entropy, g_logp, g_ent = _take((hidden, *per_token), at)
            log_p = product(h, whole, (1, 1)) / temperature - normaliser[:, None]
            own, place = _places(target, whole.shape[0], cut)
            is_target = own[:, None] & (jnp.arange(whole.shape[0])[None, :] == place[:, None])
            slope = -g_logp[:, None] - g_ent[:, None] * (log_p + entropy[:, None])
            dz = (jnp.exp(log_p) * slope + jnp.where(is_target, g_logp[:, None], 0.0)) / temperature
            # What fills the last chunk up has the numbers of another token, and no part in the sum.
            dz = jnp.where((at < wanted.size)[:, None], dz, 0.0).astype(h.dtype)
            d_hidden = d_hidden.at[at].set(product(dz, whole, (1, 0)).astype(h.dtype), mode="drop")
            return d_table + product(transposed(h), dz, (1, 0)), d_hidden

        zeros = (
            jnp.zeros(whole.shape[::-1], jnp.float32),
            jnp.zeros((wanted.size, whole.shape[1]), hidden.dtype),
        )
        d_table, d_hidden = _over_wanted(chunk, zeros, wanted)
        d_hidden = _across(lax.psum, d_hidden.reshape(hidden.shape), cut)
        return _scatter(d_table.T.astype(table.dtype), table_spec, rows), d_hidden

    into = (table_spec, states, *[rows] * 6)
    d_table, d_hidden = _on_mesh(local, into, (table_spec, states))(
        table, hidden, wanted, targets, normaliser, entropy, *gradients
    )
    return d_table, d_hidden, None, None


_logprobs.defvjp(_forward, _backward)


def _over_wanted(chunk: Callable[[Any, Array], Any], start: Any, wanted: Array) -> Any:
    """`chunk(carry, at)` over the wanted tokens, CHUNK at a time; `at` are their places in the flat batch.

    The last chunk is filled up with places behind the batch. Chunks without a wanted token are passed over.
    """
    size = wanted.size
    length = min(CHUNK, size)
    order = jnp.argsort(~wanted.reshape(-1), stable=True)  # the wanted ones first, in their order
    number = jnp.sum(wanted)
    order = jnp.pad(
        jnp.where(jnp.arange(size) < number, order, size), (0, -size % length), constant_values=size
    )

    def step(carry: Any, at: Array) -> tuple[Any, None]:
        return lax.cond(at[0] < size, chunk, lambda carry, _: carry, carry, at), None

    return lax.scan(step, start, order.reshape(-1, length))[0]


def _take(arrays: tuple[Array, ...], at: Array) -> tuple[Array, ...]:
    """Rows `at` of arrays [b, T, ...] flattened to [b * T, ...]; places behind them have the last row."""
    return tuple(jnp.take(a.reshape(-1, *a.shape[2:]), at, axis=0, mode="clip") for a in arrays)


def _layout(table: Array, shape: Sequence[int]) -> tuple[PartitionSpec, PartitionSpec, bool]:
    """How the mesh cuts the table [V, D] and rows of that shape [B, T, ...], and whether it cuts the vocabulary."""
    sizes = axis_sizes()
    table_spec = spec(("vocab", "embed"), table.shape, sizes)
    return table_spec, spec(("batch", None), shape[:2], sizes), table_spec[0] is not None


def _places(tokens: Array, rows: int, cut: bool) -> tuple[Array, Array]:
    """Whether a token is among this device's `rows` of the vocabulary, and where in them (0 if not)."""
    place = tokens - lax.axis_index(TENSOR) * rows if cut else tokens
    own = (place >= 0) & (place < rows)
    return own, jnp.where(own, place, 0)


def _on_mesh(local: Callable, into: Any, out: Any) -> Callable:
    """`local` on every device's part of the arrays."""
    if max(axis_sizes().values(), default=1) == 1:
        return local
    # Every exchange is written out here and none is differentiated, so that there is no replication to check.
    return jax.shard_map(local, in_specs=into, out_specs=out, check_vma=False)


def _gather(table: Array, table_spec: PartitionSpec) -> Array:
    """This device's rows of the table with all their columns."""
    return table if table_spec[1] is None else lax.all_gather(table, FSDP, axis=1, tiled=True)


def _scatter(gradient: Array, table_spec: PartitionSpec, rows: PartitionSpec) -> Array:
    """The sum over all devices' rows of the batch, cut as the table is."""
    sizes = axis_sizes()
    if rows[0] is None:  # every device has all rows, and so the whole sum
        if table_spec[1] is None:
            return gradient
        width = gradient.shape[1] // sizes[FSDP]
        return lax.dynamic_slice_in_dim(gradient, lax.axis_index(FSDP) * width, width, axis=1)
    if sizes.get(DATA, 1) > 1:
        gradient = lax.psum(gradient, DATA)
    if table_spec[1] is not None:
        return lax.psum_scatter(gradient, FSDP, scatter_dimension=1, tiled=True)
    return lax.psum(gradient, FSDP) if sizes.get(FSDP, 1) > 1 else gradient


def _across(collective: Callable, x: Array, cut: bool) -> Array:
    """The collective over the parts of the vocabulary."""
    return collective(x, TENSOR) if cut else x
