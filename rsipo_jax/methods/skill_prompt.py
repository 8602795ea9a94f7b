"""Skill-Prompt*: the untrained policy with a skill in its prompt at test time (the tables mark it with a star)."""

from __future__ import annotations

from rsipo_jax.methods.vanilla import Vanilla


class SkillPrompt(Vanilla):
    skill_at_test = True
