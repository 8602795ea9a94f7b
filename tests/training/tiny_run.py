"""The smallest whole run, and how its records are read."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

from rsipo_jax.config import Config
from rsipo_jax.reports.run_log import TIMINGS
from rsipo_jax.validation import validated

CONFIGS = Path(__file__).parents[2] / "configs"
ALFWORLD, SEARCH = (runpy.run_path(str(CONFIGS / f"{name}.py")) for name in ("alfworld", "search"))


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
            **({"trust.min_units": 2} if changes.get("method", "rsipo") == "rsipo" else {}),
            **changes,
        }
    )
    return validated(small)


def search_config(**changes: object) -> Config:
    """The same of `configs/search.py`."""
    small = SEARCH["get_config"]("tiny")
    small.update_from_flattened_dict(
        {
            "search.people": 24,
            "search.demonstrated": 16,
            "search.train": 16,
            "search.dev": 4,
            "search.test": 8,
            "model.hidden_size": 32,
            "model.intermediate_size": 64,
            "model.num_layers": 2,
            "env.max_turns": 3,
            "rollout.tasks_per_step": 2,
            "rollout.group_size": 2,
            "rollout.slots": 4,
            "rollout.max_new_tokens": 32,
            "skill.max_new_tokens": 48,
            "sft.games": 8,
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
