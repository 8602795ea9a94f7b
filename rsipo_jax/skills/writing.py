"""The policy writes a skill from each finished trajectory of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rsipo_jax.agents.rollout import WRITE, Agent
from rsipo_jax.agents.trajectory import Trajectory, Turn
from rsipo_jax.sampling.sampler import Request
from rsipo_jax.skills.parsing import parse_skill


@dataclass(frozen=True)
class Skill:
    text: str
    summary: str
    valid: bool
    status: str  # how it was parsed, or why it is invalid


def write_skills(
    agent: Agent, trajectories: Sequence[Trajectory], step: int, temperature: float
) -> list[Skill]:
    """One skill per trajectory, in order; the sampled turn is kept in `trajectory.writing` for training.

    In the conversation context the request continues the episode, and the slot of the episode may still hold it. A
    trajectory without room for the request gets an invalid skill with status "no_room", a void one "void"; a skill that
    would not fit into an acting prompt is invalid too, "too_long".
    """
    skills = [Skill("", "", False, "void" if t.void else "no_room") for t in trajectories]
    prompts = {
        i: p
        for i, t in enumerate(trajectories)
        if not t.void and (p := agent.context.analysis(t)) is not None
    }
    # A slot holds the last episode it played: that one goes first, before another overwrites it.
    for wave in _waves([(i, trajectories[i].slot) for i in reversed(prompts)]):
        requests = [
            Request(
                slot=trajectories[i].slot,
                prompt=prompts[i].tokens,
                address=(WRITE, step, trajectories[i].group, trajectories[i].rollout, 0),
                max_new_tokens=agent.config.skill.max_new_tokens,
            )
            for i in wave
        ]
        for i, completion in zip(wave, agent.sampler.generate(requests, temperature), strict=True):
            text = agent.tokenizer.decode(completion.tokens.tolist())
            trajectories[i].writing = Turn(prompts[i], completion.tokens, completion.logprobs, text)
            parsed = parse_skill(text)
            if parsed.valid and not agent.context.skill_fits(parsed.text):
                skills[i] = Skill(parsed.text, parsed.summary, False, "too_long")
            else:
                skills[i] = Skill(parsed.text, parsed.summary, parsed.valid, parsed.status)
    return skills


def _waves(items: Sequence[tuple[int, int]]) -> list[list[int]]:
    """Splits (index, slot) pairs into lists of indices whose slots are distinct."""
    waves: list[list[int]] = []
    used: list[set[int]] = []
    for index, slot in items:
        wave = next((w for w, slots in enumerate(used) if slot not in slots), len(waves))
        if wave == len(waves):
            waves.append([])
            used.append(set())
        waves[wave].append(index)
        used[wave].add(slot)
    return waves
