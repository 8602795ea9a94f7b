"""One training step, as in the paper: act, write skills, replay with them, trust, score, credit, update.

The function reads in the order of the steps of architecture and algorithms; methods differ in what `Method` declares and
in `Method.credit` only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import jax.numpy as jnp
import numpy as np

from rsipo_jax.agents.rollout import ACT, REPLAY, Agent, Episode, rollout, sampling_of
from rsipo_jax.agents.trajectory import Trajectory
from rsipo_jax.config import Config, RolloutConfig
from rsipo_jax.envs.protocol import Task
from rsipo_jax.methods import METHODS
from rsipo_jax.methods.advantages import replay_gains, skill_rewards
from rsipo_jax.methods.method import Credit, Outcomes, SkillEvidence, Tokens, Turns
from rsipo_jax.methods.skill_credit import rewarded, trains_writing
from rsipo_jax.models.lora import join
from rsipo_jax.models.transformer import ModelConfig, Params
from rsipo_jax.orders import order_stream
from rsipo_jax.parallel.sharding import batch_shards
from rsipo_jax.sampling.protocol import Sampling, Work
from rsipo_jax.skills.prior import PriorState
from rsipo_jax.skills.tokens import token_shrinkage
from rsipo_jax.skills.trust import trust, update_prior
from rsipo_jax.skills.units import count_units
from rsipo_jax.skills.writing import Skill, draw_analysed, shuffled_authors, write_skills
from rsipo_jax.training.metrics import Phases, sampler_metrics, step_metrics
from rsipo_jax.training.packing import microbatch_bins, pack
from rsipo_jax.training.rows import ACTION, SKILL, Rows, rows_from, teacher_rows
from rsipo_jax.training.schedules import next_scale, strengths
from rsipo_jax.training.state import TrainState, make_optimizer, warmup
from rsipo_jax.training.tasks import draw_tasks
from rsipo_jax.training.update import (
    Sums,
    TokenScores,
    accumulate,
    apply_gradients,
    count_kinds,
    importance_weights,
    make_batch,
    no_gradients,
    score,
)
from rsipo_jax.training.watch import Drift, watch
from rsipo_jax.validation import ConfigError


@dataclass(frozen=True)
class Learner:
    """What is fixed over the RL stage."""

    agent: Agent
    model: ModelConfig
    frozen: Params  # what is not trained (`lora.split`): everything but adapters, if there are any
    reference: Params  # the SFT policy, whole
    tasks: Sequence[Task]


@dataclass(frozen=True)
class StepResult:
    state: TrainState
    prior: PriorState
    distill_scale: float
    metrics: dict[str, float]
    seconds: dict[str, float]
    tokens_per_second: float
    episodes: list[dict]
    skills: list[dict]


def train_step(
    learner: Learner,
    state: TrainState,
    prior: PriorState,
    step: int,
    on_done: Callable[[Trajectory], None] = lambda _: None,
    distill_scale: float = 1.0,
) -> StepResult:
    """RL step `step` (from 1). `state` is consumed. `on_done` is called for every finished episode, replays included.

    `distill_scale` is what earlier steps made of it (`schedules.next_scale`).
    """
    agent, config = learner.agent, learner.agent.config
    method, phases = METHODS[config.method], Phases()

    with phases("rollout"):
        policy = join(state.params, learner.frozen)
        agent.sampler.load(policy, step - 1)  # the weights after that step
        sampling = sampling_of(config.rollout)
        tasks = draw_tasks(learner.tasks, config.rollout.tasks_per_step, config.seed, step)
        group = np.repeat(np.arange(len(tasks), dtype=np.int32), config.rollout.group_size)
        plan = [Episode(tasks[x], int(x), i % config.rollout.group_size) for i, x in enumerate(group)]
        trajectories = rollout(agent, plan, ACT, step, sampling, on_done)
        outcomes = Outcomes(
            _returns(trajectories, agent), group, _valid(trajectories), len(tasks), config.loss,
            _turns(trajectories, config.rollout),
        )  # fmt: skip

    with phases("watch"):
        drift = watch(policy, learner.model, trajectories, config)

    work: list[Work] = []  # of the sampler, before weights came that are not the last of this step
    skills: list[Skill] = []
    authors = np.arange(len(trajectories))
    replays: list[Trajectory] = []
    evidence = None
    if method.writes_skills:
        with phases("skills"):
            skills, authors = _skills(learner, policy, trajectories, outcomes, step, work)
    if method.replays:
        with phases("replay"):
            k = config.skill.replays
            planned = [
                replace(plan[e], rollout=plan[e].rollout * k + i, skill=skill.text)
                for e, skill in enumerate(skills)
                if skill.valid
                for i in range(k)
            ]
            replays = rollout(agent, planned, REPLAY, step, sampling, on_done)
    if method.writes_skills:
        with phases("trust"):
            evidence, prior = _weigh(trajectories, skills, replays, outcomes, prior, agent)

    with phases("score"):
        # Where writing is not trained, its rows need no scores.
        trained = trajectories if trains_writing(method, config.skill) else _without_writing(trajectories)
        rows = rows_from(trained)
        views = _teacher_views(agent, rows, skills)
        scores = _scores(learner, policy, rows, views, drift)

    credit = method.credit(outcomes, evidence, _tokens(rows, trajectories))
    if evidence is not None and config.trust.token_shrinkage:
        clip = config.loss.distill_clip
        gap = np.clip(scores.teacher - scores.old, -clip, clip)
        taught = (rows.kind == ACTION) & evidence.valid[rows.token_episode]
        credit = replace(credit, trust=credit.trust * token_shrinkage(gap, rows.token_episode, taught))
    with phases("update"):
        pulls = strengths(config, step, distill_scale)
        state, sums, norms = _update(learner, state, rows, views, scores, credit, step, pulls)

    metrics = step_metrics(
        trajectories, replays, skills, outcomes, evidence, rows, scores, credit, sums, norms, config, pulls
    ) | sampler_metrics(drift, [*work, agent.sampler.work])
    sampled = sum(len(turn.response) for t in (*trajectories, *replays) for turn in t.turns)
    sampled += sum(len(t.writing.response) for t in trajectories if t.writing is not None)
    return StepResult(
        state, prior, next_scale(distill_scale, metrics.get("distill_to_rl", 0.0), config.loss), metrics,
        phases.seconds, sampled / phases.total,
        [_episode_record(t, "act") for t in trajectories] + [_episode_record(t, "replay") for t in replays],
        [] if evidence is None else _skill_records(trajectories, skills, authors, outcomes, evidence, rows, credit, config),
    )  # fmt: skip


def _skills(
    learner: Learner,
    policy: Params,
    trajectories: Sequence[Trajectory],
    outcomes: Outcomes,
    step: int,
    work: list[Work],
) -> tuple[list[Skill], np.ndarray]:
    """The skill that each episode is replayed and taught with, by `config.skill.source`, and the episode it is of.

    Loads reset the sampler's count of its work: what it had done before each is added to `work`.
    """
    agent, config = learner.agent, learner.agent.config
    sampling = sampling_of(config.rollout)
    analysed = draw_analysed(trajectories, config.skill.per_task, config.seed, step)
    if config.skill.source == "static":
        work.append(agent.sampler.work)
        agent.sampler.load(learner.reference, 0)
    skills = write_skills(agent, trajectories, step, sampling, analysed)
    if config.skill.source == "static":
        work.append(agent.sampler.work)
        agent.sampler.load(policy, step - 1)
    if config.skill.source != "shuffled":
        return skills, np.arange(len(skills))
    authors = shuffled_authors(outcomes.group, config.seed, step)
    return [skills[author] for author in authors], authors


def _without_writing(trajectories: Sequence[Trajectory]) -> list[Trajectory]:
    return [replace(t, writing=None) for t in trajectories]


def _returns(trajectories: Sequence[Trajectory], agent: Agent) -> np.ndarray:
    """R = win_reward * won - invalid_penalty * malformed actions, float32 [E]."""
    cfg = agent.config.rollout
    won = np.asarray([t.won for t in trajectories], np.float32)
    invalid = np.asarray([t.invalid_actions for t in trajectories], np.float32)
    return cfg.win_reward * won - np.float32(cfg.invalid_penalty) * invalid


def _valid(trajectories: Sequence[Trajectory]) -> np.ndarray:
    return np.asarray([not t.void for t in trajectories])


def _turns(trajectories: Sequence[Trajectory], cfg: RolloutConfig) -> Turns:
    """The turns of the episodes that were not void."""
    played = [(e, t, i) for e, t in enumerate(trajectories) if not t.void for i in range(len(t.turns))]
    won = [t.won and i + 1 == len(t.turns) for _, t, i in played]
    malformed = [not t.turns[i].valid for _, t, i in played]
    return Turns(
        np.asarray([e for e, _, _ in played], np.int32),
        [t.observations[i] for _, t, i in played],
        np.float32(cfg.win_reward) * np.asarray(won, np.float32),
        np.float32(cfg.invalid_penalty) * np.asarray(malformed, np.float32),
    )


def _tokens(rows: Rows, trajectories: Sequence[Trajectory]) -> Tokens:
    """What each token of the rows is. Action tokens stand in the order of the turns that sampled them."""
    action = rows.kind == ACTION
    lengths = [len(turn.response) for t in trajectories if not t.void for turn in t.turns]
    turn = np.full(len(rows.kind), -1, np.int32)
    turn[action] = np.repeat(np.arange(len(lengths), dtype=np.int32), lengths)
    return Tokens(rows.token_episode, action, rows.kind == SKILL, turn)


def _weigh(
    trajectories: Sequence[Trajectory],
    skills: Sequence[Skill],
    replays: Sequence[Trajectory],
    outcomes: Outcomes,
    prior: PriorState,
    agent: Agent,
) -> tuple[SkillEvidence, PriorState]:
    """The execution check: replay gains, the reward of each skill, the trust of each unit, and the new prior."""
    k, config = agent.config.skill.replays, agent.config
    readable = np.asarray([skill.valid for skill in skills])
    replay_won, replay_valid = np.zeros((len(skills), k), bool), np.zeros((len(skills), k), bool)
    if replays:
        replay_won[readable] = np.asarray([t.won for t in replays], bool).reshape(-1, k)
        replay_valid[readable] = _valid(replays).reshape(-1, k)
    won = np.asarray([t.won for t in trajectories])
    gains = replay_gains(won, outcomes.valid, outcomes.group, replay_won, replay_valid, outcomes.num_groups)
    episodes = won, outcomes.valid, outcomes.group
    units = count_units(*episodes, replay_won, replay_valid, outcomes.num_groups, config.trust)
    labels = {"classes": units.classes, "task": units.task}
    prior = update_prior(prior, *units.counts, config.trust, **labels)
    belief = trust(prior, *units.counts, config.trust, **labels)
    chars = np.asarray([len(skill.text) for skill in skills])
    rewards = np.asarray(skill_rewards(gains.skill_gain, readable, chars, config.skill), np.float32)
    written = np.asarray([skill.written for skill in skills])
    return SkillEvidence(
        written, readable, rewards, gains, belief, units.of_episode, won, config.skill.adv_group
    ), prior


def _teacher_views(agent: Agent, rows: Rows, skills: Sequence[Skill]) -> Rows | None:
    """The acting rows with the skills in context; None without skills."""
    if not skills:
        return None
    blocks = [agent.context.skill_tokens(skill.text if skill.valid else "") for skill in skills]
    return teacher_rows(rows, blocks)


def _scores(learner: Learner, params: Params, rows: Rows, views: Rows | None, drift: Drift) -> TokenScores:
    """Behaviour, reference and teacher log-probabilities of the sampled tokens; the first may be the sampler's own."""
    config = learner.agent.config
    # A difference between the sampler's log-probabilities and the scoring pass's would look like a policy change. Where
    # there is none to speak of, and no filter has changed the distribution, a pass over the rows is spared. A correction
    # for the difference needs both.
    unfiltered = replace(sampling_of(config.rollout), temperature=1.0) == Sampling()
    cap = config.loss.importance_cap
    same = unfiltered and drift.mean <= config.rollout.reuse_drift and not cap
    old = rows.logprobs if same else _scored(learner, params, rows)
    ref = _scored(learner, learner.reference, rows)
    teacher = old.copy()
    if views is not None:
        teacher[rows.kind == ACTION] = _scored(learner, params, views)[views.kind == ACTION]
    return TokenScores(old, ref, teacher, importance_weights(old, rows.logprobs, cap) if cap else None)


def _scored(learner: Learner, params: Params, rows: Rows, members: Sequence[int] | None = None) -> np.ndarray:
    config = learner.agent.config
    length, tokens = config.context.max_length, config.train.microbatch_tokens
    return score(params, learner.model, rows, length, tokens, config.rollout.temperature, members)


def _current_teacher(
    learner: Learner, params: Params, rows: Rows, views: Rows, scores: TokenScores, members: np.ndarray
) -> TokenScores:
    """The scores with the teacher's made anew with these parameters, on the given rows.

    The student's need no pass of their own: the loss has them, since it is at these parameters that it is differentiated.
    """
    acting = np.unique(rows.token_row[rows.kind == ACTION])  # the rows that `views` has, in its order
    viewed = np.flatnonzero(np.isin(acting, members))
    teacher = np.zeros_like(scores.teacher)
    teacher[rows.kind == ACTION] = _scored(learner, params, views, viewed.tolist())[views.kind == ACTION]
    return replace(scores, teacher=teacher)


def _update(
    learner: Learner,
    state: TrainState,
    rows: Rows,
    views: Rows | None,
    scores: TokenScores,
    credit: Credit,
    step: int,
    pulls: tuple[float, float],
) -> tuple[TrainState, list[Sums], list[float]]:
    """One epoch over the rows in shuffled mini-batches. Returns the state, sums per micro-batch, norms per update.

    Raises ConfigError when a gradient is not finite: the parameters are lost.
    """
    config = learner.agent.config
    cfg, loss = config.train, config.loss
    order = order_stream(config.seed, "rows", step).permutation(len(rows))
    size = cfg.minibatch_rows or max(len(rows), 1)
    rate = jnp.float32(warmup(step - 1, cfg.steps, cfg.learning_rate, cfg.warmup_ratio))
    optimizer = make_optimizer("adamw", cfg.weight_decay, cfg.grad_clip, cfg.momentum_dtype)
    traced = jnp.float32(pulls[0]), jnp.float32(pulls[1])
    all_sums, norms = [], []
    for first in range(0, len(rows), size):
        members = order[first : first + size]
        if views is not None and loss.teacher == "current":
            policy = join(state.params, learner.frozen)
            scores = _current_teacher(learner, policy, rows, views, scores, members)
        totals = count_kinds(rows, members, loss.average)
        grads = no_gradients(state.params)
        length = config.context.max_length
        bins = microbatch_bins(cfg.microbatch_tokens, length, batch_shards())
        for micro in pack(rows.starts, members.tolist(), length, bins):
            grads, sums = accumulate(
                state.params, learner.frozen, learner.model, make_batch(micro, rows, scores, credit), totals,
                loss, traced, config.rollout.temperature, grads,
            )  # fmt: skip
            all_sums.append(sums)
        state, norm = apply_gradients(state, grads, rate, optimizer)
        norms.append(float(norm))
        if not math.isfinite(norms[-1]):
            raise ConfigError(
                f"the gradient of update {len(norms)} of RL step {step} is {norms[-1]}, so nothing can be learned from here on: "
                f"in another --workdir, lower config.train.learning_rate={cfg.learning_rate:g} or what the loss is multiplied "
                "with (config.loss.distill, config.skill.eta, config.rollout.win_reward)"
            )
    return state, all_sums, norms


def _episode_record(t: Trajectory, role: str) -> dict:
    return {
        "role": role, "task": t.task.id, "kind": t.task.kind, "group": t.group, "rollout": t.rollout,
        "policy_version": t.policy_version,
        "won": t.won, "status": t.status, "turns": len(t.turns), "invalid_actions": t.invalid_actions,
        "error": t.error, "trace": t.trace, "actions": [turn.command for turn in t.turns],
    }  # fmt: skip


def _skill_records(
    trajectories: Sequence[Trajectory],
    skills: Sequence[Skill],
    authors: np.ndarray,
    outcomes: Outcomes,
    evidence: SkillEvidence,
    rows: Rows,
    credit: Credit,
    config: Config,
) -> list[dict]:
    """What each episode was taught with and by how much; None where nothing was measured, rewarded or taught."""
    gains, weights, unit = evidence.gains, evidence.trust, evidence.unit
    acting = rows.kind == ACTION
    applied = np.full(len(skills), np.nan)  # the weight of an episode is that of each of its action tokens
    applied[rows.token_episode[acting]] = credit.trust[acting]
    trained = trains_writing(METHODS[config.method], config.skill)
    columns = {
        "gain": (gains.skill_gain, gains.skill_measured),
        "reward": (evidence.rewards, rewarded(outcomes, evidence) & trained),
        "task_gain": (np.asarray(gains.task_gain)[outcomes.group], np.asarray(gains.task_measured)[outcomes.group]),
        "posterior": (np.asarray(weights.posterior_mean)[unit], np.asarray(weights.variance)[unit] > 0),
        "trust": (applied, ~np.isnan(applied)),
    }  # fmt: skip
    return [
        {
            "text": skill.text, "summary": skill.summary, "valid": skill.valid, "status": skill.status,
            "task": t.task.id, "group": t.group, "rollout": t.rollout,
            "source_group": trajectories[author].group, "source_rollout": trajectories[author].rollout,
            "source_won": trajectories[author].won,
            **{name: float(values[i]) if known[i] else None for name, (values, known) in columns.items()},
        }
        for i, (t, skill, author) in enumerate(zip(trajectories, skills, authors, strict=True))
    ]  # fmt: skip
