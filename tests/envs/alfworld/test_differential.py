"""The fast engine, the original with its speed-ups and the original as installed are one and the same game."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from rsipo_jax.config import GamesConfig
from rsipo_jax.envs.alfworld.data import SPLITS, GameData, Source, find_tasks, has_split, read_game
from rsipo_jax.envs.alfworld.game import KINDS
from rsipo_jax.envs.alfworld.generator import generate_games
from rsipo_jax.envs.protocol import Task
from rsipo_jax.evaluation.panels import make_panel
from rsipo_jax.reports.console import make_console
from tests.envs.alfworld import differential
from tests.envs.alfworld.differential import FastPlayer, OriginalPlayer, View, compare, in_version

pytest.importorskip("alfworld", reason="the original engine is not installed (pip install alfworld==0.4.2)")

VERSIONS = ("2.1.1", "2.1.2")
PER_CELL = {"train": 4, "valid_seen": 3, "valid_unseen": 3}  # games of a kind: 60 in all


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Enough games for some of every kind in every split."""
    made = tmp_path_factory.mktemp("differential") / "games"
    generate_games(made, GamesConfig(train=48, valid_seen=36, valid_unseen=36, seed=21))
    return made


@pytest.fixture(scope="module")
def sped_up() -> OriginalPlayer:
    return OriginalPlayer()


def games_of(root: Path, split: str, kind: str) -> list[Task]:
    return [task for task in find_tasks(root, split) if task.kind == kind][: PER_CELL[split]]


def some_of(root: Source, number: int) -> tuple[Task, ...]:
    """Games of valid_seen, spread evenly."""
    return make_panel("some", find_tasks(root, "valid_seen"), number).tasks


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("split", SPLITS)
def test_generated_games_play_alike_in_both_versions(
    split: str, kind: str, root: Path, sped_up: OriginalPlayer
) -> None:
    tasks = games_of(root, split, kind)
    assert len(tasks) == PER_CELL[split]
    verbs: Counter[str] = Counter()
    for number, task in enumerate(tasks):
        version = VERSIONS[number % 2]
        content = in_version(read_game(root, task), version)
        result = compare(sped_up, [FastPlayer()], content, 0, task.id, version)
        assert not result.differences and result.steps > differential.WANDERING
        verbs.update(result.verbs)
    treatments = {"look": "use", "pick_clean": "clean", "pick_heat": "heat", "pick_cool": "cool"}
    expected = {"odd", "go", "take"} | {
        verb for start, verb in treatments.items() if kind.startswith(f"{start}_")
    }
    assert expected <= verbs.keys()
    assert {"put", "move"} <= verbs.keys() or kind == "look_at_obj_in_light"


@pytest.mark.parametrize("version", VERSIONS)
def test_the_untouched_original_plays_alike(version: str, root: Path, sped_up: OriginalPlayer) -> None:
    """All three engines side by side, in one process: the speed-ups do not leak."""
    kind = {"2.1.1": "pick_clean_then_place_in_recep", "2.1.2": "look_at_obj_in_light"}[version]
    contents = {task: read_game(root, task) for task in find_tasks(root, "valid_unseen") if task.kind == kind}
    task = min(contents, key=lambda task: len(contents[task]["pddl_problem"]))  # the quickest
    content = in_version(contents[task], version)
    result = compare(OriginalPlayer(untouched=True), [sped_up, FastPlayer()], content, 1, task.id, version)
    assert not result.differences and result.steps > differential.WANDERING


def test_the_packages_are_as_installed_outside_a_call(root: Path) -> None:
    import fast_downward
    from textworld.envs.pddl import logic, textgen
    from textworld.logic import Rule

    def patched() -> list[object]:
        return [
            textgen._parse_and_convert, textgen.copy_context, textgen.Symbol.copy, logic.GameLogic,
            textgen.ContextSensitiveGrammar.replace, vars(Rule)["parse_conjunctive_query"], fast_downward.pddl2sas,
        ]  # fmt: skip

    before = patched()
    player = OriginalPlayer()
    player.start(read_game(root, find_tasks(root, "train")[0]))
    player.step("look")
    player.step("\udc80")
    assert patched() == before
    with pytest.raises(KeyError, match="pddl_domain"):
        player._game.load({})
    assert patched() == before


CHANGES: dict[str, Callable[[View], View]] = {
    "text": lambda view: replace(view, text=view.text + " "),
    "admissible": lambda view: replace(view, admissible=view.admissible[::-1]),
    "won": lambda view: replace(view, won=not view.won),
    "score": lambda view: replace(view, score=view.score + 1),
    "inventory": lambda view: replace(view, inventory=("mug",)),
    "facts": lambda view: replace(view, facts=view.facts | {("ishot", "mug")}),
}


@pytest.mark.parametrize("field", CHANGES)
def test_a_difference_in_anything_is_found(field: str, root: Path) -> None:
    class Wrong(FastPlayer):
        steps = 0

        def step(self, command: str) -> View:
            self.steps += 1
            view = super().step(command)
            return CHANGES[field](view) if self.steps == 3 else view

    task = find_tasks(root, "train")[0]
    result = compare(FastPlayer(), [Wrong()], read_game(root, task), 0, task.id, "2.1.2")
    (difference,) = result.differences
    assert difference["field"] == field and len(difference["commands"]) == 3
    assert difference["expected"] != difference["found"]
    if field == "facts":
        assert difference["found"] == [("ishot", "mug")]


def test_commands_are_a_function_of_seed_and_task(root: Path) -> None:
    class Diary(FastPlayer):
        def __init__(self) -> None:
            self.commands: list[str] = []

        def step(self, command: str) -> View:
            self.commands.append(command)
            return super().step(command)

    def played(seed: int, name: str) -> list[str]:
        diary = Diary()
        compare(diary, [], read_game(root, task), seed, name, "2.1.2")
        return diary.commands

    task = find_tasks(root, "train")[0]
    assert played(0, "a") == played(0, "a")
    assert played(0, "a") != played(1, "a") and played(0, "a") != played(0, "b")


def test_a_log_is_resumed_under_its_key_only(root: Path, tmp_path: Path) -> None:
    log, console = tmp_path / "logs" / "log.jsonl", make_console()
    first = differential.run(root, log, 2, 1, 0, False, console)
    assert len(first) == 2 and not any(record["differences"] for record in first)
    assert {record["version"] for record in first} <= set(VERSIONS)
    marked = {**first[0], "seconds": -1.0}  # a line that only the old log can hold
    log.write_text(
        f"{json.dumps(marked)}\n{json.dumps({**first[1], 'key': 'old'})}\n{json.dumps(first[1])[:20]}"
    )
    again = differential.run(root, log, 2, 1, 0, False, console)
    assert again[0] == marked
    assert again[1] == {**first[1], "seconds": again[1]["seconds"]}
    assert [json.loads(line) for line in log.read_text().splitlines()] == again
    assert differential.settings_key(0, False) != differential.settings_key(1, False)


def test_a_game_that_breaks_is_a_difference(tmp_path: Path) -> None:
    result = differential._play(tmp_path, Task("train/no/game", "pick_and_place_simple", "train"), 0, False)
    assert "GameDataError: There is no game train/no/game" in result.differences[0]["found"]


def test_some_real_games_play_alike(real_data: GameData, sped_up: OriginalPlayer) -> None:
    """Games of every kind and split, sixty or more; all of them are compared by `make test-all`."""
    splits = [split for split in SPLITS if has_split(real_data, split)]
    tasks = [
        task
        for split in splits
        for kind in KINDS
        for task in make_panel("real", (t for t in find_tasks(real_data, split) if t.kind == kind), 5).tasks
    ]
    assert len(tasks) == 5 * len(KINDS) * len(splits)
    for task in tasks:
        content = in_version(read_game(real_data, task), version := differential.version_for(task.id))
        assert not compare(sped_up, [FastPlayer()], content, 0, task.id, version).differences, task.id


@pytest.mark.slow
def test_all_real_games_play_alike(
    real_data: GameData, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    """Half an hour on two free cores; resumed from the log of $RSIPO_DIFFERENTIAL_LOG, or one in pytest's cache."""
    named = os.environ.get("RSIPO_DIFFERENTIAL_LOG", "")
    log = Path(named) if named else request.getfixturevalue("cache").mkdir("differential") / "log.jsonl"
    with capsys.disabled():
        records = differential.run(real_data, log, 0, 2, 0, False, make_console())
    assert not [record for record in records if record["differences"]]
    assert {record["version"] for record in records} == set(VERSIONS)
    assert len(records) == sum(
        len(find_tasks(real_data, split)) for split in SPLITS if has_split(real_data, split)
    )


@pytest.mark.slow
def test_the_untouched_original_plays_real_games_alike(real_data: GameData, sped_up: OriginalPlayer) -> None:
    untouched = OriginalPlayer(untouched=True)
    for task in some_of(real_data, 8):
        content = in_version(read_game(real_data, task), version := differential.version_for(task.id))
        result = compare(untouched, [sped_up, FastPlayer()], content, 2, task.id, version)
        assert not result.differences
