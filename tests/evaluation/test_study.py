"""A study is read from its records: what is there is counted, what is not is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from rsipo_jax.evaluation.study import finished, summarize
from rsipo_jax.reports.study import markdown
from rsipo_jax.validation import ConfigError
from tests.evaluation.study_records import write_run, write_study


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_study(tmp_path, {"grpo": {"method": "grpo"}, "rsipo": {"method": "rsipo"}, "late": {}}, [0, 1])
    write_run(tmp_path / "grpo" / "seed0", "0000", "1000")
    write_run(tmp_path / "grpo" / "seed1", "0001", "1010")
    write_run(tmp_path / "rsipo" / "seed0", "0000", "1110", replays=2, trust=(0.2, 0.4))
    write_run(tmp_path / "rsipo" / "seed1", "0001", "x011", replays=1, trust=(None, 0.8))
    write_run(tmp_path / "late" / "seed0", "0000", success=(0.5,))
    return tmp_path


def test_success_and_differences_by_hand(folder: Path) -> None:
    panel = summarize(folder)["panels"]["valid_seen"]
    assert panel["sft"]["success"]["per_seed"] == (0, 1 / 4)
    assert panel["rl"]["grpo"]["success"]["per_seed"] == (1 / 4, 2 / 4)
    assert panel["rl"]["rsipo"]["success"]["per_seed"] == pytest.approx((3 / 4, 2 / 3))
    assert panel["rl"]["rsipo"]["success_macro"]["per_seed"] == pytest.approx(
        ((1 + 1 / 2) / 2, (1 + 1 / 2) / 2)
    )
    minus = panel["minus"]["rsipo"]["grpo"]["success"]
    assert minus["per_seed"] == pytest.approx((2 / 4, 1 / 3))  # seed 1: +0, +0, +1 of its three valid pairs
    assert minus["episodes"] == 7 and minus["low"] <= minus["mean"] <= minus["high"]
    assert panel["minus"]["grpo"] == {}


def test_what_it_took(folder: Path) -> None:
    use = summarize(folder)["use"]
    assert use["grpo"] == {
        "steps": 2, "student_episodes": 4, "episodes": 4, "seconds": 5, "seconds_per_step": 2.5,
        "trust_mean": None, "valid_skills": None, "gain_mean": None,
    }  # fmt: skip
    assert use["rsipo"]["student_episodes"] == 4
    assert use["rsipo"]["episodes"] == (8 + 6) / 2
    assert use["rsipo"]["trust_mean"] == pytest.approx({"mean": (0.3 + 0.8) / 2, "last": (0.3 + 0.8) / 2})


def test_curves_count_every_episode_played(folder: Path) -> None:
    curve = summarize(folder)["curves"]["rsipo"]["0"]
    assert (curve["step"], curve["episodes"]) == ([1, 2], [4, 8])
    assert curve["success"] == [0.25, 0.5]
    assert curve["during"] == [{"step": 1, "episodes": 4, "success": 0.0}]


def test_what_is_missing_is_named_and_takes_no_part(folder: Path) -> None:
    results = summarize(folder)
    assert results["runs"]["late"] == {"0": "stopped after step 1 of 2", "1": "missing"}
    assert results["runs"]["rsipo"] == {"0": "finished", "1": "finished"}
    panel = results["panels"]["valid_seen"]
    assert panel["rl"]["late"] is None and panel["minus"]["late"]["grpo"] is None
    assert results["use"]["late"] is None
    assert results["curves"]["late"].keys() == {"0"}  # drawn as far as it went


def test_other_games_are_not_compared(folder: Path) -> None:
    write_run(folder / "late" / "seed1", "00000", "11111")
    minus = summarize(folder)["panels"]["valid_seen"]["minus"]["late"]["grpo"]
    assert minus is None


def test_a_run_is_finished_when_all_its_panels_are_measured_again(folder: Path) -> None:
    run = folder / "grpo" / "seed0"
    assert finished(run)
    assert not finished(folder / "late" / "seed0") and not finished(folder / "late" / "seed1")
    log = run / "evaluation.jsonl"
    log.write_bytes(log.read_bytes().replace(b'"rl"', b'"during"'))
    assert not finished(run)


@pytest.mark.parametrize(("method", "stage"), [("vanilla", "sft"), ("skill_prompt", "sft*")])
def test_a_method_that_trains_nothing_is_finished_when_it_is_measured(
    folder: Path, method: str, stage: str
) -> None:
    write_run(folder / "late" / "seed1", "0001", success=(), method=method)
    log = folder / "late" / "seed1" / "evaluation.jsonl"
    measured = log.read_bytes().split(b"\n")[0].replace(b'"sft"', f'"{stage}"'.encode())
    log.write_bytes(b"")
    assert not finished(log.parent)
    log.write_bytes(measured + b"\n")
    assert finished(log.parent)
    results = summarize(folder)
    panel = results["panels"]["valid_seen"]
    assert panel["rl"]["late"]["success"]["per_seed"] == (1 / 4,)
    assert panel["sft"]["success"]["per_seed"] == (0, 1 / 4)
    assert panel["minus"]["late"]["grpo"]["success"]["per_seed"] == pytest.approx((1 / 4 - 2 / 4,))
    assert (results["use"]["late"]["steps"], results["use"]["late"]["seconds_per_step"]) == (0, 0)


def test_no_study_and_damaged_records_are_one_sentence(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"study\.json cannot be read: name the --out"):
        summarize(tmp_path / "nowhere")
    (folder / "grpo" / "seed0" / "log.jsonl").write_text("{\n")
    with pytest.raises(ConfigError, match=r"grpo/seed0 holds damaged records \(.*log\.jsonl line 1"):
        summarize(folder)


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("log", '{"step": 1, "success": NaN, "seconds": {}}'),
        ("log", '{"step": 1, "success": "high", "seconds": {}}'),
        ("log", '{"step": 1, "success": 0.5, "seconds": 3}'),
        ("evaluation", '{"step": 0}'),
        ("evaluation", '{"step": 0, "stage": "sft", "panel": "p", "hash": "", "episodes": [{"foo": 1}]}'),
        ("evaluation", '{"step": 0, "stage": "sft", "panel": "p", "hash": ""}'),
        ("episodes", '{"step": 1}'),
    ],
)
def test_records_of_something_else_are_one_sentence(folder: Path, name: str, written: str) -> None:
    (folder / "grpo" / "seed0" / f"{name}.jsonl").write_text(written + "\n")
    with pytest.raises(ConfigError, match=r"grpo/seed0 holds damaged records \(.*\): repair"):
        summarize(folder)


@pytest.mark.parametrize(
    "written",
    ["{", "[]", "{}", '{"studies": [], "references": 5, "seeds": [], "variants": {}}',
     '{"studies": [], "references": [], "seeds": ["0"], "variants": {}}',
     '{"studies": [], "references": [], "seeds": [], "variants": {"a": []}}'],
)  # fmt: skip
def test_a_manifest_of_something_else_is_one_sentence(folder: Path, written: str) -> None:
    (folder / "study.json").write_text(written)
    with pytest.raises(ConfigError, match=r"study\.json is not as launch/study\.py writes it"):
        summarize(folder)


def test_runs_without_rl_steps_are_reported(tmp_path: Path) -> None:
    write_study(tmp_path, {"grpo": {}}, [0])
    write_run(tmp_path / "grpo" / "seed0", "01", "01", success=())
    (tmp_path / "grpo" / "seed0" / "config.json").write_text('{"method": "grpo", "train": {"steps": 0}}')
    log = tmp_path / "grpo" / "seed0" / "evaluation.jsonl"
    log.write_text(log.read_text().replace('{"step": 2,', '{"step": 0,'))
    results = summarize(tmp_path)
    assert results["runs"]["grpo"] == {"0": "finished"} and results["use"]["grpo"]["seconds_per_step"] == 0
    assert "| grpo | 1 | 50.0 " in markdown(results)
