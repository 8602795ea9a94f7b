"""The advantage of a written skill: its reward against those of the skills that it is compared with."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from rsipo_jax.config import SkillConfig
from rsipo_jax.methods.advantages import group_advantages
from rsipo_jax.methods.method import Method, Outcomes, SkillEvidence


def trains_writing(method: Method, cfg: SkillConfig) -> bool:
    """Whether there is a loss on the tokens that wrote skills: where replays measure the skill that the policy wrote."""
    return method.replays and cfg.source == "own"


def rewarded(outcomes: Outcomes, skills: SkillEvidence) -> np.ndarray:
    """bool [E]: skills whose reward is known. Not one that was never written, nor a readable one whose replays were void."""
    return outcomes.valid & skills.written & (~skills.valid | np.asarray(skills.gains.skill_measured))


def skill_advantages(outcomes: Outcomes, skills: SkillEvidence) -> np.ndarray:
    """A_sk of each episode's skill, float32 [E]: rewards normalised over the skills of `skills.adv_group`.

    "task": of one task. "task_outcome": of one task and one outcome of the source episode, so that failures, whose skills
    replay worse on average, are not written down as such; a skill alone in such a cell is compared within its task.
    "batch": of the step.
    """
    known = rewarded(outcomes, skills)  # the others stay out of their group
    if skills.adv_group == "batch":
        return _within(skills.rewards, np.zeros_like(outcomes.group), 1, known)
    within_task = _within(skills.rewards, outcomes.group, outcomes.num_groups, known)
    if skills.adv_group == "task":
        return within_task
    cell = 2 * outcomes.group + skills.source_won
    members = np.bincount(cell[known], minlength=2 * outcomes.num_groups)
    within_cell = _within(skills.rewards, cell, 2 * outcomes.num_groups, known)
    return np.where(members[cell] >= 2, within_cell, within_task)


def _within(rewards: np.ndarray, group: np.ndarray, num_groups: int, known: np.ndarray) -> np.ndarray:
    advantages = group_advantages(jnp.asarray(rewards), jnp.asarray(group), num_groups, jnp.asarray(known))
    return np.asarray(advantages, np.float32)
