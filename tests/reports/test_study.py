"""Tables and curves of a study: nothing but its records decides their bytes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rsipo_jax.evaluation.study import summarize
from rsipo_jax.reports.study import markdown, skill_figure, success_figure, write
from tests.evaluation.study_records import write_run, write_study


@pytest.fixture
def results(tmp_path: Path) -> dict[str, Any]:
    folder = tmp_path / "study"
    write_study(folder, {"grpo": {"method": "grpo"}, "rsipo": {"skill.eta": 0.0}, "gone": {}}, [0, 1])
    write_run(folder / "grpo" / "seed0", "0000", "1000", success=(0.0, 0.5))
    write_run(folder / "grpo" / "seed1", "0000", "1000", success=(0.5, 0.5))
    write_run(folder / "rsipo" / "seed0", "0000", "1110", replays=2, trust=(0.2, 0.4))
    return summarize(folder)


def test_the_tables_by_hand(results: dict[str, Any]) -> None:
    text = markdown(results, ["success"])
    rows = [line for line in text.split("\n") if line.startswith("| ")]
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    assert ["variant", "seeds", "success", "minus grpo"] in cells
    sft, grpo, rsipo, gone = (
        next(c for c in cells if c[0] == n) for n in ("SFT policy", "grpo", "rsipo", "gone")
    )
    assert sft == ["SFT policy", "2", "0.0 [0.0, 0.0]", ""]
    assert grpo[:2] == ["grpo", "2"] and grpo[2].startswith("25.0 [") and grpo[3] == ""
    assert rsipo[:2] == ["rsipo", "1"] and rsipo[2].startswith("75.0 [") and rsipo[3].startswith("+50.0 [")
    assert gone == ["gone", "0", "missing", "missing"]
    assert ["rsipo", "2", "4", "8", "5.0 s", "2.5 s", "0.30, 0.30", "50%, 50%", "+10.0, +10.0"] in cells
    assert ["grpo", "2", "4", "4", "5.0 s", "2.5 s", "-", "-", "-"] in cells
    assert ["rsipo", "`skill.eta=0.0`", "finished", "missing"] in cells
    assert ["gone", "", "missing", "missing"] in cells
    assert "![success](success.svg)" in text


def test_curves_are_means_over_seeds_against_steps_and_episodes(results: dict[str, Any]) -> None:
    figure = success_figure(results)
    assert figure is not None
    by_step, by_episode = figure.axes[:2]
    thick = {line.get_label(): line for line in by_step.lines if line.get_linewidth() > 1}
    assert thick.keys() == {"grpo", "rsipo"}  # the missing one is not drawn
    np.testing.assert_allclose(thick["grpo"].get_xydata(), [(1, 25), (2, 37.5)])  # of (0, 25) and (50, 50)
    played = {line.get_label(): line for line in by_episode.lines if line.get_linewidth() > 1}
    np.testing.assert_allclose(np.asarray(played["rsipo"].get_xdata()), [4, 8])
    np.testing.assert_allclose(np.asarray(played["grpo"].get_xdata()), [2, 4])
    assert sum(line.get_linewidth() < 1 for line in by_step.lines) == 3  # one for each run
    skills = skill_figure(results)
    assert skills is not None
    trust = [line for line in skills.axes[0].lines if line.get_linewidth() > 1]
    np.testing.assert_allclose(trust[0].get_xydata(), [(1, 0.2), (2, 0.3)])
    assert trust[0].get_color() == thick["rsipo"].get_color()


def test_the_mean_is_of_equal_steps(results: dict[str, Any]) -> None:
    """A step without a skill that was measured has no gain in that seed, and so no mean."""
    curve = results["curves"]["rsipo"]["0"]
    results["curves"]["rsipo"]["1"] = {**curve, "trust_mean": [None, 0.9]}
    figure = skill_figure(results)
    assert figure is not None
    (mean,) = (line for line in figure.axes[0].lines if line.get_linewidth() > 1)
    np.testing.assert_allclose(mean.get_xydata(), [(2, (0.3 + 0.9) / 2)])


def test_equal_records_give_equal_bytes(results: dict[str, Any], tmp_path: Path) -> None:
    first, again = (write(results, tmp_path / name) for name in ("first", "again"))
    assert [p.name for p in first] == [
        "results.md", "results.json", "success.png", "success.svg", "skills.png", "skills.svg",
    ]  # fmt: skip
    for one, other in zip(first, again, strict=True):
        assert one.read_bytes() == other.read_bytes(), one.name
    assert json.loads(first[1].read_text())["runs"] == results["runs"]
    for path in first:
        assert str(tmp_path).encode() not in path.read_bytes()


def test_a_study_without_a_run_is_all_missing(tmp_path: Path) -> None:
    write_study(tmp_path, {"grpo": {}}, [0])
    assert [p.name for p in write(summarize(tmp_path), tmp_path)] == ["results.md", "results.json"]
    assert "| grpo |  | missing |" in (tmp_path / "results.md").read_text()
