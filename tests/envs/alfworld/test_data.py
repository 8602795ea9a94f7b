"""Finding and loading games in the standard layout, and what is said when they are not there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rsipo_jax.config import EnvConfig
from rsipo_jax.envs.alfworld.data import FOLDER, find_tasks, load_game, resolve_root, scan_split
from rsipo_jax.envs.alfworld.game import GameDataError
from rsipo_jax.envs.protocol import Task

PLACE = "pick_and_place_simple-Mug-None-Shelf-7"


def write(
    root: Path,
    game_folder: str,
    trial: str,
    *,
    solvable: bool | None = True,
    split: str = "train",
    after: str = "",
) -> Path:
    """A trial folder; `after` is the value of a key that follows `solvable`."""
    folder = root / FOLDER / split / game_folder / trial
    folder.mkdir(parents=True)
    content: dict[str, object] = {
        "pddl_domain": "",
        "grammar": 'not the key: "solvable": true',
        "pddl_problem": "",
    }
    if solvable is not None:
        content["solvable"] = solvable
    if after:
        content["walkthrough"] = after
    (folder / "game.tw-pddl").write_text(json.dumps(content))
    (folder / "traj_data.json").write_text("{}")
    return folder


def test_tasks_are_sorted_and_named_by_their_folders(tmp_path: Path) -> None:
    write(tmp_path, PLACE, "trial_T2")
    write(tmp_path, PLACE, "trial_T1")
    write(tmp_path, "look_at_obj_in_light-Pen-None-DeskLamp-301", "trial_T3")
    assert find_tasks(tmp_path, "train") == [
        Task("train/look_at_obj_in_light-Pen-None-DeskLamp-301/trial_T3", "look_at_obj_in_light", "train"),
        Task(f"train/{PLACE}/trial_T1", "pick_and_place_simple", "train"),
        Task(f"train/{PLACE}/trial_T2", "pick_and_place_simple", "train"),
    ]


def test_games_that_alfworld_would_not_play_are_skipped_and_counted(tmp_path: Path) -> None:
    write(tmp_path, PLACE, "trial_good")
    write(tmp_path, PLACE, "trial_unsolvable", solvable=False)
    write(tmp_path, PLACE, "trial_unknown", solvable=None)
    write(tmp_path, "pick_and_place_with_movable_recep-Pen-Mug-Desk-301", "trial_a")
    write(tmp_path, "pick_cool_then_place_in_recep-AppleSliced-None-Desk-1", "trial_b")
    write(tmp_path, "pick_pockets-Pen-None-Desk-301", "trial_c")
    (write(tmp_path, PLACE, "trial_no_game") / "game.tw-pddl").unlink()
    (write(tmp_path, PLACE, "trial_no_trajectory") / "traj_data.json").unlink()
    scan = scan_split(tmp_path, "train")
    assert [task.id for task in scan.tasks] == [f"train/{PLACE}/trial_good"]
    assert scan.skipped == {
        "not solvable": 2,
        "with a movable receptacle": 1,
        "with slicing": 1,
        "of an unknown kind": 1,
        "without game files": 2,
    }


@pytest.mark.parametrize("solvable", [True, False])
def test_solvable_is_read_wherever_it_stands(solvable: bool, tmp_path: Path) -> None:
    write(tmp_path, PLACE, "trial_control")
    write(tmp_path, PLACE, "trial_long", solvable=solvable, after="go north " * 2000)
    found = {task.id.rsplit("/", 1)[1] for task in find_tasks(tmp_path, "train")}
    assert ("trial_long" in found) == solvable


def test_missing_things_are_named(tmp_path: Path) -> None:
    write(tmp_path, PLACE, "trial_only")
    with pytest.raises(
        GameDataError, match=r"no split 'test'; choose one of train, valid_seen, valid_unseen"
    ):
        find_tasks(tmp_path, "test")
    with pytest.raises(GameDataError, match=r"valid_seen is missing: there is no folder .*valid_seen"):
        find_tasks(tmp_path, "valid_seen")
    (tmp_path / FOLDER / "valid_unseen").mkdir()
    with pytest.raises(GameDataError, match="holds no playable game"):
        find_tasks(tmp_path, "valid_unseen")
    with pytest.raises(GameDataError, match=r"no game train/nothing/here: .*does not exist"):
        load_game(tmp_path, Task("train/nothing/here", "pick_and_place_simple", "train"))


def test_a_cut_off_game_file_is_named(games_root: Path, tmp_path: Path) -> None:
    task = find_tasks(games_root, "train")[0]
    folder = tmp_path / FOLDER / task.id
    folder.mkdir(parents=True)
    whole = (games_root / FOLDER / task.id / "game.tw-pddl").read_text()
    (folder / "game.tw-pddl").write_text(whole[:20_000])
    (folder / "traj_data.json").write_text("{}")
    with pytest.raises(GameDataError, match=r"game\.tw-pddl is cut off"):
        find_tasks(tmp_path, "train")
    with pytest.raises(GameDataError, match=r"game\.tw-pddl is not complete JSON"):
        load_game(tmp_path, task)


def test_a_file_that_is_no_game_is_named(tmp_path: Path) -> None:
    folder = write(tmp_path, PLACE, "trial_odd")
    (folder / "game.tw-pddl").write_text('{"grammar": ""}')
    with pytest.raises(GameDataError, match="has no key 'pddl_domain'; it is not an ALFWorld game file"):
        load_game(tmp_path, Task(f"train/{PLACE}/trial_odd", "pick_and_place_simple", "train"))


def test_where_the_data_come_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The settings alone say it: the launchers write $ALFWORLD_DATA there, so that a run keeps its games."""
    (tmp_path / FOLDER).mkdir(parents=True)
    monkeypatch.setenv("ALFWORLD_DATA", str(tmp_path))
    assert resolve_root(EnvConfig()) is None
    assert resolve_root(EnvConfig(data=str(tmp_path))) == tmp_path


def test_a_named_folder_without_games_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(GameDataError, match=r"config\.env\.data .* is .*/nowhere, .* no folder json_2\.1\.1"):
        resolve_root(EnvConfig(data=str(tmp_path / "nowhere")))
