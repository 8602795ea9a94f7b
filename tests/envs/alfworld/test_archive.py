"""Reading an archive: the same games as the folder it was packed from, and one sentence for a damaged one."""

from __future__ import annotations

import json
import lzma
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rsipo_jax.envs.alfworld.archive import open_archive
from rsipo_jax.envs.alfworld.data import GameData, find_tasks, has_split, load_game, manifest, read_game
from rsipo_jax.envs.alfworld.engine import intro
from rsipo_jax.envs.alfworld.game import GameDataError
from rsipo_jax.envs.alfworld.layout import SPLITS
from rsipo_jax.envs.protocol import Task
from tests.envs.alfworld import archives

GAME = {
    "split": "train",
    "dir": "pick_and_place_simple-Mug-None-Shelf-7",
    "trial": "trial_T1",
    "task_desc": "put a mug in shelf",
    "anns": ["Put the mug away."],
    "problem": "(define)",
}
HEAD = {"pddl_domain": "", "grammar": "UNKNOWN GOAL"}


@pytest.fixture(scope="session")
def archive(games_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return archives.pack(games_root, tmp_path_factory.mktemp("archive") / "games.jsonl.xz", SPLITS)


@pytest.mark.parametrize("split", SPLITS)
def test_an_archive_holds_the_games_of_its_folder(split: str, archive: Path, games_root: Path) -> None:
    tasks = find_tasks(archive, split)
    assert tasks == find_tasks(games_root, split)
    for task in tasks:
        assert read_game(archive, task) == read_game(games_root, task)
    assert intro(load_game(archive, tasks[0])) == intro(load_game(games_root, tasks[0]))


def test_versions_and_goals_are_those_of_the_folder(archive: Path, games_root: Path) -> None:
    task = find_tasks(archive, "valid_seen")[0]
    packed = read_game(GameData(archive, "2.1.1", "human"), task)
    assert packed == read_game(GameData(games_root, "2.1.1", "human"), task)
    assert packed["grammar"] != read_game(archive, task)["grammar"]


def test_an_archive_is_read_once_until_it_changes(archive: Path, tmp_path: Path) -> None:
    copied = Path(shutil.copy(archive, tmp_path))
    first = open_archive(copied)
    assert open_archive(copied) is first
    os.utime(copied, ns=(1, 1))
    assert open_archive(copied) is not first


def test_splits_and_games_that_are_not_there(archive: Path, games_root: Path, tmp_path: Path) -> None:
    small = archives.pack(games_root, tmp_path / "small.jsonl.xz", ["train"])
    assert has_split(small, "train") and not has_split(small, "valid_seen")
    with pytest.raises(GameDataError, match=r"valid_seen is missing: .*small\.jsonl\.xz has no such games"):
        find_tasks(small, "valid_seen")
    with pytest.raises(GameDataError, match=r"no split 'test'; choose one of train"):
        find_tasks(small, "test")
    with pytest.raises(
        GameDataError, match=r"no game train/no/game in .*small\.jsonl\.xz; check the task id"
    ):
        load_game(small, Task("train/no/game", "pick_and_place_simple", "train"))


def test_names_that_alfworld_would_not_play_are_left_out(tmp_path: Path) -> None:
    folders = {
        "pick_and_place_with_movable_recep-Pen-Mug-Desk-301": "with a movable receptacle",
        "pick_and_place_simple-AppleSliced-None-Desk-1": "with slicing",
        "pick_pockets-Pen-None-Desk-301": "of an unknown kind",
    }
    games = [GAME, *({**GAME, "dir": folder} for folder in folders)]
    found = manifest(archives.write(tmp_path / "a.jsonl.xz", [HEAD, *games]), "train")
    assert [entry.id for entry in found.entries] == [f"train/{GAME['dir']}/trial_T1"]
    assert found.skipped == dict.fromkeys(folders.values(), 1)


def test_the_digest_depends_on_the_games_alone(tmp_path: Path) -> None:
    def digest(*games: object) -> str:
        return manifest(archives.write(tmp_path / "a.jsonl.xz", [HEAD, *games]), "train").sha256

    other = {**GAME, "trial": "trial_T2"}
    assert digest(GAME, other) == digest(other, GAME)
    assert len({digest(GAME, other), digest(GAME), digest({**GAME, "problem": "(define )"})}) == 3


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([], r"Line 1 of .*a\.jsonl\.xz is not complete JSON"),
        ([GAME], r"no archive of ALFWorld games: its first line has no text 'pddl_domain'"),
        ([HEAD, []], r"Line 2 of .* is not a JSON object"),
        ([HEAD, GAME, {**GAME, "problem": 1}], r"Line 3 of .* has no text 'problem'"),
        ([HEAD, {**GAME, "anns": "Put it away."}], r"Line 2 of .* has no list of texts 'anns'"),
        ([HEAD, {**GAME, "split": "test"}], r"Line 2 of .* has the unknown split 'test'; use one of train"),
        ([{**HEAD, "grammar": "put a mug in a desk"}, GAME], r"its grammar has no UNKNOWN GOAL"),
        ([HEAD, {**GAME, "dir": "../../etc"}], r"Line 2 of .* has '\.\./\.\./etc' for 'dir'"),
        ([HEAD, {**GAME, "trial": "a\nb"}], r"Line 2 of .* for 'trial'; no game is called so"),
        ([HEAD, GAME, GAME], r"Line 3 of .* repeats the game train/pick_and_place_simple-"),
    ],
)
def test_a_line_that_is_wrong_is_named(lines: list[Any], message: str, tmp_path: Path) -> None:
    path = archives.write(tmp_path / "a.jsonl.xz", lines)
    with pytest.raises(GameDataError, match=message) as refusal:
        open_archive(path)
    assert "\n" not in str(refusal.value)


def test_a_broken_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.xz"
    path.write_bytes(lzma.compress(f"{json.dumps(HEAD)}\n{json.dumps(GAME)[:40]}\n".encode()))
    with pytest.raises(GameDataError, match=r"Line 2 of .*a\.jsonl\.xz is not complete JSON; copy the file"):
        open_archive(path)


def test_a_cut_off_file_is_named(archive: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut.jsonl.xz"
    cut.write_bytes(archive.read_bytes()[:-400])
    with pytest.raises(GameDataError, match=r"cut\.jsonl\.xz is cut off after line \d+; copy the file again"):
        open_archive(cut)
    cut.write_text("these are no games")
    with pytest.raises(GameDataError, match=r"cut\.jsonl\.xz is no intact xz file"):
        open_archive(cut)
    with pytest.raises(GameDataError, match=r"gone\.jsonl\.xz cannot be read \(No such file"):
        open_archive(tmp_path / "gone.jsonl.xz")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damage_is_one_sentence_or_harmless(data: st.DataObject, tmp_path: Path) -> None:
    """Some bytes of a small archive are changed: it opens with its one game or says in a sentence why not."""
    whole = lzma.compress(f"{json.dumps(HEAD)}\n{json.dumps(GAME)}\n".encode())
    content = bytearray(whole)
    for place in data.draw(st.lists(st.integers(0, len(whole) - 1), min_size=1, max_size=3)):
        content[place] = data.draw(st.integers(0, 255))
    path = tmp_path / "a.jsonl.xz"
    path.write_bytes(content[: data.draw(st.integers(0, len(whole)))])
    try:
        opened, said = list(open_archive(path).lines), ""
    except GameDataError as error:
        opened, said = [], str(error)
    assert opened == [f"train/{GAME['dir']}/trial_T1"] or (str(path) in said and "\n" not in said)
