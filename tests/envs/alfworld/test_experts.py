"""The searcher wins and knows only what it was shown."""

from __future__ import annotations

import dataclasses
import random
import re

import pytest

from rsipo_jax.config import GamesConfig
from rsipo_jax.envs.alfworld.engine import FastEpisode, intro
from rsipo_jax.envs.alfworld.experts import ExpertStep, SearchingExpert
from rsipo_jax.envs.alfworld.game import VERSION_2_1_1, VERSION_2_1_2, Game, Wording, build_game
from rsipo_jax.envs.alfworld.generator import make_game

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
def test_the_searcher_wins_and_thinks_in_known_forms(game: Game) -> None:
    found = search(game, SearchingExpert(game, random.Random(0)))
    assert all(THOUGHT.fullmatch(step.thought) for step in found)


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
def test_the_searcher_speaks_the_older_wording(index: int) -> None:
    game = generated(index, VERSION_2_1_1)
    assert search(game, SearchingExpert(game, random.Random(0)))
