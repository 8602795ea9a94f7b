"""Studies: which runs `launch/study.py` makes, as settings that differ from its `--config`.

A study is a function from the settings of `--config` to its variants: name -> changed settings. A variant may change what
first matters in the RL stage only; games, demonstrations, tokenizer and SFT policy are those of the seed.

A setting of `--config` that has no effect on a variant's method is at its default there.

Two budgets. A method with replays plays up to 1 + K episodes where GRPO plays one (fewer with `skill.per_task`), so beside
`grpo` (as many steps, as many student episodes) there is `grpo_budget`, which plays as many episodes in all, in so many
times the steps. More steps rather than more tasks a step, because then nothing else differs from `grpo` (batch, rows of an
update, age of the policy that acted), the additional episodes are played by a policy that has learned from the earlier
ones, which is the better use of them, and up to the last step of `grpo` the two are one run (where `train.warmup_ratio` is
0, as in the presets: a warm-up is a share of all steps): its curve against all episodes played is GRPO's, at every budget.
It makes as many times more updates as it plays steps, in GRPO's favour; so is that skills which cannot be read are not
replayed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rsipo_jax.config import Config

Variants = Mapping[str, Mapping[str, Any]]

# What the others are compared with, where a study has it: each variant minus each of these.
REFERENCES = ("grpo", "grpo_budget", "hybrid", "hybrid_weak")


def methods(config: Config) -> Variants:
    """The methods of the paper's main table, and RSIPO without the training of its skills.

    `hybrid` has RSIPO's lambda and trusts fully, which is the comparison of the paper; `hybrid_weak` has a tenth of it, by
    which its teacher pulls about as strongly as RSIPO's does where skills help (trust of 0.1).
    """
    group, steps = config.rollout.group_size, config.train.steps
    replays = config.skill.replays * (config.skill.per_task or group)  # of a task
    return {
        "grpo": {"method": "grpo"},
        "grpo_budget": {"method": "grpo", "train.steps": steps + round(steps * replays / group)},
        "hybrid": {"method": "hybrid"},
        "hybrid_weak": {"method": "hybrid", "loss.distill": config.loss.distill / 10},
        "opsd": {"method": "opsd"},
        "rsipo": {"method": "rsipo"},
        "rsipo_no_skill_training": {"method": "rsipo", "skill.eta": 0.0},
    }


def misleading(config: Config) -> Variants:
    """A teacher that misleads: every skill is replayed, and taught with, in a task that it was not written for."""
    return {
        "grpo": {"method": "grpo"},
        "hybrid_shuffled": {"method": "hybrid", "skill.source": "shuffled"},
        "rsipo_shuffled": {"method": "rsipo", "skill.source": "shuffled"},
    }


STUDIES: Mapping[str, Callable[[Config], Variants]] = {"tiny_methods": methods, "misleading": misleading}
