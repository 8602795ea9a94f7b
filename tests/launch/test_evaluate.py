"""The command line of launch/evaluate.py: three jobs, and what each refuses, in one sentence."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.launch.launching import python


def evaluate(*arguments: str) -> subprocess.CompletedProcess[str]:
    return python("launch/evaluate.py", *arguments)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--compare", "one"], "--compare needs two runs"),
        (["--compare", "one", "two", "--step=3"], "--step has no effect with --compare"),
        (["--compare", "one\nmore", "two"], "one more holds no measurement (evaluation.jsonl)"),
        (["--policy=planner", "--step=3"], "--step has no effect with --policy=planner"),
        (["--policy=planner", "--config=configs/alfworld.py", "--workdir=LICENSE/in"], "LICENSE/in"),
        (["--panel=valid_seen"], "--config is missing"),
        (["--policy=planner", "--panel=train,valid_seen"], "names several panels: this job plays one"),
        (["--policy=planner", "--panel=trian"], "--panel=trian is unknown: choose of train,"),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_2(arguments: list[str], named: str) -> None:
    result = evaluate(*arguments)
    assert result.returncode == 2, result.stderr
    assert named in result.stderr and result.stderr.count("\n") == 1


def test_the_planner_needs_no_run(tmp_path: Path) -> None:
    few = [f"--config.games.{split}=6" for split in ("train", "valid_seen", "valid_unseen")]
    arguments = ["--policy=planner", "--config=configs/alfworld.py", *few, f"--workdir={tmp_path}"]
    result = evaluate(*arguments, "--panel=train")
    assert result.returncode == 0, result.stderr
    assert "train: success 100.0%" in result.stdout and "handcoded*" in result.stdout
