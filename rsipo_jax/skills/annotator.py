"""Skills for the SFT cold start, written by rule from a finished episode: what a policy should learn to write itself.

A solved episode gives its workflow: the steps that mattered, without the search. A failed one gives what it achieved and
the places where it looked in vain. Both speak only of what the episode has seen.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from rsipo_jax.skills.parsing import SKILL_KEY, SUMMARY_KEY

NOTHING = "Nothing happens."
_KEPT = re.compile(r"(?:take|move|put|clean|heat|cool|use|slice) ")
_SEEN_INSIDE = re.compile(r"(?:On the ([a-z]+ \d+), you see|The ([a-z]+ \d+) is open\. In it, you see)")
_PLACES_NAMED = 6  # the last places searched in vain that a failure skill names: enough to help, short enough to read


def workflow(commands: Sequence[str], answers: Sequence[str]) -> list[str]:
    """The commands that changed something, each with the walk and the opening it needs; `answers[i]` is the reply to
    `commands[i]`. Replaying them from the start has the same effect on the household as the whole episode."""
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
            if target and not command.startswith(("clean", "heat", "cool")):  # these work on a closed appliance
                kept.append(f"open {target}")
                opened_kept.add(target)
            kept.append(command)
    return kept


def searched(answers: Sequence[str]) -> list[str]:
    """Receptacles whose inside the episode has seen, in order of first sight."""
    found = (a or b for answer in answers for a, b in _SEEN_INSIDE.findall(answer))
    return list(dict.fromkeys(found))


def annotate(task: str, commands: Sequence[str], answers: Sequence[str], won: bool) -> str:
    """The JSON a policy should write after this episode; `task` is the task sentence."""
    steps = workflow(commands, answers)
    if won:
        skill = ", ".join(steps)
    else:
        useless = [r for r in searched(answers) if not any(step.endswith(f" {r}") for step in steps)]
        parts = [f"start with {', '.join(steps)}"] if steps else []
        parts += [f"do not search {', '.join(useless[-_PLACES_NAMED:])}"] if useless else []
        skill = "; ".join(parts) or "search other places"
    return json.dumps({SUMMARY_KEY: task, SKILL_KEY: skill})
