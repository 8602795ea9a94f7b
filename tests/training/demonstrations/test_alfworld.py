"""Demonstrations: what experts say can be done and is read as it was meant, with a skill and without."""

from __future__ import annotations

import itertools
from functools import cache
from pathlib import Path

import pytest

from rsipo_jax.agents.actions import parse_faithful, parse_strict
from rsipo_jax.config import Config, EnvConfig, GamesConfig, SFTConfig
from rsipo_jax.envs.alfworld.data import load_game
from rsipo_jax.envs.alfworld.engine import NOTHING, FastEpisode, intro
from rsipo_jax.envs.alfworld.game import VERSION_2_1_2, Game, build_game
from rsipo_jax.envs.alfworld.generator import make_game
from rsipo_jax.envs.protocol import Task
from rsipo_jax.skills.parsing import parse_skill
from rsipo_jax.training.demonstrations.alfworld import (
    NOISE,
    QUESTIONS,
    demonstrations,
    reading_questions,
)
from rsipo_jax.training.demonstrations.demonstration import Demonstration
from rsipo_jax.training.demonstrations.demonstrations_dataset_builder import chosen
from rsipo_jax.training.worlds import open_world
from rsipo_jax.training.worlds.alfworld import GAMES

TURNS = 20


@cache
def game(index: int) -> Game:
    drawn = make_game(GamesConfig(seed=6), "train", index)
    return build_game(drawn.problem, drawn.sentence, VERSION_2_1_2, drawn.folder)


@cache
def played(index: int, turns: int = TURNS) -> list[Demonstration]:
    return list(demonstrations(game(index), Task(f"train/{index}", "kind", "train"), 0, turns))


@pytest.mark.parametrize("index", range(12))
def test_every_response_is_well_formed_and_what_is_imitated_does_something(index: int) -> None:
    for demo in played(index):
        assert len(demo.responses) == len(demo.admissible) == len(demo.imitate) == len(demo.observations) - 1
        assert len(demo.responses) <= TURNS
        episode = FastEpisode(game(index))
        assert demo.observations[0] == intro(game(index))
        turns = zip(demo.responses, demo.admissible, demo.imitate, demo.observations[1:], strict=True)
        for said, admissible, good, seen in turns:
            assert admissible == episode.admissible
            parsed = parse_faithful(said, admissible)
            assert parsed.valid and parsed.command != "help"
            assert episode.step(parsed.command) == seen
            if good:  # a slip may be impossible, what is imitated never is
                assert parse_strict(said, admissible) == parsed and seen != NOTHING
        assert episode.won == demo.won


@pytest.mark.parametrize("index", range(12))
def test_episodes_come_in_pairs_without_a_skill_and_with_it(index: int) -> None:
    demos = played(index)
    assert len(demos) == 2 * len(NOISE)
    for plain, skilled in zip(demos[::2], demos[1::2], strict=True):
        assert not plain.skill and not skilled.analysis and all(skilled.imitate)
        assert parse_skill(plain.analysis).status == "strict"
        assert skilled.skill == parse_skill(plain.analysis).text
        if plain.won:  # the skill is the workflow: it wins again, and no later
            assert skilled.won and len(skilled.responses) <= len(plain.responses)
    assert all(demos[0].imitate)


def test_some_turns_are_slips_and_some_episodes_fail() -> None:
    noisy = [demo for index in range(12) for demo in played(index)[2::2]]
    share = sum(not good for demo in noisy for good in demo.imitate) / sum(len(d.imitate) for d in noisy)
    assert NOISE[1] / 2 < share < 1.5 * NOISE[2]  # some are made twice
    short = [demo for index in range(12) for demo in played(index, 6)]
    assert any(not demo.won and "do not search" in demo.analysis for demo in short)
    assert any(not demo.won and demo.skill.startswith("start with") for demo in short)


def test_who_saw_what_is_not_there_looks_on() -> None:
    """Slips of seeing exist, are not imitated, and the next good turn goes on as if nothing had been seen."""
    recoveries = 0
    for demo in (demo for index in range(12) for demo in played(index)[2::2]):
        turns = list(zip(demo.responses, demo.imitate, demo.observations[1:], strict=True))
        for (said, good, seen), (after, good_after, _) in itertools.pairwise(turns):
            if "found, take" in said and "not found" not in said and seen == NOTHING:
                assert not good
                if good_after:
                    assert parse_faithful(after, ()).command != parse_faithful(said, ()).command
                    recoveries += "not found, search" in after
    assert recoveries > 5


def test_demonstrations_depend_on_seed_and_task_alone() -> None:
    task = Task("train/0", "kind", "train")
    assert list(demonstrations(game(0), task, 0, TURNS)) == played(0)
    assert list(demonstrations(game(0), task, 1, TURNS)) != played(0)


@pytest.mark.parametrize("index", range(12))
def test_reading_questions_are_answered_by_their_own_text(index: int) -> None:
    for number, demo in enumerate(
        reading_questions(game(index), Task(f"train/{index}", "kind", "train"), 0, 4)
    ):
        text, _, question = demo.observations[0].rpartition(" of these do you see: ")
        asked = question.rstrip("?").split(", ")
        answers = demo.responses[0].strip().split(", ")
        if number % 2:
            said, goal = ", ".join(answers[: -len(asked)]), game(index).goal
            assert said.startswith(f"{goal.thing} held") and goal.target in said
            assert goal.treatment in ("", "light") or f", {goal.treatment}, " in said
        assert 1 < len(asked) <= QUESTIONS
        for kind, answer in zip(asked, answers[-len(asked) :], strict=True):
            if answer == f"{kind} not found":
                assert f"a {kind} " not in text
            else:
                name = answer.removesuffix(" found")
                assert name.rsplit(" ", 1)[0] == kind and f"a {name}" in text


def test_tasks_are_chosen_by_seed_all_when_there_are_few() -> None:
    tasks = [Task(f"train/{i}", "kind", "train") for i in range(20)]
    some = chosen(tasks, 5, 0)
    assert (
        len(set(some)) == 5 and set(some) < set(tasks) and chosen(tasks, 5, 0) == some != chosen(tasks, 5, 1)
    )
    assert set(chosen(tasks, 99, 0)) == set(tasks)


def test_the_data_set_gives_back_what_was_played(tmp_path: Path) -> None:
    config = Config(
        seed=3,
        env=EnvConfig(max_turns=TURNS),
        games=GamesConfig(train=4, valid_seen=1, valid_unseen=1, seed=6),
        sft=SFTConfig(games=2, reading_questions=1),
    )
    world = open_world(config, tmp_path)
    demos = world.demonstrations(tmp_path / "demos")
    tasks = chosen(world.tasks("train"), 2, 3)
    games = [load_game(tmp_path / GAMES, task) for task in tasks]
    made = [d for g, t in zip(games, tasks, strict=True) for d in demonstrations(g, t, 3, TURNS)]
    made += [d for g, t in zip(games, tasks, strict=True) for d in reading_questions(g, t, 3, 1)]
    assert sorted(map(repr, demos)) == sorted(map(repr, made))
    assert world.demonstrations(tmp_path / "demos") == demos
