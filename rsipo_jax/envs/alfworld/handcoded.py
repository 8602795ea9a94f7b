"""ALFWorld's own handcoded expert, driven on the fast engine.

The expert (HandCodedTWAgent of alfworld 0.4.2, the one behind the original's imitation learning) searches by
rules and bears everything in mind that it has seen. It is given what the original engine would give it: feedback,
commands and facts. Its parameters, which it otherwise reads from traj_data.json, follow from the goal. It speaks the
wording of version 2.1.2; for games of 2.1.1 its commands are translated.
"""

from __future__ import annotations

import contextlib
import random
import re
import sys
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from rsipo_jax.envs.alfworld.engine import FastEpisode, intro
from rsipo_jax.envs.alfworld.game import Game, GameDataError
from rsipo_jax.envs.alfworld.goals import Goal
from rsipo_jax.envs.alfworld.textworld import EngineMissing

TASK_TYPES = {  # (treatment, count) -> task type
    ("", 1): "pick_and_place_simple",
    ("light", 1): "look_at_obj_in_light",
    ("clean", 1): "pick_clean_then_place_in_recep",
    ("heat", 1): "pick_heat_then_place_in_recep",
    ("cool", 1): "pick_cool_then_place_in_recep",
    ("", 2): "pick_two_obj_and_place",
}

_PUT = re.compile(r"put (.+) in/on (.+)")  # what version 2.1.1 calls "move ... to ..."


class Fact(NamedTuple):
    """A fact in the form of the original engine's, with displayed names."""

    name: str
    names: tuple[str, ...]


class HandcodedExpert:
    """Plays one game from its start. Where its rules leave a choice, `rng` makes it.

    Raises EngineMissing if alfworld is not installed, and GameDataError for a game about a thing that the expert
    has never heard of.
    """

    def __init__(self, game: Game, rng: random.Random) -> None:
        self._rng = rng
        self._agent = _agent(game.goal)
        self._agent.observe(intro(game))
        self._last = ""  # the command it gave last

    def act(self, episode: FastEpisode, feedback: str) -> str:
        """The next command, after the feedback to the last one (the intro at first)."""
        commands = {_PUT.sub(r"move \1 to \2", command): command for command in episode.admissible}
        state = {"feedback": feedback, "admissible_commands": list(commands), "facts": _facts(episode)}
        return commands[self.decide(state)]

    def decide(self, state: Mapping[str, Any]) -> str:
        """The next command in a state as the original engine gives it (wording of 2.1.2), for every turn of a game.

        As in AlfredExpert, it begins with a look around, and looks when its rules name an impossible command.
        """
        if not self._last:
            self._last = "look"
            return "look"
        with _global_random(self._rng):
            command = self._agent.act(state, 0, False, self._last)
        self._last = command if command in state["admissible_commands"] else "look"
        return self._last


def play_handcoded(game: Game, rng: random.Random, max_turns: int) -> tuple[bool, int]:
    """Play a game until it is won or `max_turns` commands are played: (won, turns)."""
    episode, expert = FastEpisode(game), HandcodedExpert(game, rng)
    feedback = intro(game)
    for turn in range(max_turns):
        if episode.won:
            return True, turn
        feedback = episode.step(expert.act(episode, feedback))
    return episode.won, max_turns


def _agent(goal: Goal) -> Any:
    """alfworld's agent, ready to play. Its reset() would read traj_data.json beside the game file."""
    try:
        from alfworld.agents.expert import HandCodedTWAgent
        from alfworld.gen.constants import OBJECTS_SINGULAR
    except (ImportError, OSError) as error:  # it makes a cache folder when imported
        raise EngineMissing(
            f"The handcoded expert is part of the package alfworld, which cannot be imported ({error}): run "
            "`pip install alfworld==0.4.2` (it compiles C++), or do without this expert."
        ) from error
    if goal.thing not in OBJECTS_SINGULAR:
        raise GameDataError(
            f"The handcoded expert knows nothing called {goal.thing!r}; leave out the games that ask for one."
        )
    lamp = goal.treatment == "light"
    parameters = {
        "task_type": TASK_TYPES[goal.treatment, goal.count],
        "object_target": goal.thing,
        "parent_target": "" if lamp else goal.target,
        "toggle_target": goal.target if lamp else "",
        "mrecep_target": "",
        "object_sliced": False,
    }
    agent = HandCodedTWAgent()
    agent.policy = _repaired(agent.get_task_policy(parameters))(parameters, max_steps=sys.maxsize)
    return agent


def _repaired(policy: Any) -> Any:
    """A policy that notices that it has put something down.

    alfworld 0.4.2 tells that by the word "put" in its command, which it itself has come to spell "move".
    """

    class Repaired(policy):
        def update_state_tracking(self, game_state: Mapping[str, Any], last_action: str) -> None:
            if last_action.startswith("move "):
                last_action = "put " + last_action.removeprefix("move ")
            super().update_state_tracking(game_state, last_action)

    return Repaired


def _facts(episode: FastEpisode) -> list[Fact]:
    """The facts that the expert looks at, out of those the original engine knows."""
    facts = [Fact("inreceptacle", (t.name, r.name)) for r, inside in episode.contents.items() for t in inside]
    states = {"ishot": episode.hot, "iscool": episode.cool, "isclean": episode.clean}
    facts += [Fact(name, (thing.name,)) for name, things in states.items() for thing in things]
    if episode.held:
        facts.append(Fact("holds", ("agent1", episode.held.name)))
    return facts


@contextlib.contextmanager
def _global_random(rng: random.Random) -> Iterator[None]:
    """Let `rng` answer what is asked of the global `random`, and leave that as it was."""
    kept = random.getstate()
    random.setstate(rng.getstate())
    try:
        yield
    finally:
        rng.setstate(random.getstate())
        random.setstate(kept)
