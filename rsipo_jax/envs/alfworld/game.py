"""An ALFWorld game, parsed once and never changed: furniture, things, goal and the wording of its version.

Names follow AlfredDemangler(shuffle=False) of the alfworld package: the ids of a kind are sorted and numbered
from the last to the first. PDDL ids are lower case throughout, as in the planner the original engine runs on.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from rsipo_jax.envs.alfworld.goals import Goal, parse_goal
from rsipo_jax.envs.alfworld.pddl import PddlError, Problem, parse_problem
from rsipo_jax.envs.alfworld.versions import split_grammar, version_of
from rsipo_jax.validation import ConfigError

KINDS = (
    "pick_and_place_simple",
    "look_at_obj_in_light",
    "pick_clean_then_place_in_recep",
    "pick_heat_then_place_in_recep",
    "pick_cool_then_place_in_recep",
    "pick_two_obj_and_place",
)


class GameDataError(ConfigError):
    """A game, a file or a folder that cannot be used; the message is one sentence with the fix."""


@dataclass(frozen=True, slots=True)
class Wording:
    """The strings that differ between the two versions of the game files."""

    move: str  # command that puts a held object down
    moved: str  # its feedback
    arrive_at_place: bool  # "You arrive at loc 12." instead of the receptacle's name
    has_help: bool


VERSION_2_1_1 = Wording(
    move="put {o} in/on {r}", moved="You put the {o} in/on the {r}.", arrive_at_place=True, has_help=False
)
VERSION_2_1_2 = Wording(
    move="move {o} to {r}", moved="You move the {o} to the {r}.", arrive_at_place=False, has_help=True
)
WORDINGS: Mapping[str, Wording] = {"2.1.1": VERSION_2_1_1, "2.1.2": VERSION_2_1_2}


@dataclass(frozen=True, eq=False, slots=True)
class Receptacle:
    """Furniture that holds things. Compared by identity: a Game makes each one once."""

    id: str
    name: str  # as the text shows it, "cabinet 3"
    kind: str  # "cabinet"
    place: str  # location id of its standpoint; receptacles may share one
    openable: bool
    accepts: frozenset[str]  # kinds of things that may be put into it


@dataclass(frozen=True, eq=False, slots=True)
class Thing:
    """An object. Compared by identity: a Game makes each one once."""

    id: str
    name: str
    kind: str
    pickupable: bool
    cleanable: bool
    heatable: bool
    coolable: bool
    toggleable: bool
    sliceable: bool
    holds_things: bool  # bowls, boxes, ...
    holding: tuple[str, ...]  # names of what it holds; no rule changes it

    @property
    def is_blade(self) -> bool:
        return self.kind in ("knife", "butterknife")


@dataclass(frozen=True, eq=False, slots=True)
class Game:
    """Everything about a game that never changes while it is played, and the state it starts in."""

    sentence: str  # the task, without its full stop
    wording: Wording
    goal: Goal
    start: str  # location id where the agent begins
    receptacles: tuple[Receptacle, ...]  # sorted by id
    things: tuple[Thing, ...]  # sorted by id
    place_names: Mapping[str, str]  # location id -> "loc 12"
    at_place: Mapping[str, tuple[Receptacle, ...]]  # location id -> receptacles there
    travel: Mapping[str, tuple[str, ...]]  # location id -> "go to ..." commands possible from there, sorted
    destinations: Mapping[str, Receptacle]  # "go to ..." -> receptacle
    opened: frozenset[Receptacle]
    contents: Mapping[Receptacle, tuple[Thing, ...]]  # things sorted by id
    spots: Mapping[Thing, frozenset[str]]  # location ids where a thing counts as lying
    targets: tuple[Receptacle, ...]  # the receptacles of the goal's kind
    hot: frozenset[Thing]
    cool: frozenset[Thing]
    clean: frozenset[Thing]
    toggled: frozenset[Thing]
    sliced: frozenset[Thing]


def parse_game(domain: str, grammar: str, problem: str, source: str) -> Game:
    """Parse what a game file holds; `source` names the game in errors.

    Raises GameDataError, also for rules (`domain`) or wording (`grammar`) that are not those the engine plays.
    """
    parts = split_grammar(grammar)
    if parts is None:
        raise GameDataError(
            f"{source} names no task ('Your task is to: ...') in its grammar; restore the file."
        )
    template, sentence = parts
    version = version_of(domain, template)
    if not version:
        raise GameDataError(unknown_version(source))
    return build_game(problem, sentence, WORDINGS[version], source)


def unknown_version(source: str) -> str:
    """The sentence about a game of a version that the fast engine cannot play."""
    return (
        f"{source} is of a version that the fast engine does not know (it knows {' and '.join(WORDINGS)}); use "
        "config.env.engine='textworld', which plays any, or games of one of these versions."
    )


def build_game(problem: str, sentence: str, wording: Wording, source: str) -> Game:
    """Make a Game from a PDDL problem and its task sentence. Raises GameDataError."""
    try:
        parsed = parse_problem(problem)
        goal = parse_goal(parsed.goal)
    except PddlError as error:
        raise GameDataError(f"{source}: {error}") from error
    facts = parsed.facts
    if "holds" in facts:
        raise GameDataError(f"{source} starts with something in hand; such games are not supported.")
    names = _names(parsed)
    receptacles = _receptacles(parsed, names, source)
    things = _things(parsed, names, source)

    at_place: dict[str, list[Receptacle]] = defaultdict(list)
    for receptacle in receptacles.values():
        at_place[receptacle.place].append(receptacle)
    starts = facts.get("atlocation", ())
    if len(starts) != 1:
        raise GameDataError(
            f"{source} places the agent {len(starts)} times; exactly one atLocation fact is needed."
        )
    start = starts[0][1]
    destinations = {f"go to {r.name}": r for r in receptacles.values()}
    travel = {
        place: tuple(sorted(command for command, r in destinations.items() if r.place != place))
        for place in {start, *at_place}
    }

    contents: dict[Receptacle, list[Thing]] = {receptacle: [] for receptacle in receptacles.values()}
    for thing, inside in facts.get("inreceptacle", ()):
        if inside in receptacles:  # a receptacle without a standpoint can never be reached
            contents[receptacles[inside]].append(things[thing])
    spots: dict[Thing, set[str]] = defaultdict(set)
    for thing, place in facts.get("objectatlocation", ()):
        spots[things[thing]].add(place)

    def initially(predicate: str) -> frozenset[Thing]:
        return frozenset(things[row[0]] for row in facts.get(predicate, ()))

    return Game(
        sentence=sentence,
        wording=wording,
        goal=goal,
        start=start,
        receptacles=tuple(receptacles.values()),
        things=tuple(things.values()),
        place_names={place: names[place] for place in travel},
        at_place={place: tuple(here) for place, here in at_place.items()},
        travel=travel,
        destinations=destinations,
        opened=frozenset(receptacles[row[0]] for row in facts.get("opened", ()) if row[0] in receptacles),
        contents={r: tuple(sorted(inside, key=lambda thing: thing.id)) for r, inside in contents.items()},
        spots={thing: frozenset(places) for thing, places in spots.items()},
        targets=tuple(r for r in receptacles.values() if r.kind == goal.target),
        hot=initially("ishot"),
        cool=initially("iscool"),
        clean=initially("isclean"),
        toggled=initially("istoggled"),
        sliced=initially("issliced"),
    )


def _names(problem: Problem) -> dict[str, str]:
    """Id -> displayed name for every argument of every fact."""
    ids = sorted({argument for rows in problem.facts.values() for row in rows for argument in row})
    kinds = {}
    for id_ in ids:
        kind, mark, _ = id_.partition("_bar_")
        if mark:
            kinds[id_] = kind + "basin" if "basin" in id_ else kind
    left = Counter(kinds.values())
    names = {}
    for id_ in ids:
        if id_ in kinds:
            names[id_] = f"{kinds[id_]} {left[kinds[id_]]}"
            left[kinds[id_]] -= 1
        else:
            names[id_] = f"{id_} "
    return names


def _single(rows: Iterable[tuple[str, ...]], predicate: str, source: str) -> dict[str, str]:
    """A two-place predicate as a function. Raises GameDataError if it is not one."""
    value: dict[str, str] = {}
    for subject, object_ in rows:
        if value.setdefault(subject, object_) != object_:
            raise GameDataError(
                f"{source} gives {subject} two values of {predicate}; such games are not supported."
            )
    return value


def _kinds(problem: Problem, predicate: str, source: str) -> dict[str, str]:
    kinds = _single(problem.facts.get(predicate, ()), predicate, source)
    return {id_: kind.removesuffix("type") for id_, kind in kinds.items()}


def _receptacles(problem: Problem, names: Mapping[str, str], source: str) -> dict[str, Receptacle]:
    """Receptacles that have a standpoint, by id, in the order of their ids."""
    places = _single(problem.facts.get("receptacleatlocation", ()), "receptacleAtLocation", source)
    kinds = _kinds(problem, "receptacletype", source)
    accepts = defaultdict(set)
    for kind, thing_kind in problem.facts.get("cancontain", ()):
        accepts[kind.removesuffix("type")].add(thing_kind.removesuffix("type"))
    openable = {row[0] for row in problem.facts.get("openable", ())}
    shared = {kind: frozenset(accepted) for kind, accepted in accepts.items()}
    receptacles = {}
    for id_ in sorted(places):
        kind = kinds.get(id_, "")
        receptacles[id_] = Receptacle(
            id_, names[id_], kind, places[id_], id_ in openable, shared.get(kind, frozenset())
        )
    return receptacles


def _things(problem: Problem, names: Mapping[str, str], source: str) -> dict[str, Thing]:
    """Every object that a fact names, by id, in the order of their ids."""
    facts = problem.facts
    kinds = _kinds(problem, "objecttype", source)
    holding = defaultdict(list)
    for inner, outer in facts.get("inreceptacleobject", ()):
        holding[outer].append(inner)
    ids = (
        {row[0] for name in _THING_PREDICATES for row in facts.get(name, ())} | kinds.keys() | holding.keys()
    )
    has = {name: {row[0] for row in facts.get(name, ())} for name in _THING_PREDICATES}
    return {
        id_: Thing(
            id=id_,
            name=names[id_],
            kind=kinds.get(id_, ""),
            pickupable=id_ in has["pickupable"],
            cleanable=id_ in has["cleanable"],
            heatable=id_ in has["heatable"],
            coolable=id_ in has["coolable"],
            toggleable=id_ in has["toggleable"],
            sliceable=id_ in has["sliceable"],
            holds_things=id_ in has["isreceptacleobject"],
            holding=tuple(names[inner] for inner in sorted(holding.get(id_, ()))),
        )
        for id_ in sorted(ids)
    }


_THING_PREDICATES = (
    "pickupable", "cleanable", "heatable", "coolable", "toggleable", "sliceable", "isreceptacleobject",
    "inreceptacle", "inreceptacleobject", "objectatlocation", "ishot", "iscool", "isclean", "istoggled",
    "issliced",
)  # fmt: skip
