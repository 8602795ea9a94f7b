"""The agent loop: environments and the sampler take turns until every episode has ended.

Invariant: an episode is a function of the weights, its task and its address. Slots are refilled as episodes end; which
slot an episode runs in and who its neighbours are change nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rsipo_jax.agents.actions import PARSERS
from rsipo_jax.agents.context import Context
from rsipo_jax.agents.trajectory import Prompt, Trajectory, Turn
from rsipo_jax.config import Config
from rsipo_jax.envs.protocol import EnvPool, Observation, Task
from rsipo_jax.sampling.sampler import Completion, Request, Sampler
from rsipo_jax.text.tokenizer import Tokenizer

# First coordinate of an address: what the tokens are for.
ACT, REPLAY, WRITE, EVALUATE = range(4)


@dataclass(frozen=True)
class Episode:
    """An episode to play."""

    task: Task
    group: int
    rollout: int
    skill: str = ""


@dataclass(frozen=True)
class Agent:
    """The fixed parts of a rollout."""

    sampler: Sampler
    pool: EnvPool
    context: Context
    tokenizer: Tokenizer
    config: Config


def rollout(
    agent: Agent,
    episodes: Sequence[Episode],
    purpose: int,
    step: int,
    temperature: float,
    on_done: Callable[[Trajectory], None] = lambda _: None,
) -> list[Trajectory]:
    """Plays every episode; trajectories come in the order of `episodes`.

    Draws are addressed by (purpose, step, group, rollout, turn). `step` is also the policy version of the trajectories.
    Raises ValueError when two episodes have one (group, rollout), which would make them one and the same sample.
    """
    if len({(episode.group, episode.rollout) for episode in episodes}) != len(episodes):
        raise ValueError("two episodes have one (group, rollout): number the rollouts of a group")
    waiting = deque(enumerate(episodes))
    free = deque(range(agent.sampler.slots))
    max_new_tokens = agent.config.rollout.max_new_tokens
    active: dict[int, Trajectory] = {}  # by slot
    seen: dict[int, Observation] = {}  # the observation each active slot has to answer
    order: dict[int, int] = {}  # slot -> index in `episodes`
    finished: dict[int, Trajectory] = {}

    def end(slot: int, status: str) -> None:
        trajectory = active.pop(slot)
        trajectory.status = status
        finished[order[slot]] = trajectory
        free.append(slot)
        on_done(trajectory)

    def observe(slot: int, observation: Observation) -> None:
        trajectory = active[slot]
        if observation.error:
            trajectory.error, trajectory.trace = observation.error, observation.trace
            end(slot, "env_error")
            return
        trajectory.observations.append(observation.text)
        seen[slot] = observation
        if observation.won:
            trajectory.won = True
            end(slot, "won")
        elif len(trajectory.turns) >= agent.config.env.max_turns:
            end(slot, "out_of_turns")

    while waiting or active:
        starting = {}
        while waiting and free:
            index, episode = waiting.popleft()
            slot = free.popleft()
            active[slot] = Trajectory(episode.task, episode.group, episode.rollout, slot, step, episode.skill)
            order[slot], starting[slot] = index, episode.task
        if starting:
            for slot, observation in agent.pool.reset(starting).items():
                observe(slot, observation)

        prompts: dict[int, Prompt] = {}
        for slot in list(active):
            prompt = agent.context.acting(active[slot], seen[slot].admissible)
            if prompt is None:
                end(slot, "context_full")
            else:
                prompts[slot] = prompt
        if not prompts:
            continue
        requests = []
        for slot, prompt in prompts.items():
            t = active[slot]
            address = (purpose, step, t.group, t.rollout, len(t.turns))
            requests.append(Request(slot, prompt.tokens, address, max_new_tokens))
        completions = agent.sampler.generate(requests, temperature)
        commands = {}
        for (slot, prompt), completion in zip(prompts.items(), completions, strict=True):
            turn = _turn(agent, prompt, completion, seen[slot])
            active[slot].turns.append(turn)
            commands[slot] = turn.command
        for slot, observation in agent.pool.step(commands).items():
            observe(slot, observation)
    return [finished[i] for i in range(len(episodes))]


def _turn(agent: Agent, prompt: Prompt, completion: Completion, observation: Observation) -> Turn:
    text = agent.tokenizer.decode(completion.tokens.tolist())
    parsed = PARSERS[agent.config.context.parser](text, observation.admissible)
    return Turn(
        prompt, completion.tokens, completion.logprobs, text, parsed.command, parsed.valid, parsed.admissible
    )
