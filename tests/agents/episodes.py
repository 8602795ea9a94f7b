"""Scripted environments and samplers, and settings small enough to see through."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from rsipo_jax.sampling.sampler import Address, Completion, Request

from rsipo_jax.agents.context import make_context
from rsipo_jax.agents.rollout import Agent
from rsipo_jax.config import Config, ContextConfig, EnvConfig, RolloutConfig, SkillConfig
from rsipo_jax.envs.protocol import Observation, Task
from rsipo_jax.text.tokenizer import Tokenizer

ADMISSIBLE = ("go to drawer 1", "look", "take mug 1 from drawer 1")
ROOM = (
    "You are in the middle of a room. Looking quickly around you, you see a bed 1, a desk 1, and a drawer 1."
)
FIRST = f"-= Welcome to TextWorld, ALFRED! =-\n\n{ROOM}\n\nYour task is to: put a clean mug in desk."


def make_config(kind: str = "conversation", **changes: int | str) -> Config:
    """Room for a few turns; `changes` are fields of the context, rollout, skill and env sections."""
    sections = {
        "context": ContextConfig(kind=kind, max_length=700, show_admissible=kind == "window"),
        "rollout": RolloutConfig(max_new_tokens=24),
        "skill": SkillConfig(max_new_tokens=60),
        "env": EnvConfig(max_turns=4),
    }
    changed = {
        name: replace(
            section, **{k.split("__")[1]: v for k, v in changes.items() if k.split("__")[0] == name}
        )
        for name, section in sections.items()
    }
    return Config(**changed)


def task(fate: str, number: int = 0) -> Task:
    """`fate`: "win:N" wins with the Nth action, "fail:N" breaks there (0: at the reset), "never" goes on."""
    return Task(f"train/{fate}/{number}", "pick_and_place_simple", "train")


@dataclass
class ScriptedPool:
    """Environments whose fate is in the task's name; what they say depends on the task and the actions so far."""

    played: dict[int, list[str]] = field(default_factory=dict)
    tasks: dict[int, Task] = field(default_factory=dict)

    def reset(self, tasks: Mapping[int, Task]) -> dict[int, Observation]:
        for slot, new in tasks.items():
            self.tasks[slot], self.played[slot] = new, []
        return {slot: self._observe(slot) for slot in tasks}

    def step(self, actions: Mapping[int, str]) -> dict[int, Observation]:
        for slot, action in actions.items():
            self.played[slot].append(action)
        return {slot: self._observe(slot) for slot in sorted(actions, reverse=True)}

    def close(self) -> None: ...

    def _observe(self, slot: int) -> Observation:
        _, fate, number = self.tasks[slot].id.split("/")
        kind, _, at = fate.partition(":")
        done = len(self.played[slot])
        if kind == "fail" and done == int(at):
            return Observation("", (), won=False, error=f"game {number} broke")
        if not done:
            return Observation(f"{FIRST} Game {number}.", ADMISSIBLE, won=False)
        text = f"You did {self.played[slot][-1]!r}, your action {done} in game {number}."
        return Observation(text, ADMISSIBLE, won=kind == "win" and done >= int(at))


@dataclass
class ScriptedSampler:
    """Answers with what `respond` says, as text without the end of a turn; keeps the requests."""

    tokenizer: Tokenizer
    respond: Callable[[Address], str]
    slots: int = 4
    calls: list[list[Request]] = field(default_factory=list)

    def generate(self, requests: Sequence[Request], temperature: float) -> list[Completion]:
        self.calls.append(list(requests))
        return [self._complete(r, temperature) for r in requests]

    def _complete(self, request: Request, temperature: float) -> Completion:
        ids = [*self.tokenizer.encode(self.respond(request.address)), self.tokenizer.stop_ids[0]]
        ids = ids[: request.max_new_tokens]
        logprobs = np.full(len(ids), -temperature, np.float32)
        return Completion(np.asarray(ids, np.int32), logprobs, ids[-1] == self.tokenizer.stop_ids[0])


def act(address: Address) -> str:
    """An action that tells its address."""
    return (
        f"<think> t{address[-1]}</think><action> go to drawer {address[2]}{address[3]}{address[4]}</action>"
    )


def make_agent(
    tokenizer: Tokenizer, config: Config, respond: Callable[[Address], str] = act, slots: int = 4
) -> Agent:
    """An agent of scripted parts."""
    sampler = ScriptedSampler(tokenizer, respond, slots)
    return Agent(sampler, ScriptedPool(), make_context(tokenizer, config), tokenizer, config)  # type: ignore[arg-type]
