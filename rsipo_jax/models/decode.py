"""The network on new tokens of sequences whose beginnings lie in a cache."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from rsipo_jax.models.cache import Fresh, KVCache, as_cached, attend_cached
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
from rsipo_jax.parallel.sharding import constrain_tree

Array = jax.Array


def serving_params(params: Params, config: ModelConfig) -> Params:
    """Parameters in the compute dtype with layers unstacked: scanning layers costs 1.6-2x in decoding.

    They are laid out as the table says.
    """
    params = constrain_tree(cast_params(params, config.dtype), PARAM_AXES)
    return params | {"layers": unstack_layers(params["layers"], config.num_layers)}


def new_tokens(
    params: Params,
    config: ModelConfig,
    cache: KVCache,
    tokens: Array,
    lengths: Array,
    slots: Array,
) -> Fresh:
    """Keys and values of pieces of prompts: tokens int32 [n, C], row i at positions lengths[i], ... of slot slots[i].

    Tokens behind the end of a piece are padding; the others do not see it.
    """
    index = jnp.arange(tokens.shape[1])
    seen = jnp.broadcast_to(index <= index[:, None], (*tokens.shape, tokens.shape[1]))
    fresh = Fresh([], [])

    def attend(layer: int, q: Array, k: Array, v: Array) -> Array:
        k, v = as_cached(k, v)
        fresh.keys.append(k)
        fresh.values.append(v)
        return attend_cached(q, cache.keys[layer], cache.values[layer], lengths, k, v, seen, slots)

    _forward(params, config, tokens, lengths[:, None] + index, attend)
    return fresh


def next_token(
    params: Params,
    config: ModelConfig,
    cache: KVCache,
    fresh: Fresh,
    token: Array,
    lengths: Array,
    step: Array,
    slots: Array | None = None,
) -> tuple[Fresh, Array]:
    """One more token int32 [n] a row: its keys and values, at `step` of `fresh`, and its hidden state [n, D].

    Rows and slots as in `attend_cached`. A row's sequence is the first `lengths` positions of its slot, then `step` tokens
    in `fresh`, then this one.
    """
    fresh, room = Fresh(list(fresh.keys), list(fresh.values)), fresh.values[0].shape[2]
    seen = jnp.broadcast_to(jnp.arange(room) <= step, (len(token), 1, room))

    def attend(layer: int, q: Array, k: Array, v: Array) -> Array:
        k, v = as_cached(k, v)
        k = fresh.keys[layer] = lax.dynamic_update_slice_in_dim(fresh.keys[layer], k, step, axis=2)
        v = fresh.values[layer] = lax.dynamic_update_slice_in_dim(fresh.values[layer], v, step, axis=2)
        return attend_cached(q, cache.keys[layer], cache.values[layer], lengths, k, v, seen, slots)

    hidden = _forward(params, config, token[:, None], (lengths + step)[:, None], attend)
    return fresh, hidden[:, 0]


def _forward(
    params: Params,
    config: ModelConfig,
    tokens: Array,
    positions: Array,
    attend: Callable[[int, Array, Array, Array], Array],
) -> Array:
    """Final hidden states [n, C, D]; `attend(layer, q, k, v)` looks around."""
    x = params["embed"][tokens]
    for index, layer in enumerate(params["layers"]):
        q, k, v = project_qkv(rms_norm(x, layer["input_norm"], config.rms_norm_eps), layer, positions, config)
        x = x + project(attend(index, q, k, v), layer, "wo", config)
        x = x + feed_forward(rms_norm(x, layer["post_norm"], config.rms_norm_eps), layer, config)
    return rms_norm(x, params["final_norm"], config.rms_norm_eps)
