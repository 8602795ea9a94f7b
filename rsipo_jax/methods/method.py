"""What a method is: whether skills are written and replayed, and how credit is given. Everything else is shared."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from rsipo_jax.config import LossConfig
from rsipo_jax.methods.advantages import (
    ReplayGains,
    anchor_groups,
    group_advantages,
    leave_one_out,
    returns_to_go,
    step_advantages,
)
from rsipo_jax.skills.trust import Trust


@dataclass(frozen=True)
class Turns:
    """The T turns of the plain episodes that were not void, episode by episode and in order."""

    episode: np.ndarray  # int32 [T]
    observations: Sequence[str]  # [T] what the turn saw
    rewards: np.ndarray  # float32 [T]: win_reward at the turn that won
    penalties: np.ndarray  # float32 [T]: invalid_penalty at malformed actions


@dataclass(frozen=True)
class Outcomes:
    """The E plain episodes of a step."""

    returns: np.ndarray  # float32 [E]: win_reward * won - invalid_penalty * malformed actions
    group: np.ndarray  # int32 [E], index of the task
    valid: np.ndarray  # bool [E], False for episodes the environment voided
    num_groups: int
    loss: LossConfig = field(default_factory=LossConfig)  # how advantages are computed
    turns: Turns | None = None  # needed by statistics over rows and by gigpo


@dataclass(frozen=True)
class SkillEvidence:
    """The skill that episode e wrote, and what its replays showed."""

    written: np.ndarray  # bool [E], the policy wrote one (there was room, and the episode was not void)
    valid: np.ndarray  # bool [E], it can be read
    rewards: np.ndarray  # float32 [E], see `advantages.skill_rewards`
    gains: ReplayGains  # nothing is measured where the method does not replay
    trust: Trust  # per unit
    unit: np.ndarray  # int32 [E], which unit of `trust` the episode's skill belongs to
    source_won: np.ndarray  # bool [E], the episode was won; read where skills are its own
    adv_group: str = "task"  # see `skill_credit.skill_advantages`


@dataclass(frozen=True)
class Tokens:
    """What each of the N tokens of all training rows is."""

    episode: np.ndarray  # int32 [N]
    action: np.ndarray  # bool [N], sampled while acting
    skill: np.ndarray  # bool [N], sampled while writing the skill
    turn: np.ndarray | None = None  # int32 [N], which of `Outcomes.turns` sampled an action token; for gigpo


@dataclass(frozen=True)
class Credit:
    """Per-token arrays for the jitted loss; 0 on tokens the policy did not sample."""

    advantages: np.ndarray  # float32 [N]
    trust: np.ndarray  # float32 [N], shrinkage weight of the teacher's log-ratio at this token


class Method(Protocol):
    """One file per method implements this."""

    trains: bool  # the policy is updated; False measures the policy that training would start from
    writes_skills: bool  # after each episode the policy writes a skill, which its teacher reads
    replays: bool  # skills are replayed: there is evidence on them, a trust, and a reward for writing them
    skill_at_test: bool  # evaluation puts a skill into the prompt

    def credit(self, outcomes: Outcomes, skills: SkillEvidence | None, tokens: Tokens) -> Credit:
        """What each token is to be blamed or praised for. `skills` is there iff `writes_skills`."""


def acting_advantages(outcomes: Outcomes, tokens: Tokens) -> np.ndarray:
    """The advantage `loss.advantage` of each action token, float32 [N]; 0 on other tokens."""
    advantages = ADVANTAGES[outcomes.loss.advantage](outcomes, tokens)
    return np.where(tokens.action, advantages, np.float32(0))


def _grpo(outcomes: Outcomes, tokens: Tokens) -> np.ndarray:
    return trajectory_advantages(outcomes)[tokens.episode]


def _rloo(outcomes: Outcomes, tokens: Tokens) -> np.ndarray:
    groups = outcomes.returns, outcomes.group, outcomes.num_groups, outcomes.valid
    return np.asarray(leave_one_out(*groups, _counts(outcomes)), np.float32)[tokens.episode]


def _gigpo(outcomes: Outcomes, tokens: Tokens) -> np.ndarray:
    """A_E + omega A_S: the episode among the episodes of its task, the turn among the turns that saw the same.

    A malformed action's penalty counts at its own turn, and is not discounted back to those before: verl-agent's rule.
    """
    cfg, turns = outcomes.loss, outcomes.turns
    assert turns is not None and tokens.turn is not None, "gigpo needs the turns"
    anchors = anchor_groups(turns.observations, outcomes.group[turns.episode], cfg.similarity)
    returns = returns_to_go(turns.rewards, turns.episode, cfg.gamma) - turns.penalties
    steps = step_advantages(returns, anchors, cfg.mean_norm)
    at_token = np.zeros(len(tokens.turn), np.float32)
    at_token[tokens.action] = steps[tokens.turn[tokens.action]]
    return _grpo(outcomes, tokens) + np.float32(cfg.omega) * at_token


def _none(outcomes: Outcomes, tokens: Tokens) -> np.ndarray:
    return np.zeros(len(tokens.episode), np.float32)


ADVANTAGES: Mapping[str, Callable[[Outcomes, Tokens], np.ndarray]] = {
    "grpo": _grpo,
    "rloo": _rloo,
    "gigpo": _gigpo,
    "none": _none,
}


def trajectory_advantages(outcomes: Outcomes) -> np.ndarray:
    """GRPO's advantage of each episode, float32 [E]."""
    advantages = group_advantages(
        outcomes.returns,
        outcomes.group,
        outcomes.num_groups,
        outcomes.valid,
        outcomes.loss.mean_norm,
        _counts(outcomes),
    )
    return np.asarray(advantages, np.float32)


def _counts(outcomes: Outcomes) -> np.ndarray | None:
    """How often an episode counts in its group: once, or with `adv_stat` "rows" once for each turn.

    A turn is verl's row in any context: in a conversation the turns are trained as one row, but the statistic is the same.
    """
    if outcomes.loss.adv_stat == "episode":
        return None
    assert outcomes.turns is not None, "statistics over rows need the turns"
    return np.bincount(outcomes.turns.episode, minlength=len(outcomes.returns)).astype(np.float32)
