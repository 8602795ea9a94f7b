"""What a method is: whether skills are written and replayed, and how credit is given. Everything else is shared."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import jax.numpy as jnp
import numpy as np

from rsipo_jax.methods.advantages import ReplayGains, group_advantages
from rsipo_jax.skills.trust import Trust


@dataclass(frozen=True)
class Outcomes:
    """The E plain episodes of a step."""

    returns: np.ndarray  # float32 [E]: win_reward * won - invalid_penalty * malformed actions
    group: np.ndarray  # int32 [E], index of the task
    valid: np.ndarray  # bool [E], False for episodes the environment voided
    num_groups: int
    mean_norm: bool = False  # see `group_advantages`


@dataclass(frozen=True)
class SkillEvidence:
    """The skill that episode e wrote, and what its replays showed."""

    written: np.ndarray  # bool [E], the policy wrote one (there was room, and the episode was not void)
    valid: np.ndarray  # bool [E], it can be read
    rewards: np.ndarray  # float32 [E], see `advantages.skill_rewards`
    gains: ReplayGains
    trust: Trust  # per unit
    unit: np.ndarray  # int32 [E], which unit of `trust` the episode's skill belongs to


@dataclass(frozen=True)
class Tokens:
    """What each of the N tokens of all training rows is."""

    episode: np.ndarray  # int32 [N]
    action: np.ndarray  # bool [N], sampled while acting
    skill: np.ndarray  # bool [N], sampled while writing the skill


@dataclass(frozen=True)
class Credit:
    """Per-token arrays for the jitted loss; 0 on tokens the policy did not sample."""

    advantages: np.ndarray  # float32 [N]
    trust: np.ndarray  # float32 [N], shrinkage weight of the teacher's log-ratio at this token


class Method(Protocol):
    """One file per method implements this."""

    writes_skills: bool

    def credit(self, outcomes: Outcomes, skills: SkillEvidence | None, tokens: Tokens) -> Credit:
        """What each token is to be blamed or praised for. `skills` is there iff `writes_skills`."""


def trajectory_advantages(outcomes: Outcomes) -> np.ndarray:
    """GRPO's advantage of each episode, float32 [E]."""
    advantages = group_advantages(
        jnp.asarray(outcomes.returns),
        jnp.asarray(outcomes.group),
        outcomes.num_groups,
        jnp.asarray(outcomes.valid),
        outcomes.mean_norm,
    )
    return np.asarray(advantages, np.float32)
