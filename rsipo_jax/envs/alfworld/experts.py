"""A player that wins although it knows only what it has seen.

Every turn is a thought and an action. The thought says what is known and what to do about it, the object first
("mug not found, search", "mug 1 found, take", "mug 1 held, put in cabinet"): a policy that has named the object
can look for that very token in what it has read.
"""

from __future__ import annotations

import random
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from rsipo_jax.envs.alfworld.game import Game, Receptacle
from rsipo_jax.envs.alfworld.planner import APPLIANCES
from rsipo_jax.envs.protocol import Observation

NOT_FOUND = " not found, search"  # how a thought ends that goes on looking
LAMP_PLACES = ("sidetable", "desk", "dresser", "shelf", "coffeetable", "diningtable", "tvstand")


@dataclass(frozen=True)
class ExpertStep:
    """One turn of an expert."""

    thought: str
    action: str


@dataclass
class Beliefs:
    """What a player takes to be true. Things and receptacles go by their displayed names."""

    contents: dict[str, set[str]] = field(default_factory=dict)  # receptacle -> things, if seen inside
    closed: set[str] = field(default_factory=set)  # receptacles known to be closed
    held: str = ""
    treated: set[str] = field(default_factory=set)  # things that are clean, hot or cool, as the goal asks


class SearchingExpert:
    """Plays from what observations have shown so far.

    It looks into the likely receptacles in the order in which the room lists them, from a place chosen by `rng`
    and around: a habit that is easy to pick up, with room to improve on. `avoid` names receptacles taken to hold
    nothing wanted, as a skill may say.
    """

    def __init__(self, game: Game, rng: random.Random, avoid: Collection[str] = ()) -> None:
        start = rng.randrange(len(game.receptacles))
        order = [*game.receptacles[start:], *game.receptacles[:start]]
        self._goal = game.goal
        self._policy = _Policy(game, order)
        self._beliefs = Beliefs(contents={name: set() for name in avoid})

    def act(self, observation: Observation) -> ExpertStep:
        """The next step after the latest observation; to be called every turn, from the reset on."""
        beliefs = self._beliefs
        _update(beliefs, observation.text, self._goal.treatment)
        seen = set().union(*beliefs.contents.values(), {beliefs.held} - {""})
        usable = {name for name in seen if _kind(name) == self._goal.thing}
        lamps = {name for name in seen if _kind(name) == self._goal.target}
        return self._policy.next_step(beliefs, usable, lamps, observation.admissible)


class _Policy:
    """Get the thing, treat it, bring it. `order` breaks all ties, so it decides where to look first."""

    def __init__(self, game: Game, order: Sequence[Receptacle]) -> None:
        self._goal = game.goal
        self._move = game.wording.move
        self._receptacles = {r.name: r for r in order}
        self._targets = [r.name for r in order if r.kind == game.goal.target]

    def next_step(
        self, beliefs: Beliefs, usable: set[str], lamps: set[str], admissible: Sequence[str]
    ) -> ExpertStep:
        """The next step, given the known things that serve the goal and the known lamps for a look task."""
        goal, held = self._goal, beliefs.held
        if held and held not in usable:
            return self._put_away(beliefs, admissible)
        if held and goal.treatment == "light":
            lamp = self._nearest(beliefs, lamps, set(), admissible)
            if lamp is None:
                return self._search(f"{held} held, {goal.target}", goal.target, beliefs, admissible)
            thought = f"{held} held, {lamp[0]} found, use"
            return ExpertStep(
                thought, _first_possible([f"use {lamp[0]}"], admissible) or _reach(lamp[1], admissible)
            )
        if held and goal.treatment in APPLIANCES and held not in beliefs.treated:
            return self._treat(held, admissible)
        destination = self._destination(beliefs, usable)
        if held:
            command = _first_possible(
                [self._move.format(o=held, r=destination), f"open {destination}"], admissible
            )
            return ExpertStep(
                f"{held} held, put in {goal.target}", command or _reach(destination, admissible)
            )
        # things that already lie where they belong are left there, unless they still want treatment
        settled = set() if goal.treatment else {destination} if goal.count > 1 else set(self._targets)
        wanted = self._nearest(beliefs, usable, settled, admissible)
        if wanted is None:
            second = goal.count > 1 and beliefs.contents.get(destination, set()) & usable
            return self._search(f"{'second ' if second else ''}{goal.thing}", goal.thing, beliefs, admissible)
        thing, where = wanted
        command = _first_possible([f"take {thing} from {where}", f"open {where}"], admissible)
        return ExpertStep(f"{thing} found, take", command or _reach(where, admissible))

    def _destination(self, beliefs: Beliefs, usable: set[str]) -> str:
        """The target receptacle that already holds most of what is wanted."""
        return max(self._targets, key=lambda r: len(beliefs.contents.get(r, set()) & usable), default="")

    def _nearest(
        self, beliefs: Beliefs, names: set[str], excluded: set[str], admissible: Sequence[str]
    ) -> tuple[str, str] | None:
        """A known thing out of `names` and where it is: within reach first, then without opening."""
        found = [
            (f"go to {r}" in admissible, r in beliefs.closed, place, name, r)
            for place, r in enumerate(self._receptacles)
            if r not in excluded
            for name in beliefs.contents.get(r, set()) & names
        ]
        return min(found)[-2:] if found else None

    def _treat(self, held: str, admissible: Sequence[str]) -> ExpertStep:
        verb = self._goal.treatment
        appliance = next((name for name, r in self._receptacles.items() if r.kind == APPLIANCES[verb]), "")
        command = _first_possible([f"{verb} {held} with {appliance}"], admissible)
        return ExpertStep(f"{held} held, {verb}", command or _reach(appliance, admissible))

    def _put_away(self, beliefs: Beliefs, admissible: Sequence[str]) -> ExpertStep:
        """Free the hand of something that is not wanted."""
        held = beliefs.held
        thought = f"{held} not wanted, put away"
        places = [name for name, r in self._receptacles.items() if _kind(held) in r.accepts]
        if not places:
            return ExpertStep(thought, "look")  # nothing takes it: the game can no longer be won
        moves = [self._move.format(o=held, r=name) for name in places]
        command = _first_possible([*moves, *(f"open {name}" for name in places)], admissible)
        place = min(places, key=lambda name: name in beliefs.closed)
        return ExpertStep(thought, command or _reach(place, admissible))

    def _search(self, state: str, kind: str, beliefs: Beliefs, admissible: Sequence[str]) -> ExpertStep:
        """Look into a receptacle not seen yet: a likely one first, then one within reach."""
        thought = f"{state}{NOT_FOUND}"
        unseen = [name for name in self._receptacles if name not in beliefs.contents]
        unseen.sort(key=lambda name: (not self._likely(kind, name), f"go to {name}" in admissible))  # stable
        return ExpertStep(thought, _reach(unseen[0], admissible) if unseen else "look")

    def _likely(self, kind: str, name: str) -> bool:
        """Whether such a thing may be there: common sense, not knowledge of this game."""
        receptacle = self._receptacles[name]
        if self._goal.treatment == "light" and kind == self._goal.target:
            return receptacle.kind in LAMP_PLACES
        already_there = not self._goal.treatment and receptacle.kind == self._goal.target
        return kind in receptacle.accepts and not already_there


def _reach(receptacle: str, admissible: Sequence[str]) -> str:
    """Go to a receptacle; at a shared standpoint, where one cannot go, look into it."""
    return (
        _first_possible([f"go to {receptacle}", f"open {receptacle}"], admissible) or f"examine {receptacle}"
    )


def _first_possible(commands: Sequence[str], admissible: Sequence[str]) -> str:
    return next((command for command in commands if command in admissible), "")


def _kind(name: str) -> str:
    return name.rsplit(" ", 1)[0]


_CONTENTS = re.compile(r"(?:On the ([a-z]+ \d+)|The ([a-z]+ \d+) is open\. In it), you see (.+?)\.")
_CLOSED = re.compile(r"The ([a-z]+ \d+) is closed\.")
_ITEM = re.compile(r"\ba ([a-z]+ \d+)")
_TAKEN = re.compile(r"You pick up the ([a-z]+ \d+) from the ([a-z]+ \d+)\.")
_MOVED = re.compile(r"You (?:move|put) the ([a-z]+ \d+) (?:to|in/on) the ([a-z]+ \d+)\.")
_TREATED = re.compile(r"You (clean|heat|cool) the ([a-z]+ \d+) using the")
_SHUT = re.compile(r"You close the ([a-z]+ \d+)\.")


def _update(beliefs: Beliefs, text: str, treatment: str) -> None:
    """Read an observation into the beliefs; `treatment` is the one the goal asks for."""
    for on, inside, items in _CONTENTS.findall(text):
        beliefs.contents[on or inside] = set(_ITEM.findall(items))
        beliefs.closed.discard(inside)
    for pattern in (_CLOSED, _SHUT):
        beliefs.closed.update(pattern.findall(text))
    for thing, receptacle in _TAKEN.findall(text):
        beliefs.held = thing
        beliefs.contents.get(receptacle, set()).discard(thing)
    for thing, receptacle in _MOVED.findall(text):
        beliefs.held = ""
        beliefs.contents.setdefault(receptacle, set()).add(thing)
    for verb, thing in _TREATED.findall(text):
        if verb == treatment:
            beliefs.treated.add(thing)
        elif "clean" not in (verb, treatment):  # heating undoes cooling and the other way round
            beliefs.treated.discard(thing)
