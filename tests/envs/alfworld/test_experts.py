"""The experts win, from the start and after detours, and the searcher knows only what it was shown."""

from __future__ import annotations

import dataclasses
import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rsipo_jax.config import GamesConfig
from rsipo_jax.envs.alfworld.engine import FastEpisode, intro
from rsipo_jax.envs.alfworld.experts import ExpertStep, Planner, SearchingExpert, solve
from rsipo_jax.envs.alfworld.game import VERSION_2_1_1, VERSION_2_1_2, Game, Wording, build_game
from rsipo_jax.envs.alfworld.generator import make_game
from tests.envs.alfworld.kitchen import kitchen

THOUGHT = re.compile(
    r"((second |[a-z]+ \d+ held, )?[a-z]+ not found, search)|[a-z]+ \d+ found, take"
    r"|[a-z]+ \d+ held, (clean|heat|cool|put in [a-z]+|[a-z]+ \d+ found, use)|[a-z]+ \d+ not wanted, put away"
)  # always one of these forms


def generated(index: int, wording: Wording = VERSION_2_1_2) -> Game:
    game = make_game(GamesConfig(seed=2), "train", index)
    return build_game(game.problem, game.sentence, wording, game.folder)


GAMES = [generated(index) for index in range(24)]


def search(game: Game, expert: SearchingExpert, limit: int = 100) -> list[ExpertStep]:
    episode = FastEpisode(game)
    observation = episode.observe(intro(game))
    steps: list[ExpertStep] = []
    while not observation.won and len(steps) < limit:
        steps.append(expert.act(observation))
        assert steps[-1].action in observation.admissible
        observation = episode.observe(episode.step(steps[-1].action))
    assert observation.won
    return steps


@pytest.mark.parametrize("game", GAMES, ids=lambda game: game.sentence)
def test_both_experts_win_and_think_in_known_forms(game: Game) -> None:
    plan = solve(game)
    assert plan is not None
    found = search(game, SearchingExpert(game, random.Random(0)))
    assert all(THOUGHT.fullmatch(step.thought) for step in plan + found)
    assert len(plan) <= 10


def test_the_plan_for_a_clean_apple() -> None:
    steps = solve(kitchen())
    assert steps is not None
    assert [(step.thought, step.action) for step in steps] == [
        ("apple 2 found, take", "go to table 1"),
        ("apple 2 found, take", "take apple 2 from table 1"),
        ("apple 2 held, clean", "go to sinkbasin 1"),
        ("apple 2 held, clean", "clean apple 2 with sinkbasin 1"),
        ("apple 2 held, put in fridge", "go to fridge 1"),
        ("apple 2 held, put in fridge", "open fridge 1"),
        ("apple 2 held, put in fridge", "move apple 2 to fridge 1"),
    ]


@given(st.sampled_from(GAMES), st.lists(st.integers(0, 999), max_size=25))
def test_the_planner_wins_from_anywhere(game: Game, detour: list[int]) -> None:
    """After any detour that keeps the game winnable: nothing in hand that no receptacle takes."""
    episode, planner = FastEpisode(game), Planner(game)
    for choice in detour:
        episode.step(episode.admissible[choice % len(episode.admissible)])
    if episode.held and not any(episode.held.kind in r.accepts for r in game.receptacles):
        return
    for _ in range(20):
        if episode.won:
            break
        episode.step(planner.act(episode).action)
    assert episode.won


@pytest.mark.parametrize("game", GAMES, ids=lambda game: game.sentence)
def test_the_searcher_sees_only_observations(game: Game) -> None:
    """Emptied of all contents, the game it is given makes no difference to how it plays the real one."""
    blank = dataclasses.replace(game, contents={}, spots={}, things=())
    assert search(game, SearchingExpert(blank, random.Random(3))) == search(
        game, SearchingExpert(game, random.Random(3))
    )


def test_the_searching_order_is_the_seed() -> None:
    runs = {seed: search(GAMES[0], SearchingExpert(GAMES[0], random.Random(seed))) for seed in range(8)}
    assert runs[0] == search(GAMES[0], SearchingExpert(GAMES[0], random.Random(0)))
    assert len({tuple(run) for run in runs.values()}) > 1


@pytest.mark.parametrize("index", range(6))
def test_the_experts_speak_the_older_wording(index: int) -> None:
    game = generated(index, VERSION_2_1_1)
    assert solve(game)
    assert search(game, SearchingExpert(game, random.Random(0)))


def test_a_game_that_cannot_be_won_has_no_plan() -> None:
    game = GAMES[0]
    without = {
        r: tuple(t for t in inside if t.kind != game.goal.thing) for r, inside in game.contents.items()
    }
    assert solve(dataclasses.replace(game, contents=without)) is None
