"""The numbers of one step's log line, and the clock of its phases."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from rsipo_jax.agents.trajectory import Trajectory
from rsipo_jax.config import Config
from rsipo_jax.methods import METHODS
from rsipo_jax.methods.losses import pull
from rsipo_jax.methods.method import Credit, Outcomes, SkillEvidence
from rsipo_jax.methods.skill_credit import rewarded, trains_writing
from rsipo_jax.sampling.protocol import Work
from rsipo_jax.skills.writing import Skill
from rsipo_jax.training.rows import ACTION, Rows
from rsipo_jax.training.update import Sums, TokenScores
from rsipo_jax.training.watch import Drift


class Phases:
    """Wall-clock seconds by phase."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start

    @property
    def total(self) -> float:
        return sum(self.seconds.values())


def step_metrics(
    trajectories: Sequence[Trajectory],
    replays: Sequence[Trajectory],
    skills: Sequence[Skill],
    outcomes: Outcomes,
    evidence: SkillEvidence | None,
    rows: Rows,
    scores: TokenScores,
    credit: Credit,
    sums: Sequence[Sums],
    norms: Sequence[float],
    config: Config,
    pulls: tuple[float, float],
) -> dict[str, float]:
    """Metrics of a step. Rates are shares in [0, 1], KL and entropy are nats per action token, lengths are turns.

    `pulls` are lambda and eta. Methods without skills have no skill metrics.
    """
    played = [t for t in trajectories if not t.void]
    turns = [turn for t in played for turn in t.turns]
    total = {
        name: float(sum(np.asarray(getattr(s, name), np.float64) for s in sums))
        for name in Sums.__annotations__
    }
    actions, written = max(total["actions"], 1.0), max(total["skills"], 1.0)
    metrics = {
        "success": _mean([t.won for t in played]),
        "length": _mean([len(t.turns) for t in played]),
        "reward": _mean(outcomes.returns[outcomes.valid]),
        "mixed_groups": _mean([_mixed(outcomes, trajectories, x) for x in range(outcomes.num_groups)]),
        "valid_actions": _mean([turn.valid for turn in turns]),
        "admissible_actions": _mean([turn.admissible for turn in turns]),
        "context_full": _mean([t.status == "context_full" for t in played]),
        "env_errors": float(sum(t.void for t in (*trajectories, *replays))),
        "policy_loss": total["policy"] / actions,
        "kl": total["kl"] / actions,
        "entropy": total["entropy"] / actions,
        "clipped": total["clipped"] / actions,
        "grad_norm": _mean(norms),
    }
    if evidence is None:
        return metrics
    acting = rows.kind == ACTION
    gap = (scores.teacher - scores.old)[acting]
    read = gap[evidence.valid[rows.token_episode[acting]]]  # where there is a skill to read
    outcome, trusted = credit.advantages[acting], np.float32(pulls[0]) * credit.trust[acting]
    gains, weights = evidence.gains, evidence.trust
    measured, tasks = np.asarray(gains.skill_measured), np.asarray(gains.task_measured)
    judged = np.asarray(weights.variance) > 0  # units with evidence
    metrics |= {
        "distill": pulls[0],
        "valid_skills": _mean(evidence.valid[evidence.written]),
        "distill_loss": total["distill"] / actions,
    }
    if len(read):
        metrics |= {"teacher_gap": _mean(read), "teacher_gap_abs": _mean(np.abs(read))}
    if (size := _mean(np.abs(outcome))) > 0.0:  # else there is nothing to compare with
        metrics["distill_to_rl"] = _mean(pull(outcome, trusted, gap, config.loss)) / size
    method = METHODS[config.method]
    if method.replays:
        metrics |= {
            "prior_mean": _mean(np.asarray(weights.mu)),
            "prior_variance": _mean(np.asarray(weights.tau2)),
            "prior_skill_variance": _mean(np.asarray(weights.om2)),
        }
    if trains_writing(method, config.skill):
        metrics |= {
            "eta": pulls[1],
            "skill_loss": total["skill_policy"] / written,
            "skill_kl": total["skill_kl"] / written,
        }
        if (known := rewarded(outcomes, evidence)).any():
            metrics["skill_reward"] = _mean(evidence.rewards[known])
    if measured.any():  # a step without one readable skill measures no gain
        task_gains = np.asarray(gains.task_gain, np.float64)[tasks]
        # Equal rates of different counts (2 of 4, 1 of 2) are equal: float32 rates differ in their last digit.
        better, worse = task_gains > 1e-6, task_gains < -1e-6
        metrics |= {
            "replay_success": _mean([t.won for t in replays if not t.void]),
            "gain_mean": _mean(task_gains),
            "teacher_better": _mean(better),  # Fig. 2c: shares of the tasks that were replayed
            "teacher_worse": _mean(worse),
            "teacher_equal": _mean(~better & ~worse),
            "gain_std": float(np.std(task_gains)),
            "skill_gain_std": float(np.std(np.asarray(gains.skill_gain)[measured])),
            "trust_mean": _mean(np.asarray(weights.weight)[judged]),
            "trusted": _mean(np.asarray(weights.weight)[judged] > 0),
            "shrinkage": _mean(np.asarray(weights.shrinkage)[judged]),
            "posterior_mean": _mean(np.asarray(weights.posterior_mean)[judged]),
            "skill_chars": _mean([len(skill.text) for skill in skills if skill.valid]),
        }
    return metrics


def sampler_metrics(drift: Drift, work: Sequence[Work]) -> dict[str, float]:
    """Whether the sampler can be believed, and how much of its work was spared or idle (shares in [0, 1])."""
    prompt, reused = sum(w.prompt_tokens for w in work), sum(w.reused_tokens for w in work)
    sampled, steps = sum(w.sampled_tokens for w in work), sum(w.slot_steps for w in work)
    return {
        "drift_mean": drift.mean,
        "drift_max": drift.largest,
        "prompt_reuse": reused / max(prompt, 1),
        "slot_use": sampled / max(steps, 1),
    }


def _mixed(outcomes: Outcomes, trajectories: Sequence[Trajectory], group: int) -> bool:
    """Whether the group has both outcomes, so that it teaches something."""
    won = {t.won for t in trajectories if t.group == group and not t.void}
    return len(won) == 2


def _mean(values: Sequence[float] | np.ndarray) -> float:
    return float(np.mean(np.asarray(values, np.float64))) if len(values) else 0.0
