"""The shapes of prompts: what the policy is told when it acts, acts with a skill, and writes a skill.

What is said in them about an environment are its `Words`. A message is a list of text parts. A skill is one part of its
own and nothing else depends on it, so a teacher prompt without that part is the student prompt, token for token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rsipo_jax.agents.words import Words


@dataclass(frozen=True)
class Message:
    """A user message, split where a skill goes: between `before` and `after`."""

    before: str
    after: str


@dataclass(frozen=True)
class Exchange:
    """One past turn as prompts show it."""

    observation: str
    response: str
    command: str
    valid: bool


def without_banner(observation: str, words: Words) -> str:
    """The first observation without the environment's greeting."""
    return observation.removeprefix(words.banner)


def task_of(observation: str, words: Words) -> str:
    """The task sentence of a first observation."""
    return observation.partition(words.task)[2].strip()


def room_of(observation: str, words: Words) -> str:
    """A first observation without greeting and task sentence: the surroundings, if there are any."""
    return without_banner(observation, words).partition(words.task)[0].strip()


def skill_block(skill: str) -> str:
    """The teacher's extra part: consult this skill in this episode."""
    return f"\n\nSkill for this episode, consult it before you act: {skill}"


def admissible_list(admissible: Sequence[str]) -> str:
    """The admissible actions, one quoted action a line, without `help`."""
    lines = "\n".join(f"'{action}'" for action in admissible if action != "help")
    return f"\nAdmissible actions:\n{lines}"


def conversation_opening(observation: str, admissible: Sequence[str] | None, words: Words) -> Message:
    """First message of a conversation. `admissible` None: they are not shown."""
    shown = "" if admissible is None else admissible_list(admissible)
    return Message(without_banner(observation, words), f"{shown}\n{words.form}")


def conversation_following(observation: str, admissible: Sequence[str] | None) -> str:
    """A later message of a conversation: the observation."""
    return observation if admissible is None else observation + admissible_list(admissible)


def window_message(
    first: str,
    past: Sequence[Exchange],
    steps: int,
    observation: str,
    admissible: Sequence[str] | None,
    words: Words,
) -> Message:
    """A whole prompt for one turn: task, the last exchanges, the current observation.

    `first` is the episode's first observation, `steps` the number of actions taken so far, `past` the exchanges shown.
    """
    shown = "" if admissible is None else admissible_list(admissible)
    if steps == 0:
        return Message(words.role + without_banner(first, words), f"{shown}\n{words.form}")
    return Message(
        f"{words.role}{words.task}{task_of(first, words)}",
        f"{_progress(past, steps, observation, words)}{shown}\n{words.form}",
    )


def static_first_message(
    first: str,
    past: Sequence[Exchange],
    steps: int,
    observation: str,
    admissible: Sequence[str] | None,
    words: Words,
) -> Message:
    """As `window_message`, with `before` the same at every turn of an episode: role, format and task."""
    shown = "" if admissible is None else admissible_list(admissible)
    room = room_of(first, words)
    start = f"\n{room}" if room else ""
    now = _progress(past, steps, observation, words) if steps else start
    return Message(f"{words.role}{words.form}\n{words.task}{task_of(first, words)}", now + shown)


def _progress(past: Sequence[Exchange], steps: int, observation: str, words: Words) -> str:
    """The last exchanges, numbered, and the current observation."""
    number = steps - len(past) + 1
    history = "".join(
        f"\nObservation {number + i}: {without_banner(e.observation, words)}\nAction {number + i}: {e.command}"
        for i, e in enumerate(past)
    )
    return (
        f"\nSteps taken so far: {steps}. The most recent ones:{history}\n"
        f"Now it is step {steps + 1}. Observation: {observation}"
    )


def analysis_request(won: bool, words: Words) -> str:
    """Asks for the skill of a finished episode; what kind of skill depends on the outcome."""
    return words.won if won else words.lost


def analysis_of_steps(
    first: str,
    steps: Sequence[Exchange],
    won: bool,
    observation_chars: int,
    words: Words,
    skipped: int = 0,
) -> str:
    """The analysis prompt of the window context: the episode as numbered steps, then the request.

    An observation longer than `observation_chars` is cut there. `skipped` earliest steps are not among `steps`; what the
    first of them saw is still told.
    """

    def cut(seen: str) -> str:
        return seen if len(seen) <= observation_chars else seen[:observation_chars] + " ..."

    lines = [f"Task: {task_of(first, words)}", f"Result: {'success' if won else 'failure'}"]
    if skipped:
        room = room_of(first, words)
        start = f"At the start: {cut(room)}\n" if room else ""
        lines.append(f"{start}Steps left out: {skipped}")
    for i, step in enumerate(steps, skipped + 1):
        seen = cut(without_banner(step.observation, words))
        mark = "" if step.valid else " (malformed action)"
        lines.append(f"Step {i}\nObservation: {seen}\nResponse: {step.response}{mark}")
    return "\n".join([*lines, analysis_request(won, words)])
