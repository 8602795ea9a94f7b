"""A whole run of searching on a very small network, through the same loop as ALFWorld's."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from rsipo_jax.envs.search.encyclopedia import KINDS
from rsipo_jax.training import loop
from rsipo_jax.training.evaluate import evaluate, evaluate_planner
from rsipo_jax.validation import ConfigError
from tests.training.tiny_run import RECORDS, config, records, search_config


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    workdir = tmp_path_factory.mktemp("search")
    loop.run(search_config(), workdir)
    return workdir


def test_a_run_learns_searching_with_the_same_records_as_alfworld(finished: Path, searched: Path) -> None:
    for name in RECORDS:
        assert records(searched, name)[0].keys() == records(finished, name)[0].keys(), name
    sft, *during, rl = records(searched, "evaluation.jsonl")
    assert [(r["panel"], r["stage"], r["step"]) for r in (sft, *during, rl)] == [
        ("test", "sft", 0), ("dev_during", "during", 1), ("dev_during", "during", 2), ("test", "rl", 2)
    ]  # fmt: skip
    assert (
        set(sft["score"]["kinds"]) == set(KINDS)
        and sft["hash"] == rl["hash"]
        and sft["score"]["episodes"] == 8
    )
    assert all(episode["optimal"] in (2, 3, 4) for episode in sft["episodes"])


def test_a_stopped_run_goes_on_to_the_same_records(searched: Path, tmp_path: Path) -> None:
    workdir = tmp_path / "stopped"
    shutil.copytree(searched, workdir)
    shutil.rmtree(workdir / "checkpoints" / "2")
    loop.run(search_config(), workdir)
    for name in RECORDS:
        assert records(workdir, name) == records(searched, name), name


def test_several_panels_are_measured_with_their_mean_and_what_the_retriever_finds(
    searched: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evaluate(search_config(), searched, ["dev", "test"], -1)
    out = " ".join(capsys.readouterr().out.split())
    assert out.count("equal to the run's own record") == 1 and out.count("no record of this panel") == 1
    assert (
        "dev: one search with the question itself" in out and "of 8 questions whose passages are known" in out
    )
    assert "mean of the 2 panels: success" in out
    with pytest.raises(ConfigError, match=r"'search' has no planner"):
        evaluate_planner(search_config(), searched, "test")


def test_a_run_whose_retriever_finds_nothing_starts_from_the_same_policy(
    searched: Path, tmp_path: Path
) -> None:
    for name in ("search", "tokenizer", "sft"):
        shutil.copytree(searched / name, tmp_path / name)
    loop.run(search_config(**{"search.retriever": "none", "sft.games": 0, "train.steps": 1}), tmp_path)
    assert {record["hash"] for record in records(tmp_path, "evaluation.jsonl")} >= {
        records(searched, "evaluation.jsonl")[0]["hash"]
    }


def test_real_questions_have_no_demonstrations_and_the_encyclopaedia_only_its_own_settings(
    searched: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "questions" / "nq"
    folder.mkdir(parents=True)
    for split in ("train", "test"):
        (folder / f"{split}.jsonl").write_text('{"id": "1", "question": "who", "golden_answers": ["a"]}\n')
    (tmp_path / "corpus.jsonl").write_text('{"id": "0", "contents": "T\\ntext"}\n')
    real = {"search.questions": str(tmp_path / "questions"), "search.corpus": str(tmp_path / "corpus.jsonl")}
    with pytest.raises(ConfigError, match=r"config.sft.games=8, but nobody knows the searches that answer"):
        loop.run(search_config(**real, **{"eval.panels": ("nq",)}), tmp_path / "run")
    shutil.copytree(searched / "search", tmp_path / "other" / "search")
    with pytest.raises(ConfigError, match="search"):
        loop.run(search_config(**{"search.people": 30}), tmp_path / "other")
    with pytest.raises(ConfigError, match=r"config.eval.panels=.*must name different panels of valid_seen"):
        config(**{"eval.panels": ("test",)})
