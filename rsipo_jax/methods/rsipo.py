"""RSIPO: GRPO, plus a skill-conditioned teacher trusted as far as the replays justify, plus a reward for the skills.

Action tokens:  A_tok = A_traj + lambda * w * clip(log pi(y | h + s) - log pi(y | h)), w its trust (skills/trust.py);
                the loss adds the second term (methods/losses.py, `taught`).
Skill tokens:   A_sk  = the replay gains of a task's skills, normalised within the task.
"""

from __future__ import annotations

import numpy as np

from rsipo_jax.methods.method import Credit, Outcomes, SkillEvidence, Tokens, acting_advantages
from rsipo_jax.methods.skill_credit import skill_advantages


class RSIPO:
    trains, writes_skills, replays, skill_at_test = True, True, True, False

    def credit(self, outcomes: Outcomes, skills: SkillEvidence | None, tokens: Tokens) -> Credit:
        """The two formulas of the module docstring. An episode without a valid skill has no teacher: its w is 0.

        With `trust.function` "one" the action tokens get what `hybrid` gives them, but in a unit whose replays were all void:
        nothing is known of it, and its w is 0.
        """
        assert skills is not None, "RSIPO needs skills"
        acting = acting_advantages(outcomes, tokens)
        writing = skill_advantages(outcomes, skills)[tokens.episode]
        weight = (np.asarray(skills.trust.weight)[skills.unit] * skills.valid)[tokens.episode]
        zero = np.float32(0)
        return Credit(
            np.where(tokens.action, acting, np.where(tokens.skill, writing, zero)),
            np.where(tokens.action, weight, zero).astype(np.float32),
        )
