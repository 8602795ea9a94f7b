"""Property 29: where success depends on a token of the skill, the skill loss makes that token likelier; with the gains
reversed, less likely. The real gains, rewards, advantages and loss; the policy is one row of logits."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rsipo_jax.config import LossConfig, SkillConfig, TrustConfig
from rsipo_jax.methods.advantages import replay_gains, skill_rewards
from rsipo_jax.methods.losses import loss_sums
from rsipo_jax.methods.method import Outcomes, SkillEvidence
from rsipo_jax.methods.skill_credit import skill_advantages
from rsipo_jax.skills.trust import PriorState, trust

TASKS, G, WORDS, HELPFUL = 4, 8, 5, 2
STEPS = 30


def helpful_probability(sign: int, eta: float, group: str) -> float:
    """Probability of the helpful word after some steps of skills of one word each, from a uniform start."""
    rng, logits = np.random.default_rng(0), jnp.zeros(WORDS)
    ids, valid = np.repeat(np.arange(TASKS, dtype=np.int32), G), np.ones(TASKS * G, bool)
    loss_config = LossConfig(kl=0.0)

    def loss(logits: jax.Array, words: np.ndarray, advantages: np.ndarray) -> jax.Array:
        new = jax.nn.log_softmax(logits)[words][:, None]
        old = jax.lax.stop_gradient(new)
        mask = jnp.ones_like(new, bool)
        sums = loss_sums(new, old, old, advantages[:, None], mask, jnp.ones_like(new), loss_config)
        return eta * sums.loss / len(words)

    for _ in range(STEPS):
        weights = np.exp(np.asarray(logits, np.float64))
        words = rng.choice(WORDS, len(ids), p=weights / weights.sum())
        won = rng.random(len(ids)) < 0.4
        helps = (words == HELPFUL) if sign > 0 else (words != HELPFUL)
        replayed = rng.random(len(ids)) < np.where(helps, 0.9, 0.2)
        gains = replay_gains(won, valid, ids, replayed[:, None], valid[:, None], TASKS)
        rewards = np.asarray(skill_rewards(gains.skill_gain, valid, words, SkillConfig()), np.float32)
        counts = gains.s1, gains.n1, gains.s0, gains.n0, gains.task_measured
        trusted = trust(PriorState.zero(), *counts, TrustConfig())
        evidence = SkillEvidence(valid, valid, rewards, gains, trusted, won, group)
        advantages = skill_advantages(Outcomes(won.astype(np.float32), ids, valid, TASKS), evidence)
        logits = logits - jax.grad(loss)(logits, words, advantages)
    return float(jax.nn.softmax(logits)[HELPFUL])


@pytest.mark.parametrize("group", ["task", "task_outcome", "batch"])
def test_the_helpful_word_becomes_likelier_and_with_reversed_gains_less_likely(group: str) -> None:
    assert helpful_probability(+1, 1.0, group) > 2 / WORDS
    assert helpful_probability(-1, 1.0, group) < 0.5 / WORDS
    assert helpful_probability(+1, 0.0, group) == pytest.approx(1 / WORDS)
