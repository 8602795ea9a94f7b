"""Shortest plans with full knowledge of a game, from any state of the fast engine.

Each goal is reached by a few deeds in a fixed order: free the hand, take a thing, treat it, put it where it belongs. A
route lists, deed by deed, the alternatives (which receptacle, which appliance); a plan picks one of each, walks where
the standpoint changes and opens what is closed. `_routes` lists every route that can be shortest, and `_shorter`
finds the shortest plan among them.

Why no other order is shorter: a walk costs the same between any two standpoints and an opened door stays open, so
a deed costs nothing extra for being done when it is needed. A lamp is used last, because the plan must end at it
anyway. No thing is carried twice, and no treatment is repeated or undone. The tests compare with a search through
every sequence of commands. Lamps are taken to stay where they are: no ALFWorld game has one that can be picked up.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import permutations
from typing import NamedTuple

from rsipo_jax.envs.alfworld.engine import FastEpisode
from rsipo_jax.envs.alfworld.game import Game, Receptacle, Thing

APPLIANCES = {"clean": "sinkbasin", "heat": "microwave", "cool": "fridge"}


class Deed(NamedTuple):
    """Something to be done at a receptacle's standpoint."""

    receptacle: Receptacle
    command: str  # "" where being there is enough
    inside: bool  # whether the receptacle must be open


Route = tuple[tuple[Deed, ...], ...]  # alternatives for every deed, in order


def solve(game: Game) -> list[str] | None:
    """A shortest sequence of commands from the start to the goal, or None if the game cannot be won."""
    return shortest_plan(FastEpisode(game))


def shortest_plan(episode: FastEpisode) -> list[str] | None:
    """A shortest sequence of commands from the episode's state to the goal: [] if it is won, None if it cannot be.

    Of equally short plans it is always the same one that is returned.
    """
    if episode.won:
        return []
    best: tuple[str, ...] | None = None
    for route in _routes(episode):
        if all(route):
            best = _shorter(route, _least_to_come(route), episode.place, episode.opened, (), best)
    return None if best is None else list(best)


def _least_to_come(route: Route) -> tuple[int, ...]:
    """For every deed of a route, how many steps at least follow it: the commands, and walks that are certain."""
    least = [0]
    for before, deeds in zip(reversed(route[:-1]), reversed(route[1:]), strict=True):
        walk = {deed.receptacle.place for deed in before}.isdisjoint(deed.receptacle.place for deed in deeds)
        least.append(least[-1] + walk + bool(deeds[0].command))
    return tuple(reversed(least))


def _shorter(
    route: Route,
    to_come: tuple[int, ...],
    place: str,
    opened: frozenset[Receptacle],
    steps: tuple[str, ...],
    best: tuple[str, ...] | None,
) -> tuple[str, ...] | None:
    """A shortest continuation of `steps` along a route, if that is shorter than `best`; otherwise `best`.

    `to_come` says how many steps at least follow each deed of the route.
    """
    if not route:
        return steps
    for there, command, inside in route[0]:
        walk = there.place != place
        shut = inside and there.openable and there not in opened
        length = len(steps) + walk + shut + bool(command)
        if best is not None and length + to_come[0] >= len(best):
            continue
        more = (f"go to {there.name}" if walk else "", f"open {there.name}" if shut else "", command)
        best = _shorter(
            route[1:],
            to_come[1:],
            there.place,
            opened | {there} if shut else opened,
            steps + tuple(step for step in more if step),
            best,
        )
    return best


def _routes(episode: FastEpisode) -> Iterator[Route]:
    """Every route that a shortest plan may take; one with a deed that nothing allows has no alternatives there."""
    goal = episode.game.goal
    lying: dict[Thing, list[Receptacle]] = defaultdict(list)  # a thing may lie in two receptacles at once
    for receptacle, inside in episode.contents.items():
        for thing in inside:
            if thing.kind == goal.thing:
                lying[thing].append(receptacle)
    if goal.treatment == "light":
        return _routes_to_the_light(episode, lying)
    if goal.count == 2:
        return _routes_of_two(episode, lying)
    return _routes_of_one(episode, lying)


def _routes_of_one(episode: FastEpisode, lying: dict[Thing, list[Receptacle]]) -> Iterator[Route]:
    """Hold a thing, treat it unless that is done, put it into a target."""
    game, verb = episode.game, episode.game.goal.treatment
    treated = {"clean": episode.clean, "heat": episode.hot, "cool": episode.cool}.get(verb)
    for thing, source, route in _ways_to_hold(episode, lying):
        if treated is not None and thing not in treated:
            appliances = (r for r in game.receptacles if r.kind == APPLIANCES[verb])
            route += (tuple(Deed(r, f"{verb} {thing.name} with {r.name}", False) for r in appliances),)
            if any(r in game.targets for r in lying.get(thing, ()) if r is not source):
                yield route  # it still lies in a target as well
        yield (*route, _moves(game, thing, game.targets))


def _routes_of_two(episode: FastEpisode, lying: dict[Thing, list[Receptacle]]) -> Iterator[Route]:
    """Bring what is missing into a target, one after the other. What is in hand goes first, so the hand is free."""
    game, held = episode.game, episode.held
    for target in game.targets:
        missing = 2 - sum(target in receptacles for receptacles in lying.values())
        first = _free_hand(episode)
        if held and held.kind == game.goal.thing and target not in lying.get(held, ()):
            first = (_moves(game, held, [target]),)
            missing -= 1
        carried = [
            (_takes(thing, receptacles), _moves(game, thing, [target]))
            for thing, receptacles in lying.items()
            if thing.pickupable and thing is not held and target not in receptacles
        ]
        for pair in permutations(carried, missing):
            yield first + sum(pair, ())


def _routes_to_the_light(episode: FastEpisode, lying: dict[Thing, list[Receptacle]]) -> Iterator[Route]:
    """Hold a thing and come to a lamp that is on, or use one that is not."""
    lamps = [
        (lamp, receptacle)
        for receptacle, inside in episode.contents.items()
        for lamp in inside
        if lamp.kind == episode.game.goal.target and lamp.toggleable
    ]
    lit = tuple(Deed(receptacle, "", False) for lamp, receptacle in lamps if lamp in episode.toggled)
    to_light = tuple(Deed(receptacle, f"use {lamp.name}", False) for lamp, receptacle in lamps)
    for _, _, route in _ways_to_hold(episode, lying):
        yield (*route, lit)
        yield (*route, to_light)


def _ways_to_hold(
    episode: FastEpisode, lying: dict[Thing, list[Receptacle]]
) -> Iterator[tuple[Thing, Receptacle | None, Route]]:
    """Every usable thing with the receptacle that it is taken from (None: it is in hand) and the route to have it."""
    goal, held = episode.game.goal, episode.held

    def usable(thing: Thing) -> bool:
        return goal.treatment not in APPLIANCES or getattr(thing, f"{goal.treatment}able")

    if held and held.kind == goal.thing and usable(held):
        yield held, None, ()
    free = _free_hand(episode)
    for thing, receptacles in lying.items():
        if thing.pickupable and usable(thing):
            for receptacle in receptacles:
                yield thing, receptacle, (*free, _takes(thing, [receptacle]))


def _free_hand(episode: FastEpisode) -> Route:
    """Put down what is in hand, anywhere; nothing to do if the hand is empty."""
    return (_moves(episode.game, episode.held, episode.game.receptacles),) if episode.held is not None else ()


def _takes(thing: Thing, receptacles: Sequence[Receptacle]) -> tuple[Deed, ...]:
    return tuple(Deed(r, f"take {thing.name} from {r.name}", True) for r in receptacles)


def _moves(game: Game, thing: Thing, receptacles: Sequence[Receptacle]) -> tuple[Deed, ...]:
    """Putting a thing into those of the receptacles that take it."""
    move = game.wording.move
    return tuple(
        Deed(r, move.format(o=thing.name, r=r.name), True) for r in receptacles if thing.kind in r.accepts
    )
