"""What an episode leaves behind: the token ids that were read and sampled, and what happened."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from rsipo_jax.agents.prompts import Exchange
from rsipo_jax.envs.protocol import Task


@dataclass(frozen=True)
class Prompt:
    tokens: np.ndarray  # int32 [n]
    skill_at: int  # index in `tokens` at which the skill's tokens stand, or would be inserted


@dataclass(frozen=True)
class Turn:
    """One response of the policy: tokens exactly as sampled."""

    prompt: Prompt
    response: np.ndarray  # int32 [m]
    logprobs: np.ndarray  # float32 [m], behaviour policy: of the distribution that was drawn from
    text: str
    command: str = ""  # what the environment received; "" for a skill-writing turn
    valid: bool = True
    admissible: bool = True
    imitate: bool = True  # demonstrations only: False for a response that is read but not learned from
    raw_logprobs: np.ndarray | None = (
        None  # float32 [m], at temperature 1 without filters; sampled turns only
    )


@dataclass
class Trajectory:
    """One episode. `observations[i]` is what turn i saw; the last one has no turn."""

    task: Task
    group: int  # index of the task in its step
    rollout: int  # index within the group
    skill: str = ""  # "" = no skill in context
    policy_version: int = (
        -1
    )  # of the weights that sampled its turns, as the sampler was told; -1 without turns
    observations: list[str] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    writing: Turn | None = None  # the skill-writing turn after the end
    won: bool = False
    answer: str = ""  # what the policy answered, where the task asks for an answer
    status: str = ""  # won | out_of_turns | context_full | env_error
    error: str = ""  # why the environment failed, in one sentence
    trace: str = ""  # the stack trace behind it, where there is one

    @property
    def void(self) -> bool:
        """The environment failed; the episode says nothing about the policy."""
        return self.status == "env_error"

    @property
    def invalid_actions(self) -> int:
        return sum(not turn.valid for turn in self.turns)

    def exchanges(self) -> list[Exchange]:
        """The past as prompts show it."""
        return [
            Exchange(seen, turn.text, turn.command, turn.valid)
            for seen, turn in zip(self.observations, self.turns, strict=False)
        ]
