"""The SFT cold start: next-token loss on expert demonstrations, in exactly the contexts that RL will use."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from rsipo_jax.agents.actions import parse_faithful
from rsipo_jax.agents.context import Context
from rsipo_jax.agents.parsers import Parser
from rsipo_jax.agents.trajectory import Trajectory, Turn
from rsipo_jax.config import Config, SFTConfig
from rsipo_jax.envs.protocol import Task
from rsipo_jax.models.lora import join, split
from rsipo_jax.models.transformer import PARAM_AXES, ModelConfig, Params
from rsipo_jax.orders import order_stream
from rsipo_jax.parallel.sharding import batch_shards, constrain_tree
from rsipo_jax.text.tokenizer import Tokenizer
from rsipo_jax.training.demonstrations.demonstration import Demonstration
from rsipo_jax.training.packing import MicroBatch, microbatch_bins, pack
from rsipo_jax.training.rows import ACTION, CONTEXT, SKILL, Rows, rows_from
from rsipo_jax.training.state import TrainState, cosine, create_state, make_optimizer
from rsipo_jax.training.update import apply_gradients, logprobs_of, place_rows

WARMUP = 0.05  # share of the updates
WEIGHT_DECAY = 0.01
GRAD_CLIP = 1.0
PACKING_POOL = 256  # rows packed together
BIN_STEP = 64  # the bins of reading questions are a multiple of this long


def as_trajectory(
    demo: Demonstration, context: Context, tokenizer: Tokenizer, parser: Parser = parse_faithful
) -> Trajectory:
    """A demonstration as the trajectory a policy would have left, up to where the context's room ends.

    `parser` is the rule by which responses become commands, as RL will apply it.
    """
    trajectory = Trajectory(Task(demo.task_id, demo.kind, "train"), 0, 0, demo.skill, won=demo.won)
    for i, text in enumerate(demo.responses):
        trajectory.observations.append(demo.observations[i])
        prompt = context.acting(trajectory, demo.admissible[i])
        if prompt is None:
            return trajectory
        tokens, parsed = _response(text, tokenizer), parser(text, demo.admissible[i])
        unscored = np.zeros(len(tokens), np.float32)
        turn = Turn(
            prompt, tokens, unscored, text, parsed.command, parsed.valid, parsed.admissible, demo.imitate[i]
        )
        trajectory.turns.append(turn)
    trajectory.observations.append(demo.observations[-1])
    if demo.analysis and (prompt := context.analysis(trajectory)) is not None:
        tokens = _response(demo.analysis, tokenizer)
        if len(prompt.tokens) + len(tokens) <= context.max_length:
            trajectory.writing = Turn(prompt, tokens, np.zeros(len(tokens), np.float32), demo.analysis)
    return trajectory


def _response(text: str, tokenizer: Tokenizer) -> np.ndarray:
    return np.asarray([*tokenizer.encode(text), tokenizer.stop_ids[0]], np.int32)


def sft_rows(
    demos: Sequence[Demonstration], context: Context, tokenizer: Tokenizer, parser: Parser = parse_faithful
) -> Rows:
    """Training rows of all demonstrations."""
    return rows_from([as_trajectory(demo, context, tokenizer, parser) for demo in demos])


def token_weights(rows: Rows, cfg: SFTConfig) -> np.ndarray:
    """Loss weight of each token, float32 [N]: 1 for responses to imitate, `observation_weight` for what is read.

    Responses that shall not be imitated weigh 0, and so does the first token of a row, which nothing predicts.
    """
    weights = np.zeros(len(rows.tokens), np.float32)
    weights[rows.kind == CONTEXT] = cfg.observation_weight
    weights[(rows.kind == ACTION) | (rows.kind == SKILL)] = 1.0
    weights[rows.starts[:-1]] = 0.0
    return weights


@partial(jax.jit, static_argnums=2)
def _gradient(
    trained: Params,
    frozen: Params,
    config: ModelConfig,
    tokens: jax.Array,
    positions: jax.Array,
    segments: jax.Array,
    weights: jax.Array,
) -> tuple[jax.Array, Params]:
    """Weighted mean negative log-likelihood of one batch [M, L] and its gradient by the trained parameters."""

    def loss(trained: Params) -> jax.Array:
        taught = weights > 0
        logprobs, _ = logprobs_of(join(trained, frozen), config, tokens, positions, segments, taught, 1.0)
        return -jnp.sum(weights * logprobs) / jnp.sum(weights)

    value, grads = jax.value_and_grad(loss)(trained)
    return value, constrain_tree(grads, PARAM_AXES)


def sft_batches(rows: Rows, reading: np.ndarray, config: Config) -> list[MicroBatch]:
    """The batches in the order of training; each is one update of about `sft.batch_tokens` packed tokens.

    Rows marked in `reading` (bool [R]) come first and once, in bins of their own short length: a network that can look a
    word up learns to act from far fewer episodes. Then come `sft.epochs` epochs of the others. Rows that have nothing to
    teach are left out, so that no batch has a loss of 0 / 0.
    """
    taught = np.bincount(rows.token_row, token_weights(rows, config.sft), len(rows)) > 0
    lessons, episodes = np.flatnonzero(taught & reading), np.flatnonzero(taught & ~reading)
    batches: list[MicroBatch] = []
    if len(lessons):
        longest = int(rows.lengths[lessons].max())
        order = order_stream(config.seed, "reading questions")
        batches += _epoch(rows, lessons, -(-longest // BIN_STEP) * BIN_STEP, config, order)
    for epoch in range(config.sft.epochs):
        order = order_stream(config.seed, "demonstrations", epoch)
        batches += _epoch(rows, episodes, config.context.max_length, config, order)
    return batches


def _epoch(
    rows: Rows, members: np.ndarray, length: int, config: Config, rng: np.random.Generator
) -> list[MicroBatch]:
    order = rng.permutation(members).tolist()
    # Packing sorts by length; within pools of shuffled rows, so that every epoch mixes them anew.
    pools = [order[i : i + PACKING_POOL] for i in range(0, len(order), PACKING_POOL)]
    # Of one update: more devices do not make it larger.
    bins = microbatch_bins(config.sft.batch_tokens, length, 1)
    packed = [batch for pool in pools for batch in pack(rows.starts, pool, length, bins, batch_shards())]
    return [packed[i] for i in rng.permutation(len(packed))]


def train_sft(
    params: Params,
    model: ModelConfig,
    rows: Rows,
    batches: Sequence[MicroBatch],
    config: Config,
    on_update: Callable[[float], None] = lambda _: None,
) -> Params:
    """Trains on the batches in order, each token with its `token_weights`; `params` are left as they are.

    Where the network has adapters, only these are trained.

    `on_update(loss)` is told the loss before each update.
    """
    cfg, weights = config.sft, token_weights(rows, config.sft)
    optimizer = make_optimizer(cfg.optimizer, WEIGHT_DECAY, GRAD_CLIP, config.train.momentum_dtype)
    trained, frozen = split(params)
    state: TrainState = create_state(trained, optimizer)
    for i, batch in enumerate(batches):
        loss, grads = _gradient(
            state.params,
            frozen,
            model,
            *place_rows(batch.take(rows.tokens), batch.positions, batch.segment_ids, batch.take(weights)),
        )
        rate = cosine(i, len(batches), cfg.learning_rate, WARMUP)
        state, _ = apply_gradients(state, grads, jnp.float32(rate), optimizer)
        on_update(float(loss))
    return join(state.params, frozen)
