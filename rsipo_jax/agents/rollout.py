"""The agent loop: every episode goes on by itself, between its environment and the sampler, until all have ended.

Nobody waits for anybody else's turn: while some episodes wait for their environment, others decode. Invariant: an episode
is a function of the weights, its task and its address. Episodes start as others end; when they do, which environment slot
they have and who their neighbours are change nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rsipo_jax.agents.context import Context
from rsipo_jax.agents.parsers import parser_of
from rsipo_jax.agents.trajectory import Prompt, Trajectory, Turn
from rsipo_jax.config import Config, EvalConfig, RolloutConfig
from rsipo_jax.envs.protocol import EnvPool, Observation, Task
from rsipo_jax.sampling.protocol import Address, Completion, Request, Sampler, Sampling
from rsipo_jax.text.tokenizer import Tokenizer

# First coordinate of an address: what the tokens are for.
ACT, REPLAY, WRITE, EVALUATE, EVALUATE_WRITE = range(5)


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


def sampling_of(section: RolloutConfig | EvalConfig) -> Sampling:
    """How the section draws tokens."""
    return Sampling(section.temperature, section.top_k, section.top_p, section.min_p)


def rollout(
    agent: Agent,
    episodes: Sequence[Episode],
    purpose: int,
    step: int,
    sampling: Sampling,
    on_done: Callable[[Trajectory], None] = lambda _: None,
) -> list[Trajectory]:
    """Plays every episode, `config.rollout.slots` at a time; trajectories come in the order of `episodes`.

    Draws are addressed by (purpose, step, group, rollout, turn). Raises ValueError when two episodes have one
    (group, rollout), which would make them one and the same sample.
    """
    if len({(episode.group, episode.rollout) for episode in episodes}) != len(episodes):
        raise ValueError("two episodes have one (group, rollout): number the rollouts of a group")
    trajectories = [Trajectory(e.task, e.group, e.rollout, e.skill) for e in episodes]
    waiting = deque(trajectories)
    free = deque(range(min(agent.config.rollout.slots, len(episodes))))
    playing: dict[int, Trajectory] = {}  # by environment slot
    asked: dict[Address, tuple[int, Prompt, Observation]] = {}  # turns that the sampler works on

    def end(slot: int, status: str) -> None:
        trajectory = playing.pop(slot)
        trajectory.status = status
        free.append(slot)
        on_done(trajectory)

    def observe(slot: int, observation: Observation) -> None:
        trajectory = playing[slot]
        if observation.error:
            trajectory.error, trajectory.trace = observation.error, observation.trace
            end(slot, "env_error")
            return
        trajectory.observations.append(observation.text)
        trajectory.won, trajectory.answer = observation.won, observation.answer
        if observation.won:
            end(slot, "won")
        elif observation.done:
            end(slot, "lost")
        elif len(trajectory.turns) >= agent.config.env.max_turns:
            end(slot, "out_of_turns")
        elif (prompt := agent.context.acting(trajectory, observation.admissible)) is None:
            end(slot, "context_full")
        else:
            address = (purpose, step, trajectory.group, trajectory.rollout, len(trajectory.turns))
            agent.sampler.submit(
                Request(prompt.tokens, address, agent.config.rollout.max_new_tokens, sampling)
            )
            asked[address] = slot, prompt, observation

    while waiting or playing:
        while waiting and free:
            slot = free.popleft()
            playing[slot] = waiting.popleft()
            agent.pool.send(slot, playing[slot].task)
        # Environments with processes of their own answer while the other episodes decode.
        for completion in agent.sampler.poll():
            slot, prompt, observation = asked.pop(completion.address)
            turn = _turn(agent, prompt, completion, observation)
            playing[slot].policy_version = completion.version
            playing[slot].turns.append(turn)
            agent.pool.send(slot, turn.command)
        for slot, observation in agent.pool.receive(wait=not asked).items():
            observe(slot, observation)
    return trajectories


def _turn(agent: Agent, prompt: Prompt, completion: Completion, observation: Observation) -> Turn:
    text = agent.tokenizer.decode(completion.tokens.tolist())
    parsed = parser_of(agent.config)(text, observation.admissible)
    return Turn(
        prompt,
        completion.tokens,
        completion.logprobs,
        text,
        parsed.command,
        parsed.valid,
        parsed.admissible,
        raw_logprobs=completion.raw_logprobs,
    )
