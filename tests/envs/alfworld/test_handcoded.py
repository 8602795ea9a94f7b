"""ALFWorld's handcoded expert plays the fast engine as it plays its own, and wins."""

from __future__ import annotations

import dataclasses
import random
import sys
from collections import Counter
from pathlib import Path

import pytest

from rsipo_jax.envs.alfworld.data import FOLDER, GAME_FILE, SPLITS, find_tasks, load_game, read_game
from rsipo_jax.envs.alfworld.engine import FastEpisode, intro
from rsipo_jax.envs.alfworld.game import KINDS, VERSION_2_1_1, GameDataError
from rsipo_jax.envs.alfworld.handcoded import HandcodedExpert, play_handcoded
from rsipo_jax.envs.alfworld.textworld import EngineMissing
from tests.envs.alfworld.kitchen import kitchen

pytest.importorskip("alfworld", reason="alfworld is not installed (pip install alfworld==0.4.2)")


def test_it_wins_nearly_always_and_two_things_nearly_as_often(games_root: Path) -> None:
    """Unrepaired it loses most games of two things: it takes its hand for full once it has put down the first."""
    played, won = Counter[str](), Counter[str]()
    for split in SPLITS:
        for task in find_tasks(games_root, split):
            victory, turns = play_handcoded(load_game(games_root, task), random.Random(f"0/{task.id}"), 50)
            assert 3 <= turns <= 50
            played[task.kind] += 1
            won[task.kind] += victory
    assert won.total() >= 0.9 * played.total()
    assert won["pick_two_obj_and_place"] >= 0.75 * played["pick_two_obj_and_place"]


def test_the_seed_decides_and_the_global_random_is_left_alone(games_root: Path) -> None:
    game = load_game(games_root, find_tasks(games_root, "valid_seen")[0])
    random.seed(1)
    first = play_handcoded(game, random.Random("0/a game"), 50)
    following = random.random()
    random.seed(1)
    assert random.random() == following
    assert play_handcoded(game, random.Random("0/a game"), 50) == first


def test_no_turns_no_victory() -> None:
    assert play_handcoded(kitchen(), random.Random(0), 0) == (False, 0)


def test_it_plays_the_older_wording_too(games_root: Path) -> None:
    for task in find_tasks(games_root, "valid_seen"):
        game = dataclasses.replace(load_game(games_root, task), wording=VERSION_2_1_1)
        assert play_handcoded(game, random.Random(0), 200)[0]


@pytest.mark.parametrize("split", SPLITS)
def test_the_goal_gives_the_parameters_that_the_original_reads_from_a_file(
    split: str, games_root: Path
) -> None:
    from alfworld.agents.expert import HandCodedTWAgent

    for task in find_tasks(games_root, split):
        original = HandCodedTWAgent()
        original.reset(str(games_root / FOLDER / task.id / GAME_FILE))
        ours = HandcodedExpert(load_game(games_root, task), random.Random(0))
        assert ours._agent.policy.task_params == original.task_params


@pytest.mark.parametrize(
    "kind",
    [
        kind if kind == "pick_two_obj_and_place" else pytest.param(kind, marks=pytest.mark.slow)
        for kind in KINDS
    ],
)
def test_it_plays_alike_in_the_original_engine(
    kind: str, games_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import textworld
    from alfworld.agents.environment.alfred_tw_env import AlfredDemangler
    from textworld.envs import PddlEnv

    monkeypatch.setattr(sys, "argv", list(sys.argv))  # the engine's translator overwrites them
    task = next(task for task in find_tasks(games_root, "train") if task.kind == kind)
    env = AlfredDemangler(PddlEnv(textworld.EnvInfos(won=True, admissible_commands=True, facts=True)))
    env.load(read_game(games_root, task))
    state, there = env.reset(), HandcodedExpert(load_game(games_root, task), random.Random(0))
    game = load_game(games_root, task)
    episode, here, feedback = FastEpisode(game), HandcodedExpert(game, random.Random(0)), intro(game)
    for _ in range(50):
        command = here.act(episode, feedback)
        assert there.decide(state) == command
        feedback = episode.step(command)
        state, _, _ = env.step(command)
        if episode.won:
            break
    assert episode.won and state["won"]


def test_a_thing_it_has_never_heard_of() -> None:
    game = kitchen()
    unknown = dataclasses.replace(game, goal=dataclasses.replace(game.goal, thing="teddybear"))
    with pytest.raises(GameDataError, match=r"knows nothing called 'teddybear'; leave out the games"):
        HandcodedExpert(unknown, random.Random(0))


def test_a_missing_installation_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "alfworld.agents.expert", None)
    with pytest.raises(EngineMissing, match=r"part of the package alfworld.*`pip install alfworld==0\.4\.2`"):
        HandcodedExpert(kitchen(), random.Random(0))
