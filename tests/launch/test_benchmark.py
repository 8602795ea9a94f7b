"""The benchmark's command line, and the fields of what it writes; how fast anything is, is no test's business."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.launch.launching import python

pytest.importorskip("alfworld", reason="the original engine is not installed (pip install alfworld==0.4.2)")


def benchmark(*arguments: str) -> subprocess.CompletedProcess[str]:
    return python("launch/benchmark.py", *arguments, timeout=300)


def test_the_alfworld_suite_measures_generated_games(tmp_path: Path) -> None:
    result = benchmark("--suite=alfworld", "--games=1", f"--json={tmp_path / 'out.json'}")
    assert result.returncode == 0, result.stderr
    record = json.loads((tmp_path / "out.json").read_text())
    assert record["suite"] == "alfworld"
    assert record["machine"].keys() == {"cpu", "cores", "load", "python", "system"}
    sections = record["results"]
    assert sections["games"]["kind"] == "generated" and sections["games"]["count"] == 288
    engines = sections["engines"]
    timed = {
        f"{engine}_{what}_ms"
        for engine in ("original", "sped_up", "fast")
        for what in ("load", "reset", "step")
    }
    ratios = {f"{slow}_to_fast_{what}" for slow in ("original", "sped_up") for what in ("reset", "step")}
    assert engines.keys() == {"games", "steps_per_game", *timed, *ratios}
    assert engines["original_to_fast_step"] == pytest.approx(
        engines["original_step_ms"] / engines["fast_step_ms"]
    )
    assert sections["pool"]["environments"] == 128
    assert (
        0
        < sections["pool"]["turn_median_ms"]
        <= sections["pool"]["turn_p95_ms"]
        <= sections["pool"]["turn_max_ms"]
    )
    assert sections["parsing"].keys() == {"all_games_s", "per_game_ms"}
    assert sections["memory"]["game_kib"] > sections["memory"]["episode_kib"] > 0
    for shown in ("original to fast step", "turn p95 ms", "games on fast: 1/1", "cores"):
        assert shown in result.stdout


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ([], "--suite"),
        (["--suite=chess"], "alfworld"),
        (["--suite=alfworld", "--games=0"], "games"),
        (["--suite=alfworld", "--data=nowhere"], "nowhere"),
        (["--suite=alfworld", "now"], "'now' is not a flag"),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_2(arguments: list[str], named: str) -> None:
    result = benchmark(*arguments)
    assert result.returncode == 2 and result.stdout == ""
    assert named in result.stderr and result.stderr.count("\n") == 1
