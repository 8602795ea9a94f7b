"""The six goals of ALFWorld, recognised in PDDL."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from rsipo_jax.envs.alfworld.pddl import Expression, PddlError, literals


@dataclass(frozen=True, slots=True)
class Goal:
    """One of ALFWorld's six goals: things of a kind, treated or not, brought to a target of a kind."""

    treatment: str  # "" | "clean" | "heat" | "cool" | "light"
    count: int  # things needed in one receptacle; 2 only for pick_two_obj_and_place
    thing: str  # kind of the thing
    target: str  # kind of the receptacle, or of the lamp when the treatment is "light"


# the predicates of each goal's positive atoms -> (treatment, count)
_PLACED = Counter(["inreceptacle", "objecttype", "receptacletype"])
_LIT = ["atlocation", "receptacleatlocation", "inreceptacle", "toggleable", "istoggled", "objecttype"]
_GOAL_SHAPES = (
    (_PLACED, ("", 1)),
    (_PLACED + Counter(["cleanable", "isclean"]), ("clean", 1)),
    (_PLACED + Counter(["heatable", "ishot"]), ("heat", 1)),
    (_PLACED + Counter(["coolable", "iscool"]), ("cool", 1)),
    (_PLACED + _PLACED, ("", 2)),
    (Counter([*_LIT, "objecttype", "holds"]), ("light", 1)),
)


def parse_goal(expression: Expression) -> Goal:
    """Recognise one of ALFWorld's six goals. Raises PddlError."""
    atoms = literals(expression)
    predicates = Counter(atom[0] for atom in atoms)
    shape = next((shape for counts, shape in _GOAL_SHAPES if counts == predicates), None)
    if shape is None:
        raise PddlError(
            f"The PDDL goal asks for {sorted(predicates)}, which is none of ALFWorld's six goals."
        )
    treatment, count = shape
    thing_kinds = {atom[1]: atom[2].removesuffix("type") for atom in atoms if atom[0] == "objecttype"}
    if treatment == "light":
        held = next(atom[2] for atom in atoms if atom[0] == "holds")
        lamp = next(atom[1] for atom in atoms if atom[0] == "istoggled")
        if not {held, lamp} <= thing_kinds.keys():
            raise PddlError("The PDDL goal does not say what kind the thing or the lamp is.")
        return Goal(treatment, count, thing_kinds[held], thing_kinds[lamp])
    target_kinds = {atom[2].removesuffix("type") for atom in atoms if atom[0] == "receptacletype"}
    if len(set(thing_kinds.values())) != 1 or len(target_kinds) != 1:
        raise PddlError(
            "The PDDL goal mixes kinds of things or receptacles, which none of ALFWorld's six does."
        )
    return Goal(treatment, count, next(iter(thing_kinds.values())), target_kinds.pop())
