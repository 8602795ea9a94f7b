"""A study's folder as its runs leave it, written by hand."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rsipo_jax.envs.protocol import Task
from rsipo_jax.evaluation.panels import make_panel
from rsipo_jax.evaluation.scores import EpisodeScore, score
from rsipo_jax.reports.records import encode_line

STEPS = 2


def episodes(outcomes: str) -> list[EpisodeScore]:
    """One game a letter: 1 won, 0 lost, x void (which says it was won); even games "pick", odd ones "heat"."""
    return [
        EpisodeScore(f"g{i}", ("pick", "heat")[i % 2], o != "0", 5, 0, "worker died" if o == "x" else "")
        for i, o in enumerate(outcomes)
    ]


def write_study(folder: Path, variants: Mapping[str, Mapping[str, Any]], seeds: Sequence[int]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    study = {"studies": ["hand"], "references": ["grpo"], "seeds": [*seeds], "variants": variants}
    (folder / "study.json").write_text(json.dumps(study))


def write_run(
    workdir: Path,
    sft: str,
    rl: str = "",
    success: Sequence[float] = (0.25, 0.5),
    replays: int = 0,
    trust: Sequence[float | None] = (),
    method: str = "rsipo",
) -> None:
    """A run with 2 student episodes a step and `replays` replays; without `rl` its last measurement is not made."""
    workdir.mkdir(parents=True)
    settings = {"method": method, "train": {"steps": STEPS}, "eval": {"panels": ["valid_seen"]}}
    (workdir / "config.json").write_text(json.dumps(settings))
    log = [
        {"step": step, "success": s, "seconds": {"a": 1.0, "b": step}} for step, s in enumerate(success, 1)
    ]
    for record, weight in zip(log, trust, strict=False):
        if weight is not None:
            record |= {"trust_mean": weight, "valid_skills": 0.5, "gain_mean": 0.1}
    played = [
        {"step": record["step"], "role": role}
        for record in log
        for role in ["act"] * 2 + ["replay"] * replays
    ]
    measured = [evaluation(0, "sft", sft), evaluation(1, "during", sft[:2], "during")]
    measured += [evaluation(STEPS, "rl", rl)] if rl else []
    for name, rows in (("log", log), ("episodes", played), ("evaluation", measured)):
        (workdir / f"{name}.jsonl").write_bytes(b"".join(map(encode_line, rows)))


def evaluation(step: int, stage: str, outcomes: str, name: str = "valid_seen") -> dict[str, Any]:
    rows = episodes(outcomes)
    panel = make_panel(name, [Task(row.task_id, row.kind, "s") for row in rows])
    measured = {"step": step, "stage": stage, "panel": name, "hash": panel.hash, "drawn": ""}
    scored = score(panel, rows).record()
    return {**measured, "score": scored, "episodes": [dataclasses.asdict(row) for row in rows]}
