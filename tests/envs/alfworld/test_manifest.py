"""The kept list of a split's games: made once, found again, and made anew when anything has changed."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rsipo_jax.envs.alfworld import manifest
from rsipo_jax.envs.alfworld.game import GameDataError
from rsipo_jax.envs.alfworld.layout import FOLDER, GAME_FILE, TRAJECTORY_FILE
from rsipo_jax.envs.alfworld.manifest import Manifest, load_manifest, scan_split

KEPT = Path(FOLDER) / ".manifest-train.json"


@pytest.fixture
def root(games_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The train games of the shared folder, to be changed at will."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    shutil.copytree(games_root / FOLDER / "train", tmp_path / "games" / FOLDER / "train")
    return tmp_path / "games"


def trials(root: Path) -> list[Path]:
    return sorted((root / FOLDER / "train").glob("*/*"))


@pytest.fixture
def no_scan(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise AssertionError("the games were read again")

    monkeypatch.setattr(manifest, "scan_split", fail)


def load(root: Path, complete: bool = False) -> Manifest:
    return load_manifest(root, "train", complete)


def test_a_scan_counts_and_is_kept(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = load(root)
    assert len(first.tasks) == 24 and sum(first.kinds.values()) == 24 and not first.skipped
    assert {entry.version for entry in first.entries} == {"2.1.2"}
    assert first.tasks == tuple(sorted(first.tasks, key=lambda task: task.id))
    kept = json.loads((root / KEPT).read_text())
    assert (
        kept["format"] == manifest.FORMAT and kept["sha256"] == first.sha256 and kept["kinds"] == first.kinds
    )
    assert [path.name for path in (root / FOLDER).iterdir() if path.is_file()] == [KEPT.name]
    monkeypatch.setattr(manifest, "scan_split", None)
    assert load(root) == first


def test_the_digest_is_of_ids_and_contents(root: Path) -> None:
    first = load(root)
    moved = root.with_name("elsewhere")
    shutil.copytree(root, moved)
    assert load(moved).sha256 == first.sha256
    game = trials(moved)[0] / GAME_FILE
    game.write_text(game.read_text().replace('"solvable": true', '"solvable": true '))
    assert load(moved).sha256 != first.sha256
    shutil.rmtree(trials(root)[0])
    assert load(root).sha256 != first.sha256


def test_new_games_are_noticed(root: Path) -> None:
    old = trials(root)[0]
    shutil.move(old, root / "aside")
    assert len(load(root).tasks) == 23
    shutil.move(root / "aside", old)
    assert len(load(root).tasks) == 24
    new_folder = old.parent.with_name("pick_and_place_simple-Mug-None-Shelf-999")
    shutil.copytree(old.parent, new_folder)
    assert len(load(root).tasks) > 24


def test_a_file_that_comes_later_is_noticed(root: Path) -> None:
    game = trials(root)[0] / GAME_FILE
    shutil.move(game, root / "aside")
    found = load(root)
    assert found.skipped == {"without game.tw-pddl": 1} and len(found.tasks) == 23
    shutil.move(root / "aside", game)
    assert not load(root).skipped


def test_a_file_that_goes_is_noticed(root: Path) -> None:
    assert len(load(root).tasks) == 24
    (trials(root)[0] / TRAJECTORY_FILE).unlink()
    assert load(root).skipped == {"without traj_data.json": 1}


def test_a_changed_game_is_read_again(root: Path) -> None:
    load(root)
    game = trials(root)[0] / GAME_FILE
    game.write_text(game.read_text().replace('"solvable": true', '"solvable": false'))
    assert load(root).skipped == {"not solvable": 1}
    game.write_text(game.read_text()[:-50])
    with pytest.raises(GameDataError, match=rf"{game} is not complete JSON"):
        load(root)


def test_a_lost_game_is_named_where_the_data_are_complete(root: Path) -> None:
    load(root)
    game = trials(root)[3] / GAME_FILE
    game.unlink()
    for _ in range(2):  # it is not forgotten by the first refusal
        with pytest.raises(GameDataError, match=rf"{game} is missing, which .*manifest-train\.json lists"):
            load(root, complete=True)
    assert len(load(root).tasks) == 23
    assert len(load(root, complete=True).tasks) == 23


@pytest.mark.usefixtures("no_scan")
def test_without_a_kept_list_the_games_are_read(root: Path) -> None:
    with pytest.raises(AssertionError, match="read again"):
        load(root)


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[:1000],
        lambda text: "",
        lambda text: "[" * 100_000,
        lambda text: text.replace(f'"format": {manifest.FORMAT}', '"format": 0'),
        lambda text: text.replace('"split": "train"', '"split": "valid_seen"'),
        lambda text: text.replace("-None-", "-Some-", 1),
        lambda text: text.replace('"stamps": {', '"stamps": {"x": 1, '),
        lambda text: text.replace('"stamps": {"": ', '"stamps": {"x": '),
    ],
)
def test_a_damaged_list_is_made_anew(damage, root: Path) -> None:
    first = load(root)
    text = (root / KEPT).read_text()
    assert damage(text) != text
    (root / KEPT).write_text(damage(text))
    assert manifest._load(root / KEPT, "train") is None
    assert load(root) == first
    assert (root / KEPT).read_text() == text


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    value=st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    ),
    key=st.sampled_from(["sha256", "games", "left_out", "stamps", "format", "split", None]),
)
def test_no_json_is_taken_for_a_list(value: object, key: str | None, root: Path) -> None:
    if not (root / KEPT).exists():
        load(root)
    kept = json.loads((root / KEPT).read_text())
    other = root / "other.json"
    other.write_text(json.dumps(value if key is None else {**kept, key: value}))
    loaded = manifest._load(other, "train")
    assert loaded is None or (key is not None and kept[key] == value)


def test_data_that_cannot_be_written_to_are_listed_in_the_cache(root: Path, tmp_path: Path) -> None:
    """A folder in the list's place stands for data of others: nothing can be written there."""
    (root / KEPT).mkdir()
    first = load(root)
    (kept,) = (tmp_path / "cache" / "rsipo_jax").iterdir()
    assert json.loads(kept.read_text())["sha256"] == first.sha256
    os.utime(kept, ns=(1, 1))
    assert load(root) == first
    assert kept.stat().st_mtime_ns == 1  # found, not written again


def test_a_list_that_can_be_kept_nowhere_is_no_error(root: Path, tmp_path: Path) -> None:
    (root / KEPT).mkdir()
    (tmp_path / "cache").write_text("not a folder")
    first, _ = scan_split(root, "train")
    assert load(root) == load(root) == first
