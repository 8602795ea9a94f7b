"""Plans are shortest: as short as what a search through every sequence of commands finds."""

from __future__ import annotations

import dataclasses
import random

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from rsipo_jax.config import GamesConfig
from rsipo_jax.envs.alfworld.data import SPLITS, GameData, find_tasks, has_split, load_game
from rsipo_jax.envs.alfworld.engine import FastEpisode
from rsipo_jax.envs.alfworld.game import KINDS, VERSION_2_1_1, VERSION_2_1_2, Game, build_game
from rsipo_jax.envs.alfworld.generator import make_game
from rsipo_jax.envs.alfworld.planner import shortest_plan, solve
from rsipo_jax.envs.alfworld.vocabulary import GOALS
from tests.envs.alfworld.kitchen import kitchen


def check_plan(episode: FastEpisode, plan: list[str]) -> None:
    """A plan plays admissible commands only and wins with the last one, not before."""
    episode = episode.copy()
    for command in plan:
        assert not episode.won
        assert command in episode.admissible
        episode.step(command)
    assert episode.won


# Small games, drawn so that what can go wrong comes up often: receptacles that share a standpoint, doors, two
# appliances, things in two receptacles, things that cannot be treated or picked up, states in the middle of play.

TREATED = {  # task type -> verb, the state it brings and the appliances in the room
    "pick_clean_then_place_in_recep": ("clean", "isClean", ["SinkBasin"]),
    "pick_heat_then_place_in_recep": ("heat", "isHot", ["Microwave", "Fridge"]),
    "pick_cool_then_place_in_recep": ("cool", "isCool", ["Fridge", "Microwave"]),
}


def small_game(seed: int) -> Game:
    """Up to six receptacles at up to three standpoints and up to five things; perhaps won, perhaps impossible."""
    rng = random.Random(seed)

    def sometimes(*facts: str, chance: float) -> list[str]:
        return [f"({fact})" for fact in facts if rng.random() < chance]

    task = rng.choice(KINDS)
    verb, state, appliances = TREATED.get(task, ("", "", []))
    facts = ["(atLocation agent1 loc_bar_0)"]
    others = rng.choices(["Cabinet", "Shelf", *appliances], k=rng.randint(0, 3))
    receptacles = [f"{kind}_bar_{n}" for n, kind in enumerate(["Cabinet", "Shelf", *appliances[:1], *others])]
    for name in receptacles:
        facts += [f"(receptacleType {name} {name.split('_')[0]}Type)"]
        facts += [f"(receptacleAtLocation {name} loc_bar_{rng.randint(1, 3)})"]
        facts += sometimes(f"openable {name}", chance=0.5)
    for kind in sorted({name.split("_")[0] for name in receptacles}):
        facts += sometimes(f"canContain {kind}Type MugType", chance=0.9)
        facts += sometimes(f"canContain {kind}Type PenType", chance=0.5)
    mugs = [f"Mug_bar_{n}" for n in range(rng.randint(1, 3))]
    lamps = [f"Lamp_bar_{n}" for n in range(rng.randint(1, 2) if task == "look_at_obj_in_light" else 0)]
    for thing in ["Pen_bar_0", *mugs, *lamps]:
        spots = rng.sample(receptacles, 2 if rng.random() < 0.3 else 1)
        facts += [f"(objectType {thing} {thing.split('_')[0]}Type)"]
        facts += [f"(inReceptacle {thing} {spot})" for spot in spots]
        if thing in lamps:
            facts += [f"(toggleable {thing})", *sometimes(f"isToggled {thing}", chance=0.1)]
        else:
            facts += sometimes(f"pickupable {thing}", chance=0.8)
        if verb and thing in mugs:
            facts += sometimes(f"{verb}able {thing}", chance=0.9) + sometimes(f"{state} {thing}", chance=0.15)
            facts += sometimes(f"{'heat' if verb == 'cool' else 'cool'}able {thing}", chance=0.5)
    goal = GOALS[task].format(obj="Mug", recep="Cabinet", lamp="Lamp")
    wording = rng.choice([VERSION_2_1_1, VERSION_2_1_2])
    return build_game(
        f"(define (:init {' '.join(facts)}) (:goal (and {goal})))", task, wording, f"game {seed}"
    )


def walked(game: Game, choices: list[int]) -> FastEpisode:
    """A state in the middle of play; commands of the standpoint come up more often than going."""
    episode = FastEpisode(game)
    for choice in choices:
        local = [command for command in episode.admissible if not command.startswith("go to ")]
        options = local if choice % 3 else episode.admissible
        episode.step(options[choice % len(options)])
    return episode


def fewest_commands(start: FastEpisode) -> int | None:
    """The length of a shortest plan, by breadth-first search over all admissible commands; None if there is none.

    Examples with too many states to search are given up.
    """
    frontier, seen, depth = [start], {state(start)}, 0
    while frontier:
        assume(len(seen) < 10_000)
        if any(episode.won for episode in frontier):
            return depth
        reached = []
        for episode in frontier:
            for command in episode.admissible:
                after = episode.copy()
                after.step(command)
                if state(after) not in seen:
                    seen.add(state(after))
                    reached.append(after)
        frontier, depth = reached, depth + 1
    return None


def state(e: FastEpisode) -> tuple[object, ...]:
    return (e.place, e.held, e.opened, tuple(e.contents.values()), e.clean, e.hot, e.cool, e.toggled)


small_states = st.builds(
    walked, st.integers(0, 10**9).map(small_game), st.lists(st.integers(0, 999), max_size=12)
)


def assert_shortest(episode: FastEpisode) -> None:
    plan, fewest = shortest_plan(episode), fewest_commands(episode)
    assert (None if plan is None else len(plan)) == fewest
    if plan is not None:
        check_plan(episode, plan)


@settings(max_examples=100, deadline=None)
@given(small_states)
def test_plans_are_shortest(episode: FastEpisode) -> None:
    assert_shortest(episode)


@pytest.mark.slow
@settings(max_examples=3000, deadline=None)
@given(small_states)
def test_many_plans_are_shortest(episode: FastEpisode) -> None:
    assert_shortest(episode)


# By hand, in the kitchen, where fridge and cabinet are closed and share a standpoint.


def goal(kind: str, receptacle: str = "") -> str:
    return f"(and {GOALS[kind].format(obj='Apple', recep=receptacle, lamp='DeskLamp')})"


def plan_after(game: Game, *commands: str) -> list[str] | None:
    episode = FastEpisode(game)
    for command in commands:
        assert command in episode.admissible
        episode.step(command)
    return shortest_plan(episode)


APPLE_IN_CABINET = "(canContain CabinetType AppleType)"


def test_a_clean_apple() -> None:
    assert solve(kitchen()) == [
        "go to fridge 1", "open fridge 1", "take apple 1 from fridge 1", "go to sinkbasin 1",
        "clean apple 1 with sinkbasin 1", "go to fridge 1", "move apple 1 to fridge 1",
    ]  # fmt: skip


def test_cooling_needs_no_open_door_and_neighbours_need_no_walk() -> None:
    game = kitchen(goal("pick_cool_then_place_in_recep", "Cabinet"), more=APPLE_IN_CABINET)
    assert plan_after(game, "go to table 1", "take apple 2 from table 1") == [
        "go to fridge 1", "cool apple 2 with fridge 1", "open cabinet 1", "move apple 2 to cabinet 1",
    ]  # fmt: skip


def test_a_wanted_thing_is_put_down_where_another_is_done_already() -> None:
    more = f"{APPLE_IN_CABINET} (isClean Apple_bar_2)"  # apple 1, in the fridge
    game = kitchen(goal("pick_clean_then_place_in_recep", "Cabinet"), more=more)
    fetched = [
        "go to table 1",
        "take apple 2 from table 1",
        "go to fridge 1",
        "open fridge 1",
        "open cabinet 1",
    ]
    assert plan_after(game, *fetched) == [
        "move apple 2 to cabinet 1", "take apple 1 from fridge 1", "move apple 1 to cabinet 1",
    ]  # fmt: skip


def test_a_thing_that_lies_in_a_target_as_well_is_only_treated() -> None:
    """Taken from one of its two receptacles it is still in the other, here as in the original."""
    more = "(inReceptacle Apple_bar_1 Fridge_bar_1)"
    game = kitchen(goal("pick_cool_then_place_in_recep", "Fridge"), more=more)
    assert solve(game) == [
        "go to table 1", "take apple 2 from table 1", "go to fridge 1", "cool apple 2 with fridge 1",
    ]  # fmt: skip


def test_a_lamp_is_used_unless_it_is_lit() -> None:
    game = kitchen(goal("look_at_obj_in_light"))
    assert solve(game) == ["go to table 1", "take apple 2 from table 1", "use lamp 1"]
    lit = ["go to table 1", "use lamp 1"]
    assert plan_after(game, *lit) == ["take apple 2 from table 1"]
    assert plan_after(game, *lit, "go to fridge 1", "open fridge 1", "take apple 1 from fridge 1") == [
        "go to table 1"
    ]


def test_two_apples_in_the_older_wording() -> None:
    game = kitchen(goal("pick_two_obj_and_place", "SinkBasin"), VERSION_2_1_1)
    plan = [
        "go to fridge 1", "open fridge 1", "take apple 1 from fridge 1", "go to sinkbasin 1",
        "put apple 1 in/on sinkbasin 1", "go to table 1", "take apple 2 from table 1", "go to sinkbasin 1",
        "put apple 2 in/on sinkbasin 1",
    ]  # fmt: skip
    assert solve(game) == plan
    assert plan_after(game, *plan[:5]) == plan[5:]
    assert plan_after(game, *plan) == []


def test_the_nearer_of_two_comes_first() -> None:
    plan = plan_after(kitchen(goal("pick_two_obj_and_place", "SinkBasin")), "go to table 1")
    assert plan is not None and len(plan) == 8 and plan[0] == "take apple 2 from table 1"


def test_one_thing_that_lies_in_two_receptacles_is_not_two_things() -> None:
    more = "(inReceptacle Mug_bar_1 Sink_bar_1_bar_SinkBasin)"
    two_mugs = goal("pick_two_obj_and_place", "DiningTable").replace("Apple", "Mug")
    taken = ["go to sinkbasin 1", "take mug 1 from sinkbasin 1"]
    assert solve(kitchen(two_mugs, more=more)) is None
    assert plan_after(kitchen(two_mugs, more=more), *taken) is None


def test_in_hand_and_still_in_the_target_one_more_is_missing() -> None:
    more = "(inReceptacle Mug_bar_2 Cabinet_bar_1) (objectType Mug_bar_2 MugType) (pickupable Mug_bar_2)"
    more += "(inReceptacle Mug_bar_1 Table_bar_1)"  # mug 2
    game = kitchen(goal("pick_two_obj_and_place", "DiningTable").replace("Apple", "Mug"), more=more)
    assert plan_after(game, "go to cabinet 1", "open cabinet 1", "take mug 2 from cabinet 1") == [
        "move mug 2 to cabinet 1", "take mug 1 from cabinet 1", "go to table 1", "move mug 1 to table 1",
    ]  # fmt: skip


def test_what_cannot_be_treated_does_not_serve() -> None:
    game = kitchen(goal("pick_cool_then_place_in_recep", "SinkBasin").replace("Apple", "Mug"))
    assert solve(game) is None
    assert plan_after(game, "go to cabinet 1", "open cabinet 1", "take mug 1 from cabinet 1") is None


def test_what_is_not_wanted_is_put_down_first() -> None:
    game = kitchen(goal("look_at_obj_in_light"))
    assert plan_after(game, "go to table 1", "take knife 1 from table 1") == [
        "move knife 1 to table 1", "take apple 2 from table 1", "use lamp 1",
    ]  # fmt: skip


def test_with_something_in_hand_that_nothing_takes_there_is_no_plan() -> None:
    pen = "(objectType Pen_bar_1 PenType) (pickupable Pen_bar_1) (inReceptacle Pen_bar_1 Table_bar_1)"
    assert plan_after(kitchen(more=pen), "go to table 1", "take pen 1 from table 1") is None


# Games of full size.


def generated(index: int) -> Game:
    game = make_game(GamesConfig(seed=2), "train", index)
    return build_game(game.problem, game.sentence, VERSION_2_1_2, game.folder)


GAMES = [generated(index) for index in range(24)]


@pytest.mark.parametrize("game", GAMES, ids=lambda game: game.sentence)
def test_generated_games_are_won_in_ten_commands(game: Game) -> None:
    plan = solve(game)
    assert plan is not None and len(plan) <= 10
    check_plan(FastEpisode(game), plan)


def test_a_game_that_cannot_be_won_has_no_plan() -> None:
    game = GAMES[0]
    without = {
        r: tuple(t for t in inside if t.kind != game.goal.thing) for r, inside in game.contents.items()
    }
    assert solve(dataclasses.replace(game, contents=without)) is None


@given(st.sampled_from(GAMES), st.lists(st.integers(0, 999), max_size=25))
def test_no_step_shortens_the_plan_by_more_than_one(game: Game, detour: list[int]) -> None:
    """And following the plan shortens it by exactly one."""
    episode = walked(game, detour)
    plan = shortest_plan(episode)
    if plan is None:  # something is in hand that no receptacle takes
        assert episode.held and not any(episode.held.kind in r.accepts for r in game.receptacles)
        return
    check_plan(episode, plan)
    for command in episode.admissible:
        after = episode.copy()
        after.step(command)
        rest = shortest_plan(after)
        assert rest is None or len(rest) >= len(plan) - 1
    for turn, command in enumerate(plan, start=1):
        episode.step(command)
        assert len(shortest_plan(episode) or []) == len(plan) - turn


@pytest.mark.slow
@pytest.mark.parametrize("split", SPLITS)
def test_every_real_game_is_won_in_ten_commands(split: str, real_data: GameData) -> None:
    if not has_split(real_data, split):
        pytest.skip(f"$ALFWORLD_DATA has no split {split}")
    for task in find_tasks(real_data, split):
        episode = FastEpisode(load_game(real_data, task))
        plan = shortest_plan(episode)
        assert plan is not None and len(plan) <= 10, task.id
        check_plan(episode, plan)
