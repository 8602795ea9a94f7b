"""Skills for the SFT cold start, written by rule from a finished episode: what a policy should learn to write itself.

A solved episode gives its workflow: the steps that mattered, without the search. A failed one gives what it achieved
and the places where it looked in vain. Both speak only of what the episode has seen.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Sequence

from rsipo_jax.envs.alfworld.engine import NOTHING
from rsipo_jax.skills.parsing import SKILL_KEY, SUMMARY_KEY

_KEPT = re.compile(r"(?:take|move|put|clean|heat|cool|use|slice) ")
_SEEN_INSIDE = re.compile(r"(?:On the ([a-z]+ \d+)|The ([a-z]+ \d+) is open\. In it), you see (.+?)\.")
_PLACES_NAMED = (
    6  # the last places searched in vain that a failure skill names: enough to help, short enough to read
)


def workflow(commands: Sequence[str], answers: Sequence[str], won: bool) -> list[str]:
    """The commands that changed something, each with the walk and the opening it needs.

    `answers[i]` is the reply to `commands[i]`. Replayed from the start they do to the things of the household what the
    whole episode did, and win where it won.
    """
    kept: list[str] = []
    place, opened, opened_kept = "", set[str](), set[str]()
    walked = ""  # where the kept commands have led
    for command, answer in zip(commands, answers, strict=True):
        if answer == NOTHING:
            continue
        if command.startswith("go to "):
            place = command.removeprefix("go to ")
        elif command.startswith("open "):
            opened.add(command.removeprefix("open "))
        elif command.startswith("close "):
            opened.discard(command.removeprefix("close "))
        elif _KEPT.match(command):
            if place != walked:
                kept.append(f"go to {place}")
                walked = place
            target = next((r for r in sorted(opened - opened_kept) if command.endswith(f" {r}")), "")
            if target and not command.startswith(
                ("clean", "heat", "cool")
            ):  # these work on a closed appliance
                kept.append(f"open {target}")
                opened_kept.add(target)
            kept.append(command)
    if won and place != walked:  # won by arriving: with the thing in hand, at a lamp that was already on
        kept.append(f"go to {place}")
    return kept


def searched_in_vain(
    task: str, commands: Sequence[str], answers: Sequence[str], kinds: Collection[str] = ()
) -> list[str]:
    """The last few receptacles whose inside the episode has seen without use, in order of first sight.

    Of use are those where it did something, and those that held a thing which the task sentence names, or one of the
    goal's `kinds`, which a person's sentence may call something else.
    """
    inside: dict[str, str] = {}  # receptacle -> all that was seen there
    for answer in answers:
        for on, within, things in _SEEN_INSIDE.findall(answer):
            inside[on or within] = f"{inside.get(on or within, '')} {things}"
    named = {*re.findall("[a-z]+", task.lower()), *kinds}
    steps = workflow(commands, answers, won=False)
    vain = [
        receptacle
        for receptacle, things in inside.items()
        if named.isdisjoint(re.findall(r"([a-z]+) \d+", things))
        and not any(step.endswith(f" {receptacle}") for step in steps)
    ]
    return vain[-_PLACES_NAMED:]


def annotate(
    task: str, commands: Sequence[str], answers: Sequence[str], won: bool, kinds: Collection[str] = ()
) -> str:
    """The JSON a policy should write after this episode; `task` is the task sentence, `kinds` as above."""
    steps = workflow(commands, answers, won)
    if won:
        skill = ", ".join(steps)
    else:
        vain = searched_in_vain(task, commands, answers, kinds)
        parts = [f"start with {', '.join(steps)}"] if steps else []
        parts += [f"do not search {', '.join(vain)}"] if vain else []
        skill = "; ".join(parts) or "search other places"
    return json.dumps({SUMMARY_KEY: task, SKILL_KEY: skill})
