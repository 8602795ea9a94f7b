"""Scoring and the optimizer update: three jitted programs, one shape per bin length.

Gradients are accumulated over micro-batches whose losses are sums divided by the token counts of the whole mini-batch,
so that k micro-batches equal one batch exactly, ragged masks included.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import struct

from rsipo_jax.config import LossConfig
from rsipo_jax.methods.losses import hybrid_advantages, loss_sums, masked_sum
from rsipo_jax.methods.method import Credit
from rsipo_jax.models.lora import join
from rsipo_jax.models.transformer import PARAM_AXES, ModelConfig, Params, hidden_states
from rsipo_jax.models.vocabulary import token_logprobs
from rsipo_jax.parallel.sharding import batch_shards, constrain, constrain_tree, place
from rsipo_jax.training.packing import MicroBatch, microbatch_bins, pack
from rsipo_jax.training.rows import ACTION, CONTEXT, SKILL, Rows
from rsipo_jax.training.state import TrainState

Array = jax.Array


@struct.dataclass
class Batch:
    """One micro-batch for the RL loss; every array is [M, L]."""

    tokens: Array  # int32
    positions: Array  # int32, from 0 within each row
    segment_ids: Array  # int32, 0 = padding
    kind: Array  # int8: CONTEXT, ACTION, SKILL
    old_logprobs: Array  # float32, behaviour policy
    ref_logprobs: Array  # float32, SFT policy
    teacher_logprobs: Array  # float32, behaviour policy with the skill in context
    advantages: Array  # float32, of the trajectory (ACTION) or of the skill (SKILL)
    trust: Array  # float32, weight of the teacher's log-ratio


@struct.dataclass
class Sums:
    """Sums of a (micro-)batch; adding two is taking both together."""

    policy: Array
    kl: Array
    entropy: Array
    skill_policy: Array
    skill_kl: Array
    clipped: Array  # action tokens whose ratio left [1 - clip, 1 + clip]
    actions: Array  # action tokens
    skills: Array  # skill tokens


def logprobs_of(
    params: Params,
    config: ModelConfig,
    tokens: Array,
    positions: Array,
    segment_ids: Array,
    wanted: Array,
    temperature: float,
) -> tuple[Array, Array]:
    """Log-probability of each wanted token given those before it in its segment, and the entropy there; [M, L] float32.

    `wanted` is bool [M, L]; elsewhere both are 0. The first token of a segment has no prediction: its value is
    meaningless, it is never wanted.
    """
    hidden = hidden_states(params, config, tokens, positions, segment_ids)
    shifted = jnp.roll(tokens, -1, axis=1)
    wanted = jnp.roll(wanted, -1, axis=1)
    logprobs, entropy = token_logprobs(params, config, hidden, shifted, wanted, temperature)
    return jnp.roll(logprobs, 1, axis=1), jnp.roll(entropy, 1, axis=1)


@partial(jax.jit, static_argnums=(1, 6))
def score_tokens(
    params: Params,
    config: ModelConfig,
    tokens: Array,
    positions: Array,
    segment_ids: Array,
    kind: Array,
    temperature: float,
) -> Array:
    """Log-probabilities of the sampled tokens, [M, L] float32, whole on every device; 0 on context tokens."""
    sampled = kind != CONTEXT
    logprobs, _ = logprobs_of(params, config, tokens, positions, segment_ids, sampled, temperature)
    return constrain(logprobs, None, None)


def score(
    params: Params,
    config: ModelConfig,
    rows: Rows,
    max_length: int,
    microbatch_tokens: int,
    temperature: float,
) -> np.ndarray:
    """Log-probabilities, float32 [N] flat over `rows`, of every sampled token; 0 on context tokens.

    One function for the teacher, the reference and the behaviour policy: only `params` and `rows` differ.
    """
    flat = np.zeros(len(rows.tokens), np.float32)
    bins = microbatch_bins(microbatch_tokens, max_length, batch_shards())
    batches = pack(rows.starts, range(len(rows)), max_length, bins)
    scored = [
        score_tokens(
            params,
            config,
            *place_rows(b.take(rows.tokens), b.positions, b.segment_ids, b.take(rows.kind)),
            temperature,
        )
        for b in batches
    ]
    for batch, packed in zip(batches, scored, strict=True):
        batch.put(np.asarray(packed), flat)
    return flat


def rl_loss(
    params: Params,
    config: ModelConfig,
    batch: Batch,
    totals: tuple[Array, Array],
    cfg: LossConfig,
    eta: float,
    temperature: float,
) -> tuple[Array, Sums]:
    """L = [policy + beta KL - ent H] over action tokens + eta [policy + beta KL] over skill tokens.

    `totals` = (action tokens, skill tokens) of the whole mini-batch, at least 1 each.
    """
    action, skill = batch.kind == ACTION, batch.kind == SKILL
    new, entropy = logprobs_of(
        params, config, batch.tokens, batch.positions, batch.segment_ids, action | skill, temperature
    )
    advantages = hybrid_advantages(
        batch.advantages,
        batch.trust,
        batch.teacher_logprobs,
        batch.old_logprobs,
        action,
        cfg.distill,
        cfg.distill_clip,
    )
    act = loss_sums(new, batch.old_logprobs, batch.ref_logprobs, advantages, action, cfg)
    wrote = loss_sums(new, batch.old_logprobs, batch.ref_logprobs, batch.advantages, skill, cfg)
    spread, _ = masked_sum(entropy, action)
    outside = jnp.abs(jnp.exp(jnp.where(action, new - batch.old_logprobs, 0.0)) - 1.0) > cfg.clip
    loss = (act.policy + cfg.kl * act.kl - cfg.entropy * spread) / totals[0]
    loss += eta * (wrote.policy + cfg.kl * wrote.kl) / totals[1]
    return loss, Sums(
        act.policy,
        act.kl,
        spread,
        wrote.policy,
        wrote.kl,
        jnp.sum(outside & action),
        act.tokens,
        wrote.tokens,
    )


@partial(jax.jit, static_argnums=(2, 5, 6, 7), donate_argnums=8)
def accumulate(
    trained: Params,
    frozen: Params,
    config: ModelConfig,
    batch: Batch,
    totals: tuple[Array, Array],
    cfg: LossConfig,
    eta: float,
    temperature: float,
    grads: Params,
) -> tuple[Params, Sums]:
    """Adds the gradient by the `trained` parameters (`lora.split`) of one micro-batch to `grads` (donated)."""

    def loss(trained: Params) -> tuple[Array, Sums]:
        return rl_loss(join(trained, frozen), config, batch, totals, cfg, eta, temperature)

    new, sums = jax.grad(loss, has_aux=True)(trained)
    return constrain_tree(jax.tree.map(jnp.add, grads, new), PARAM_AXES), sums


@partial(jax.jit, static_argnums=3, donate_argnums=0)
def apply_gradients(
    state: TrainState, grads: Params, learning_rate: Array, optimizer: optax.GradientTransformation
) -> tuple[TrainState, Array]:
    """One optimizer update (state donated). Returns the new state and the gradient norm before clipping."""
    norm = optax.tree.norm(grads)
    updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
    params = jax.tree.map(lambda p, u: p - learning_rate * u, state.params, updates)
    return constrain_tree(TrainState(params, opt_state, state.updates + 1), PARAM_AXES), norm


@dataclass(frozen=True)
class TokenScores:
    """Flat float32 [N] arrays over the training rows, as in `Batch`."""

    old: np.ndarray
    ref: np.ndarray
    teacher: np.ndarray


def make_batch(micro: MicroBatch, rows: Rows, scores: TokenScores, credit: Credit) -> Batch:
    """The packed arrays of one micro-batch, laid out on the mesh."""
    flat = rows.tokens, rows.kind, scores.old, scores.ref, scores.teacher, credit.advantages, credit.trust
    tokens, *rest = (micro.take(array) for array in flat)
    return Batch(*place_rows(tokens, micro.positions, micro.segment_ids, *rest))


def place_rows(*arrays: np.ndarray) -> tuple[Array, ...]:
    """Packed arrays [M, L] laid out on the mesh by their rows."""
    return tuple(place(array, "batch", None) for array in arrays)


@jax.jit
def no_gradients(trained: Params) -> Params:
    """Zeros to which `accumulate` adds."""
    return constrain_tree(jax.tree.map(jnp.zeros_like, trained), PARAM_AXES)


def count_kinds(rows: Rows, members: np.ndarray) -> tuple[np.float32, np.float32]:
    """(action tokens, skill tokens) of the given rows, at least 1 each: the denominators of one mini-batch."""
    chosen = np.isin(rows.token_row, members)
    actions, skills = ((chosen & (rows.kind == kind)).sum() for kind in (ACTION, SKILL))
    return np.float32(max(actions, 1)), np.float32(max(skills, 1))
