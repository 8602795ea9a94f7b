"""A whole run on a very small network: same seed same bytes, evaluation repeats itself, a stopped run goes on."""

from __future__ import annotations

import dataclasses
import json
import runpy
import shutil
from pathlib import Path

import pytest

from rsipo_jax.config import Config
from rsipo_jax.reports.run_log import TIMINGS
from rsipo_jax.training import loop
from rsipo_jax.training.checkpoint import Checkpoints
from rsipo_jax.validation import ConfigError, validated

ALFWORLD = runpy.run_path(str(Path(__file__).parents[2] / "configs" / "alfworld.py"))


def config(**changes: object) -> Config:
    """`tiny` made tiny: two steps of two tasks with two rollouts."""
    small = ALFWORLD["get_config"]("tiny")
    small.update_from_flattened_dict(
        {
            "games.train": 12,
            "games.valid_seen": 4,
            "games.valid_unseen": 4,
            "model.hidden_size": 32,
            "model.intermediate_size": 64,
            "model.num_layers": 2,
            "env.max_turns": 4,
            "rollout.tasks_per_step": 2,
            "rollout.group_size": 2,
            "rollout.slots": 4,
            "skill.max_new_tokens": 48,
            "sft.games": 6,
            "sft.epochs": 1,
            "train.steps": 2,
            "train.checkpoint_every": 1,
            "eval.every": 1,
            "eval.during": 2,
            "trust.min_units": 2,
            **changes,
        }
    )
    return validated(small)


def records(workdir: Path, name: str) -> list[dict]:
    lines = [json.loads(line) for line in (workdir / name).read_text().splitlines()]
    return [{key: value for key, value in line.items() if key not in TIMINGS} for line in lines]


RECORDS = ("log.jsonl", "episodes.jsonl", "skills.jsonl", "evaluation.jsonl")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    workdir = tmp_path_factory.mktemp("run")
    loop.run(config(), workdir)
    return workdir


def test_the_same_seed_gives_the_same_records(finished: Path, tmp_path: Path) -> None:
    loop.run(config(), tmp_path)
    for name in RECORDS:
        assert records(tmp_path, name) == records(finished, name), name
    assert (tmp_path / "skills.jsonl").read_bytes() == (finished / "skills.jsonl").read_bytes()


def test_another_seed_gives_other_episodes(finished: Path, tmp_path: Path) -> None:
    loop.run(config(**{"seed": 1, "train.steps": 1}), tmp_path)
    assert records(tmp_path, "episodes.jsonl") != records(finished, "episodes.jsonl")[: 2 * 2]


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


def test_evaluation_repeats_the_recorded_result(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for step in (-1, 0):
        loop.evaluate(config(), finished, "valid_unseen", step)
        out = capsys.readouterr().out
        recorded = next(
            r
            for r in records(finished, "evaluation.jsonl")
            if r["panel"] == "valid_unseen" and r["step"] == (2 if step else 0)
        )
        assert "equal to the run's own record" in out
        assert recorded["hash"] in out


def test_a_checkpoint_that_is_not_there_is_one_sentence(finished: Path) -> None:
    with pytest.raises(ConfigError, match=r"no checkpoint of step 7: choose --step from \[0, 1, 2\]"):
        loop.evaluate(config(), finished, "valid_unseen", 7)


def test_checkpoints_without_their_records_are_refused(finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished / "checkpoints", tmp_path / "checkpoints")
    with pytest.raises(ConfigError, match="holds checkpoints without the records of their run"):
        loop.run(config(), tmp_path)


def test_a_policy_is_not_taken_without_its_tokenizer(finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished / "sft", tmp_path / "sft")
    with pytest.raises(ConfigError, match=r"in sft/ without its tokenizer/: copy both"):
        loop.run(config(), tmp_path)


def test_there_is_nothing_to_evaluate_before_sft(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has no policy yet"):
        loop.evaluate(config(), tmp_path, "valid_unseen", -1)
    assert not list(tmp_path.iterdir())


def test_other_settings_in_the_same_workdir_are_refused(finished: Path) -> None:
    other = dataclasses.replace(config(), method="grpo")
    with pytest.raises(ConfigError, match=r"method is 'grpo', but the run in .* was started with 'rsipo'"):
        loop.run(other, finished)


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
