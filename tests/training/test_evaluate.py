"""Measuring outside a run: checkpoints repeat their record, the planner wins, runs are compared game by game."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path

import pytest

from rsipo_jax.evaluation.study import finished as study_finished
from rsipo_jax.training.evaluate import compare, evaluate, evaluate_planner
from rsipo_jax.training.loop import run
from rsipo_jax.validation import ConfigError
from tests.training.tiny_run import config, records


def test_evaluation_repeats_the_recorded_result(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for step in (-1, 0):
        evaluate(config(), finished, ["valid_unseen"], step)
        out = capsys.readouterr().out
        recorded = next(
            r
            for r in records(finished, "evaluation.jsonl")
            if r["panel"] == "valid_unseen" and r["step"] == (2 if step else 0)
        )
        assert "equal to the run's own record" in out
        assert recorded["hash"] in out


def test_a_method_with_skills_at_test_is_measured_with_them(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("games", "demonstrations", "tokenizer", "sft"):
        shutil.copytree(finished / name, tmp_path / name)
    skilled = config(**{"method": "skill_prompt", "eval.panels": ("valid_seen",)})
    run(skilled, tmp_path)
    (record,) = records(tmp_path, "evaluation.jsonl")
    assert (record["stage"], record["step"]) == ("sft*", 0) and study_finished(tmp_path)
    assert "SFT, skills at test*" in capsys.readouterr().out
    for step in (-1, 0):
        evaluate(skilled, tmp_path, ["valid_seen"], step)
        out = capsys.readouterr().out
        assert "equal to the run's own record" in out and "DIFFERS" not in out


def test_a_result_that_differs_from_the_record_says_where(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    workdir = tmp_path / "changed"
    shutil.copytree(finished, workdir)
    lines = records(workdir, "evaluation.jsonl")
    for line in lines:
        line["episodes"][-1]["turns"] += 1
        for episode in line["episodes"]:
            del episode["trace"]  # as in records of a time that did not know it
    (workdir / "evaluation.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    evaluate(config(), workdir, ["valid_unseen"], 0)
    last = lines[0]["episodes"][-1]["task_id"] if lines[0]["panel"] == "valid_unseen" else ""
    out = " ".join(capsys.readouterr().out.split())
    assert "DIFFERS from the run's own record in 1 games, the first valid_unseen/" in out and last in out


def test_a_checkpoint_that_is_not_there_is_one_sentence(finished: Path) -> None:
    with pytest.raises(ConfigError, match=r"no checkpoint of step 7: choose --step from \[0, 1, 2\]"):
        evaluate(config(), finished, ["valid_unseen"], 7)


def test_there_is_nothing_to_evaluate_before_sft(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has no policy yet"):
        evaluate(config(), tmp_path, ["valid_unseen"], -1)
    assert not list(tmp_path.iterdir())


def test_panels_that_the_run_did_not_record_are_played_too(
    finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evaluate(config(), finished, ["literature"], 0)
    out = " ".join(capsys.readouterr().out.split())
    assert "128 draws with repetition, 4 distinct games of 4; for published rows only" in out
    assert "no record of this panel" in out


def test_the_planner_wins_every_game_in_the_fewest_turns(
    finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evaluate_planner(config(), finished, "train")
    out = " ".join(capsys.readouterr().out.split())
    assert "train: success 100.0%" in out and "12 games" in out
    turns = re.search(r"Mean turns of won games: (\S+) \(planner; fewest (\S+)\)", out)
    assert turns is not None and turns[1] == turns[2]


def test_the_planner_does_without_the_package_alfworld(
    finished: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "alfworld.agents.expert", None)
    evaluate_planner(config(), finished, "valid_unseen")
    out = " ".join(capsys.readouterr().out.split())
    assert "valid_unseen: success 100.0%" in out
    assert "Without the handcoded expert: The handcoded expert is part of the package alfworld" in out


@pytest.fixture
def other(finished: Path, tmp_path: Path) -> Path:
    """The finished run as if seed 1 had given it, and one more game of valid_unseen."""
    workdir = tmp_path / "other"
    workdir.mkdir()
    settings = json.loads((finished / "config.json").read_text())
    (workdir / "config.json").write_text(json.dumps(settings | {"seed": 1}))
    lines = records(finished, "evaluation.jsonl")
    for line in lines:
        if (line["panel"], line["stage"]) == ("valid_unseen", "rl"):
            lost = [row for row in line["episodes"] if not row["won"]]
            lost[0]["won"] = True
    (workdir / "evaluation.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return workdir


def test_two_runs_are_compared_game_by_game(
    finished: Path, other: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    compare(finished, other)
    out = " ".join(capsys.readouterr().out.split())
    assert f"A: {finished} B: {other} config.seed: 0 (A), 1 (B)" in out
    assert "B, RL, step 2 minus A, RL, step 2, episode-weighted, paired over 4 games: +25.0 points" in out
    assert "(1 gained, 0 lost, 0 left out)" in out
    assert "paired over 4 games: +0.0 points, 95% interval [+0.0, +0.0]" in out  # valid_seen


def test_panels_with_other_games_are_named_and_the_others_compared(
    finished: Path, other: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = records(other, "evaluation.jsonl")
    changed = [line | {"hash": "f" * 64} if line["panel"] == "valid_seen" else line for line in lines]
    (other / "evaluation.jsonl").write_text("".join(json.dumps(line) + "\n" for line in changed))
    compare(finished, other)
    out = " ".join(capsys.readouterr().out.split())
    assert "valid_seen: other games in A than in B" in out and "and ffffffffffff), not compared" in out
    assert "Success on valid_unseen" in out and "Success on valid_seen in" not in out


def test_what_cannot_be_compared_is_one_sentence(finished: Path, other: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nowhere holds no measurement"):
        compare(finished, tmp_path / "nowhere")
    lines = records(other, "evaluation.jsonl")
    for line in lines:
        line["episodes"] = line["episodes"][1:]
    (other / "evaluation.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(ConfigError, match=r"panel valid_\w+ of .* are not over the same games"):
        compare(finished, other)
    (other / "evaluation.jsonl").write_text(json.dumps(lines[0] | {"panel": "train_probe"}) + "\n")
    with pytest.raises(ConfigError, match="there is nothing to compare"):
        compare(finished, other)
    for broken in ({"score": {}}, {"episodes": [{"won": True}]}, {"stage": "later"}, {"drawn": None}):
        (other / "evaluation.jsonl").write_text(json.dumps(lines[0] | broken) + "\n")
        with pytest.raises(ConfigError, match="a record that is no measurement of this version"):
            compare(finished, other)
    (other / "evaluation.jsonl").write_text("[]\n")
    with pytest.raises(ConfigError, match=r"evaluation\.jsonl line 1 is no record"):
        compare(finished, other)
    shutil.copy(finished / "evaluation.jsonl", other / "evaluation.jsonl")
    (other / "config.json").unlink()
    with pytest.raises(ConfigError, match="holds no settings of a run"):
        compare(finished, other)
