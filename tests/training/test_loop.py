"""A whole run on a very small network: same seed same bytes, a stopped run goes on."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import pytest

from rsipo_jax.training import loop
from rsipo_jax.training.checkpoint import Checkpoints
from rsipo_jax.validation import ConfigError
from tests.training.tiny_run import RECORDS, config, records


def test_the_same_seed_gives_the_same_records(finished: Path, tmp_path: Path) -> None:
    loop.run(config(), tmp_path)
    for name in RECORDS:
        assert records(tmp_path, name) == records(finished, name), name
    assert (tmp_path / "skills.jsonl").read_bytes() == (finished / "skills.jsonl").read_bytes()


def test_another_seed_gives_other_episodes(finished: Path, tmp_path: Path) -> None:
    loop.run(config(**{"seed": 1, "train.steps": 1}), tmp_path)
    assert records(tmp_path, "episodes.jsonl") != records(finished, "episodes.jsonl")[: 2 * 2]


def test_a_run_may_measure_the_drawn_panel(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its games differ before and after RL, so the two are shown side by side and not paired."""
    for name in ("games", "demonstrations", "tokenizer", "sft"):
        shutil.copytree(finished / name, tmp_path / name)
    loop.run(config(**{"train.steps": 1, "eval.panels": ("literature",), "eval.every": 0}), tmp_path)
    before, after = records(tmp_path, "evaluation.jsonl")
    assert before["hash"] != after["hash"] and len(after["episodes"]) == 128
    out = " ".join(capsys.readouterr().out.split())
    assert "Success on literature" in out and "128 draws with repetition" in out and "minus" not in out


def test_a_finished_run_has_nothing_to_do_and_says_its_result(
    finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {name: (finished / name).read_bytes() for name in RECORDS}
    loop.run(config(), finished)
    assert {name: (finished / name).read_bytes() for name in RECORDS} == before
    assert "RL minus SFT" in capsys.readouterr().out


def test_a_stopped_run_goes_on_to_the_same_records(finished: Path, tmp_path: Path) -> None:
    """The run is cut back to its first checkpoint, as if it had been killed during the second step."""
    workdir = tmp_path / "stopped"
    shutil.copytree(finished, workdir)
    checkpoints = Checkpoints(workdir)
    assert checkpoints.steps() == [1, 2]
    checkpoints.close()
    shutil.rmtree(workdir / "checkpoints" / "2")
    loop.run(config(), workdir)
    for name in RECORDS:
        assert records(workdir, name) == records(finished, name), name


def test_checkpoints_without_their_records_are_refused(finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished / "checkpoints", tmp_path / "checkpoints")
    with pytest.raises(ConfigError, match="holds checkpoints without the records of their run"):
        loop.run(config(), tmp_path)


def test_a_policy_is_not_taken_without_its_tokenizer(finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished / "sft", tmp_path / "sft")
    with pytest.raises(ConfigError, match=r"in sft/ without its tokenizer/: copy both"):
        loop.run(config(), tmp_path)


def test_other_settings_in_the_same_workdir_are_refused(finished: Path) -> None:
    other = dataclasses.replace(config(), method="grpo")
    with pytest.raises(ConfigError, match=r"method is 'grpo', but the run in .* was started with 'rsipo'"):
        loop.run(other, finished)


def test_a_run_goes_on_with_another_limit_of_drift(finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished, tmp_path / "run")
    loop.run(config(**{"rollout.max_drift": 0.5}), tmp_path / "run")
    assert json.loads((tmp_path / "run/config.json").read_text())["rollout"]["max_drift"] == 0.5
    assert records(tmp_path / "run", "log.jsonl") == records(finished, "log.jsonl")


def test_grpo_logs_the_same_but_for_skills(finished: Path, tmp_path: Path) -> None:
    loop.run(config(**{"method": "grpo", "train.steps": 1}), tmp_path)
    grpo, rsipo = records(tmp_path, "log.jsonl")[0], records(finished, "log.jsonl")[0]
    assert grpo.keys() < rsipo.keys()
    assert {"success", "length", "kl", "grad_norm"} <= grpo.keys()
    assert not {"gain_mean", "trust_mean", "valid_skills", "prior_mean"} & grpo.keys()
    assert not (tmp_path / "skills.jsonl").exists() or not (tmp_path / "skills.jsonl").read_text()
    # The same policy plays the same first step: skills do not touch it.
    for name in ("success", "length", "reward", "valid_actions"):
        assert grpo[name] == rsipo[name]
