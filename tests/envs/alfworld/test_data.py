"""Which games there are, their content in the version and with the goal asked for, and what is said otherwise."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rsipo_jax.config import EnvConfig
from rsipo_jax.envs.alfworld import data
from rsipo_jax.envs.alfworld.data import (
    OFFICIAL,
    GameData,
    find_tasks,
    has_split,
    load_game,
    manifest,
    read_game,
    resolve_root,
)
from rsipo_jax.envs.alfworld.engine import FastEpisode, intro
from rsipo_jax.envs.alfworld.game import VERSION_2_1_1, VERSION_2_1_2, GameDataError
from rsipo_jax.envs.alfworld.layout import FOLDER, GAME_FILE, SPLITS
from rsipo_jax.envs.alfworld.pools import make_pool
from rsipo_jax.envs.protocol import Task
from tests.envs.alfworld import archives

PLACE = "pick_and_place_simple-Mug-None-Shelf-7"
LAUNCHER = """
import sys
sys.path.insert(0, "launch")
from flags import run
from rsipo_jax.envs.alfworld.data import find_tasks, resolve_root
run(lambda config, workdir: find_tasks(resolve_root(config.env), "train"))
"""


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
    scan = manifest(tmp_path, "train")
    assert [task.id for task in scan.tasks] == [f"train/{PLACE}/trial_good"]
    assert scan.skipped == {
        "not solvable": 2,
        "with a movable receptacle": 1,
        "with slicing": 1,
        "of an unknown kind": 1,
        "without game.tw-pddl": 1,
        "without traj_data.json": 1,
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
    with pytest.raises(GameDataError, match="holds no playable valid_unseen game"):
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
    for read in (lambda: find_tasks(tmp_path, "train"), lambda: load_game(tmp_path, task)):
        with pytest.raises(GameDataError, match=rf"{task.id}/game\.tw-pddl is not complete JSON"):
            read()


def test_a_file_that_is_no_game_is_named(tmp_path: Path) -> None:
    folder = write(tmp_path, PLACE, "trial_odd")
    task = Task(f"train/{PLACE}/trial_odd", "pick_and_place_simple", "train")
    for content, why in [
        (b'{"grammar": ""}', "has no text under the key 'pddl_domain'; it is not an ALFWorld game file"),
        (b'{"pddl_domain": "", "grammar": 1}', "has no text under the key 'grammar'"),
        (b"[]", "holds no JSON object"),
        (b"\xff", "is not UTF-8 text"),
        (b"[" * 100_000, "nests JSON too deeply"),
    ]:
        (folder / GAME_FILE).write_bytes(content)
        with pytest.raises(GameDataError, match=rf"{task.id}/game\.tw-pddl {why}"):
            load_game(tmp_path, task)


def test_where_the_data_come_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The settings alone say it: the launchers write $ALFWORLD_DATA there, so that a run keeps its games."""
    (tmp_path / FOLDER).mkdir(parents=True)
    monkeypatch.setenv("ALFWORLD_DATA", str(tmp_path))
    assert resolve_root(EnvConfig()) is None
    assert resolve_root(EnvConfig(data=str(tmp_path))) == GameData(tmp_path, official=True, fast=True)
    env = EnvConfig(data=str(tmp_path), official=False, engine="textworld", version="2.1.2", goals="human")
    assert resolve_root(env) == GameData(tmp_path, "2.1.2", "human")


def test_an_archive_is_named_itself_or_by_its_folder(tmp_path: Path) -> None:
    archive = tmp_path / "games.jsonl.xz"
    archive.touch()
    for named in (tmp_path, archive):
        root = resolve_root(EnvConfig(data=str(named)))
        assert root is not None and root.path == archive
    (tmp_path / "more.jsonl.xz").touch()
    with pytest.raises(
        GameDataError, match=r"no folder json_2\.1\.1 in it and 2 archives .*; name .* one archive"
    ):
        resolve_root(EnvConfig(data=str(tmp_path)))
    (tmp_path / FOLDER).mkdir()  # a folder of games goes before archives beside it
    root = resolve_root(EnvConfig(data=str(tmp_path)))
    assert root is not None and root.path == tmp_path


@pytest.mark.parametrize("named", ["nowhere", "some.txt", "empty"])
def test_a_place_without_games_is_an_error(named: str, tmp_path: Path) -> None:
    (tmp_path / "some.txt").touch()
    (tmp_path / "empty").mkdir()
    with pytest.raises(
        GameDataError, match=rf"config\.env\.data .* is .*/{named}, but there is no folder json_2\.1\.1"
    ):
        resolve_root(EnvConfig(data=str(tmp_path / named)))


def test_data_travel_to_worker_processes(games_root: Path) -> None:
    root = GameData(games_root, "2.1.1", "human")
    task = find_tasks(root, "train")[0]
    assert read_game(pickle.loads(pickle.dumps(root)), task) == read_game(root, task)
    assert f"{root}" == str(games_root)


def test_a_version_is_played_as_asked_for(games_root: Path) -> None:
    task = find_tasks(games_root, "train")[0]
    old, new = (load_game(GameData(games_root, version), task) for version in ("2.1.1", "2.1.2"))
    assert (old.wording, new.wording) == (VERSION_2_1_1, VERSION_2_1_2)
    assert intro(old) == intro(new) == intro(load_game(games_root, task))
    assert "help" in FastEpisode(new).admissible and "help" not in FastEpisode(old).admissible
    assert read_game(GameData(games_root, "2.1.2"), task) == read_game(games_root, task)
    before, after = (read_game(GameData(games_root, version), task) for version in ("2.1.1", "2.1.2"))
    assert before["pddl_problem"] == after["pddl_problem"]
    assert before["pddl_domain"] != after["pddl_domain"] and before["grammar"] != after["grammar"]


def changed(games_root: Path, root: Path, old: str, new: str) -> Task:
    """One train game of `games_root`, its grammar changed, alone in `root`."""
    task = find_tasks(games_root, "train")[0]
    folder = root / FOLDER / task.id
    shutil.copytree(games_root / FOLDER / task.id, folder)
    game = json.loads((folder / GAME_FILE).read_text())
    assert old in game["grammar"]
    game["grammar"] = game["grammar"].replace(old, new)
    (folder / GAME_FILE).write_text(json.dumps(game))
    return task


def test_a_game_of_an_unknown_version_is_named(games_root: Path, tmp_path: Path) -> None:
    """The fast engine refuses it before anything is played; the original engine gets it as it is."""
    task = changed(games_root, tmp_path, "You open the", "You carefully open the")
    unknown = rf"{task.id}/game\.tw-pddl is of a version .* \(it knows 2\.1\.1 and 2\.1\.2\); use config\.env\.engine"
    env = EnvConfig(data=str(tmp_path), official=False)
    root = resolve_root(env)
    assert root is not None
    for read in (lambda: find_tasks(root, "train"), lambda: load_game(root, task)):
        with pytest.raises(GameDataError, match=unknown):
            read()
    original = GameData(tmp_path)
    assert find_tasks(original, "train") == [task]
    assert "You carefully open the" in read_game(original, task)["grammar"]
    with pytest.raises(
        GameDataError, match=r"so config\.env\.version='2\.1\.1' cannot be made of it; set 'as_is'"
    ):
        read_game(GameData(tmp_path, "2.1.1"), task)


def test_a_game_without_a_task_is_named(games_root: Path, tmp_path: Path) -> None:
    task = changed(games_root, tmp_path, "Your task is to:", "Do:")
    for root in (GameData(tmp_path, "2.1.1"), GameData(tmp_path, goals="human")):
        with pytest.raises(GameDataError, match=rf"{task.id}/game\.tw-pddl names no task"):
            read_game(root, task)


def annotate(folder: Path, annotations: object) -> None:
    (folder / "traj_data.json").write_text(json.dumps({"turk_annotations": annotations}))


def test_human_goals_are_drawn_by_the_task_id(games_root: Path, tmp_path: Path) -> None:
    shutil.copytree(games_root / FOLDER / "train", tmp_path / FOLDER / "train")
    tasks, sentences = find_tasks(tmp_path, "train"), ["Put it there.", "  Bring it  ", "move it"]
    root, shown = GameData(tmp_path, goals="human"), []
    for task in tasks:
        anns = [{"task_desc": text} for text in ["", *sentences]]
        annotate(tmp_path / FOLDER / task.id, {"anns": anns})
        shown.append(load_game(root, task).sentence)
        assert intro(load_game(root, task)).endswith(f"Your task is to: {shown[-1]}.")
        assert load_game(root, task).goal == load_game(tmp_path, task).goal
    assert set(shown) == set(sentences)
    assert shown == [load_game(root, task).sentence for task in tasks]


def test_a_human_goal_is_text_and_never_markup(games_root: Path, tmp_path: Path) -> None:
    """TextWorld evaluates {...} in a grammar as Python."""
    task = changed(games_root, tmp_path, "", "")
    annotate(tmp_path / FOLDER / task.id, {"anns": [{"task_desc": '\b;put {1/0} [in] "the" #task#\n'}]})
    shown = load_game(GameData(tmp_path, goals="human"), task).sentence
    assert shown == "  put  1/0   in   the   task  "


def test_both_engines_show_human_goals_and_versions(games_root: Path, tmp_path: Path) -> None:
    pytest.importorskip(
        "alfworld", reason="the original engine is not installed (pip install alfworld==0.4.2)"
    )
    from rsipo_jax.envs.alfworld.textworld import TextWorldGame

    task = changed(games_root, tmp_path, "", "")
    odd = "It's a (clean?) caf\u00e9 cup & 2 pots; put 'em {away}.. // really!"
    annotate(tmp_path / FOLDER / task.id, {"anns": [{"task_desc": odd}]})
    archive = archives.pack(tmp_path, tmp_path / "games.jsonl.xz", ["train"])
    for root in (GameData(tmp_path, "2.1.1", "human"), GameData(archive, "2.1.2", "human")):
        game = load_game(root, task)
        original, episode = TextWorldGame(root), FastEpisode(game)
        assert episode.observe(intro(game)) == original.reset(task)
        command = next(command for command in episode.admissible if command.startswith("go to"))
        assert episode.observe(episode.step(command)) == original.step(command)
        original.close()


@pytest.mark.parametrize("annotations", [{}, {"anns": []}, {"anns": [{"task_desc": " \n"}, {}]}, [1]])
def test_a_game_without_human_goals_is_named(annotations: object, games_root: Path, tmp_path: Path) -> None:
    task = changed(games_root, tmp_path, "", "")
    annotate(tmp_path / FOLDER / task.id, annotations)
    with pytest.raises(
        GameDataError, match=rf"{task.id}/game\.tw-pddl comes without .*; set config\.env\.goals="
    ):
        load_game(GameData(tmp_path, goals="human"), task)


def test_the_official_data_are_counted(games_root: Path, tmp_path: Path) -> None:
    assert [sum(OFFICIAL[split].values()) for split in SPLITS] == [3553, 140, 134]
    root = resolve_root(EnvConfig(data=str(games_root)))
    assert root is not None
    with pytest.raises(
        GameDataError,
        match=r"holds 24 train games instead of the official 3553 \(pick_and_place_simple: \d+ instead of 790\): "
        r"complete them, or set config\.env\.official=False",
    ):
        find_tasks(root, "train")
    archive = archives.pack(games_root, tmp_path / "games.jsonl.xz", SPLITS)
    with pytest.raises(GameDataError, match="holds 6 valid_seen games instead of the official 140"):
        find_tasks(GameData(archive, official=True), "valid_seen")


def test_a_missing_official_game_is_named(
    games_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(games_root / FOLDER / "train", tmp_path / FOLDER / "train")
    monkeypatch.setattr(data, "OFFICIAL", {"train": manifest(games_root, "train").kinds})
    root = GameData(tmp_path, official=True)
    task = find_tasks(root, "train")[5]
    game = tmp_path / FOLDER / task.id / GAME_FILE
    game.unlink()
    with pytest.raises(GameDataError, match=f"{game} is missing, which"):  # as the kept list knows
        find_tasks(root, "train")
    (tmp_path / FOLDER / ".manifest-train.json").unlink()
    with pytest.raises(GameDataError, match=rf"{task.kind}: \d+ instead of \d+; there is no {game}\)"):
        find_tasks(root, "train")
    assert task not in find_tasks(GameData(tmp_path), "train")


def test_damaged_data_end_a_launcher_with_one_sentence(games_root: Path, tmp_path: Path) -> None:
    task = changed(games_root, tmp_path, "", "")
    game = tmp_path / FOLDER / task.id / GAME_FILE
    game.write_text(game.read_text()[:1000])
    repository = Path(__file__).parents[3]
    result = subprocess.run(
        [sys.executable, "-c", LAUNCHER, "--config=configs/alfworld.py", f"--config.env.data={tmp_path}"],
        cwd=repository,
        env=os.environ | {"PYTHONPATH": str(repository)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert result.returncode == 2 and "Traceback" not in result.stderr
    assert f"{game} is not complete JSON" in result.stderr.splitlines()[-1]


@pytest.mark.parametrize("split", SPLITS)
def test_the_real_data_are_the_official_ones(split: str, real_data: GameData) -> None:
    if not has_split(real_data, split):
        pytest.skip(f"$ALFWORLD_DATA has no split {split}")
    assert manifest(real_data, split).kinds == OFFICIAL[split]


def test_an_archive_of_real_games_holds_the_same(tmp_path: Path, real_data: GameData) -> None:
    root = real_data
    if not (root.path / FOLDER / "valid_seen").is_dir():
        pytest.skip(f"$ALFWORLD_DATA has no folder {FOLDER}/valid_seen")
    archive = archives.pack(root.path, tmp_path / "games.jsonl.xz", ["valid_seen"])
    tasks = find_tasks(archive, "valid_seen")
    assert tasks == find_tasks(root, "valid_seen")
    for version in ("as_is", "2.1.1", "2.1.2"):
        for goals in ("templated", "human"):
            packed, unpacked = (GameData(path, version, goals) for path in (archive, root.path))
            for task in tasks:
                assert read_game(packed, task) == read_game(unpacked, task)


def test_the_pool_takes_data_with_their_settings(games_root: Path) -> None:
    root = GameData(games_root, "2.1.1")
    pool = make_pool(EnvConfig(), root)
    assert "help" not in pool.reset({0: find_tasks(root, "train")[0]})[0].admissible
