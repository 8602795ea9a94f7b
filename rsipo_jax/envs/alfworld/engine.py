"""The ALFWorld text game, played on a parsed Game: text, commands and goal test of the original engine.

Behaviour that looks odd is the original's and is kept: things can be examined only while held; heating,
cooling and cleaning need no open appliance; `use` always says "turn on"; one cannot go to a receptacle that
shares the agent's standpoint; a thing put elsewhere at the same standpoint shows up in "Next to it, you see";
lists of two end in ", and a".
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Sequence

from rsipo_jax.envs.alfworld.game import Game, Receptacle, Thing
from rsipo_jax.envs.protocol import Observation

NOTHING = "Nothing happens."

HELP = """\
Available commands:
  look:                             look around your current location
  inventory:                        check your current inventory
  go to (receptacle):               move to a receptacle
  open (receptacle):                open a receptacle
  close (receptacle):               close a receptacle
  take (object) from (receptacle):  take an object from a receptacle
  move (object) to (receptacle):  place an object in or on a receptacle
  examine (something):              examine a receptacle or an object
  use (object):                     use an object
  heat (object) with (receptacle):  heat an object using a receptacle
  clean (object) with (receptacle): clean an object using a receptacle
  cool (object) with (receptacle):  cool an object using a receptacle
  slice (object) with (object):     slice an object using a sharp object
"""


def intro(game: Game) -> str:
    """The text shown at the start: banner, surroundings, task."""
    here = game.at_place.get(game.start)
    if here:
        view = f"You are facing the {_listed([r.name for r in here])}. Next to it, you see nothing."
    else:
        around = _listed([f"a {r.name}" for r in game.receptacles])
        view = f"You are in the middle of a room. Looking quickly around you, you see {around}."
    return f"-= Welcome to TextWorld, ALFRED! =-\n\n{view}\n\nYour task is to: {game.sentence}."


class FastEpisode:
    """The changing state of one game. Attributes are immutable or dicts of immutables, so `copy` is cheap."""

    __slots__ = (
        "_local", "admissible", "clean", "contents", "cool", "game", "held", "hot", "opened", "place",
        "sliced", "spots", "taken_out", "toggled", "won",
    )  # fmt: skip

    def __init__(self, game: Game) -> None:
        self.game = game
        self.place = game.start
        self.held: Thing | None = None
        self.opened = game.opened
        self.contents = dict(game.contents)
        self.spots = dict(game.spots)
        self.taken_out: frozenset[tuple[Thing, Receptacle]] = frozenset()  # where things were and are no more
        self.hot, self.cool, self.clean = game.hot, game.cool, game.clean
        self.toggled, self.sliced = game.toggled, game.sliced
        self.admissible: tuple[str, ...]
        self.won: bool
        self._local: dict[str, tuple[str, Receptacle | None, Thing | None]]  # commands of this standpoint
        self._refresh()

    def copy(self) -> FastEpisode:
        """An independent episode in the same state."""
        twin = FastEpisode.__new__(FastEpisode)
        for name in FastEpisode.__slots__:
            setattr(twin, name, getattr(self, name))
        twin.contents = dict(self.contents)
        twin.spots = dict(self.spots)
        return twin

    def observe(self, text: str) -> Observation:
        """Wrap feedback with what is admissible now."""
        return Observation(text, self.admissible, self.won)

    def step(self, command: str) -> str:
        """Play one command and return the feedback; a command that is not admissible changes nothing."""
        command = command.strip()
        destination = self.game.destinations.get(command)
        if destination is not None and destination.place != self.place:
            return self._go(destination)
        if command == "look":
            return self._look()
        if command == "inventory":
            return f"You are carrying: a {self.held.name}." if self.held else "You are not carrying anything."
        if command == "help" and self.game.wording.has_help:
            return HELP
        if command not in self._local:
            return NOTHING
        verb, receptacle, thing = self._local[command]
        if verb == "examine" and receptacle is not None:
            return self._view(receptacle)
        if verb == "examine" and thing is not None:
            return self._inspect(thing)
        feedback = getattr(self, f"_{verb}")(receptacle, thing)
        self._refresh()
        return feedback

    # Effects, one method a verb.

    def _go(self, receptacle: Receptacle) -> str:
        self.place = receptacle.place
        self._refresh()
        wording = self.game.wording
        arrived = self.game.place_names[self.place] if wording.arrive_at_place else receptacle.name
        return f"You arrive at {arrived}. {self._view(receptacle)}"

    def _open(self, receptacle: Receptacle, _: None) -> str:
        self.opened |= {receptacle}
        return f"You open the {receptacle.name}. {self._view(receptacle)}"

    def _close(self, receptacle: Receptacle, _: None) -> str:
        self.opened -= {receptacle}
        return f"You close the {receptacle.name}."

    def _take(self, receptacle: Receptacle, thing: Thing) -> str:
        self.contents[receptacle] = tuple(t for t in self.contents[receptacle] if t is not thing)
        self.taken_out |= {(thing, receptacle)}
        self.spots[thing] = self.spots.get(thing, frozenset()) - {self.place}
        self.held = thing
        return f"You pick up the {thing.name} from the {receptacle.name}."

    def _move(self, receptacle: Receptacle, thing: Thing) -> str:
        inside = {thing, *self.contents[receptacle]}  # a thing that lay in two receptacles may be in it still
        self.contents[receptacle] = tuple(sorted(inside, key=lambda t: t.id))
        self.taken_out -= {(thing, receptacle)}
        self.spots[thing] = self.spots.get(thing, frozenset()) | {self.place}
        self.held = None
        return self.game.wording.moved.format(o=thing.name, r=receptacle.name)

    def _clean(self, receptacle: Receptacle, thing: Thing) -> str:
        self.clean |= {thing}
        return f"You clean the {thing.name} using the {receptacle.name}."

    def _heat(self, receptacle: Receptacle, thing: Thing) -> str:
        self.hot |= {thing}
        self.cool -= {thing}
        return f"You heat the {thing.name} using the {receptacle.name}."

    def _cool(self, receptacle: Receptacle, thing: Thing) -> str:
        self.cool |= {thing}
        self.hot -= {thing}
        return f"You cool the {thing.name} using the {receptacle.name}."

    def _use(self, _: None, thing: Thing) -> str:
        self.toggled |= {thing}
        return f"You turn on the {thing.name}."

    def _slice(self, _: None, thing: Thing) -> str:
        assert self.held is not None  # the command exists only with a blade in hand
        self.sliced |= {thing}
        return f"You sliced the {thing.name} with the {self.held.name}."

    # What the agent sees.

    def _view(self, receptacle: Receptacle) -> str:
        name = receptacle.name
        if receptacle.openable and receptacle not in self.opened:
            return f"The {name} is closed."
        seen = _listed([f"a {thing.name}" for thing in self.contents[receptacle]])
        if receptacle.openable:
            return f"The {name} is open. In it, you see {seen}."
        return f"On the {name}, you see {seen}."

    def _look(self) -> str:
        here = self.game.at_place.get(self.place)
        if not here:
            return "You are in the middle of a room. Looking quickly around you, you see nothing."
        beside = sorted(
            (thing.id, receptacle.id, thing.name)
            for thing, receptacle in self.taken_out
            if receptacle.place == self.place and self.place in self.spots[thing]
        )
        seen = _listed([f"a {name}" for _, _, name in beside])
        return f"You are facing the {_listed([r.name for r in here])}. Next to it, you see {seen}."

    def _inspect(self, thing: Thing) -> str:
        if thing.holds_things:
            seen = _listed([f"a {inner}" for inner in thing.holding])
            return f"This is a normal {thing.name}. In it, you see {seen}."
        clean, hot, cool = thing in self.clean, thing in self.hot, thing in self.cool
        sliced = " sliced" if thing in self.sliced else ""
        if clean and (hot or cool):
            return f"This is a {'hot' if hot else 'cool'} and clean{sliced} {thing.name}."
        if sliced and (clean or hot or cool):
            return f"This is a {'clean' if clean else 'hot' if hot else 'cool'}{sliced} {thing.name}."
        if hot or clean or cool:
            return f"This is a {'hot' if hot else 'clean' if clean else 'cold'} {thing.name}."
        if thing.toggleable and thing in self.toggled:
            return f"This {thing.name} is on."
        if thing.sliceable and sliced:
            return f"This is a sliced {thing.name}."
        return f"There's nothing special about {thing.name}."

    # What the agent may do, and whether it is done.

    def _refresh(self) -> None:
        """Recompute the commands and the goal after a change of state."""
        local: dict[str, tuple[str, Receptacle | None, Thing | None]] = {}
        held = self.held
        for receptacle in self.game.at_place.get(self.place, ()):
            name = receptacle.name
            local[f"examine {name}"] = ("examine", receptacle, None)
            accessible = not receptacle.openable or receptacle in self.opened
            if receptacle.openable:
                verb = "close" if accessible else "open"
                local[f"{verb} {name}"] = (verb, receptacle, None)
            for thing in self.contents[receptacle]:
                if accessible and held is None and thing.pickupable:
                    local[f"take {thing.name} from {name}"] = ("take", receptacle, thing)
                if thing.toggleable:
                    local[f"use {thing.name}"] = ("use", None, thing)
            if held is not None:
                if accessible and held.kind in receptacle.accepts:
                    local[self.game.wording.move.format(o=held.name, r=name)] = ("move", receptacle, held)
                if held.cleanable and receptacle.kind == "sinkbasin":
                    local[f"clean {held.name} with {name}"] = ("clean", receptacle, held)
                if held.heatable and receptacle.kind == "microwave":
                    local[f"heat {held.name} with {name}"] = ("heat", receptacle, held)
                if held.coolable and receptacle.kind == "fridge":
                    local[f"cool {held.name} with {name}"] = ("cool", receptacle, held)
        if held is not None:
            local[f"examine {held.name}"] = ("examine", None, held)
            if held.is_blade:
                for thing, places in self.spots.items():
                    if thing.sliceable and self.place in places:
                        local[f"slice {thing.name} with {held.name}"] = ("slice", None, thing)
        self._local = local
        everywhere = ("help", "inventory", "look") if self.game.wording.has_help else ("inventory", "look")
        others = sorted((*everywhere, *local))
        split = bisect(others, "go to ")  # where the many "go to ..." belong, which are sorted already
        self.admissible = (*others[:split], *self.game.travel[self.place], *others[split:])
        self.won = self._goal_holds()

    def _goal_holds(self) -> bool:
        goal = self.game.goal
        if goal.treatment == "light":
            return self.held is not None and self.held.kind == goal.thing and self._lamp_is_on(goal.target)
        for receptacle in self.game.targets:
            inside = [thing for thing in self.contents[receptacle] if thing.kind == goal.thing]
            if len(inside) >= goal.count and sum(map(self._treated, inside)) >= goal.count:
                return True
        return False

    def _lamp_is_on(self, kind: str) -> bool:
        return any(
            thing.toggleable and thing.kind == kind and thing in self.toggled
            for receptacle in self.game.at_place.get(self.place, ())
            for thing in self.contents[receptacle]
        )

    def _treated(self, thing: Thing) -> bool:
        match self.game.goal.treatment:
            case "clean":
                return thing.cleanable and thing in self.clean
            case "heat":
                return thing.heatable and thing in self.hot
            case "cool":
                return thing.coolable and thing in self.cool
        return True


def _listed(items: Sequence[str]) -> str:
    """The original's list style: "nothing", "a", "a, and b", "a, b, and c"."""
    if len(items) < 2:
        return items[0] if items else "nothing"
    return f"{', '.join(items[:-1])}, and {items[-1]}"
