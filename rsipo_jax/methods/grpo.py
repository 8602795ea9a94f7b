"""GRPO (arXiv 2402.03300): every action token carries the group-normalised advantage of its trajectory."""

from __future__ import annotations

import numpy as np

from rsipo_jax.methods.method import Credit, Outcomes, SkillEvidence, Tokens, trajectory_advantages


class GRPO:
    writes_skills = False

    def credit(self, outcomes: Outcomes, skills: SkillEvidence | None, tokens: Tokens) -> Credit:
        """A_traj on action tokens; no teacher."""
        advantages = np.where(tokens.action, trajectory_advantages(outcomes)[tokens.episode], np.float32(0))
        return Credit(advantages, np.zeros_like(advantages))
