"""The policy that training would start from: nothing is trained, so that evaluation measures that policy."""

from __future__ import annotations

import numpy as np

from rsipo_jax.methods.method import Credit, Outcomes, SkillEvidence, Tokens


class Vanilla:
    trains, writes_skills, replays, skill_at_test = False, False, False, False

    def credit(self, outcomes: Outcomes, skills: SkillEvidence | None, tokens: Tokens) -> Credit:
        """No token is blamed or praised."""
        nothing = np.zeros(len(tokens.episode), np.float32)
        return Credit(nothing, nothing)
