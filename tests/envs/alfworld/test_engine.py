"""The fast engine, by hand on a small kitchen and by property on generated games."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rsipo_jax.config import GamesConfig
from rsipo_jax.envs.alfworld.engine import FastEpisode, intro
from rsipo_jax.envs.alfworld.game import VERSION_2_1_1, VERSION_2_1_2, Game, build_game
from rsipo_jax.envs.alfworld.generator import make_game
from tests.envs.alfworld.kitchen import kitchen


def play(episode: FastEpisode, *commands: str) -> list[str]:
    return [episode.step(command) for command in commands]


def test_intro() -> None:
    assert intro(kitchen()) == (
        "-= Welcome to TextWorld, ALFRED! =-\n\nYou are in the middle of a room. Looking quickly around you, you see "
        "a cabinet 1, a fridge 1, a sinkbasin 1, and a table 1.\n\nYour task is to: put a clean apple in fridge."
    )


def test_a_whole_game() -> None:
    episode = FastEpisode(kitchen())
    assert play(
        episode,
        "go to table 1",
        "take apple 2 from table 1",
        "inventory",
        "go to sinkbasin 1",
        "clean apple 2 with sinkbasin 1",
        "examine apple 2",
        "go to fridge 1",
        "open fridge 1",
    ) == [
        "You arrive at table 1. On the table 1, you see a apple 2, a knife 1, and a lamp 1.",
        "You pick up the apple 2 from the table 1.",
        "You are carrying: a apple 2.",
        "You arrive at sinkbasin 1. On the sinkbasin 1, you see nothing.",
        "You clean the apple 2 using the sinkbasin 1.",
        "This is a clean apple 2.",
        "You arrive at fridge 1. The fridge 1 is closed.",
        "You open the fridge 1. The fridge 1 is open. In it, you see a apple 1.",
    ]
    assert not episode.won
    assert episode.step("move apple 2 to fridge 1") == "You move the apple 2 to the fridge 1."
    assert episode.won
    assert (
        episode.step("examine fridge 1") == "The fridge 1 is open. In it, you see a apple 2, and a apple 1."
    )
    episode.step("take apple 2 from fridge 1")
    assert not episode.won  # the goal is read off the state, not remembered


def test_what_may_be_done_at_the_start_and_at_the_table() -> None:
    episode = FastEpisode(kitchen())
    everywhere = ["help", "inventory", "look"]
    go = ["go to cabinet 1", "go to fridge 1", "go to sinkbasin 1", "go to table 1"]
    assert list(episode.admissible) == sorted(go + everywhere)
    episode.step("go to table 1")
    at_table = ["examine table 1", "use lamp 1", "take apple 2 from table 1", "take knife 1 from table 1"]
    assert list(episode.admissible) == sorted(go[:3] + everywhere + at_table)


def test_looking_around() -> None:
    episode = FastEpisode(kitchen())
    assert episode.step("look").endswith("Looking quickly around you, you see nothing.")
    episode.step("go to fridge 1")
    assert episode.step("look") == "You are facing the cabinet 1, and fridge 1. Next to it, you see nothing."


def test_receptacles_at_one_standpoint() -> None:
    episode = FastEpisode(kitchen())
    episode.step("go to fridge 1")
    assert episode.step("go to cabinet 1") == "Nothing happens."
    assert play(
        episode, "open cabinet 1", "open fridge 1", "take mug 1 from cabinet 1", "move mug 1 to fridge 1"
    )[2:] == [
        "You pick up the mug 1 from the cabinet 1.",
        "You move the mug 1 to the fridge 1.",
    ]
    assert episode.step("look") == "You are facing the cabinet 1, and fridge 1. Next to it, you see a mug 1."


def test_a_thing_in_two_receptacles_is_listed_once_when_it_comes_back_to_one() -> None:
    episode = FastEpisode(kitchen(more="(inReceptacle Apple_bar_1 Sink_bar_1_bar_SinkBasin)"))
    play(episode, "go to table 1", "take apple 2 from table 1", "go to sinkbasin 1")
    assert (
        play(episode, "examine sinkbasin 1", "move apple 2 to sinkbasin 1", "examine sinkbasin 1")[::2]
        == ["On the sinkbasin 1, you see a apple 2."] * 2
    )


def test_things_can_be_examined_only_while_held() -> None:
    episode = FastEpisode(kitchen())
    assert play(episode, "go to table 1", "examine knife 1", "take knife 1 from table 1", "examine knife 1")[
        1::2
    ] == [
        "Nothing happens.",
        "There's nothing special about knife 1.",
    ]


def test_a_knife_slices_what_lies_here_even_behind_a_door() -> None:
    episode = FastEpisode(kitchen())
    play(episode, "go to table 1", "take knife 1 from table 1", "go to fridge 1")
    assert episode.step("slice apple 1 with knife 1") == "You sliced the apple 1 with the knife 1."


def test_cooling_through_a_closed_door_and_what_it_looks_like() -> None:
    episode = FastEpisode(kitchen())
    play(episode, "go to table 1", "take apple 2 from table 1", "go to fridge 1")
    assert play(episode, "cool apple 2 with fridge 1", "examine apple 2", "go to sinkbasin 1") == [
        "You cool the apple 2 using the fridge 1.",
        "This is a cold apple 2.",
        "You arrive at sinkbasin 1. On the sinkbasin 1, you see nothing.",
    ]
    episode.step("clean apple 2 with sinkbasin 1")
    assert episode.step("examine apple 2") == "This is a cool and clean apple 2."


def test_a_lamp_turns_on_again_and_again() -> None:
    episode = FastEpisode(kitchen())
    assert play(episode, "go to table 1", "use lamp 1", "use lamp 1")[1:] == ["You turn on the lamp 1."] * 2


def test_the_wording_of_version_2_1_1() -> None:
    episode = FastEpisode(kitchen(wording=VERSION_2_1_1))
    assert play(episode, "go to table 1", "take knife 1 from table 1", "help") == [
        "You arrive at loc 4. On the table 1, you see a apple 2, a knife 1, and a lamp 1.",
        "You pick up the knife 1 from the table 1.",
        "Nothing happens.",
    ]
    assert episode.step("put knife 1 in/on table 1") == "You put the knife 1 in/on the table 1."


def test_commands_are_stripped_and_otherwise_exact() -> None:
    episode = FastEpisode(kitchen())
    assert episode.step("Go to table 1") == "Nothing happens."
    assert episode.step("go to  table 1") == "Nothing happens."
    assert episode.step(" go to table 1\n").startswith("You arrive at table 1.")


# Properties, on games of all six kinds.


def generated(index: int) -> Game:
    game = make_game(GamesConfig(seed=1), "train", index)
    return build_game(game.problem, game.sentence, VERSION_2_1_2, game.folder)


GAMES = [generated(index) for index in range(12)]
walks = st.tuples(st.sampled_from(GAMES), st.lists(st.integers(0, 999), max_size=30))


def walk(episode: FastEpisode, choices: list[int]) -> list[tuple[str, tuple[str, ...], bool]]:
    """Play the choices, each an index into what is admissible; local commands come up as often as going."""
    seen = []
    for choice in choices:
        local = [command for command in episode.admissible if not command.startswith("go to ")]
        options = local if choice % 2 else episode.admissible
        text = episode.step(options[choice % len(options)])
        seen.append((text, episode.admissible, episode.won))
    return seen


@given(walks)
def test_the_same_actions_give_the_same_bytes(case: tuple[Game, list[int]]) -> None:
    game, choices = case
    assert walk(FastEpisode(game), choices) == walk(FastEpisode(game), choices)


@given(walks, st.lists(st.integers(0, 999), max_size=10), st.lists(st.integers(0, 999), max_size=10))
def test_a_copy_lives_its_own_life(case: tuple[Game, list[int]], one: list[int], other: list[int]) -> None:
    game, choices = case
    episode = FastEpisode(game)
    walk(episode, choices)
    twin = episode.copy()
    walk(twin, other)
    straight = FastEpisode(game)
    walk(straight, choices)
    assert walk(episode, one) == walk(straight, one)


@given(walks)
def test_admissible_means_that_something_happens(case: tuple[Game, list[int]]) -> None:
    game, choices = case
    episode = FastEpisode(game)
    walk(episode, choices)
    assert list(episode.admissible) == sorted(set(episode.admissible))
    assert all(episode.copy().step(command) != "Nothing happens." for command in episode.admissible)


@given(walks, st.text(max_size=20))
def test_junk_changes_nothing(case: tuple[Game, list[int]], junk: str) -> None:
    game, choices = case
    episode = FastEpisode(game)
    walk(episode, choices)
    if junk.strip() in episode.admissible:
        return
    before = episode.observe("")
    assert episode.step(junk) == "Nothing happens."
    assert episode.observe("") == before


@given(walks)
def test_things_are_somewhere_exactly_once(case: tuple[Game, list[int]]) -> None:
    game, choices = case
    episode = FastEpisode(game)
    walk(episode, choices)
    held = [episode.held] if episode.held else []
    placed = [thing for inside in episode.contents.values() for thing in inside]
    assert sorted(thing.id for thing in placed + held) == sorted(thing.id for thing in game.things)
