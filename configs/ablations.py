"""The variants of the paper's Fig. 4b, and the full method without each of its parts, as settings to override.

    python launch/train.py --config=configs/alfworld.py:qwen2.5-3b --config.method=METHOD --config.KEY=VALUE ...

A network that starts from nothing has no language without its SFT stage: the variants without it need a checkpoint. They
cannot be variants of a study, whose runs share their SFT policy.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Variant = tuple[str, Mapping[str, Any]]  # the method, and what it changes

NO_SFT: Mapping[str, Any] = {"sft.games": 0}

ABLATIONS: Mapping[str, Variant] = {
    # each has one part more than the one above
    "grpo": ("grpo", NO_SFT),
    "+sft": ("grpo", {}),
    "+static skills": ("hybrid", {"skill.source": "static"}),  # w = 1, skills unmeasured, by the SFT policy
    "+on-policy skills": ("hybrid", {}),
    "+execution-check reward": ("rsipo", {"trust.function": "one"}),  # also the full method without its trust
    "full": ("rsipo", {}),
    # the full method without one part
    "-sft": ("rsipo", NO_SFT),
    "-skill reward": ("rsipo", {"skill.eta": 0.0}),
    "-empirical bayes": ("rsipo", {"trust.function": "raw"}),
    "-trajectory advantage": ("rsipo", {"loss.advantage": "none"}),
}
