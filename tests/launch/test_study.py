"""A study makes each run once, goes on where it was stopped, and outlives a run that fails."""

from __future__ import annotations

import fcntl
import json
import runpy
from collections.abc import Mapping
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import study
from rich.console import Console

from rsipo_jax.config import Config
from rsipo_jax.evaluation.study import summarize
from rsipo_jax.validation import ConfigError
from tests.launch.launching import ROOT, python
from tests.training.tiny_run import config, records

VARIANTS = {"grpo": {"method": "grpo"}, "rsipo": {"method": "rsipo", "train.steps": 2}}

# In place of launch/train.py: the same files with made-up numbers, and a list of what was called.
TRAINER = """
import json, os, sys
from pathlib import Path
sys.path[:0] = [{root!r}]
from tests.evaluation.study_records import write_run
workdir = Path(sys.argv[1].removeprefix("--workdir="))
out = workdir.parents[1]
name = str(workdir.relative_to(out))
with (out / "calls").open("a") as calls:
    print(name, file=calls)
config = json.loads((workdir / "config.json").read_text())
told = (out / "crash").read_text() if (out / "crash").exists() else ""
if told == name + " sentence":
    sys.exit("train.py: the disk is full: free some")
if told == name + " kill":
    os.kill(os.getpid(), 9)
if not config["train"]["steps"]:
    for part in ("games", "sft"):
        (workdir / part).mkdir()
        (workdir / part / "made").write_text(name)
    sys.exit()
assert (workdir / "sft" / "made").read_text() == "base/" + workdir.name
made = out / "made" / name
write_run(made, "01", "11", success=[0.5] * config["train"]["steps"])
for record in ("log", "episodes", "evaluation"):
    (made / (record + ".jsonl")).rename(workdir / (record + ".jsonl"))
"""


@pytest.fixture
def stub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "trainer.py"
    script.write_text(TRAINER.format(root=str(ROOT)))
    monkeypatch.setattr(study, "TRAIN", script)
    monkeypatch.setattr(study, "POLL", 0.02)


def run(
    out: Path,
    variants: Mapping[str, Mapping[str, Any]] = VARIANTS,
    seeds: tuple[int, ...] = (0, 1),
    jobs: int = 1,
    settings: Config | None = None,
) -> tuple[dict[str, str], str]:
    console = Console(file=StringIO(), width=200)
    failed = study.study("hand", settings or config(), variants, ["grpo"], seeds, out, jobs, console)
    assert isinstance(console.file, StringIO)
    return failed, console.file.getvalue()


def calls(out: Path) -> list[str]:
    return (out / "calls").read_text().split()


@pytest.mark.usefixtures("stub")
@pytest.mark.parametrize("jobs", [1, 3])
def test_every_run_is_made_once_after_what_it_shares(tmp_path: Path, jobs: int) -> None:
    out = tmp_path / "out"
    failed, said = run(out, jobs=jobs)
    assert not failed
    made = calls(out)
    assert sorted(made) == [f"{v}/seed{s}" for v in ("base", "grpo", "rsipo") for s in (0, 1)]
    for seed in (0, 1):
        assert made.index(f"base/seed{seed}") < min(made.index(f"{v}/seed{seed}") for v in VARIANTS)
    assert "6 to go" in said and "rsipo/seed1: done" in said and "| grpo | 2 |" in said
    assert (out / "results.md").exists() and (out / "success.svg").exists()
    settings = json.loads((out / "rsipo" / "seed1" / "config.json").read_text())
    assert (settings["method"], settings["seed"], settings["train"]["steps"]) == ("rsipo", 1, 2)
    # linked, not copied, and one cache for all
    assert (out / "rsipo/seed1/sft/made").samefile(out / "base/seed1/sft/made")
    assert (out / "rsipo/seed1/compiled").resolve() == (out / "compiled").resolve()


@pytest.mark.usefixtures("stub")
def test_a_finished_study_runs_nothing_and_more_seeds_only_what_is_new(tmp_path: Path) -> None:
    out = tmp_path / "out"
    run(out, seeds=(0,))
    before = (out / "results.json").read_bytes()
    failed, said = run(out, seeds=(0,))
    assert not failed and len(calls(out)) == 3 and "3 of 3 runs are done" in said
    assert (out / "results.json").read_bytes() == before
    run(out, seeds=(1,), variants={"grpo": VARIANTS["grpo"]})
    assert calls(out)[3:] == ["base/seed1", "grpo/seed1"]
    assert summarize(out)["runs"] == {
        "grpo": {"0": "finished", "1": "finished"},
        "rsipo": {"0": "finished", "1": "missing"},
    }


@pytest.mark.usefixtures("stub")
@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        ("sentence", "train.py: the disk is full: free some (exit code 1; see "),
        ("kill", "ended by signal 9 (SIGKILL)"),
    ],
)
def test_a_run_that_fails_is_one_sentence_and_the_others_go_on(
    tmp_path: Path, how: str, sentence: str
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "crash").write_text(f"grpo/seed0 {how}")
    failed, said = run(out)
    assert failed.keys() == {"grpo/seed0"} and failed["grpo/seed0"].startswith(sentence)
    assert f"grpo/seed0 failed: {sentence}" in said
    assert len(calls(out)) == 6
    (out / "crash").unlink()
    assert not run(out)[0]
    assert calls(out)[6:] == ["grpo/seed0"]


@pytest.mark.usefixtures("stub")
def test_without_what_is_shared_no_run_of_that_seed_starts(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "crash").write_text("base/seed0 sentence")
    failed, _ = run(out)
    assert failed.keys() == {"base/seed0", "grpo/seed0", "rsipo/seed0"}
    assert failed["rsipo/seed0"] == "not started, because base/seed0 failed"
    assert calls(out) == ["base/seed0", "base/seed1", "grpo/seed1", "rsipo/seed1"]


@pytest.mark.usefixtures("stub")
def test_other_settings_are_refused_before_anything_runs(tmp_path: Path) -> None:
    out = tmp_path / "out"
    run(out, seeds=(0,))
    manifest = (out / "study.json").read_bytes()
    for settings, variants, named in (
        (config(**{"games.train": 13}), VARIANTS, r"games\.train is 13, but the run in .*base/seed0"),
        (
            config(),
            {**VARIANTS, "rsipo": {"method": "rsipo", "skill.eta": 0.5}},
            "skill.eta is 0.5, but .*rsipo/seed0",
        ),
    ):
        with pytest.raises(ConfigError, match=named):
            run(out, variants, (0, 1), settings=settings)
    assert len(calls(out)) == 3 and (out / "study.json").read_bytes() == manifest


@pytest.mark.usefixtures("stub")
@pytest.mark.parametrize(
    ("path", "written", "named"),
    [
        ("study.json", "{", r"study\.json is not as launch/study\.py writes it"),
        ("grpo/seed0/config.json", "{", r"grpo/seed0/config\.json holds no settings of a run"),
        (
            "grpo/seed0/evaluation.jsonl",
            "{\n",
            r"grpo/seed0 holds damaged records \(.*evaluation\.jsonl line 1",
        ),
        ("grpo/seed0/evaluation.jsonl", '{"step": 0}\n', r"grpo/seed0 holds damaged records \('stage'\)"),
    ],
)
def test_damaged_files_are_one_sentence_before_anything_runs(
    tmp_path: Path, path: str, written: str, named: str
) -> None:
    out = tmp_path / "out"
    run(out, seeds=(0,))
    (out / path).write_text(written)
    with pytest.raises(ConfigError, match=named):
        run(out)
    assert len(calls(out)) == 3


@pytest.mark.parametrize(
    ("variants", "named"),
    [
        ({"a": {"skill.etta": 1.0}}, "did you mean config.skill.eta"),
        (
            {"a": {"context.parser": "faithful"}},
            r"changes config\.context\.parser, which all variants of a seed share",
        ),
        ({"a": {"eval.temperature": 0.0}}, r"changes config\.eval\.temperature"),
        ({"a": {"skill.max_new_tokens": 3}}, r"changes config\.skill\.max_new_tokens"),
        ({"base": {}}, "'base' cannot be a folder beside 'base'"),
        ({"../a": {}}, "name it with letters"),
        ({"a": {"method": "grop"}}, r"config\.method='grop' is unknown: choose one of"),
    ],
)
def test_a_variant_that_is_none_is_one_sentence(
    tmp_path: Path, variants: Mapping[str, Mapping[str, Any]], named: str
) -> None:
    with pytest.raises(ConfigError, match=named):
        study.plan(config(), variants, [0], tmp_path)


def test_a_base_for_another_method_is_no_obstacle_but_a_variant_is_strict(tmp_path: Path) -> None:
    base = config(**{"skill.replays": 2, "trust.unit": "skill", "loss.distill": 3.0})
    runs = {run.name: run.config for run in study.plan(base, VARIANTS, [0], tmp_path)}
    assert (runs["grpo/seed0"].skill.replays, runs["rsipo/seed0"].skill.replays) == (1, 2)
    assert runs["grpo/seed0"].trust.unit == "task" and runs["grpo/seed0"].loss.distill == 3.0
    with pytest.raises(
        ConfigError, match=r"config\.skill\.replays=2 has no effect when config\.method='grpo'"
    ):
        study.plan(base, {"a": {"method": "grpo", "skill.replays": 2}}, [0], tmp_path)


def test_a_study_needs_a_panel(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"config\.eval\.panels is empty"):
        study.plan(config(**{"eval.panels": ()}), VARIANTS, [0], tmp_path)


@pytest.mark.usefixtures("stub")
def test_a_folder_in_use_is_refused(tmp_path: Path) -> None:
    with (tmp_path / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(ConfigError, match=r"is in use by another launch/study\.py"):
            run(tmp_path)
    assert not run(tmp_path, seeds=(0,))[0]


@pytest.mark.parametrize(
    ("launcher", "arguments", "named"),
    [
        (
            "study",
            ["--config=configs/alfworld.py", "--study=misled", "--out=x"],
            "choose one of tiny_methods, misleading",
        ),
        ("study", ["--study=misleading", "--out=x"], "needs --config=FILE and --out=FOLDER"),
        ("report", ["--study=tests"], "tests/study.json cannot be read: name the --out"),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_2(launcher: str, arguments: list[str], named: str) -> None:
    result = python(f"launch/{launcher}.py", *arguments)
    assert result.returncode == 2, result.stderr
    assert named in result.stderr and result.stderr.count("\n") == 1


@pytest.mark.parametrize("name", ["tiny_methods", "misleading"])
def test_the_studies_are_runs(name: str, tmp_path: Path) -> None:
    table = runpy.run_path(str(ROOT / "configs" / "studies.py"))
    variants = table["STUDIES"][name](config())
    runs = study.plan(config(), variants, [0], tmp_path)
    assert len({str(run.config) for run in runs}) == len(runs)  # no two are the same


def test_the_budget_of_grpo_is_that_of_the_replays() -> None:
    table = runpy.run_path(str(ROOT / "configs" / "studies.py"))
    variants = table["STUDIES"]["tiny_methods"](config(**{"train.steps": 7, "skill.replays": 2}))
    assert variants["grpo_budget"] == {"method": "grpo", "train.steps": 21}
    half = config(**{"train.steps": 7, "skill.replays": 4, "skill.per_task": 1, "skill.adv_group": "batch"})
    assert table["STUDIES"]["tiny_methods"](half)["grpo_budget"]["train.steps"] == 7 + 7 * 4 // 2


@pytest.mark.slow
def test_two_methods_by_two_seeds(tmp_path: Path) -> None:
    """Real runs: one SFT policy a seed, the numbers of a run by itself, and a stopped run that goes on to the same."""
    out, few = tmp_path / "out", config(**{"eval.every": 0, "train.steps": 1})
    variants = {"grpo": {"method": "grpo"}, "rsipo": {"method": "rsipo"}}
    failed, said = run(out, variants, settings=few)
    assert not failed and said.count("done (") == 6
    for seed in ("seed0", "seed1"):
        grpo, rsipo = (records(out / name / seed, "evaluation.jsonl") for name in variants)
        assert grpo[:2] == rsipo[:2] and {r["stage"] for r in grpo[:2]} == {"sft"}
    alone = tmp_path / "alone"
    alone.mkdir()
    (alone / "config.json").write_bytes((out / "rsipo" / "seed1" / "config.json").read_bytes())
    assert python("launch/train.py", f"--workdir={alone}", timeout=600).returncode == 0
    for name in ("log.jsonl", "episodes.jsonl", "evaluation.jsonl"):
        assert records(alone, name) == records(out / "rsipo" / "seed1", name), name
    kept = {path: path.read_bytes() for path in out.rglob("*.jsonl")}
    stopped = out / "grpo" / "seed0" / "evaluation.jsonl"
    lines = stopped.read_bytes().splitlines(keepends=True)
    stopped.write_bytes(b"".join(lines[:-1]))  # as if it had been killed during its last measurement
    assert not run(out, variants, settings=few)[0]
    assert {path: path.read_bytes() for path in out.rglob("*.jsonl")} == kept
