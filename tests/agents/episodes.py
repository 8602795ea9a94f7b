"""Scripted environments and samplers, and settings small enough to see through."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from rsipo_jax.agents.context import make_context
from rsipo_jax.agents.rollout import Agent
from rsipo_jax.agents.trajectory import Trajectory
from rsipo_jax.config import Config, ContextConfig, EnvConfig, RolloutConfig, SkillConfig
from rsipo_jax.envs.protocol import EnvPool, Observation, Task
from rsipo_jax.models.transformer import Params
from rsipo_jax.sampling.protocol import Address, Completion, Finish, Request, Work
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


def meet_fate(task: Task, actions: Sequence[str]) -> Observation:
    """What the environment of a task made by `task` shows after these actions."""
    _, fate, number = task.id.split("/")
    kind, _, at = fate.partition(":")
    done = len(actions)
    if kind == "fail" and done == int(at):
        return Observation("", (), won=False, error=f"game {number} broke")
    if not done:
        return Observation(f"{FIRST} Game {number}.", ADMISSIBLE, won=False)
    text = f"You did {actions[-1]!r}, your action {done} in game {number}."
    return Observation(text, ADMISSIBLE, won=kind == "win" and done >= int(at))


@dataclass
class ScriptedPool(EnvPool):
    """Environments that show what `show` says of their task and the actions so far.

    They answer at once; with `late`, the seed of a schedule, each `receive` has the answers of some slots only.
    """

    show: Callable[[Task, Sequence[str]], Observation] = meet_fate
    late: int | None = None
    playing: dict[int, tuple[Task, list[str]]] = field(default_factory=dict)  # all slots that were ever used
    sent: list[int] = field(default_factory=list)  # slots with unanswered commands, in the order asked

    def __post_init__(self) -> None:
        self._schedule = random.Random(self.late)

    @property
    def unanswered(self) -> Collection[int]:
        return self.sent

    def receive(self, wait: bool) -> dict[int, Observation]:
        come = self.come(wait) if self.late is not None else list(self.sent)
        self.sent = [slot for slot in self.sent if slot not in come]
        return {slot: self.show(*self.playing[slot]) for slot in come}

    def come(self, wait: bool) -> list[int]:
        """The slots that have answered by now, in the order asked."""
        come = [slot for slot in self.sent if self._schedule.random() < 0.5]
        return come or ([self._schedule.choice(self.sent)] if wait and self.sent else [])

    def close(self) -> None: ...

    def _take(self, slot: int, command: Task | str) -> None:
        if isinstance(command, Task):
            self.playing[slot] = command, []
        else:
            self.playing[slot][1].append(command)
        self.sent.append(slot)


@dataclass
class ScriptedSampler:
    """A `Sampler` that answers with what `respond` says, as text with the end of a turn; keeps the requests.

    It answers at once; with `late`, the seed of a schedule, each `poll` has some completions only, in any order.
    """

    tokenizer: Tokenizer
    respond: Callable[[Address], str]
    late: int | None = None
    version: int = -1
    work: Work = field(default_factory=Work)
    requests: list[Request] = field(default_factory=list)  # all, in the order submitted
    waiting: dict[Address, Request] = field(default_factory=dict)
    cancelled: set[Address] = field(default_factory=set)
    polled: list[int] = field(default_factory=list)  # how many were waiting at each poll

    def __post_init__(self) -> None:
        self._schedule = random.Random(self.late)

    def load(self, params: Params, version: int) -> None:
        assert not self.waiting
        self.version, self.work = version, Work()

    def submit(self, request: Request) -> None:
        assert request.address not in self.waiting
        self.requests.append(request)
        self.waiting[request.address] = request

    def cancel(self, address: Address) -> None:
        self.cancelled.add(address)

    def poll(self) -> Sequence[Completion]:
        self.polled.append(len(self.waiting))
        return [self._complete(self.waiting.pop(address)) for address in self.come()]

    def come(self) -> list[Address]:
        """What is finished by now."""
        waiting = list(self.waiting)
        if self.late is None:
            return waiting
        return self._schedule.sample(waiting, self._schedule.randint(0, len(waiting)))

    def _complete(self, request: Request) -> Completion:
        ids = [*self.tokenizer.encode(self.respond(request.address)), self.tokenizer.stop_ids[0]]
        ids = ids[: request.max_new_tokens]
        finish: Finish = "stop" if ids[-1] == self.tokenizer.stop_ids[0] else "length"
        if request.address in self.cancelled:
            ids, finish = [], "cancelled"
        self.work.prompt_tokens += len(request.prompt)
        self.work.sampled_tokens += len(ids)
        self.work.slot_steps += len(ids)
        logprobs = -request.sampling.temperature - 0.1 * np.arange(len(ids), dtype=np.float32)
        return Completion(
            request.address, np.asarray(ids, np.int32), logprobs, logprobs - 1, finish, self.version
        )


def act(address: Address) -> str:
    """An action that tells its address."""
    return (
        f"<think> t{address[-1]}</think><action> go to drawer {address[2]}{address[3]}{address[4]}</action>"
    )


def make_agent(
    tokenizer: Tokenizer,
    config: Config,
    respond: Callable[[Address], str] = act,
    late_sampler: int | None = None,
    late_pool: int | None = None,
) -> Agent:
    """An agent of scripted parts."""
    sampler, pool = ScriptedSampler(tokenizer, respond, late_sampler), ScriptedPool(late=late_pool)
    return Agent(sampler, pool, make_context(tokenizer, config), tokenizer, config)


def told(trajectory: Trajectory) -> tuple:
    """All of a trajectory that is the same on every machine and in every company: everything but log-probabilities."""
    turns = [
        (
            *turn.prompt.tokens,
            -1,
            turn.prompt.skill_at,
            -1,
            *turn.response,
            turn.text,
            turn.command,
            turn.valid,
        )
        for turn in trajectory.turns
    ]
    t = trajectory
    return (
        t.task, t.group, t.rollout, t.skill, t.policy_version, t.status, t.won, t.error, t.observations, turns
    )  # fmt: skip
