"""The policy network: a decoder of the Qwen2, Qwen3 and Llama families as pure functions on a pytree of arrays.

Layers are stacked on a leading axis and scanned (one compiled layer whatever the depth) or unrolled
(`scan_layers=False`). Switches tell the families apart: `qkv_bias` (Qwen2), `qk_norm` (Qwen3), `rope_scaling` (Llama 3).
Any projection may carry a low-rank adapter (`models/lora.py`).

Invariant: rows are independent and segments of a packed row are independent. A token attends to the tokens of its own
segment at or before it, nothing else; segment 0 is padding. Masks come from `segment_ids`, never from token ids.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from rsipo_jax.models.attention import ATTENTION_RESIDUALS, attend_packed
from rsipo_jax.models.products import matmul
from rsipo_jax.models.vocabulary import embed_tokens
from rsipo_jax.parallel.sharding import Names, constrain, gather

Params = dict[str, Any]

# The logical axes of every parameter, those of a layer with their stack in front.
PARAM_AXES: Mapping[str, Names] = {
    "embed": ("vocab", "embed"),
    "lm_head": ("vocab", "embed"),
    "final_norm": (None,),
    "input_norm": ("layers", None),
    "post_norm": ("layers", None),
    "wq": ("layers", "embed", "heads"),
    "wk": ("layers", "embed", "kv_heads"),
    "wv": ("layers", "embed", "kv_heads"),
    "bq": ("layers", "heads"),
    "bk": ("layers", "kv_heads"),
    "bv": ("layers", "kv_heads"),
    "q_norm": ("layers", None),
    "k_norm": ("layers", None),
    "wo": ("layers", "heads", "embed"),
    "w_gate": ("layers", "embed", "mlp"),
    "w_up": ("layers", "embed", "mlp"),
    "w_down": ("layers", "mlp", "embed"),
}
# An adapter of the projection w is w + LORA_A [layers, in, rank] and w + LORA_B [layers, rank, out].
LORA_A, LORA_B = "_lora_a", "_lora_b"
PROJECTIONS = ("wq", "wk", "wv", "wo", "w_gate", "w_up", "w_down")
PARAM_AXES = {
    **PARAM_AXES,
    **{w + LORA_A: (*PARAM_AXES[w][:2], None) for w in PROJECTIONS},
    **{w + LORA_B: ("layers", None, PARAM_AXES[w][2]) for w in PROJECTIONS},
}


@dataclass(frozen=True)
class Llama3Rope:
    """How Llama 3 stretches the low frequencies of its rotary embedding (transformers' rope type "llama3")."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int


@dataclass(frozen=True)
class ModelConfig:
    """Sizes and switches of the network. `head_dim` is explicit since Qwen3 does not derive it from `hidden_size`."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rope_theta: float = 10_000.0
    rope_scaling: Llama3Rope | None = None
    rms_norm_eps: float = 1e-6
    tie_embeddings: bool = True
    qkv_bias: bool = True
    qk_norm: bool = False
    lora_alpha: float = 16.0  # an adapter of rank r adds alpha / r times its product
    dtype: str = "float32"  # compute dtype
    scan_layers: bool = True
    remat: str = "full"  # what a layer keeps for the backward pass, see `_rematerialised`
    attention: str = "auto"  # a kernel of models/attention.py


def init_params(config: ModelConfig, key: jax.Array) -> Params:
    """Fresh float32 parameters: normal(1/sqrt(hidden_size)), residual outputs 1/sqrt(2 layers) of that, norms at one.

    The usual constant 0.02 is the same thing at a width of 2,500; a narrow network learns far more slowly from it.
    """
    c, n = config, config.num_layers
    q_dim, kv_dim = c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim
    std = c.hidden_size**-0.5
    out_scale = std / (2 * n) ** 0.5
    keys = iter(jax.random.split(key, 9))

    def normal(shape: tuple[int, ...], scale: float = std) -> jax.Array:
        return scale * jax.random.normal(next(keys), shape, jnp.float32)

    layers: Params = {
        "input_norm": jnp.ones((n, c.hidden_size)),
        "wq": normal((n, c.hidden_size, q_dim)),
        "wk": normal((n, c.hidden_size, kv_dim)),
        "wv": normal((n, c.hidden_size, kv_dim)),
        "wo": normal((n, q_dim, c.hidden_size), out_scale),
        "post_norm": jnp.ones((n, c.hidden_size)),
        "w_gate": normal((n, c.hidden_size, c.intermediate_size)),
        "w_up": normal((n, c.hidden_size, c.intermediate_size)),
        "w_down": normal((n, c.intermediate_size, c.hidden_size), out_scale),
    }
    if c.qkv_bias:
        layers |= {"bq": jnp.zeros((n, q_dim)), "bk": jnp.zeros((n, kv_dim)), "bv": jnp.zeros((n, kv_dim))}
    if c.qk_norm:
        layers |= {"q_norm": jnp.ones((n, c.head_dim)), "k_norm": jnp.ones((n, c.head_dim))}
    params: Params = {
        "embed": normal((c.vocab_size, c.hidden_size)),
        "layers": layers,
        "final_norm": jnp.ones((c.hidden_size,)),
    }
    if not c.tie_embeddings:
        params["lm_head"] = normal((c.vocab_size, c.hidden_size))
    return params


def rms_norm(x: jax.Array, scale: jax.Array, eps: float) -> jax.Array:
    """x / rms(x) * scale over the last axis, computed in float32."""
    y = x.astype(jnp.float32)
    y = y * lax.rsqrt(jnp.mean(y * y, axis=-1, keepdims=True) + eps)
    return (y * scale).astype(x.dtype)


def rope_frequencies(config: ModelConfig) -> jax.Array:
    """Radians a position for each pair of a head's channels, float32 [head_dim / 2]."""
    half = config.head_dim // 2
    frequencies = config.rope_theta ** (-jnp.arange(half, dtype=jnp.float32) / half)
    if (scaling := config.rope_scaling) is None:
        return frequencies
    # Wavelengths beyond original / low are stretched by `factor`, those below original / high stay, in between a blend.
    turns = scaling.original_max_position_embeddings * frequencies / (2 * math.pi)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    kept = jnp.clip((turns - low) / (high - low), 0.0, 1.0)
    return frequencies * (kept + (1.0 - kept) / scaling.factor)


def rope(x: jax.Array, positions: jax.Array, frequencies: jax.Array) -> jax.Array:
    """Rotary position embedding, half-split convention of Hugging Face. x [..., T, heads, h], positions [..., T]."""
    half = x.shape[-1] // 2
    angles = positions[..., None, None].astype(jnp.float32) * frequencies  # [..., T, 1, half]
    a, b = x[..., :half].astype(jnp.float32), x[..., half:].astype(jnp.float32)
    sin, cos = jnp.sin(angles), jnp.cos(angles)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1).astype(x.dtype)


def project(x: jax.Array, layer: Params, name: str, config: ModelConfig) -> jax.Array:
    """x [..., in] through the projection `name` of a layer, with its adapter if it has one. Returns [..., out]."""

    def weight(name: str) -> jax.Array:
        return gather(layer[name].astype(x.dtype), PARAM_AXES[name][1:])

    y = matmul(x, weight(name))
    if (down := layer.get(name + LORA_A)) is not None:
        low_rank = matmul(matmul(x, weight(name + LORA_A)), weight(name + LORA_B))
        y += low_rank * jnp.asarray(config.lora_alpha / down.shape[-1], y.dtype)
    return y


def project_qkv(
    x: jax.Array, layer: Params, positions: jax.Array, config: ModelConfig
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Queries [B, T, H, h] and keys, values [B, T, K, h] of one layer, rotated."""
    c = config
    q, k, v = (project(x, layer, name, c) for name in ("wq", "wk", "wv"))
    if c.qkv_bias:
        q, k, v = (y + layer[b].astype(y.dtype) for y, b in ((q, "bq"), (k, "bk"), (v, "bv")))
    q, k, v = (y.reshape(*y.shape[:-1], -1, c.head_dim) for y in (q, k, v))
    q = constrain(q, "batch", None, "heads", None)
    k, v = (constrain(y, "batch", None, "kv_heads", None) for y in (k, v))
    if c.qk_norm:
        q, k = rms_norm(q, layer["q_norm"], c.rms_norm_eps), rms_norm(k, layer["k_norm"], c.rms_norm_eps)
    frequencies = rope_frequencies(c)
    return rope(q, positions, frequencies), rope(k, positions, frequencies), v


def feed_forward(x: jax.Array, layer: Params, config: ModelConfig) -> jax.Array:
    """SwiGLU."""
    gate, up = (constrain(project(x, layer, w, config), "batch", None, "mlp") for w in ("w_gate", "w_up"))
    return project(jax.nn.silu(gate) * up, layer, "w_down", config)


def hidden_states(
    params: Params, config: ModelConfig, tokens: jax.Array, positions: jax.Array, segment_ids: jax.Array
) -> jax.Array:
    """Final hidden states [B, T, D] of packed rows; tokens, positions, segment_ids are int32 [B, T]."""

    def block(x: jax.Array, layer: Params) -> tuple[jax.Array, None]:
        q, k, v = project_qkv(rms_norm(x, layer["input_norm"], config.rms_norm_eps), layer, positions, config)
        seen = attend_packed(q, k, v, segment_ids, config.attention)
        x = constrain(x + project(seen, layer, "wo", config), "batch", None, None)
        x = x + feed_forward(rms_norm(x, layer["post_norm"], config.rms_norm_eps), layer, config)
        return constrain(x, "batch", None, None), None

    block = _rematerialised(block, config)
    x = embed_tokens(params, config, tokens)
    if config.scan_layers:
        x, _ = lax.scan(block, x, params["layers"])
    else:
        for layer in unstack_layers(params["layers"], config.num_layers):
            x, _ = block(x, layer)
    return rms_norm(x, params["final_norm"], config.rms_norm_eps)


def _rematerialised(block: Callable, config: ModelConfig) -> Callable:
    """`block`, of whose forward pass the backward pass finds less in memory, and computes the rest again.

    "none" keeps everything, "dots" the results of the projections and of attention, "full" the layer's input only.
    """
    if config.remat == "none":
        return block
    policies = jax.checkpoint_policies
    dots = policies.save_from_both_policies(
        policies.dots_with_no_batch_dims_saveable, policies.save_only_these_names(ATTENTION_RESIDUALS)
    )
    policy = dots if config.remat == "dots" else None
    # A scan keeps the two passes apart by itself; unrolled, the compiler would merge them again.
    return jax.checkpoint(block, policy=policy, prevent_cse=not config.scan_layers)


def cast_params(params: Params, dtype: str) -> Params:
    """The parameters in `dtype`, but for norm scales, with which `rms_norm` multiplies in float32.

    Every product rounds its weights to the compute dtype, so parameters held in that dtype compute the same numbers.
    """
    return jax.tree_util.tree_map_with_path(
        lambda path, a: a if "norm" in path[-1].key else a.astype(dtype), params
    )


def unstack_layers(layers: Params, num_layers: int) -> list[Params]:
    """The stacked layer tree as a list of per-layer trees."""
    return [jax.tree.map(lambda a, i=i: a[i], layers) for i in range(num_layers)]
