"""The policy writes a skill from each finished trajectory of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rsipo_jax.agents.rollout import WRITE, Agent
from rsipo_jax.agents.trajectory import Trajectory, Turn
from rsipo_jax.sampling.protocol import Request, Sampling, generate
from rsipo_jax.skills.parsing import parse_skill


@dataclass(frozen=True)
class Skill:
    text: str
    summary: str
    valid: bool
    status: str  # how it was parsed, or why it is invalid


def write_skills(
    agent: Agent, trajectories: Sequence[Trajectory], step: int, sampling: Sampling
) -> list[Skill]:
    """One skill per trajectory, in order; the sampled turn is kept in `trajectory.writing` for training.

    In the conversation context the request continues the episode, which the sampler may still hold. A
    trajectory without room for the request gets an invalid skill with status "no_room", a void one "void"; a skill that
    would not fit into an acting prompt is invalid too, "too_long".
    """
    skills = [Skill("", "", False, "void" if t.void else "no_room") for t in trajectories]
    prompts = {
        i: p
        for i, t in enumerate(trajectories)
        if not t.void and (p := agent.context.analysis(t)) is not None
    }
    requests = [
        Request(
            prompt=prompt.tokens,
            address=(WRITE, step, trajectories[i].group, trajectories[i].rollout, 0),
            max_new_tokens=agent.config.skill.max_new_tokens,
            sampling=sampling,
        )
        for i, prompt in prompts.items()
    ]
    for i, completion in zip(prompts, generate(agent.sampler, requests), strict=True):
        text = agent.tokenizer.decode(completion.tokens.tolist())
        trajectories[i].writing = Turn(
            prompts[i], completion.tokens, completion.logprobs, text, raw_logprobs=completion.raw_logprobs
        )
        parsed = parse_skill(text)
        if parsed.valid and not agent.context.skill_fits(parsed.text):
            skills[i] = Skill(parsed.text, parsed.summary, False, "too_long")
        else:
            skills[i] = Skill(parsed.text, parsed.summary, parsed.valid, parsed.status)
    return skills
