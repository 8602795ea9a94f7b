"""Expert episodes on questions of the fictional encyclopaedia, whose ways to the answer are known.

The expert searches for what the question names, reads a fact in what comes back, searches for that, and so on. It plays in
the environment itself, so what it reads is what the retriever in use finds.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from rsipo_jax.envs.protocol import EnvPool, Task
from rsipo_jax.envs.search.encyclopedia import Example, Hop, make_leaflet
from rsipo_jax.envs.search.pool import show
from rsipo_jax.envs.search.retrieval import Hit
from rsipo_jax.skills.parsing import SKILL_KEY, SUMMARY_KEY, parse_skill
from rsipo_jax.text.tags import (
    ANSWER_CLOSE,
    ANSWER_OPEN,
    SEARCH_CLOSE,
    SEARCH_OPEN,
    THINK_CLOSE,
    THINK_OPEN,
)
from rsipo_jax.training.demonstrations.demonstration import READING, Demonstration

# Share of turns at which the expert slips, one pass over the question each. Slips are read, never imitated: they show how
# to recover, and make the failures from which avoidance skills are written.
NOISE = (0.0, 0.25)
PASSAGES, FACTS = 3, 5  # shown and asked for in a reading question
PER_LEAFLET, PEOPLE = 16, 12  # reading questions about a world, and persons in it
COMPARISON = "comparison"  # the kind of question whose hops do not lead to each other


@dataclass(frozen=True)
class ExpertStep:
    thought: str
    command: str  # with its tags

    @property
    def response(self) -> str:
        """As the policy should say it. The spaces make words the same tokens here as inside sentences."""
        return f"{THINK_OPEN} {self.thought}{THINK_CLOSE}{self.command}"


def demonstrations(
    example: Example, task: Task, pool: EnvPool, seed: int, max_turns: int
) -> Iterator[Demonstration]:
    """Two episodes per noise level: without a skill (with the skill to write at its end), then with that skill."""
    for level, noise in enumerate(NOISE):
        rng = random.Random(f"{seed}/{task.id}/{level}")
        first = _play(example, task, pool, rng, max_turns, noise)
        analysis = annotate(example, first.won)
        yield replace(first, analysis=analysis)
        second = _play(example, task, pool, rng, max_turns, 0.0)
        yield replace(second, skill=parse_skill(analysis).text)


def annotate(example: Example, won: bool) -> str:
    """The JSON a policy should write after an episode: the way to the answer, which the question alone implies.

    It names nothing that was found. That would make the next episode on this question shorter, but a teacher who knows it
    shows a student how to guess: without the skill nobody can know it.
    """
    relations = [hop.relation for hop in example.hops]
    if example.question.kind == COMPARISON:
        skill = f"search both for the {relations[0]}, answer with the earlier one"
        mistake = "do not answer before both are found; "
    else:
        way = [
            f"search for the {relations[0]}",
            *(f"then for the {relation} of that" for relation in relations[1:]),
        ]
        skill = f"{', '.join(way)}, answer with the {relations[-1]}"
        mistake = f"do not answer before the {relations[-1]} is found; "
    return json.dumps({SUMMARY_KEY: example.question.text, SKILL_KEY: skill if won else mistake + skill})


def expert_steps(example: Example) -> list[ExpertStep]:
    """The way to the answer: one search a hop, then the answer."""
    hops, steps, found = example.hops, list[ExpertStep](), ""
    for hop in hops:
        steps.append(ExpertStep(f"{found}{hop.relation} of {hop.query}", _search(hop.query)))
        found = f"{hop.relation}: {hop.answer}, "
    thought = found.removesuffix(", ")
    if example.question.kind == COMPARISON:
        years = sorted(hop.answer for hop in hops)
        thought += f", {' before '.join(years)}"
    return [*steps, ExpertStep(thought, _answer(example.question.answers[0]))]


def reading_questions(task_ids: Sequence[str], seed: int, chars: int) -> Iterator[Demonstration]:
    """A question for each task (which may come again): what is this of that, as some passages tell?

    A fresh network cannot read yet, and an episode asks it to find a name in a text only a few times; here every few tokens
    do, in the words of thoughts. The passages are of worlds of their own, which change all the time: of one world it would
    sooner learn the facts by heart.
    """
    for number, task_id in enumerate(task_ids):
        if number % PER_LEAFLET == 0:
            leaflet = make_leaflet(f"{seed}/{number}", PEOPLE)
        rng = random.Random(f"{seed}/{task_id}/reading/{number}")
        shown = rng.sample(leaflet, PASSAGES)
        text = show([Hit(passage, 1.0) for passage, _ in shown], chars)
        hops = [hop for _, told in shown for hop in told]
        asked = rng.sample(hops, min(FACTS, len(hops)))
        question = f"{text}\nGive the {', the '.join(f'{hop.relation} of {hop.query}' for hop in asked)}."
        answers = " " + ", ".join(f"{hop.relation}: {hop.answer}" for hop in asked)
        yield Demonstration(
            task_id, READING, "", (question, ""), ((),), (answers,), (True,), won=False, analysis=""
        )


def _play(
    example: Example, task: Task, pool: EnvPool, rng: random.Random, max_turns: int, noise: float
) -> Demonstration:
    """One episode by the known way, with slips."""
    steps, at = expert_steps(example), 0
    observation = pool.reset({0: task})[0]
    observations, responses, imitate = [observation.text], list[str](), list[bool]()
    while not observation.done and len(responses) < max_turns:
        good = rng.random() >= noise
        step = steps[at] if good else _slip(rng, example.hops, at, steps[at])
        at = min(at + good, len(example.hops))
        responses.append(step.response)
        imitate.append(good)
        observation = pool.step({0: step.command})[0]
        observations.append(observation.text)
    return Demonstration(
        task.id, task.kind, "", tuple(observations), ((),) * len(responses), tuple(responses), tuple(imitate),
        observation.won, analysis="",
    )  # fmt: skip


def _slip(rng: random.Random, hops: Sequence[Hop], at: int, step: ExpertStep) -> ExpertStep:
    """A mistake that small policies make: to answer before the way is gone, or to search for the wrong thing."""
    if 0 < at < len(hops) and rng.random() < 0.5:
        return ExpertStep(step.thought, _answer(hops[at - 1].answer))
    wrong = hops[at].relation if at < len(hops) else hops[0].query
    return ExpertStep(step.thought, _search(wrong))


def _search(query: str) -> str:
    return f"{SEARCH_OPEN} {query}{SEARCH_CLOSE}"


def _answer(text: str) -> str:
    return f"{ANSWER_OPEN} {text}{ANSWER_CLOSE}"
