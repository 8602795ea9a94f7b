"""Parsing a game: names, goals, wording, and games that are not understood."""

from __future__ import annotations

import pytest

from rsipo_jax.envs.alfworld.game import (
    VERSION_2_1_1,
    VERSION_2_1_2,
    GameDataError,
    Wording,
    build_game,
    parse_game,
)
from rsipo_jax.envs.alfworld.goals import Goal
from rsipo_jax.envs.alfworld.versions import PLACEHOLDER, _domain_text, _grammar_text
from rsipo_jax.envs.alfworld.vocabulary import GOALS
from tests.envs.alfworld.kitchen import CLEAN_APPLE, FACTS, kitchen


def test_ids_of_a_kind_are_numbered_from_the_last_to_the_first() -> None:
    names = {thing.id: thing.name for thing in kitchen().things}
    assert names["apple_bar_1"] == "apple 2"
    assert names["apple_bar_2"] == "apple 1"


def test_basins_are_named_after_the_basin() -> None:
    assert {r.name for r in kitchen().receptacles} == {"cabinet 1", "fridge 1", "sinkbasin 1", "table 1"}


@pytest.mark.parametrize(
    ("kind", "goal"),
    [
        ("pick_and_place_simple", Goal("", 1, "mug", "fridge")),
        ("pick_clean_then_place_in_recep", Goal("clean", 1, "mug", "fridge")),
        ("pick_heat_then_place_in_recep", Goal("heat", 1, "mug", "fridge")),
        ("pick_cool_then_place_in_recep", Goal("cool", 1, "mug", "fridge")),
        ("pick_two_obj_and_place", Goal("", 2, "mug", "fridge")),
        ("look_at_obj_in_light", Goal("light", 1, "mug", "desklamp")),
    ],
)
def test_the_six_goals_are_recognised(kind: str, goal: Goal) -> None:
    text = GOALS[kind].format(obj="Mug", recep="Fridge", lamp="DeskLamp")
    assert kitchen(f"(and {text})").goal == goal


@pytest.mark.parametrize(
    ("goal", "why"),
    [
        ("(isClean ?o)", "none of ALFWorld's six"),
        (CLEAN_APPLE.replace("(isClean ?o)", "(isClean ?o) (isHot ?o)"), "none of ALFWorld's six"),
        (CLEAN_APPLE.replace("(isClean ?o)", "(or (isClean ?o) (isHot ?o))"), "only and, exists, not"),
    ],
)
def test_other_goals_are_refused(goal: str, why: str) -> None:
    with pytest.raises(GameDataError, match=why):
        kitchen(goal)


@pytest.mark.parametrize(
    ("fact", "why"),
    [
        ("(receptacleAtLocation Fridge_bar_1 loc_bar_9)", "two values of receptacleAtLocation"),
        ("(holds agent1 Mug_bar_1)", "in hand"),
        ("(atLocation agent1 loc_bar_2)", "places the agent 2 times"),
    ],
)
def test_states_the_engine_does_not_model_are_refused(fact: str, why: str) -> None:
    with pytest.raises(GameDataError, match=why):
        kitchen(more=fact)


@pytest.mark.parametrize(("version", "wording"), [("2.1.1", VERSION_2_1_1), ("2.1.2", VERSION_2_1_2)])
def test_wording_and_sentence_come_from_the_grammar(version: str, wording: Wording) -> None:
    problem = f"(define (:init {FACTS}) (:goal {CLEAN_APPLE}))"
    domain, template = _domain_text("official", version), _grammar_text(version)
    game = parse_game(domain, template.replace(PLACEHOLDER, "find a mug"), problem, "game")
    assert (game.sentence, game.wording) == ("find a mug", wording)


def test_unknown_rules_and_wording_are_refused() -> None:
    domain, grammar = _domain_text("official", "2.1.1"), _grammar_text("2.1.1")
    for rules, words in [("", grammar), (domain, grammar.replace("You open", "You slowly open"))]:
        with pytest.raises(GameDataError, match=r"^game is of a version that the fast engine does not know"):
            parse_game(rules, words, "(define (:init) (:goal (and)))", "game")


def test_a_grammar_without_a_task_is_refused() -> None:
    with pytest.raises(GameDataError, match="names no task"):
        parse_game("", "", "(define (:init) (:goal (and)))", "game")


def test_errors_name_the_game() -> None:
    with pytest.raises(GameDataError, match=r"games/broken: PDDL ends with 1 unclosed"):
        build_game("(define", "", VERSION_2_1_2, "games/broken")
