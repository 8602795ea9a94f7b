"""RSIPO: GRPO, plus a skill-conditioned teacher trusted as far as the replays justify, plus a reward for the skills.

Action tokens:  A_tok = A_traj + lambda * w * clip(log pi(y | h + s) - log pi(y | h)), w its trust (skills/trust.py);
                the loss adds the second term (methods/losses.py, `hybrid_advantages`).
Skill tokens:   A_sk  = the replay gains of a task's skills, normalised within the task.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from rsipo_jax.methods.advantages import group_advantages
from rsipo_jax.methods.method import Credit, Outcomes, SkillEvidence, Tokens, trajectory_advantages


class RSIPO:
    writes_skills = True

    def credit(self, outcomes: Outcomes, skills: SkillEvidence | None, tokens: Tokens) -> Credit:
        """The two formulas of the module docstring. An episode without a valid skill has no teacher: its w is 0."""
        assert skills is not None, "RSIPO needs skills"
        acting = trajectory_advantages(outcomes)[tokens.episode]
        writing = skill_advantages(outcomes, skills)[tokens.episode]
        weight = (np.asarray(skills.trust.weight)[skills.unit] * skills.valid)[tokens.episode]
        zero = np.float32(0)
        return Credit(
            np.where(tokens.action, acting, np.where(tokens.skill, writing, zero)),
            np.where(tokens.action, weight, zero).astype(np.float32),
        )


def skill_advantages(outcomes: Outcomes, skills: SkillEvidence) -> np.ndarray:
    """A_sk of each episode's skill, float32 [E]: rewards normalised over the skills of one task."""
    # Out of its group stay a skill that was never written, and a readable one whose replays were all voided.
    known = outcomes.valid & skills.written & (~skills.valid | np.asarray(skills.gains.skill_measured))
    advantages = group_advantages(
        jnp.asarray(skills.rewards), jnp.asarray(outcomes.group), outcomes.num_groups, jnp.asarray(known)
    )
    return np.asarray(advantages, np.float32)
