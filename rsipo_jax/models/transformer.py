"""The policy network: a Qwen2-architecture decoder as pure functions on a pytree of float32 arrays.

Layers are stacked on a leading axis and scanned (one compiled layer whatever the depth) or unrolled
(`scan_layers=False`). Two switches cover the near relatives: `qk_norm` (Qwen3) and `qkv_bias=False` (Llama, SmolLM2,
Qwen3).

Invariant: rows are independent and segments of a packed row are independent. A token attends to the tokens of its own
segment at or before it, nothing else; segment 0 is padding. Masks come from `segment_ids`, never from token ids.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

Params = dict[str, Any]
NEGATIVE = -1e30  # a finite "minus infinity": fully masked rows give a uniform softmax instead of NaN
QUERY_BLOCK = 128  # queries of one attention block: its scores stay in cache, keys after it are skipped


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
    rms_norm_eps: float = 1e-6
    tie_embeddings: bool = True
    qkv_bias: bool = True
    qk_norm: bool = False
    dtype: str = "float32"  # compute dtype
    scan_layers: bool = True


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


def matmul(x: jax.Array, w: jax.Array) -> jax.Array:
    """x [..., K] . w [K, N], accumulated in float32 and returned in x's dtype.

    The explicit accumulator is what sends bfloat16 products to the fast kernels of XLA:CPU on every JAX version.
    """
    dims = (((x.ndim - 1,), (0,)), ((), ()))
    return lax.dot_general(x, w.astype(x.dtype), dims, preferred_element_type=jnp.float32).astype(x.dtype)


def rms_norm(x: jax.Array, scale: jax.Array, eps: float) -> jax.Array:
    """x / rms(x) * scale over the last axis, computed in float32."""
    y = x.astype(jnp.float32)
    y = y * lax.rsqrt(jnp.mean(y * y, axis=-1, keepdims=True) + eps)
    return (y * scale).astype(x.dtype)


def rope(x: jax.Array, positions: jax.Array, theta: float) -> jax.Array:
    """Rotary position embedding, half-split convention of Hugging Face. x [..., T, heads, h], positions [..., T]."""
    half = x.shape[-1] // 2
    frequencies = theta ** (-jnp.arange(half, dtype=jnp.float32) / half)
    angles = positions[..., None, None].astype(jnp.float32) * frequencies  # [..., T, 1, half]
    a, b = x[..., :half].astype(jnp.float32), x[..., half:].astype(jnp.float32)
    sin, cos = jnp.sin(angles), jnp.cos(angles)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1).astype(x.dtype)


def project_qkv(
    x: jax.Array, layer: Params, positions: jax.Array, config: ModelConfig
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Queries [B, T, H, h] and keys, values [B, T, K, h] of one layer, rotated."""
    c = config
    q, k, v = (matmul(x, layer[w]) for w in ("wq", "wk", "wv"))
    if c.qkv_bias:
        q, k, v = (y + layer[b].astype(y.dtype) for y, b in ((q, "bq"), (k, "bk"), (v, "bv")))
    q, k, v = (y.reshape(*y.shape[:-1], -1, c.head_dim) for y in (q, k, v))
    if c.qk_norm:
        q, k = rms_norm(q, layer["q_norm"], c.rms_norm_eps), rms_norm(k, layer["k_norm"], c.rms_norm_eps)
    return rope(q, positions, c.rope_theta), rope(k, positions, c.rope_theta), v


def attend(q: jax.Array, k: jax.Array, v: jax.Array, mask: jax.Array) -> jax.Array:
    """Grouped-query attention. q [B, T, H, h]; k, v [B, K, S, h]; mask [B, T, S] bool. Returns [B, T, H * h]."""
    batch, t, heads, h = q.shape
    groups = heads // k.shape[1]
    q = q.reshape(batch, t, k.shape[1], groups, h)
    scores = jnp.einsum("btkgh,bksh->bkgts", q, k, preferred_element_type=jnp.float32) * h**-0.5
    probs = jax.nn.softmax(jnp.where(mask[:, None, None], scores, NEGATIVE), axis=-1).astype(v.dtype)
    # The transpose stands outside of the einsum: XLA:CPU has no bfloat16 kernel for the product in that order.
    out = jnp.einsum("bkgts,bksh->bkgth", probs, v, preferred_element_type=jnp.float32)
    return out.transpose(0, 3, 1, 2, 4).reshape(batch, t, heads * h).astype(q.dtype)


def attend_packed(q: jax.Array, k: jax.Array, v: jax.Array, segment_ids: jax.Array) -> jax.Array:
    """Causal attention within segments. q [B, T, H, h]; k, v [B, T, K, h]; segment_ids [B, T]. Returns [B, T, H * h].

    One row and one block of queries at a time, recomputed in the backward pass: no [B, H, T, T] array exists, and half
    of the scores (keys behind the block) are never computed.
    """
    t = q.shape[1]

    @jax.checkpoint
    def one_row(row: tuple[jax.Array, ...]) -> jax.Array:
        q, k, v, segments = (a[None] for a in row)
        k, v = k.swapaxes(1, 2), v.swapaxes(1, 2)
        blocks = []
        for start in range(0, t, QUERY_BLOCK):
            end = min(start + QUERY_BLOCK, t)
            causal = jnp.arange(end)[None, :] <= jnp.arange(start, end)[:, None]
            mask = causal & (segments[:, start:end, None] == segments[:, None, :end])
            blocks.append(attend(q[:, start:end], k[:, :, :end], v[:, :, :end], mask))
        return jnp.concatenate(blocks, axis=1)[0]

    return lax.map(one_row, (q, k, v, segment_ids))


def feed_forward(x: jax.Array, layer: Params) -> jax.Array:
    """SwiGLU."""
    return matmul(jax.nn.silu(matmul(x, layer["w_gate"])) * matmul(x, layer["w_up"]), layer["w_down"])


def hidden_states(
    params: Params, config: ModelConfig, tokens: jax.Array, positions: jax.Array, segment_ids: jax.Array
) -> jax.Array:
    """Final hidden states [B, T, D] of packed rows; tokens, positions, segment_ids are int32 [B, T]."""

    def block(x: jax.Array, layer: Params) -> tuple[jax.Array, None]:
        q, k, v = project_qkv(rms_norm(x, layer["input_norm"], config.rms_norm_eps), layer, positions, config)
        x = x + matmul(attend_packed(q, k, v, segment_ids), layer["wo"])
        return x + feed_forward(rms_norm(x, layer["post_norm"], config.rms_norm_eps), layer), None

    x = params["embed"].astype(config.dtype)[tokens]
    if config.scan_layers:
        # Rematerialisation saves memory on every backend only inside a scan, which is why it lives here.
        x, _ = lax.scan(jax.checkpoint(block), x, params["layers"])
    else:
        for layer in unstack_layers(params["layers"], config.num_layers):
            x, _ = block(x, layer)
    return rms_norm(x, params["final_norm"], config.rms_norm_eps)


def unstack_layers(layers: Params, num_layers: int) -> list[Params]:
    """The stacked layer tree as a list of per-layer trees."""
    return [jax.tree.map(lambda a, i=i: a[i], layers) for i in range(num_layers)]


def logits(params: Params, config: ModelConfig, hidden: jax.Array) -> jax.Array:
    """Float32 logits [..., V] of hidden states [..., D]."""
    table = params["embed"] if config.tie_embeddings else params["lm_head"]
    dims = (((hidden.ndim - 1,), (1,)), ((), ()))
    return lax.dot_general(hidden, table.astype(hidden.dtype), dims, preferred_element_type=jnp.float32)


def token_logprobs(
    params: Params, config: ModelConfig, hidden: jax.Array, targets: jax.Array, temperature: float = 1.0
) -> tuple[jax.Array, jax.Array]:
    """Log-probability of `targets` and entropy (nats) of softmax(logits / temperature), both float32 [B, T].

    Row by row with recomputation in the backward pass, so that no [B, T, V] array ever exists.
    """

    @jax.checkpoint
    def one_row(row: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        h, target = row
        log_p = jax.nn.log_softmax(logits(params, config, h) / temperature, axis=-1)
        chosen = jnp.take_along_axis(log_p, target[:, None], axis=-1)[:, 0]
        return chosen, -jnp.sum(jnp.exp(log_p) * log_p, axis=-1)

    return lax.map(one_row, (hidden, targets))
