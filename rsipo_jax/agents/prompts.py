"""The words of ALFWorld prompts: what the policy is told when it acts, acts with a skill, and writes a skill.

A message is a list of text parts. A skill is one part of its own and nothing else depends on it, so a teacher prompt
without that part is the student prompt, token for token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rsipo_jax.text.tags import ACTION_CLOSE, ACTION_OPEN, THINK_CLOSE, THINK_OPEN

ROLE = "You act in a simulated household through text commands.\n"
BANNER = "-= Welcome to TextWorld, ALFRED! =-\n\n"
FORMAT = (
    f"Reason about the next step inside {THINK_OPEN} {THINK_CLOSE}, "
    f"then give one action inside {ACTION_OPEN} {ACTION_CLOSE}."
)


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


def without_banner(observation: str) -> str:
    """The first observation without TextWorld's greeting."""
    return observation.removeprefix(BANNER)


def task_of(observation: str) -> str:
    """The task sentence of a first observation."""
    return observation.rpartition("Your task is to: ")[2].strip()


def room_of(observation: str) -> str:
    """A first observation without greeting and task sentence."""
    return without_banner(observation).rpartition("Your task is to: ")[0].strip()


def skill_block(skill: str) -> str:
    """The teacher's extra part: consult this skill in this episode."""
    return f"\n\nSkill for this episode, consult it before you act: {skill}"


def admissible_list(admissible: Sequence[str]) -> str:
    """The admissible actions, one quoted action a line, without `help`."""
    lines = "\n".join(f"'{action}'" for action in admissible if action != "help")
    return f"\nAdmissible actions:\n{lines}"


def conversation_opening(observation: str, admissible: Sequence[str] | None) -> Message:
    """First message of a conversation. `admissible` None: they are not shown."""
    shown = "" if admissible is None else admissible_list(admissible)
    return Message(without_banner(observation), f"{shown}\n{FORMAT}")


def conversation_following(observation: str, admissible: Sequence[str] | None) -> str:
    """A later message of a conversation: the observation."""
    return observation if admissible is None else observation + admissible_list(admissible)


def window_message(
    first: str, past: Sequence[Exchange], steps: int, observation: str, admissible: Sequence[str] | None
) -> Message:
    """A whole prompt for one turn: task, the last exchanges, the current observation.

    `first` is the episode's first observation, `steps` the number of actions taken so far, `past` the exchanges shown.
    """
    shown = "" if admissible is None else admissible_list(admissible)
    if steps == 0:
        return Message(ROLE + without_banner(first), f"{shown}\n{FORMAT}")
    return Message(
        f"{ROLE}Your task is to: {task_of(first)}", f"{_progress(past, steps, observation)}{shown}\n{FORMAT}"
    )


def static_first_message(
    first: str, past: Sequence[Exchange], steps: int, observation: str, admissible: Sequence[str] | None
) -> Message:
    """As `window_message`, with `before` the same at every turn of an episode: role, format and task."""
    shown = "" if admissible is None else admissible_list(admissible)
    now = _progress(past, steps, observation) if steps else f"\n{room_of(first)}"
    return Message(f"{ROLE}{FORMAT}\nYour task is to: {task_of(first)}", now + shown)


def _progress(past: Sequence[Exchange], steps: int, observation: str) -> str:
    """The last exchanges, numbered, and the current observation."""
    number = steps - len(past) + 1
    history = "".join(
        f"\nObservation {number + i}: {without_banner(e.observation)}\nAction {number + i}: {e.command}"
        for i, e in enumerate(past)
    )
    return (
        f"\nSteps taken so far: {steps}. The most recent ones:{history}\n"
        f"Now it is step {steps + 1}. Observation: {observation}"
    )


def analysis_request(won: bool) -> str:
    """Asks for the skill of a finished episode; what kind of skill depends on the outcome."""
    if won:
        return (
            "The task is solved. Write JSON with episode_summary and episode_skill: "
            "the short workflow that solves this task."
        )
    return (
        "The task is not solved. Write JSON with episode_summary and episode_skill: "
        "the mistake to avoid in this task, its warning sign, and what to do instead."
    )


def analysis_of_steps(
    first: str, steps: Sequence[Exchange], won: bool, observation_chars: int, skipped: int = 0
) -> str:
    """The analysis prompt of the window context: the episode as numbered steps, then the request.

    An observation longer than `observation_chars` is cut there. `skipped` earliest steps are not among `steps`; what the
    first of them saw is still told.
    """

    def cut(seen: str) -> str:
        return seen if len(seen) <= observation_chars else seen[:observation_chars] + " ..."

    lines = [f"Task: {task_of(first)}", f"Result: {'success' if won else 'failure'}"]
    if skipped:
        lines.append(f"At the start: {cut(room_of(first))}\nSteps left out: {skipped}")
    for i, step in enumerate(steps, skipped + 1):
        seen = cut(without_banner(step.observation))
        mark = "" if step.valid else " (malformed action)"
        lines.append(f"Step {i}\nObservation: {seen}\nResponse: {step.response}{mark}")
    return "\n".join([*lines, analysis_request(won)])
