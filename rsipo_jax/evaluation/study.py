"""A study, from the records of its runs: FOLDER/study.json names variants and seeds, FOLDER/VARIANT/seedN are workdirs.

Everything here is a function of these records; a run that is missing or not finished is named as such and left out of what
it has no part in.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from rsipo_jax.evaluation.scores import EpisodeScore
from rsipo_jax.evaluation.seeds import Key, differences, kinds, mean_over_seeds, wins
from rsipo_jax.methods import METHODS
from rsipo_jax.reports.curves import WINDOW
from rsipo_jax.reports.records import read_records
from rsipo_jax.validation import ConfigError

MANIFEST = "study.json"
SKILL_METRICS = ("trust_mean", "valid_skills", "gain_mean")
Record = dict[str, Any]


def workdir_of(folder: Path, variant: str, seed: int) -> Path:
    return folder / variant / f"seed{seed}"


def finished(workdir: Path) -> bool:
    """Whether every panel that the run measured before RL is measured after its last step.

    A run that trains nothing has finished when each panel of its settings is measured. Raises ConfigError for a damaged
    record.
    """
    with _damage_named(workdir):
        settings = _settings(workdir)
        if not settings:
            return False
        evaluations = read_records(workdir / "evaluation.jsonl")
        last = {r["panel"] for r in evaluations if r["stage"] == _last_stage(settings)}
        if not METHODS[settings["method"]].trains:
            return bool(last) and last == set(settings["eval"]["panels"])
        steps = settings["train"]["steps"]
        before = {r["panel"] for r in evaluations if r["stage"] == "sft"}
        after = {r["panel"] for r in evaluations if (r["stage"], r["step"]) == ("rl", steps)}
        return bool(before) and before == after


def _last_stage(settings: Record) -> str:
    method = METHODS[settings["method"]]
    return "rl" if method.trains else "sft*" if method.skill_at_test else "sft"


@contextmanager
def _damage_named(workdir: Path) -> Iterator[None]:
    """What reading a run's records raises when they are not a run log's becomes a ConfigError."""
    try:
        yield
    except ConfigError:
        raise
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ConfigError(
            f"{workdir} holds damaged records ({error}): repair them, or delete the folder and run its study again"
        ) from error


def summarize(folder: Path) -> Record:
    """The results of a study as plain JSON values. Raises ConfigError when there is no study or a record is damaged."""
    try:
        study = read_manifest(folder)
        return _results(
            study,
            {
                name: {seed: _run(workdir_of(folder, name, seed)) for seed in study["seeds"]}
                for name in study["variants"]
            },
        )
    except OSError as error:
        raise ConfigError(
            f"{error.filename} cannot be read: name the --out of an earlier launch/study.py"
        ) from error


def read_manifest(folder: Path) -> Record:
    """What the folder's study.json says. Raises ConfigError when it is damaged, OSError when there is none."""
    path = folder / MANIFEST
    try:
        study = json.loads(path.read_text(encoding="utf-8"))
        whole = isinstance(study["variants"], dict) and all(
            isinstance(changes, dict) for changes in study["variants"].values()
        )
        for name, kind in (("studies", str), ("references", str), ("seeds", int)):
            whole &= isinstance(study[name], list) and all(type(value) is kind for value in study[name])
    except (KeyError, TypeError, ValueError):
        whole = False
    if not whole:
        raise ConfigError(
            f"{path} is not as launch/study.py writes it: delete it and run the study again, which keeps its finished runs"
        )
    return study


def _results(study: Mapping[str, Any], runs: Mapping[str, Mapping[int, Record]]) -> Record:
    panels = sorted(
        {panel for seeds in runs.values() for run in seeds.values() for panel in (*run["sft"], *run["rl"])}
    )
    start: dict[int, Record] = {}  # of a seed, measured by each of its runs from the same policy
    for seeds in runs.values():
        for seed, run in seeds.items():
            if run["sft"]:
                start.setdefault(seed, run["sft"])
    return {
        **study,
        "panels": {
            panel: {
                "sft": _success(list(start.values()), panel),
                "rl": {
                    name: _success([run["rl"] for run in seeds.values()], panel)
                    for name, seeds in runs.items()
                },
                "minus": {
                    name: {
                        reference: _minus(seeds, runs[reference], panel)
                        for reference in study["references"]
                        if reference in runs and reference != name
                    }
                    for name, seeds in runs.items()
                },
            }
            for panel in panels
        },
        "runs": {
            name: {str(seed): run["state"] for seed, run in seeds.items()} for name, seeds in runs.items()
        },
        "use": {name: _use([run for run in seeds.values() if run["done"]]) for name, seeds in runs.items()},
        "curves": {
            name: {str(seed): run["curve"] for seed, run in seeds.items() if run["curve"]["step"]}
            for name, seeds in runs.items()
        },
    }


def _run(workdir: Path) -> Record:
    """What one workdir holds; nothing measured when it is not there. Raises ConfigError for a damaged record."""
    with _damage_named(workdir):
        return _recorded(workdir)


def _recorded(workdir: Path) -> Record:
    log = read_records(workdir / "log.jsonl")
    evaluations = read_records(workdir / "evaluation.jsonl")
    roles = Counter((r["step"], r["role"]) for r in read_records(workdir / "episodes.jsonl"))
    settings, done = _settings(workdir), finished(workdir)
    episodes = {role: [roles[r["step"], role] for r in log] for role in ("act", "replay")}
    total = np.cumsum(np.add(episodes["act"], episodes["replay"])).astype(int).tolist()
    during = [(r["step"], r["score"]["success"]) for r in evaluations if r["stage"] == "during"]
    played = {r["step"]: count for r, count in zip(log, total, strict=True)}
    return {
        "done": done,
        "state": "finished"
        if done
        else f"stopped after step {len(log)} of {settings['train']['steps']}"
        if settings
        else "missing",
        "sft": _measured(evaluations, "sft"),
        "rl": _measured(evaluations, _last_stage(settings)) if done else {},
        "student_episodes": sum(episodes["act"]),
        "replays": sum(episodes["replay"]),
        "seconds": [sum(r["seconds"].values()) for r in log],
        "curve": {
            "step": [r["step"] for r in log],
            "episodes": total,
            **{name: [_known(r.get(name), name) for r in log] for name in ("success", *SKILL_METRICS)},
            "during": [
                {"step": step, "episodes": played[step], "success": success}
                for step, success in during
                if step in played
            ],
        },
    }


def _settings(workdir: Path) -> Record:
    """The settings of a run, {} when there is none."""
    path = workdir / "config.json"
    settings: Record = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return settings


def _known(value: Any, name: str) -> Any:
    if value is not None and not (isinstance(value, int | float) and math.isfinite(value)):
        raise ValueError(f"the log's {name} is {value!r}")
    return value


def _measured(evaluations: Sequence[Record], stage: str) -> Record:
    """Of each panel what the tables read of its measurement: its games' hash, and its episodes."""
    return {
        r["panel"]: {"hash": r["hash"], "episodes": [EpisodeScore(**row) for row in r["episodes"]]}
        for r in evaluations
        if r["stage"] == stage
    }


def _success(measured: Sequence[Mapping[str, Any]], panel: str) -> Record | None:
    """Success on a panel over the seeds that measured it, None when none did."""
    seeds = [of_seed[panel]["episodes"] for of_seed in measured if panel in of_seed]
    return _two_averages([wins(seed) for seed in seeds], kinds(seeds))


def _minus(runs: Mapping[int, Record], reference: Mapping[int, Record], panel: str) -> Record | None:
    """Success minus the reference's, over the seeds in which both played the same games; None when there is none."""
    pairs = []
    for seed, run in runs.items():
        first, second = reference[seed]["rl"].get(panel), run["rl"].get(panel)
        if first and second and first["hash"] == second["hash"]:
            pairs.append((first["episodes"], second["episodes"]))
    scores = [differences(first, second) for first, second in pairs]
    return _two_averages(scores, kinds([first for first, _ in pairs]))


def _two_averages(seeds: Sequence[Mapping[Key, float]], kind_of: Mapping[Key, str]) -> Record | None:
    if not any(seeds):
        return None
    return {
        "success": dataclasses.asdict(mean_over_seeds(seeds)),
        "success_macro": dataclasses.asdict(mean_over_seeds(seeds, kind_of)),
    }


def _use(runs: Sequence[Record]) -> Record | None:
    """What the finished runs of a variant took and what their skills were worth, means over seeds."""
    if not runs:
        return None
    seconds = [second for run in runs for second in run["seconds"]]
    return {
        "steps": len(runs[0]["seconds"]),
        "student_episodes": float(np.mean([run["student_episodes"] for run in runs])),
        "episodes": float(np.mean([run["student_episodes"] + run["replays"] for run in runs])),
        "seconds": float(np.mean([sum(run["seconds"]) for run in runs])),
        "seconds_per_step": float(np.median(seconds)) if seconds else 0.0,  # nothing is trained
        **{name: _metric([run["curve"][name] for run in runs]) for name in SKILL_METRICS},
    }


def _metric(seeds: Sequence[Sequence[float | None]]) -> Record | None:
    """A metric over all steps and over the last `WINDOW`, of those that have it; means over seeds."""
    known = [[value for value in steps if value is not None] for steps in seeds]
    if not any(known):
        return None
    return {
        "mean": float(np.mean([np.mean(values) for values in known if values])),
        "last": float(np.mean([np.mean(values[-WINDOW:]) for values in known if values])),
    }
