"""Low-rank adapters (LoRA, arXiv 2106.09685) on chosen projections of every layer.

An adapted projection computes x W + (alpha / r) x A B; A and B are leaves of the layer tree beside W, so scanning,
sharding and serving treat them as any other parameter. Only they are trained: W and everything else stays as it was
loaded, and teacher, reference and policy share it.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from rsipo_jax.models.transformer import LORA_A, LORA_B, ModelConfig, Params

# What the settings call the projections.
TARGETS = {"q": "wq", "k": "wk", "v": "wv", "o": "wo", "gate": "w_gate", "up": "w_up", "down": "w_down"}


def add_adapters(params: Params, rank: int, targets: Sequence[str], key: jax.Array) -> Params:
    """The parameters with float32 adapters of that rank on the named projections; they compute what they did before.

    A is normal(1/sqrt(in)), B is zero.
    """
    layers = dict(params["layers"])
    for i, target in enumerate(sorted(targets)):
        n, into, out = layers[TARGETS[target]].shape
        down = into**-0.5 * jax.random.normal(jax.random.fold_in(key, i), (n, into, rank), jnp.float32)
        layers[TARGETS[target] + LORA_A] = down
        layers[TARGETS[target] + LORA_B] = jnp.zeros((n, rank, out), jnp.float32)
    return params | {"layers": layers}


def split(params: Params) -> tuple[Params, Params]:
    """The parameters that are trained, and the rest: the adapters where there are any, otherwise everything."""
    layers = params["layers"]
    adapters = {name: a for name, a in layers.items() if is_adapter(name)}
    if not adapters:
        return params, {}
    base = {name: a for name, a in layers.items() if name not in adapters}
    return {"layers": adapters}, params | {"layers": base}


def is_adapter(name: str) -> bool:
    """Whether a leaf of that name belongs to an adapter."""
    return name.endswith((LORA_A, LORA_B))


def join(trained: Params, frozen: Params) -> Params:
    """The whole tree of what `split` took apart."""
    return {**frozen, **trained, "layers": {**frozen.get("layers", {}), **trained["layers"]}}


def merged(layer: Params, name: str, config: ModelConfig) -> jax.Array:
    """The parameter `name` of one layer; where it has an adapter, W + (alpha / r) A B in float32."""
    if (down := layer.get(name + LORA_A)) is None:
        return layer[name]
    return layer[name].astype(jnp.float32) + config.lora_alpha / down.shape[-1] * (
        down @ layer[name + LORA_B]
    )
