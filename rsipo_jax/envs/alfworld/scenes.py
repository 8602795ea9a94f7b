"""Drawing one game: a furnished room, the things in it, a goal, and the PDDL that says so.

A scene's furniture is a function of its number (and of the cap on pieces of a kind); all else is drawn anew.
"""

from __future__ import annotations

import functools
import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from rsipo_jax.envs.alfworld import vocabulary as v


@dataclass(frozen=True)
class Piece:
    """A piece of furniture."""

    id: str
    kind: str
    place: str  # id of the standpoint in front of it
    openable: bool


@dataclass(frozen=True)
class Item:
    """A thing and the piece of furniture it starts in."""

    id: str
    kind: str
    where: Piece


@dataclass(frozen=True)
class DrawnGame:
    """A game that is not yet written to disk. Type names are ALFRED's ("SinkBasin")."""

    kind: str  # task type
    thing: str
    target: str  # receptacle; "" in look_at_obj_in_light
    lamp: str  # "" in all other tasks
    scene: int
    sentence: str
    problem: str  # PDDL
    trial: str

    @property
    def folder(self) -> str:
        return f"{self.kind}-{self.thing}-None-{self.target or self.lamp}-{self.scene}"


def draw_game(kind: str, scene: int, max_per_kind: int, trial: str, rng: random.Random) -> DrawnGame | None:
    """One try at a game of a task type in a scene; None if the scene has no such task."""
    pieces, starts = layout(scene, max_per_kind)
    goals = _possible_goals(kind, room_of(scene), pieces)
    if not goals:
        return None
    thing, target = rng.choice(goals)
    lamp = rng.choices(v.LAMPS, (0.8, 0.2))[0] if kind == "look_at_obj_in_light" else ""
    needed = 2 if kind == "pick_two_obj_and_place" else 1
    items = _place_items(room_of(scene), pieces, thing, target, needed, lamp, rng)
    goal = v.GOALS[kind].format(obj=thing, recep=target, lamp=lamp)
    sentence = rng.choice(v.SENTENCES[kind])
    return DrawnGame(
        kind=kind,
        thing=thing,
        target=target,
        lamp=lamp,
        scene=scene,
        sentence=sentence.format(obj=thing.lower(), recep=target.lower(), lamp=lamp.lower()),
        problem=_problem(trial, pieces, items, starts, rng.choice(starts), goal),
        trial=trial,
    )


def room_of(scene: int) -> str:
    """The kind of room a scene number stands for."""
    return next(room for room, numbers in v.SCENES.items() if scene in numbers)


@functools.cache
def layout(scene: int, max_per_kind: int) -> tuple[tuple[Piece, ...], tuple[str, ...]]:
    """The furniture of a scene, and the standpoints where an agent may start (none of them at furniture)."""
    rng = random.Random(f"alfworld/scene/{scene}")
    places: set[str] = set()

    def new_place() -> str:
        while (place := _place_id(rng)) in places:
            pass
        places.add(place)
        return place

    pieces: list[Piece] = []
    for kind, (fewest, most) in v.FURNITURE[room_of(scene)].items():
        count = rng.randint(fewest, most)
        for number in range(min(count, max_per_kind or count)):
            beside = number > 0 and kind in v.CLUSTERED and rng.random() < 0.2
            place = pieces[-1].place if beside else new_place()
            pieces.append(Piece(_piece_id(kind, rng), kind, place, rng.random() < v.OPENABLE.get(kind, 0.0)))
    return tuple(pieces), tuple(new_place() for _ in range(6))


def _possible_goals(kind: str, room: str, pieces: Sequence[Piece]) -> list[tuple[str, str]]:
    """(thing, target) pairs that make sense: it can be treated, belongs there, and can start elsewhere."""
    able, appliance = {
        "pick_clean_then_place_in_recep": (v.CLEANABLE, "SinkBasin"),
        "pick_heat_then_place_in_recep": (v.HEATABLE, "Microwave"),
        "pick_cool_then_place_in_recep": (v.COOLABLE, "Fridge"),
    }.get(kind, (frozenset(v.OBJECTS[room]), ""))
    furniture = sorted({piece.kind for piece in pieces})
    things = [thing for thing in v.OBJECTS[room] if thing in able - v.UNPICKABLE and _homes(thing, pieces)]
    if kind == "look_at_obj_in_light":
        return [(thing, "") for thing in things] if set(furniture) & set(v.LAMP_PLACES) else []
    return [
        (thing, target)
        for thing in things
        for target in furniture
        if target != appliance
        and thing in v.CAN_CONTAIN[target]
        and any(piece.kind != target for piece in _homes(thing, pieces))
    ]


def _homes(thing: str, pieces: Sequence[Piece]) -> list[Piece]:
    """Where a thing may start."""
    if thing in v.SPECIAL_PLACES:
        return [piece for piece in pieces if piece.kind in v.SPECIAL_PLACES[thing]]
    return [piece for piece in pieces if thing in v.CAN_CONTAIN[piece.kind]]


def _place_items(
    room: str, pieces: Sequence[Piece], thing: str, target: str, needed: int, lamp: str, rng: random.Random
) -> list[Item]:
    """Fill a room. The goal's things never start in a target."""
    items = []
    for kind, mean in {**v.OBJECTS[room], **({lamp: 1.0} if lamp else {})}.items():
        count = int(mean) + (rng.random() < mean % 1)
        if count and kind not in v.UNPICKABLE:
            count += rng.choice((-1, 0, 0, 0, 1))
        if kind == thing:
            count = max(count, needed)
        homes = defaultdict(list)
        for piece in _homes(kind, pieces):
            if kind != thing or piece.kind != target:
                homes[piece.kind].append(piece)
        for _ in range(count if homes else 0):
            furniture = rng.choice(
                sorted(homes)
            )  # first the kind, so that many cabinets do not take everything
            items.append(Item(f"{kind}{_coordinates(rng)}", kind, rng.choice(homes[furniture])))
    return items


def _problem(
    trial: str, pieces: Sequence[Piece], items: Sequence[Item], starts: Sequence[str], start: str, goal: str
) -> str:
    """The PDDL problem. It declares all types of the vocabulary, for the domain names some as constants."""
    things = sorted({thing for room in v.OBJECTS.values() for thing in room} | set(v.LAMPS))
    abilities = {
        "isReceptacleObject": v.HOLDS_THINGS,
        "cleanable": v.CLEANABLE,
        "heatable": v.HEATABLE,
        "coolable": v.COOLABLE,
        "toggleable": v.LAMPS,
        "sliceable": v.SLICEABLE,
    }
    objects = [
        "agent1 - agent",
        *(f"{kind}Type - otype" for kind in things),
        *(f"{kind}Type - rtype" for kind in v.CAN_CONTAIN),
        *(f"{item.id} - object" for item in items),
        *(f"{piece.id} - receptacle" for piece in pieces),
        *(f"{place} - location" for place in sorted({*starts, *(piece.place for piece in pieces)})),
    ]
    facts = [
        f"atLocation agent1 {start}",
        *(f"receptacleType {piece.id} {piece.kind}Type" for piece in pieces),
        *(f"receptacleAtLocation {piece.id} {piece.place}" for piece in pieces),
        *(f"openable {piece.id}" for piece in pieces if piece.openable),
        *(
            f"canContain {kind}Type {thing}Type"
            for kind in sorted({piece.kind for piece in pieces})
            for thing in sorted(v.CAN_CONTAIN[kind])
        ),
        *(f"objectType {item.id} {item.kind}Type" for item in items),
        *(f"inReceptacle {item.id} {item.where.id}" for item in items),
        *(f"objectAtLocation {item.id} {item.where.place}" for item in items),
        *(f"pickupable {item.id}" for item in items if item.kind not in v.UNPICKABLE),
        *(
            f"{ability} {item.id}"
            for ability, kinds in abilities.items()
            for item in items
            if item.kind in kinds
        ),
    ]
    lines = [
        f"(define (problem plan_{trial})",
        "(:domain alfred)",
        "(:objects",
        *(f"    {line}" for line in objects),
        ")",
        "(:init",
        *(f"    ({fact})" for fact in facts),
        ")",
        f"(:goal (and {goal}))",
        ")",
    ]
    return "\n".join(lines) + "\n"


def _coordinates(rng: random.Random) -> str:
    """A position in THOR's manner: _bar__plus_00_dot_22_bar__plus_01_dot_34_bar__minus_03_dot_10."""
    text = ""
    for low, high in ((-4, 4), (0, 2), (-4, 4)):
        value = rng.uniform(low, high)
        text += f"_bar__{'minus' if value < 0 else 'plus'}_{abs(value):05.2f}".replace(".", "_dot_")
    return text


def _piece_id(kind: str, rng: random.Random) -> str:
    if kind.endswith("Basin"):  # THOR calls it Sink|...|SinkBasin, and the text "sinkbasin 1"
        return f"{kind.removesuffix('Basin')}{_coordinates(rng)}_bar_{kind}"
    return f"{kind}{_coordinates(rng)}"


def _place_id(rng: random.Random) -> str:
    """A standpoint in THOR's manner: x, z, rotation, horizon."""
    horizon = rng.choice((-30, 0, 15, 30, 45, 60))
    numbers = (rng.randint(-15, 15), rng.randint(-12, 12), rng.randint(0, 3), horizon)
    return "loc" + "".join(f"_bar_{'_minus_' if number < 0 else ''}{abs(number)}" for number in numbers)
