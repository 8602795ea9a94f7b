"""Playing a panel: every game once, without a skill."""

from __future__ import annotations

from collections.abc import Callable

from rsipo_jax.agents.rollout import EVALUATE, Agent, Episode, rollout
from rsipo_jax.agents.trajectory import Trajectory
from rsipo_jax.evaluation.panels import Panel
from rsipo_jax.evaluation.scores import EpisodeScore


def play_panel(
    agent: Agent, panel: Panel, step: int, on_done: Callable[[Trajectory], None] = lambda _: None
) -> list[EpisodeScore]:
    """Plays the panel with the weights the sampler holds, those after RL step `step`, at the evaluation temperature.

    A game's draws are addressed by its place in the panel, so the result is a function of weights, panel and seed.
    """
    episodes = [Episode(task, group=i, rollout=0) for i, task in enumerate(panel.tasks)]
    played = rollout(agent, episodes, EVALUATE, step, agent.config.eval.temperature, on_done)
    return [
        EpisodeScore(t.task.id, t.task.kind, t.won, len(t.turns), t.invalid_actions, t.error) for t in played
    ]
