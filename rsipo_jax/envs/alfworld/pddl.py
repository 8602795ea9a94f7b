"""Reading PDDL: s-expressions to nested tuples, and the facts and goal of a problem."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

Expression = str | tuple["Expression", ...]

_COMMENT = re.compile(r";[^\n]*")
_TOKEN = re.compile(r"[()]|[^\s()]+")
_DEEPEST = 100  # lists in lists; ALFWorld's files stay below 20, and Python's own recursion must not decide

# Arguments of the predicates that a game reads, in facts and goals.
_ARITY = dict.fromkeys(
    (
        "pickupable", "cleanable", "heatable", "coolable", "toggleable", "sliceable", "isreceptacleobject",
        "openable", "opened", "ishot", "iscool", "isclean", "istoggled", "issliced",
    ),
    1,
) | dict.fromkeys(
    (
        "atlocation", "receptacleatlocation", "objectatlocation", "inreceptacle", "inreceptacleobject", "holds",
        "receptacletype", "objecttype", "cancontain",
    ),
    2,
)  # fmt: skip


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
            if len(open_lists) > _DEEPEST:
                raise PddlError(f"PDDL nests more than {_DEEPEST} lists.")
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
                facts[predicate].append(_checked(predicate, tuple(str(a) for a in arguments)))
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
        predicate, *arguments = (str(part) for part in expression)
        return [(predicate, *_checked(predicate, tuple(arguments)))]
    raise PddlError(f"The PDDL goal holds {expression!r}; only and, exists, not and atoms are understood.")


def _checked(predicate: str, arguments: tuple[str, ...]) -> tuple[str, ...]:
    """The arguments, if a predicate that we read has its number of them. Raises PddlError."""
    if len(arguments) != _ARITY.get(predicate, len(arguments)):
        raise PddlError(
            f"The PDDL problem gives {predicate} {len(arguments)} arguments instead of {_ARITY[predicate]}."
        )
    return arguments
