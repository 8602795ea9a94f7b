"""The static hybrid: GRPO plus a skill-conditioned teacher that is always trusted (w = 1), as in OPID (arXiv 2606.26790).

The skills are the policy's own, as RSIPO's are, and nothing measures them: no replay, no trust, and no loss on the tokens
that wrote them (eta counts as 0, since there is no reward to normalise).
"""

from __future__ import annotations

import numpy as np

from rsipo_jax.methods.method import Credit, Outcomes, SkillEvidence, Tokens, acting_advantages


class Hybrid:
    trains, writes_skills, replays, skill_at_test = True, True, False, False

    def credit(self, outcomes: Outcomes, skills: SkillEvidence | None, tokens: Tokens) -> Credit:
        """A_traj, and w = 1 on the action tokens of every episode with a readable skill."""
        return Credit(acting_advantages(outcomes, tokens), full_trust(skills, tokens))


def full_trust(skills: SkillEvidence | None, tokens: Tokens) -> np.ndarray:
    """1 on action tokens whose episode has a readable skill, else 0; float32 [N]."""
    assert skills is not None, "a teacher needs skills"
    return (tokens.action & skills.valid[tokens.episode]).astype(np.float32)
