"""Sentence encoders of the BERT family (MiniLM, E5, BGE) as a pure function: for dense retrieval, not trained here.

Post-norm transformer blocks with learned positions, mean of the last hidden states over the real tokens, unit length
(Reimers & Gurevych 2019, arXiv 1908.10084).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from safetensors.numpy import load_file

from rsipo_jax.validation import ConfigError

Array = jax.Array
Params = dict[str, Any]
NEGATIVE = -1e9


@dataclass(frozen=True)
class EncoderConfig:
    num_layers: int
    num_heads: int
    hidden_size: int
    max_positions: int
    norm_eps: float


def load_encoder(folder: Path) -> tuple[EncoderConfig, Params]:
    """A Hugging Face folder with a BertModel: config.json and model.safetensors. Layers come stacked, float32.

    Raises ConfigError for a folder that has something else.
    """
    try:
        raw = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        tensors = load_file(folder / "model.safetensors")
    except OSError as error:
        raise ConfigError(f"{folder} is not the folder of an encoder: {error}") from error
    if raw.get("model_type") != "bert" or raw.get("hidden_act") != "gelu":
        raise ConfigError(
            f"{folder} holds a {raw.get('model_type')!r} with activation {raw.get('hidden_act')!r}: they are BertModels with gelu"
        )
    config = EncoderConfig(
        raw["num_hidden_layers"], raw["num_attention_heads"], raw["hidden_size"],
        raw["max_position_embeddings"], raw["layer_norm_eps"],
    )  # fmt: skip
    tensors = {name.removeprefix("bert."): np.asarray(a, np.float32) for name, a in tensors.items()}

    def dense(name: str) -> Params:
        return {"kernel": tensors[f"{name}.weight"].T, "bias": tensors[f"{name}.bias"]}

    def norm(name: str) -> Params:
        return {"scale": tensors[f"{name}.weight"], "bias": tensors[f"{name}.bias"]}

    def layer(i: int) -> Params:
        at = f"encoder.layer.{i}"
        return {
            **{part: dense(f"{at}.attention.self.{part}") for part in ("query", "key", "value")},
            "attended": dense(f"{at}.attention.output.dense"),
            "attended_norm": norm(f"{at}.attention.output.LayerNorm"),
            "up": dense(f"{at}.intermediate.dense"),
            "down": dense(f"{at}.output.dense"),
            "out_norm": norm(f"{at}.output.LayerNorm"),
        }

    try:
        # Of the token types there is one only.
        positions = (
            tensors["embeddings.position_embeddings.weight"]
            + tensors["embeddings.token_type_embeddings.weight"][0]
        )
        params = {
            "words": tensors["embeddings.word_embeddings.weight"],
            "positions": positions,
            "norm": norm("embeddings.LayerNorm"),
            "layers": jax.tree.map(lambda *a: np.stack(a), *[layer(i) for i in range(config.num_layers)]),
        }
    except KeyError as error:
        raise ConfigError(f"{folder}/model.safetensors lacks the tensor {error} of a BertModel") from error
    return config, params


@partial(jax.jit, static_argnums=1)
def encode(params: Params, config: EncoderConfig, tokens: Array, lengths: Array) -> Array:
    """Unit vectors float32 [n, D] of token sequences int32 [n, T] (with their special tokens), row i lengths[i] long."""
    real = jnp.arange(tokens.shape[1]) < lengths[:, None]
    x = params["words"][tokens] + params["positions"][: tokens.shape[1]]
    x = _norm(x, params["norm"], config)
    bias = jnp.where(real, 0.0, NEGATIVE)[:, None, None, :]

    def block(x: Array, layer: Params) -> tuple[Array, None]:
        heads = (*x.shape[:2], config.num_heads, config.hidden_size // config.num_heads)
        q, k, v = (_dense(x, layer[part]).reshape(heads) for part in ("query", "key", "value"))
        scores = jnp.einsum("nqhd,nkhd->nhqk", q, k) * heads[-1] ** -0.5 + bias
        seen = jnp.einsum("nhqk,nkhd->nqhd", jax.nn.softmax(scores, axis=-1), v).reshape(x.shape)
        x = _norm(x + _dense(seen, layer["attended"]), layer["attended_norm"], config)
        up = jax.nn.gelu(_dense(x, layer["up"]), approximate=False)
        return _norm(x + _dense(up, layer["down"]), layer["out_norm"], config), None

    x, _ = lax.scan(block, x, params["layers"])
    mean = jnp.sum(jnp.where(real[..., None], x, 0.0), axis=1) / jnp.maximum(lengths, 1)[:, None]
    return mean / jnp.maximum(jnp.linalg.norm(mean, axis=1, keepdims=True), 1e-12)


def _dense(x: Array, p: Params) -> Array:
    return x @ p["kernel"] + p["bias"]


def _norm(x: Array, p: Params, config: EncoderConfig) -> Array:
    mean = x.mean(axis=-1, keepdims=True)
    variance = jnp.mean((x - mean) ** 2, axis=-1, keepdims=True)
    return (x - mean) * lax.rsqrt(variance + config.norm_eps) * p["scale"] + p["bias"]
