"""The simulation of trust as a command: what shrinkage must be worth, in every phase."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks import trust

from tests.launch.launching import python


def test_the_trust_suite_meets_its_targets_but_one(tmp_path: Path) -> None:
    done = python("launch/benchmark.py", "--suite=trust", f"--json={tmp_path / 'out.json'}", timeout=300)
    assert done.returncode == 0, done.stderr
    results = json.loads((tmp_path / "out.json").read_text())["results"]
    targets = results.pop("targets")
    assert list(results) == [f"{phase.name}, {unit.name}" for phase, unit in trust.ROWS]
    for name, row in results.items():
        assert row["mse_decayed"] <= 0.5 * row["mse_raw"], name
        assert row["mse_decayed"] < row["mse_one_step"] < row["mse_beta_binomial"] < row["mse_raw"], name
    assert targets["decayed_mse_at_most_half_of_raw"] is True
    # A harmful teacher is all but switched off. The few skills that are trusted nevertheless were lucky together: they
    # share the plain episodes of their task, so what a skill's weight picks is a little worse than a task's.
    assert targets["gain_at_least_-0.01_harmful, task n1=8"] is True
    assert targets["gain_at_least_-0.01_harmful, skill K=4"] is False  # the README says by how much
    assert targets["gain_harmful, skill K=4"] > -0.02
    for name in ("harmful, task n1=8", "harmful, skill K=4"):
        row = results[name]
        assert row["weight_pos_mean"] < 0.005 and row["gain_pos_mean"] > 0.25 * row["gain_one"], name
        assert row["gain_pos_mean"] > row["gain_raw"] > row["gain_one"], name
    # where the teacher helps, so does its weight
    for name in ("early, task n1=8", "mid, task n1=8", "early, skill K=4", "mid, skill K=4"):
        assert results[name]["gain_pos_mean"] > results[name]["gain_one"] > 0
    # one replay tells nothing about skills: all weigh the same
    assert abs(results["early, skill K=1"]["gain_pos_mean"] - results["early, skill K=1"]["gain_one"]) < 0.002
    for shown in ("EB, decayed", "harmful, skill K=4", "decayed mse at most half of raw: yes"):
        assert shown in done.stdout
