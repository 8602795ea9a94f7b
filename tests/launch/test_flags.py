"""The command line as a user meets it: overrides work, a mistake ends as one sentence and exit code 2."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from rsipo_jax.validation import validated
from tests.launch.launching import python

CONFIG = "--config=configs/alfworld.py"
LAUNCHER = """
import dataclasses, json, sys
sys.path.insert(0, "launch")
from flags import run
def main(config, workdir):
    print(json.dumps({"workdir": str(workdir), "config": dataclasses.asdict(config)}))
run(main)
"""


def launch(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return python("-c", LAUNCHER, *arguments, **environment)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ([CONFIG, "--config.trian.steps=3"], ["config.trian.steps", "did you mean config.train.steps?"]),
        ([CONFIG, "--config.rollout.group_size=0"], ["config.rollout.group_size=0", "at least 2"]),
        ([CONFIG, "--config.train.steps=abc"], ["config.train.steps='abc'", "give a whole number"]),
        ([CONFIG, "--config.train=3"], ["config.train is a section", "config.train.steps"]),
        ([CONFIG, "--config.train.steps"], ["config.train.steps", "Missing value"]),
        ([CONFIG, "--config.eval.panels=test"], ["config.eval.panels=('test',)", "valid_unseen"]),
        ([CONFIG + ":huge"], ["'huge'", "choose one of tiny"]),
        (["--config=configs/alfwolrd.py"], ["configs/alfwolrd.py is not a file", "configs/alfworld.py"]),
        (["--config=LICENSE"], ["--config=LICENSE cannot be loaded"]),
        (["--config.train.steps=3", CONFIG], ["--config.train.steps=3", "give --config=FILE before it"]),
        ([], ["--config is missing", "--workdir"]),
        ([CONFIG, "--wrokdir=x"], ["wrokdir", "Did you mean: workdir"]),
        ([CONFIG, "tiny"], ["'tiny' is not a flag"]),
        (["--workdir=nowhere"], ["there is no run in nowhere", "give --config"]),
        (["--workdir=tests"], ["tests", "config.json", "give --config"]),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_2(arguments: list[str], named: list[str]) -> None:
    result = launch(*arguments)
    assert result.returncode == 2, result.stderr
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1 and result.stderr.endswith("\n")
    for words in named:
        assert words in result.stderr


def test_overrides_reach_main() -> None:
    result = launch(
        CONFIG + ":qwen2.5-3b",
        "--config.train.steps=7",
        "--config.train.learning_rate=1",
        "--noconfig.context.show_admissible",
        "--config.eval.panels=valid_unseen",
        "--workdir=somewhere",
    )
    assert result.returncode == 0, result.stderr
    seen = json.loads(result.stdout)
    config = validated(seen["config"])
    assert seen["workdir"] == "somewhere"
    assert config.model.checkpoint == "Qwen/Qwen2.5-3B-Instruct"
    assert (config.train.steps, config.train.learning_rate) == (7, 1.0)
    assert config.context.show_admissible is False
    assert config.eval.panels == ("valid_unseen",)


def test_a_workdir_brings_its_own_settings(tmp_path: Path) -> None:
    first = json.loads(launch(CONFIG, "--config.train.steps=7").stdout)
    (tmp_path / "config.json").write_text(json.dumps(first["config"]), encoding="utf-8")
    again = json.loads(launch(f"--workdir={tmp_path}").stdout)
    assert again == {"workdir": str(tmp_path), "config": first["config"]}


def test_the_default_workdir_belongs_to_one_set_of_settings() -> None:
    first, again, other = (
        json.loads(launch(CONFIG, override).stdout)["workdir"]
        for override in ("--config.seed=1", "--config.seed=1", "--config.seed=2")
    )
    assert first == again != other
    assert Path(first).parent == Path("runs")


def test_the_data_folder_of_the_environment_is_written_down(tmp_path: Path) -> None:
    named = json.loads(launch(CONFIG, ALFWORLD_DATA=str(tmp_path)).stdout)
    assert named["config"]["env"]["data"] == str(tmp_path)
    explicit = json.loads(launch(CONFIG, "--config.env.data=here", ALFWORLD_DATA=str(tmp_path)).stdout)
    assert explicit["config"]["env"]["data"] == "here"
