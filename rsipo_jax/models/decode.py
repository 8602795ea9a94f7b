"""Incremental decoding: a key/value cache, prompt extension, and the sampling loop.

The cache is a list of per-layer arrays (a stacked cache would be copied layer by layer on every step). Invariant: a
slot's result depends on that slot alone. Every position is written exactly at its own index and padding is never
written, so neither padding nor neighbours can leak into a row.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax

from rsipo_jax.models.attention import attend
from rsipo_jax.models.transformer import (
    PARAM_AXES,
    ModelConfig,
    Params,
    cast_params,
    feed_forward,
    project,
    project_qkv,
    rms_norm,
    unstack_layers,
)
from rsipo_jax.models.vocabulary import logits
from rsipo_jax.parallel.sharding import constrain, constrain_tree


@struct.dataclass
class KVCache:
    keys: list[jax.Array]  # per layer [slots, kv_heads, capacity, head_dim]
    values: list[jax.Array]


@struct.dataclass
class Sampled:
    tokens: jax.Array  # int32 [slots, max_new]
    logprobs: jax.Array  # float32 [slots, max_new], of the distribution that was sampled from
    counts: jax.Array  # int32 [slots], generated tokens, the stop token included


@partial(jax.jit, static_argnums=(0, 1, 2))
def init_cache(config: ModelConfig, slots: int, capacity: int) -> KVCache:
    """An empty cache for `slots` sequences of up to `capacity` tokens, cut by slots and heads."""
    shape = (slots, config.num_kv_heads, capacity, config.head_dim)
    zeros = [_cut(jnp.zeros(shape, config.dtype)) for _ in range(2 * config.num_layers)]
    return KVCache(zeros[: config.num_layers], zeros[config.num_layers :])


def _cut(cache: jax.Array) -> jax.Array:
    return constrain(cache, "batch", "kv_heads", None, None)


def serving_params(params: Params, config: ModelConfig) -> Params:
    """Parameters in the compute dtype with layers unstacked: scanning layers costs 1.6-2x in decoding.

    They are laid out as the table says.
    """
    params = constrain_tree(cast_params(params, config.dtype), PARAM_AXES)
    return params | {"layers": unstack_layers(params["layers"], config.num_layers)}


def _forward(
    params: Params,
    config: ModelConfig,
    cache: KVCache,
    slots: jax.Array | None,
    tokens: jax.Array,
    positions: jax.Array,
) -> tuple[KVCache, jax.Array]:
    """Runs tokens [n, C] at their positions [n, C]; a position out of range is padding: computed, not written.

    Row i belongs to slot `slots[i]`. None: the rows are all slots in order, whose cache is read in place, not gathered.
    """
    everyone, capacity = cache.keys[0].shape[0], cache.keys[0].shape[2]
    mask = jnp.arange(capacity)[None, None, :] <= positions[:, :, None]
    rows = jnp.arange(everyone) if slots is None else slots
    x = params["embed"][tokens]
    keys, values = [], []
    for layer, old_k, old_v in zip(params["layers"], cache.keys, cache.values, strict=True):
        q, k, v = project_qkv(rms_norm(x, layer["input_norm"], config.rms_norm_eps), layer, positions, config)
        new_k = old_k.at[rows[:, None], :, positions].set(k, mode="drop")
        new_v = old_v.at[rows[:, None], :, positions].set(v, mode="drop")
        seen_k, seen_v = (new_k, new_v) if slots is None else (new_k[slots], new_v[slots])
        x = x + project(attend(q, seen_k, seen_v, mask), layer, "wo", config)
        x = x + feed_forward(rms_norm(x, layer["post_norm"], config.rms_norm_eps), layer, config)
        keys.append(_cut(new_k))
        values.append(_cut(new_v))
    return KVCache(keys, values), rms_norm(x, params["final_norm"], config.rms_norm_eps)


@partial(jax.jit, static_argnums=1, donate_argnums=2)
def extend(
    params: Params,
    config: ModelConfig,
    cache: KVCache,
    slots: jax.Array,  # int32 [n]; a slot out of range is a padding row
    tokens: jax.Array,  # int32 [n, C]
    start: jax.Array,  # int32 [n], tokens already cached
    count: jax.Array,  # int32 [n], how many of the C tokens are real (>= 1)
) -> tuple[KVCache, jax.Array]:
    """Appends prompt tokens to some slots. Returns the cache and float32 logits [n, V] after each row's last token."""
    capacity = cache.keys[0].shape[2]
    index = jnp.arange(tokens.shape[1])[None, :]
    positions = jnp.where(index < count[:, None], start[:, None] + index, capacity)
    cache, hidden = _forward(params, config, cache, slots, tokens, positions)
    last = jnp.take_along_axis(hidden, (count - 1)[:, None, None], axis=1)[:, 0]
    return cache, logits(params, config, last)


def sample_token(
    scores: jax.Array, keys: jax.Array, index: jax.Array, temperature: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """One token per row from softmax(scores / temperature), and its log-probability there.

    Temperature 0 takes the likeliest token and gives its log-probability at temperature 1. scores float32 [n, V]; keys
    [n], one a sequence; `index` counts the tokens of the turn: the draw is addressed by (key, index).
    """
    log_p = jax.nn.log_softmax(scores / jnp.where(temperature > 0, temperature, 1.0), axis=-1)
    draws = jax.vmap(lambda key, row: jax.random.categorical(jax.random.fold_in(key, index), row))(
        keys, log_p
    )
    token = jnp.where(temperature > 0, draws, jnp.argmax(scores, axis=-1)).astype(jnp.int32)
    return token, jnp.take_along_axis(log_p, token[:, None], axis=-1)[:, 0]


@partial(jax.jit, static_argnums=(1, 2, 3), donate_argnums=4)
def decode(
    params: Params,
    config: ModelConfig,
    max_new: int,
    stop_ids: tuple[int, ...],
    cache: KVCache,
    scores: jax.Array,  # float32 [slots, V], logits after the prompt
    lengths: jax.Array,  # int32 [slots], cached tokens
    limits: jax.Array,  # int32 [slots], tokens this turn may generate; 0 leaves the slot alone
    keys: jax.Array,  # per-slot PRNG keys [slots]
    temperature: jax.Array,
) -> tuple[KVCache, Sampled]:
    """Samples until every slot has emitted a stop token or reached its limit (at most `max_new`)."""
    capacity = cache.keys[0].shape[2]
    stops = jnp.asarray(stop_ids)

    def draw(
        i: jax.Array, scores: jax.Array, active: jax.Array, out: Sampled
    ) -> tuple[jax.Array, jax.Array, Sampled]:
        token, logprob = sample_token(scores, keys, i, temperature)
        out = Sampled(
            out.tokens.at[:, i].set(jnp.where(active, token, 0)),
            out.logprobs.at[:, i].set(jnp.where(active, logprob, 0.0)),
            out.counts + active,
        )
        return token, active & ~jnp.isin(token, stops) & (out.counts < limits), out

    def advance(state: tuple) -> tuple:
        i, cache, token, active, out = state
        positions = jnp.where(active, lengths + i, capacity)[:, None]
        cache, hidden = _forward(params, config, cache, None, token[:, None], positions)
        token, active, out = draw(i + 1, logits(params, config, hidden[:, 0]), active, out)
        return i + 1, cache, token, active, out

    empty = Sampled(
        jnp.zeros((lengths.shape[0], max_new), jnp.int32),
        jnp.zeros((lengths.shape[0], max_new), jnp.float32),
        jnp.zeros_like(lengths),
    )
    # The last token of a turn is never run through the network here: the next turn's `extend` does that.
    token, active, out = draw(jnp.int32(0), scores, limits > 0, empty)
    state = lax.while_loop(lambda s: jnp.any(s[3]), advance, (jnp.int32(0), cache, token, active, out))
    return state[1], state[4]
