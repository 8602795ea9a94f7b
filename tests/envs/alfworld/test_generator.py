"""Generated games: a function of their settings, solvable, with rooms of their own for the unseen split."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from pathlib import Path

import pytest

from rsipo_jax.config import GamesConfig
from rsipo_jax.envs.alfworld import generator
from rsipo_jax.envs.alfworld.data import FOLDER, SPLITS, find_tasks, load_game
from rsipo_jax.envs.alfworld.engine import FastEpisode
from rsipo_jax.envs.alfworld.game import KINDS, GameDataError
from rsipo_jax.envs.alfworld.generator import generate_games, make_game
from rsipo_jax.envs.alfworld.planner import solve
from rsipo_jax.envs.alfworld.vocabulary import SHARES, UNSEEN_SCENES

SMALL = GamesConfig(train=6, valid_seen=2, valid_unseen=2, seed=5)


def files(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_the_same_settings_give_the_same_bytes(tmp_path: Path) -> None:
    generate_games(tmp_path / "a", SMALL)
    generate_games(tmp_path / "b", SMALL)
    assert files(tmp_path / "a") == files(tmp_path / "b")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]  # no drafts left behind


def test_a_split_grows_without_changing_and_depends_on_the_seed() -> None:
    one = [make_game(SMALL, "train", index) for index in range(6)]
    larger = dataclasses.replace(SMALL, train=500, valid_seen=7)
    assert one == [make_game(larger, "train", index) for index in range(6)]
    other = dataclasses.replace(SMALL, seed=6)
    assert all(
        a.problem != b.problem
        for a, b in zip(one, (make_game(other, "train", i) for i in range(6)), strict=True)
    )


def test_every_game_on_disk_is_found_and_solved(games_config: GamesConfig, games_root: Path) -> None:
    for split in SPLITS:
        tasks = find_tasks(games_root, split)
        assert len(tasks) == getattr(games_config, split)
        for task in tasks:
            steps = solve(load_game(games_root, task))
            assert steps


def test_files_of_a_game(games_root: Path) -> None:
    task = find_tasks(games_root, "train")[0]
    folder = games_root / FOLDER / task.id
    game = json.loads((folder / "game.tw-pddl").read_text())
    trajectory = json.loads((folder / "traj_data.json").read_text())
    assert game["solvable"] is True
    assert game["pddl_problem"] == (folder / "initial_state.pddl").read_text()
    assert game["pddl_domain"] == (games_root / "logic" / "alfred.pddl").read_text()
    assert "UNKNOWN GOAL" not in game["grammar"]
    assert trajectory["task_type"] == task.kind
    kind, thing, movable, place, scene = task.id.split("/")[1].split("-")
    params = trajectory["pddl_params"]
    assert (kind, thing, movable) == (task.kind, params["object_target"], "None")
    assert place == (params["parent_target"] or params["toggle_target"])
    assert int(scene) == trajectory["scene"]["scene_num"]


def test_unseen_rooms_are_unseen(games_root: Path) -> None:
    """No receptacle id, hence no layout, is shared; and train and valid_seen do share rooms."""
    seen_in = {
        split: {
            r.id for task in find_tasks(games_root, split) for r in load_game(games_root, task).receptacles
        }
        for split in SPLITS
    }
    assert not seen_in["valid_unseen"] & (seen_in["train"] | seen_in["valid_seen"])
    scenes = {
        split: {int(t.id.split("/")[1].rsplit("-", 1)[1]) for t in find_tasks(games_root, split)}
        for split in SPLITS
    }
    assert scenes["valid_unseen"] <= UNSEEN_SCENES
    assert not (scenes["train"] | scenes["valid_seen"]) & UNSEEN_SCENES


def test_task_types_are_mixed_as_in_the_real_games() -> None:
    cycle = generator._kind_cycle()
    assert set(cycle) == set(KINDS)
    for length in (6, 20, 50, 100):
        made = Counter(cycle[:length])
        assert all(abs(made[kind] - SHARES[kind] * length) <= 1 for kind in KINDS)


def test_the_goals_things_start_elsewhere(games_root: Path) -> None:
    for task in find_tasks(games_root, "train"):
        game = load_game(games_root, task)
        assert not FastEpisode(game).won
        assert not any(
            thing.kind == game.goal.thing for target in game.targets for thing in game.contents[target]
        )


@pytest.mark.parametrize("cap", [1, 2])
def test_the_cap_on_receptacles_of_a_kind(cap: int, tmp_path: Path) -> None:
    generate_games(tmp_path / "games", dataclasses.replace(SMALL, max_per_kind=cap))
    for task in find_tasks(tmp_path / "games", "train"):
        kinds = Counter(r.kind for r in load_game(tmp_path / "games", task).receptacles)
        assert max(kinds.values()) <= cap


def test_existing_games_are_kept(games_config: GamesConfig, games_root: Path) -> None:
    before = (games_root / generator.SETTINGS_FILE).stat().st_mtime_ns
    generate_games(games_root, games_config)
    assert (games_root / generator.SETTINGS_FILE).stat().st_mtime_ns == before


def test_games_of_other_settings_are_refused(games_config: GamesConfig, games_root: Path) -> None:
    with pytest.raises(GameDataError, match=r"made with seed=5, but seed=6 is asked for; delete the folder"):
        generate_games(games_root, dataclasses.replace(games_config, seed=6))


def test_a_folder_of_something_else_is_refused_and_untouched(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("chapter 1")
    with pytest.raises(GameDataError, match="holds no generated games"):
        generate_games(tmp_path, SMALL)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_an_interrupted_run_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(generator, "_write_game", fail)
    with pytest.raises(KeyboardInterrupt):
        generate_games(tmp_path / "games", SMALL)
    assert list(tmp_path.iterdir()) == []
