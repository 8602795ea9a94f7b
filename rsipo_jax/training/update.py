"""Scoring and the optimizer update: three jitted programs, one shape per bin length.

Gradients are accumulated over micro-batches whose losses are sums divided by the token counts of the whole mini-batch,
so that k micro-batches equal one batch exactly, ragged masks included.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import struct

from rsipo_jax.config import LossConfig
from rsipo_jax.methods.losses import AVERAGES, high, loss_sums, masked_sum, taught
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
    teacher_logprobs: Array  # float32, with the skill in context; of the behaviour policy or the current one
    advantages: Array  # float32, of the trajectory (ACTION) or of the skill (SKILL)
    trust: Array  # float32, weight of the teacher's log-ratio
    importance: Array | None = (
        None  # float32, factor of the surrogate and of the teacher's own loss; None: 1 everywhere
    )


@struct.dataclass
class Sums:
    """Sums of a (micro-)batch; adding two is taking both together."""

    policy: Array
    kl: Array
    entropy: Array
    skill_policy: Array
    skill_kl: Array
    distill: Array  # the teacher's own loss, lambda w included
    clipped: Array  # action tokens whose ratio left [1 - clip, 1 + clip_high]
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
    members: Sequence[int] | None = None,
) -> np.ndarray:
    """Log-probabilities, float32 [N] flat over `rows`, of every sampled token; 0 on context tokens.

    `members` are the rows to score, all by default; those of the others are 0.

    One function for the teacher, the reference and the behaviour policy: only `params` and `rows` differ.
    """
    flat = np.zeros(len(rows.tokens), np.float32)
    bins = microbatch_bins(microbatch_tokens, max_length, batch_shards())
    batches = pack(rows.starts, range(len(rows)) if members is None else members, max_length, bins)
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
    strengths: tuple[Array, Array],
    temperature: float,
) -> tuple[Array, Sums]:
    """L = mean over actions of [policy + distillation + beta KL - ent H] + eta mean over skills of [policy + beta KL].

    `totals` are the denominators of the two means over the whole mini-batch (`count_kinds`), `strengths` = (lambda, eta);
    both are traced, so that they may change from step to step.
    """
    action, skill = batch.kind == ACTION, batch.kind == SKILL
    old, ref = batch.old_logprobs, batch.ref_logprobs
    new, entropy = logprobs_of(
        params, config, batch.tokens, batch.positions, batch.segment_ids, action | skill, temperature
    )
    advantages, extra = taught(
        batch.advantages, strengths[0] * batch.trust, batch.teacher_logprobs, old, new, action, cfg
    )
    # The surrogate is linear in positive factors of the advantage: the importance weight is one. A loss of the teacher's own
    # is an expectation over the same sampled tokens.
    scale = 1.0 if batch.importance is None else batch.importance
    if batch.importance is not None:
        extra = batch.importance * extra
    acts, writes = (AVERAGES[cfg.average](mask, batch.segment_ids) for mask in (action, skill))
    act = loss_sums(new, old, ref, scale * advantages, action, acts, cfg)
    wrote = loss_sums(new, old, ref, scale * batch.advantages, skill, writes, cfg)
    ratio = jnp.exp(jnp.where(action, new - old, 0.0))
    outside = (ratio < 1.0 - cfg.clip) | (ratio > 1.0 + high(cfg))
    loss = (act.loss + masked_sum(acts * (extra - cfg.entropy * entropy), action)[0]) / totals[0]
    loss += strengths[1] * wrote.loss / totals[1]
    return loss, Sums(
        act.policy,
        act.kl,
        masked_sum(entropy, action)[0],
        wrote.policy,
        wrote.kl,
        masked_sum(extra, action)[0],
        jnp.sum(outside & action),
        act.tokens,
        wrote.tokens,
    )


@partial(jax.jit, static_argnums=(2, 5, 7), donate_argnums=8)
def accumulate(
    trained: Params,
    frozen: Params,
    config: ModelConfig,
    batch: Batch,
    totals: tuple[Array, Array],
    cfg: LossConfig,
    strengths: tuple[Array, Array],
    temperature: float,
    grads: Params,
) -> tuple[Params, Sums]:
    """Adds the gradient by the `trained` parameters (`lora.split`) of one micro-batch to `grads` (donated)."""

    def loss(trained: Params) -> tuple[Array, Sums]:
        return rl_loss(join(trained, frozen), config, batch, totals, cfg, strengths, temperature)

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
    importance: np.ndarray | None = None


def make_batch(micro: MicroBatch, rows: Rows, scores: TokenScores, credit: Credit) -> Batch:
    """The packed arrays of one micro-batch, laid out on the mesh."""
    flat: tuple[np.ndarray, ...]
    flat = rows.tokens, rows.kind, scores.old, scores.ref, scores.teacher, credit.advantages, credit.trust
    if scores.importance is not None:
        flat = *flat, scores.importance
    tokens, *rest = (micro.take(array) for array in flat)
    return Batch(*place_rows(tokens, micro.positions, micro.segment_ids, *rest))


def place_rows(*arrays: np.ndarray) -> tuple[Array, ...]:
    """Packed arrays [M, L] laid out on the mesh by their rows."""
    return tuple(place(array, "batch", None) for array in arrays)


@jax.jit
def no_gradients(trained: Params) -> Params:
    """Zeros to which `accumulate` adds."""
    return constrain_tree(jax.tree.map(jnp.zeros_like, trained), PARAM_AXES)


def count_kinds(rows: Rows, members: np.ndarray, average: str = "token") -> tuple[np.float32, np.float32]:
    """The denominators of one mini-batch, at least 1 each: (action tokens, skill tokens) of the given rows.

    With `average` "sequence": (rows with an action token, rows with a skill token).
    """
    chosen = np.isin(rows.token_row, members)
    of_kind = (rows.token_row[chosen & (rows.kind == kind)] for kind in (ACTION, SKILL))
    actions, skills = (len(np.unique(r) if average == "sequence" else r) for r in of_kind)
    return np.float32(max(actions, 1)), np.float32(max(skills, 1))


def importance_weights(old: np.ndarray, sampler: np.ndarray, cap: float) -> np.ndarray:
    """Truncated importance sampling, min(pi_old / pi_sampler, cap), float32 [N]: the learner computes a little otherwise
    than the sampler that drew the tokens (Yao et al. 2025, "Your efficient RL framework secretly brings you off-policy
    RL training")."""
    return np.exp(np.minimum(old - sampler, np.log(cap))).astype(np.float32)
