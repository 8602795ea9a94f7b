"""GRPO (arXiv 2402.03300): every action token carries the group-normalised advantage of its trajectory.

`loss.advantage` makes it RLOO (2402.14740) or GiGPO (2505.10978).
"""

from __future__ import annotations

import numpy as np

from rsipo_jax.methods.method import Credit, Outcomes, SkillEvidence, Tokens, acting_advantages


class GRPO:
    trains, writes_skills, replays, skill_at_test = True, False, False, False

    def credit(self, outcomes: Outcomes, skills: SkillEvidence | None, tokens: Tokens) -> Credit:
        """A_traj on action tokens; no teacher."""
        advantages = acting_advantages(outcomes, tokens)
        return Credit(advantages, np.zeros_like(advantages))
