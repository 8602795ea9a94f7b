"""Skills written by rule: a workflow replayed wins again, and failures warn only of places of no use."""

from __future__ import annotations

import random
from functools import cache

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rsipo_jax.agents.prompts import task_of
from rsipo_jax.agents.words import ALFWORLD
from rsipo_jax.config import GamesConfig
from rsipo_jax.envs.alfworld.engine import NOTHING, FastEpisode, intro
from rsipo_jax.envs.alfworld.experts import SearchingExpert
from rsipo_jax.envs.alfworld.game import VERSION_2_1_1, VERSION_2_1_2, Game, Wording, build_game
from rsipo_jax.envs.alfworld.generator import make_game
from rsipo_jax.envs.alfworld.planner import solve
from rsipo_jax.skills.annotator import annotate, searched_in_vain, workflow
from rsipo_jax.skills.parsing import parse_skill
from tests.envs.alfworld.kitchen import kitchen


@cache
def generated(index: int, wording: Wording = VERSION_2_1_2) -> Game:
    game = make_game(GamesConfig(seed=4), "train", index)
    return build_game(game.problem, game.sentence, wording, game.folder)


def play(game: Game, seed: int, noise: float, limit: int) -> tuple[list[str], list[str], bool]:
    """An expert's commands and the answers to them, with random actions mixed in."""
    rng = random.Random(seed)
    episode, expert = FastEpisode(game), SearchingExpert(game, rng)
    observation, commands, answers = episode.observe(intro(game)), [], []
    while not observation.won and len(commands) < limit:
        command = expert.act(observation).action
        if rng.random() < noise:
            command = rng.choice(observation.admissible)
        observation = episode.observe(episode.step(command))
        commands.append(command)
        answers.append(observation.text)
    return commands, answers, observation.won


def run(game: Game, commands: list[str]) -> tuple[FastEpisode, list[str]]:
    episode = FastEpisode(game)
    return episode, [episode.step(command) for command in commands]


def whereabouts(episode: FastEpisode) -> tuple:
    """Where every thing is and what was done to it."""
    contents = {r.name: sorted(t.name for t in inside) for r, inside in episode.contents.items()}
    return contents, episode.held, episode.clean, episode.hot, episode.cool, episode.toggled, episode.sliced


@given(
    index=st.integers(0, 23),
    seed=st.integers(0, 10**6),
    noise=st.sampled_from([0.0, 0.2, 0.5]),
    old=st.booleans(),
)
def test_a_workflow_replayed_from_the_start_has_the_effect_of_the_episode(
    index: int, seed: int, noise: float, old: bool
) -> None:
    game = generated(index, VERSION_2_1_1 if old else VERSION_2_1_2)
    commands, answers, won = play(game, seed, noise, 30)
    steps = workflow(commands, answers, won)
    first, _ = run(game, commands)
    again, replies = run(game, steps)
    assert whereabouts(again) == whereabouts(first)
    assert again.won or not won
    assert len(steps) <= len(commands) + 1
    kept = ("take ", "move ", "put ", "clean ", "heat ", "cool ", "use ", "slice ")
    changing = [c for c, a in zip(commands, answers, strict=True) if c.startswith(kept) and a != NOTHING]
    assert [step for step in steps if step.startswith(kept)] == changing
    assert all(reply != NOTHING for step, reply in zip(steps, replies, strict=True) if step.startswith(kept))


def test_the_workflow_of_a_search_is_the_search_left_out() -> None:
    commands = [
        "go to sinkbasin 1", "go to fridge 1", "open fridge 1", "take apple 1 from fridge 1", "close fridge 1",
        "look", "go to sinkbasin 1", "clean apple 2 with sinkbasin 1", "clean apple 1 with sinkbasin 1",
        "go to table 1", "go to fridge 1", "open fridge 1", "move apple 1 to fridge 1",
    ]  # fmt: skip
    game = kitchen()
    episode, answers = run(game, commands)
    assert NOTHING in answers and episode.won
    steps = workflow(commands, answers, won=True)
    assert steps == [
        "go to fridge 1", "open fridge 1", "take apple 1 from fridge 1", "go to sinkbasin 1",
        "clean apple 1 with sinkbasin 1", "go to fridge 1", "move apple 1 to fridge 1",
    ]  # fmt: skip
    assert whereabouts(run(game, steps)[0]) == whereabouts(episode)


def test_an_episode_won_by_arriving_at_a_lit_lamp_ends_its_workflow_with_the_walk() -> None:
    games = (generated(index) for index in range(24))
    game = next(g for g in games if g.goal.treatment == "light")
    plan = solve(game) or []
    planned = plan[: next(turn for turn, command in enumerate(plan) if command.startswith("take ")) + 1]
    lamp, place = next(
        (t.name, r.name) for r, inside in game.contents.items() for t in inside if t.kind == game.goal.target
    )
    commands = [f"go to {place}", f"use {lamp}", *planned, f"go to {place}"]
    episode, answers = run(game, commands)
    if not episode.won:
        pytest.fail(f"this game is not won that way: {commands} {answers}")
    steps = workflow(commands, answers, won=True)
    assert steps[-1] == f"go to {place}" and run(game, steps)[0].won
    assert workflow(commands, answers, won=False) == steps[:-1]


@given(index=st.integers(0, 23), seed=st.integers(0, 10**6), limit=st.integers(0, 14))
@example(index=0, seed=0, limit=0)
def test_every_annotation_is_a_readable_skill_that_speaks_of_what_was_seen(
    index: int, seed: int, limit: int
) -> None:
    game = generated(index)
    commands, answers, won = play(game, seed, 0.3, limit)
    sentence = task_of(intro(game), ALFWORLD).rstrip(".")
    parsed = parse_skill(annotate(sentence, commands, answers, won))
    assert parsed.status == "strict" and parsed.summary == sentence
    steps = workflow(commands, answers, won)
    if won:
        assert parsed.text == ", ".join(steps)
        return
    vain = searched_in_vain(sentence, commands, answers)
    assert len(vain) <= 6
    said = parsed.text.removeprefix(f"start with {', '.join(steps)}").removeprefix("; ")
    assert said == (f"do not search {', '.join(vain)}" if vain else "" if steps else "search other places")
    holds = {r.name: {t.kind for t in inside} for r, inside in game.contents.items()}
    told = " ".join(answers)
    for receptacle in vain:
        assert receptacle in told and game.goal.thing not in holds[receptacle]
        assert game.goal.target not in holds[receptacle]  # a lamp that the task names


def test_places_of_no_use_are_those_seen_without_what_the_task_names() -> None:
    task = "put a clean apple in fridge"
    commands = ["go to table 1", "go to fridge 1", "open cabinet 1", "go to sinkbasin 1"]
    _, answers = run(kitchen(), commands)
    assert (
        "you see a apple 2" in answers[0] and answers[1] == "You arrive at fridge 1. The fridge 1 is closed."
    )
    assert searched_in_vain(task, commands, answers) == ["cabinet 1", "sinkbasin 1"]
    assert searched_in_vain("put a mug in sinkbasin", commands, answers) == ["table 1", "sinkbasin 1"]
    used = [
        *commands,
        "go to table 1",
        "take knife 1 from table 1",
        "go to sinkbasin 1",
        "clean knife 1 with sinkbasin 1",
    ]
    _, answers = run(kitchen(), used)
    assert searched_in_vain("put a mug in drawer", used, answers) == []
    assert searched_in_vain("put a plate in drawer", used, answers) == ["cabinet 1"]


def test_a_person_may_call_the_goals_things_something_else() -> None:
    commands = ["go to table 1", "go to sinkbasin 1"]
    _, answers = run(kitchen(), commands)
    sentence = "Rinse the fruit and chill it"
    assert searched_in_vain(sentence, commands, answers) == ["table 1", "sinkbasin 1"]
    assert searched_in_vain(sentence, commands, answers, ("apple", "fridge")) == ["sinkbasin 1"]
    skill = parse_skill(annotate(sentence, commands, answers, False, ("apple", "fridge")))
    assert (skill.summary, skill.text) == (sentence, "do not search sinkbasin 1")
