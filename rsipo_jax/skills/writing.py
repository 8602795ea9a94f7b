"""The policy writes a skill from each finished trajectory of its own."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from rsipo_jax.agents.rollout import WRITE, Agent
from rsipo_jax.agents.trajectory import Trajectory, Turn
from rsipo_jax.orders import order_stream
from rsipo_jax.sampling.protocol import Request, Sampling, generate
from rsipo_jax.skills.leaks import leaks
from rsipo_jax.skills.parsing import parse_skill

UNWRITTEN = ("void", "no_room", "not_analysed")


@dataclass(frozen=True)
class Skill:
    text: str
    summary: str
    valid: bool
    status: str  # how it was parsed, or why it is invalid

    @property
    def written(self) -> bool:
        """The policy was asked for it, and answered something."""
        return self.status not in UNWRITTEN


def write_skills(
    agent: Agent,
    trajectories: Sequence[Trajectory],
    step: int,
    sampling: Sampling,
    analysed: Collection[int] | None = None,
    purpose: int = WRITE,
) -> list[Skill]:
    """One skill per trajectory, in order; the sampled turn is kept in `trajectory.writing` for training.

    In the conversation context the request continues the episode, which the sampler may still hold. A
    trajectory without room for the request gets an invalid skill with status "no_room", a void one "void"; a skill that
    would not fit into an acting prompt is invalid too, "too_long", and with the leak guard one that holds an answer, "leak".
    Trajectories outside `analysed` (their places; None: all are in) write nothing, status "not_analysed".
    """
    skills = [
        Skill("", "", False, "void" if t.void else "no_room" if _among(i, analysed) else "not_analysed")
        for i, t in enumerate(trajectories)
    ]
    prompts = {
        i: p
        for i, t in enumerate(trajectories)
        if not t.void and _among(i, analysed) and (p := agent.context.analysis(t)) is not None
    }
    requests = [
        Request(
            prompt=prompt.tokens,
            address=(purpose, step, trajectories[i].group, trajectories[i].rollout, 0),
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
        elif agent.config.skill.leak_guard and leaks(parsed.text, _answers(trajectories[i])):
            skills[i] = Skill(parsed.text, parsed.summary, False, "leak")
        else:
            skills[i] = Skill(parsed.text, parsed.summary, parsed.valid, parsed.status)
    return skills


def _answers(trajectory: Trajectory) -> tuple[str, ...]:
    return (*trajectory.task.answers, trajectory.answer)


def _among(place: int, places: Collection[int] | None) -> bool:
    return places is None or place in places


def draw_analysed(trajectories: Sequence[Trajectory], per_task: int, seed: int, step: int) -> set[int]:
    """The places of the trajectories that are analysed: `per_task` of each group, void ones never, all when it is 0."""
    playable = [i for i, t in enumerate(trajectories) if not t.void]
    if not per_task:
        return set(playable)
    order = order_stream(seed, "analysed", step).permutation(len(trajectories))
    chosen: dict[int, list[int]] = {}
    for i in sorted(playable, key=order.tolist().__getitem__):
        members = chosen.setdefault(trajectories[i].group, [])
        if len(members) < per_task:
            members.append(i)
    return {i for members in chosen.values() for i in members}


def shuffled_authors(group: np.ndarray, seed: int, step: int) -> np.ndarray:
    """Whose skill each episode gets, int [E], so that it is another task's: a deliberately misleading source.

    `group` int [E] is the task of each episode, all of one size, in order. The tasks are laid on a ring in a drawn order and
    take the skills of their neighbours there, so that no group keeps its own. A step that ends an epoch may draw a task
    twice, in two groups, which may then be neighbours.
    """
    tasks = int(group.max()) + 1
    ring = order_stream(seed, "shuffled skills", step).permutation(tasks)
    neighbour = np.empty(tasks, np.int64)
    neighbour[ring] = np.roll(ring, 1)
    size = len(group) // tasks
    return neighbour[group] * size + np.arange(len(group)) % size
