"""Reading PDDL: s-expressions to nested tuples, and the facts and goal of a problem."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

Expression = str | tuple["Expression", ...]

_COMMENT = re.compile(r";[^\n]*")
_TOKEN = re.compile(r"[()]|[^\s()]+")


class PddlError(ValueError):
    """Text that is not the PDDL we expect; the message is one sentence."""


@dataclass(frozen=True)
class Problem:
    """The part of a PDDL problem that a game needs."""

    facts: Mapping[str, tuple[tuple[str, ...], ...]]  # predicate -> argument tuples, in file order
    goal: Expression


def parse_expression(text: str) -> Expression:
    """Parse one s-expression; symbols are lower-cased, as PDDL is case-insensitive. Raises PddlError."""
    open_lists: list[list[Expression]] = [[]]
    for token in _TOKEN.findall(_COMMENT.sub("", text).lower()):
        if token == "(":
            open_lists.append([])
        elif token == ")":
            if len(open_lists) == 1:
                raise PddlError("PDDL has a ')' without its '('.")
            closed = tuple(open_lists.pop())
            open_lists[-1].append(closed)
        else:
            open_lists[-1].append(token)
    if len(open_lists) > 1:
        raise PddlError(f"PDDL ends with {len(open_lists) - 1} unclosed '('.")
    if len(open_lists[0]) != 1:
        raise PddlError(f"PDDL holds {len(open_lists[0])} expressions where one is expected.")
    return open_lists[0][0]


def parse_problem(text: str) -> Problem:
    """Parse a PDDL problem file. Raises PddlError."""
    tree = parse_expression(text)
    sections = {part[0]: part for part in tree if isinstance(part, tuple) and part}
    for name in (":init", ":goal"):
        if name not in sections:
            raise PddlError(f"The PDDL problem has no {name} section.")
    facts: dict[str, list[tuple[str, ...]]] = defaultdict(list)
    for fact in sections[":init"][1:]:
        match fact:
            case ("=", *_):  # costs and distances: no rule of the game reads them
                continue
            case (str(predicate), *arguments) if all(isinstance(a, str) for a in arguments):
                facts[predicate].append(tuple(str(a) for a in arguments))
            case _:
                raise PddlError(f"The PDDL problem's :init holds {fact!r}, which is not a fact.")
    if len(sections[":goal"]) != 2:
        raise PddlError("The PDDL problem's :goal must hold one expression.")
    return Problem({name: tuple(rows) for name, rows in facts.items()}, sections[":goal"][1])


def literals(expression: Expression) -> list[tuple[str, ...]]:
    """The positive atoms of a condition in reading order. Raises PddlError for what no ALFWorld goal has."""
    if isinstance(expression, str) or not expression:
        return []
    head, *rest = expression
    if head == "not":
        return []
    if head == "and":
        return [atom for part in rest for atom in literals(part)]
    if head == "exists":
        return literals(rest[-1])
    if all(isinstance(part, str) for part in expression):
        return [tuple(str(part) for part in expression)]
    raise PddlError(f"The PDDL goal holds {expression!r}; only and, exists, not and atoms are understood.")
