"""Do the sampler and the learner still compute the same policy? They are two programs; a fault in either biases every ratio."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from rsipo_jax.agents.rollout import Agent
from rsipo_jax.agents.trajectory import Trajectory, Turn
from rsipo_jax.config import Config
from rsipo_jax.evaluation.panels import Panel
from rsipo_jax.evaluation.play import play_panel
from rsipo_jax.evaluation.scores import EpisodeScore
from rsipo_jax.models.transformer import ModelConfig, Params
from rsipo_jax.training.rows import CONTEXT, Rows, rows_from
from rsipo_jax.training.update import score
from rsipo_jax.validation import ConfigError


@dataclass(frozen=True)
class Drift:
    """Differences of log-probabilities, sampler's and learner's, of the tokens compared; nats."""

    mean: float = 0.0  # of their sizes
    largest: float = 0.0
    tokens: int = 0


def watch(params: Params, model: ModelConfig, trajectories: Sequence[Trajectory], config: Config) -> Drift:
    """Scores some rows of freshly sampled trajectories: both sides at temperature 1, without filters.

    `params` are the weights that sampled them. Raises ConfigError when the two are further apart on a row
    than they may be.
    """
    sampled = [_raw(t) for t in trajectories if t.turns and not t.void]
    rows = _spread(rows_from(sampled), config.rollout.watch_rows)
    scored = score(params, model, rows, config.context.max_length, config.train.microbatch_tokens, 1.0)
    compared = rows.kind != CONTEXT
    apart = np.abs(scored - rows.logprobs)[compared]
    if not apart.size:
        return Drift()
    row = rows.token_row[compared]
    worst = float(np.max(np.bincount(row, apart) / np.bincount(row)))
    drift = Drift(float(apart.mean()), float(apart.max()), apart.size)
    version = sampled[0].policy_version
    if math.isnan(worst):
        raise ConfigError(
            f"the weights of step {version} give the sampled tokens log-probabilities that are nan, so training has left them no "
            f"policy: in another --workdir, lower config.train.learning_rate={config.train.learning_rate:g} "
            f"(config.sft.learning_rate={config.sft.learning_rate:g} if this is step 0)"
        )
    if not worst <= config.rollout.max_drift:  # infinity too
        raise ConfigError(
            f"with the weights of step {version} the sampler and the learner give the sampled tokens of a row "
            f"log-probabilities that are {worst:.3g} nats apart on average, more than "
            f"config.rollout.max_drift={config.rollout.max_drift:g}: their policies are not the same, so nothing was learned "
            "from these episodes; in another --workdir, compute with config.model.dtype='float32' to see whether it is rounding, "
            "or raise the limit, with which this run goes on"
        )
    return drift


def play_watched(
    agent: Agent,
    model: ModelConfig,
    params: Params,
    panel: Panel,
    step: int,
    optimal: Mapping[str, int],
    advance: Callable[[int], None],
    with_skills: bool = False,
) -> list[EpisodeScore]:
    """`play_panel` with the weights of RL step `step`, under watch. `advance` is told how many games are over."""
    agent.sampler.load(params, step)
    played: list[Trajectory] = []

    def on_done(trajectory: Trajectory) -> None:
        played.append(trajectory)
        advance(1)

    scores = play_panel(agent, panel, step, optimal, on_done, with_skills)
    watch(params, model, sorted(played, key=lambda t: (t.group, t.rollout)), agent.config)
    return scores


def _raw(trajectory: Trajectory) -> Trajectory:
    """The trajectory with log-probabilities of the logits as they are, without a skill-writing turn."""

    def raw(turn: Turn) -> Turn:
        assert turn.raw_logprobs is not None, "sampled turns have them"
        return replace(turn, logprobs=turn.raw_logprobs)

    return replace(trajectory, turns=[raw(turn) for turn in trajectory.turns], writing=None)


def _spread(rows: Rows, count: int) -> Rows:
    """At most `count` of the rows, evenly spread: of many episodes, early turns and late ones."""
    chosen = np.unique(np.linspace(0, len(rows) - 1, min(count, len(rows))).round().astype(int))
    parts = [slice(rows.starts[r], rows.starts[r + 1]) for r in chosen]
    tokens, kind, logprobs = (
        np.concatenate([a[part] for part in parts]) if parts else a[:0]
        for a in (rows.tokens, rows.kind, rows.logprobs)
    )
    starts = np.concatenate([[0], np.cumsum(rows.lengths[chosen])]).astype(np.int64)
    return Rows(tokens, kind, logprobs, starts, rows.episode[chosen], rows.skill_at[chosen])
