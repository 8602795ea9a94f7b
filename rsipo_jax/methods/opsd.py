"""On-policy self-distillation: the student learns from its skill-conditioned self alone; no outcome reaches the loss.

Of OPSD (arXiv 2601.18734) it is the sampled-token form: at each token the student drew, the log-ratio of the same network
with privileged context (here the episode's own skill, always trusted) to the network without. With the default
`loss.hybrid` "advantage" that is a policy gradient of -KL(student || teacher); "gated_loss" is what the tables of agent
papers call OPSD (SDAR, arXiv 2605.15155, with the coefficient of its policy gradient set to 0). Not taken over are the
full-vocabulary Jensen-Shannon divergence and the fixed initial teacher: this one is the policy that acted.
Skills are not replayed, and the tokens that wrote them are not trained.
"""

from __future__ import annotations

import numpy as np

from rsipo_jax.methods.hybrid import full_trust
from rsipo_jax.methods.method import Credit, Outcomes, SkillEvidence, Tokens


class OPSD:
    trains, writes_skills, replays, skill_at_test = True, True, False, False

    def credit(self, outcomes: Outcomes, skills: SkillEvidence | None, tokens: Tokens) -> Credit:
        """No advantage, and w = 1 on the action tokens of every episode with a readable skill."""
        trust = full_trust(skills, tokens)
        return Credit(np.zeros_like(trust), trust)
