"""The training state and its optimizer."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import optax
from flax import struct

from rsipo_jax.models.transformer import Params


@struct.dataclass
class TrainState:
    params: Params  # float32
    opt_state: optax.OptState
    updates: jax.Array  # int32 scalar, optimizer updates so far


def make_optimizer(weight_decay: float, grad_clip: float) -> optax.GradientTransformation:
    """AdamW without its learning rate (the caller scales), gradients clipped by global norm first."""
    return optax.chain(
        optax.clip_by_global_norm(grad_clip),
        optax.scale_by_adam(b1=0.9, b2=0.999),
        optax.add_decayed_weights(weight_decay),
    )


def create_state(params: Params, optimizer: optax.GradientTransformation) -> TrainState:
    return TrainState(params, optimizer.init(params), jnp.zeros((), jnp.int32))


def warmup(step: int, steps: int, peak: float, warmup_ratio: float) -> float:
    """Learning rate of `step` (from 0) in a run of `steps`: linear up to `peak` over the warm-up, then constant."""
    ramp = warmup_ratio * steps
    return peak * min(1.0, (step + 1) / ramp) if ramp > 0 else peak


def cosine(step: int, steps: int, peak: float, warmup_ratio: float) -> float:
    """Learning rate of `step`: linear warm-up, then a cosine down to a tenth of `peak`."""
    done = max(0.0, (step - warmup_ratio * steps) / max(1.0, steps - warmup_ratio * steps))
    return warmup(step, steps, peak, warmup_ratio) * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * min(1.0, done))))
