"""Expert episodes as text: acting without a skill, writing the skill, and acting with it."""

from __future__ import annotations

import random
import re
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace

from rsipo_jax.agents.prompts import task_of, without_banner
from rsipo_jax.agents.words import ALFWORLD
from rsipo_jax.envs.alfworld.engine import NOTHING, FastEpisode, intro
from rsipo_jax.envs.alfworld.experts import NOT_FOUND, ExpertStep, SearchingExpert
from rsipo_jax.envs.alfworld.game import Game
from rsipo_jax.envs.alfworld.vocabulary import FURNITURE
from rsipo_jax.envs.protocol import Task
from rsipo_jax.skills.annotator import annotate, searched_in_vain, workflow
from rsipo_jax.skills.parsing import parse_skill
from rsipo_jax.text.tags import ACTION_CLOSE, ACTION_OPEN, THINK_CLOSE, THINK_OPEN
from rsipo_jax.training.demonstrations.demonstration import READING, Demonstration

# Share of turns at which the expert slips, one pass over the game each. Slips are read, never imitated: they show how to
# recover, and make the failures from which avoidance skills are written.
NOISE = (0.0, 0.1, 0.25)
STUCK = 0.5  # chance that a slip which did nothing is made again

LOOKS, QUESTIONS = 3, 8  # receptacles shown and things asked for in a reading question
_NAMED = re.compile(r"\ba (([a-z]+) \d+)")


def response(step: ExpertStep) -> str:
    """An expert step as the policy should say it. The spaces make words the same tokens here as inside sentences."""
    return f"{THINK_OPEN} {step.thought}{THINK_CLOSE}{ACTION_OPEN} {step.action}{ACTION_CLOSE}"


def demonstrations(game: Game, task: Task, seed: int, max_turns: int) -> Iterator[Demonstration]:
    """Two episodes per noise level: without a skill (with the skill to write at its end), then with that skill."""
    for level, noise in enumerate(NOISE):
        rng = random.Random(f"{seed}/{task.id}/{level}")
        first = _play(game, task, rng, max_turns, noise, skill="", script=(), avoid=())
        commands = [_command(r) for r in first.responses]
        answers = first.observations[1:]
        sentence = task_of(first.observations[0], ALFWORLD).rstrip(".")
        kinds = (game.goal.thing, game.goal.target)
        analysis = annotate(sentence, commands, answers, first.won, kinds)
        yield replace(first, analysis=analysis)
        script = workflow(commands, answers, first.won)
        avoid = [] if first.won else searched_in_vain(sentence, commands, answers, kinds)
        yield _play(game, task, rng, max_turns, 0.0, parse_skill(analysis).text, tuple(script), tuple(avoid))


def reading_questions(game: Game, task: Task, seed: int, count: int) -> Iterator[Demonstration]:
    """`count` questions about texts of the game, in turns about a look around and about the first observation.

    Which of some things are there, and which one? What is the task? A fresh network cannot read yet, and an episode asks
    it to find a word in a text only a few times; here every few tokens do, in the words of thoughts. Nothing but the
    question is needed for the answer.
    """
    things = sorted({thing.kind for thing in game.things})
    furniture = sorted({kind.lower() for room in FURNITURE.values() for kind in room})
    for number in range(count):
        rng = random.Random(f"{seed}/{task.id}/reading/{number}")
        if number % 2 == 0:
            text, kinds, asking, answers = "\n".join(_look_around(game, rng)), things, "Which", []
        else:
            text, kinds, asking = (
                without_banner(intro(game), ALFWORLD),
                furniture,
                "What is the task, and which",
            )
            answers = [_task_in_short(game)]
        seen: dict[str, str] = {}
        for name, kind in _NAMED.findall(text):
            seen.setdefault(kind, name)
        present = rng.sample(sorted(seen), min(len(seen), QUESTIONS // 2))
        absent = [kind for kind in rng.sample(kinds, len(kinds)) if kind not in seen]
        asked = rng.sample(
            present + absent[: QUESTIONS - len(present)], min(QUESTIONS, len(present) + len(absent))
        )
        answers += [f"{seen[kind]} found" if kind in seen else f"{kind} not found" for kind in asked]
        question = f"{text}\n{asking} of these do you see: {', '.join(asked)}?"
        yield Demonstration(
            task.id, READING, "", (question, ""), ((),), (" " + ", ".join(answers),), (True,), False, ""
        )


def _task_in_short(game: Game) -> str:
    """The goal in the words of an expert's thoughts."""
    goal = game.goal
    if goal.treatment == "light":
        return f"{goal.thing} held, use {goal.target}"
    steps = [f"{goal.thing} held", *([goal.treatment] if goal.treatment else []), f"put in {goal.target}"]
    return ", ".join([*steps, *([f"second {goal.thing}"] if goal.count > 1 else [])])


def _look_around(game: Game, rng: random.Random) -> list[str]:
    """A few receptacles' insides, as the game tells them. No kind of thing is in two of them."""
    episode, told, kinds = FastEpisode(game), list[str](), set[str]()
    for receptacle in rng.sample(game.receptacles, len(game.receptacles)):
        episode.step(f"go to {receptacle.name}")
        episode.step(f"open {receptacle.name}")
        text = episode.step(f"examine {receptacle.name}")
        inside = [kind for _, kind in _NAMED.findall(text)]
        if inside and not kinds & set(inside) and len(inside) == len(set(inside)):
            told.append(text)
            kinds |= set(inside)
        if len(told) == LOOKS:
            break
    return told


def _play(
    game: Game,
    task: Task,
    rng: random.Random,
    max_turns: int,
    noise: float,
    skill: str,
    script: tuple[str, ...],
    avoid: tuple[str, ...],
) -> Demonstration:
    """One episode: the script first, then the searching expert, who does not look into `avoid`."""
    episode = FastEpisode(game)
    expert = SearchingExpert(game, rng, avoid)
    observation = episode.observe(intro(game))
    observations, admissible = [observation.text], list[tuple[str, ...]]()
    responses, imitate = list[str](), list[bool]()
    scripted, last = deque(script), ExpertStep("", "")
    while not observation.won and len(responses) < max_turns:
        step = expert.act(observation)
        while scripted and scripted[0] not in observation.admissible:
            scripted.popleft()  # a walk to where the player already stands: some receptacles share a standpoint
        if scripted:
            # The thought stays the one of a player without a skill: the teacher should differ in what it does.
            step = ExpertStep(step.thought, scripted.popleft())
        good = rng.random() >= noise
        if not good:
            step = _slip(rng, step, game.goal.thing, observation.admissible)
        elif responses and not imitate[-1] and observation.text == NOTHING and rng.random() < STUCK:
            good, step = False, last  # the same mistake again
        last = step
        admissible.append(observation.admissible)
        responses.append(response(step))
        imitate.append(good)
        observation = episode.observe(episode.step(step.action))
        observations.append(observation.text)
    return Demonstration(
        task.id, task.kind, skill, tuple(observations), tuple(admissible), tuple(responses), tuple(imitate),
        observation.won, analysis="",
    )  # fmt: skip


def _slip(rng: random.Random, step: ExpertStep, wanted: str, admissible: Sequence[str]) -> ExpertStep:
    """A mistake that small policies make: to see what is not there, a pointless action, the wrong number of a thing.

    The first ends most of their episodes, for the next thought follows the last one.
    """
    here = [a.removeprefix("examine ") for a in admissible if a.startswith("examine ")]
    if step.thought.endswith(NOT_FOUND) and here and rng.random() < 0.5:
        thing = f"{wanted} {rng.randint(1, 2)}"
        return ExpertStep(f"{thing} found, take", f"take {thing} from {rng.choice(here)}")
    if rng.random() < 0.5:
        return ExpertStep(step.thought, rng.choice([a for a in admissible if a != "help"]))
    wrong = re.sub(r"\d+$", lambda number: str(int(number[0]) % 3 + 1), step.action)
    return ExpertStep(step.thought, wrong)


def _command(text: str) -> str:
    return text.split(ACTION_OPEN)[1].split(ACTION_CLOSE)[0].strip()
