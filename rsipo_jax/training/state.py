"""The training state and its optimizer."""

from __future__ import annotations

import functools
import math
from functools import partial

import jax
import jax.numpy as jnp
import optax
from flax import struct
from optax import contrib

from rsipo_jax.models.transformer import PARAM_AXES, Params
from rsipo_jax.parallel.sharding import constrain_tree


@struct.dataclass
class TrainState:
    params: Params  # float32, those that are trained (`lora.split`)
    opt_state: optax.OptState
    updates: jax.Array  # int32 scalar, optimizer updates so far


@functools.cache
def make_optimizer(
    name: str, weight_decay: float, grad_clip: float, momentum_dtype: str = "float32"
) -> optax.GradientTransformation:
    """AdamW ("adamw") or Muon ("muon") without its learning rate (the caller scales), gradients clipped first.

    Muon orthogonalises the momentum of each layer's matrices and leaves everything else to Adam; its updates have Adam's
    size (`consistent_rms`), so learning rates carry over. A fresh network learned faster with it
    than with Adam (one comparison).
    `momentum_dtype` is that of the first moment, Muon's too; Adam's second moves by thousandths, which bfloat16 would round away.
    Equal settings give the very same object: jitted functions take it as a static argument, compared by identity.
    """
    if name == "muon":
        rule = optax.chain(
            contrib.muon(
                1.0,
                adam_b2=0.95,
                consistent_rms=0.2,
                mu_dtype=momentum_dtype,
                muon_weight_dimension_numbers=_layer_matrices,
            ),
            optax.scale(-1.0),  # muon's updates are steps downhill; the caller subtracts
        )
    else:
        rule = optax.scale_by_adam(b1=0.9, b2=0.999, mu_dtype=momentum_dtype)
    return optax.chain(optax.clip_by_global_norm(grad_clip), rule, optax.add_decayed_weights(weight_decay))


def _layer_matrices(params: Params) -> Params:
    """Which leaves are stacks of matrices [layers, in, out]; None for the others."""
    return jax.tree.map(lambda a: contrib.MuonDimensionNumbers(1, 2) if a.ndim == 3 else None, params)


@partial(jax.jit, static_argnums=1)
def create_state(params: Params, optimizer: optax.GradientTransformation) -> TrainState:
    """The state before the first update, a copy of the trained `params` with it, laid out as the table says."""
    state = TrainState(jax.tree.map(jnp.copy, params), optimizer.init(params), jnp.zeros((), jnp.int32))
    return constrain_tree(state, PARAM_AXES)


def warmup(step: int, steps: int, peak: float, warmup_ratio: float) -> float:
    """Learning rate of `step` (from 0) in a run of `steps`: linear up to `peak` over the warm-up, then constant."""
    ramp = warmup_ratio * steps
    return peak * min(1.0, (step + 1) / ramp) if ramp > 0 else peak


def cosine(step: int, steps: int, peak: float, warmup_ratio: float) -> float:
    """Learning rate of `step`: linear warm-up, then a cosine down to a tenth of `peak`."""
    done = max(0.0, (step - warmup_ratio * steps) / max(1.0, steps - warmup_ratio * steps))
    return warmup(step, steps, peak, warmup_ratio) * (
        0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * min(1.0, done)))
    )
