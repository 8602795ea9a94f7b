"""Playing a panel: the policy, and experts to measure it against."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from rsipo_jax.agents.rollout import EVALUATE, EVALUATE_WRITE, Agent, Episode, rollout, sampling_of
from rsipo_jax.agents.trajectory import Trajectory
from rsipo_jax.envs.protocol import EnvPool
from rsipo_jax.evaluation.panels import Panel
from rsipo_jax.evaluation.scores import EpisodeScore
from rsipo_jax.skills.writing import write_skills


def play_panel(
    agent: Agent,
    panel: Panel,
    step: int,
    optimal: Mapping[str, int],
    on_done: Callable[[Trajectory], None] = lambda _: None,
    with_skills: bool = False,
) -> list[EpisodeScore]:
    """Plays the panel with the weights the sampler holds, those after RL step `step`, drawn as evaluations draw.

    A game's draws are addressed by its place in the panel, so the result is a function of weights, panel and seed.
    `optimal` holds the fewest turns to win, by task id, as far as they are known. `with_skills`: the policy first plays each
    game without being measured and writes a skill of that episode, which the measured one has in its prompt; an invalid
    skill leaves the prompt without one.
    """
    sampling = sampling_of(agent.config.eval)
    episodes = [Episode(task, group=i, rollout=0) for i, task in enumerate(panel.tasks)]
    if with_skills:
        before = rollout(agent, [replace(e, rollout=1) for e in episodes], EVALUATE, step, sampling)
        skills = write_skills(agent, before, step, sampling, None, EVALUATE_WRITE)
        episodes = [
            replace(e, skill=s.text if s.valid else "") for e, s in zip(episodes, skills, strict=True)
        ]
    played = rollout(agent, episodes, EVALUATE, step, sampling, on_done)
    return [
        EpisodeScore(
            t.task.id,
            t.task.kind,
            t.won,
            len(t.turns),
            t.invalid_actions,
            t.error,
            draw,
            optimal.get(t.task.id),
            t.trace,
        )
        for t, (_, draw) in zip(played, panel.draws(), strict=True)
    ]


def play_plans(
    pool: EnvPool,
    panel: Panel,
    plans: Mapping[str, Sequence[str]],
    optimal: Mapping[str, int],
    slots: int,
    on_done: Callable[[int], None] = lambda _: None,
) -> list[EpisodeScore]:
    """Plays the actions planned for each task id in every game of the panel, `slots` games side by side.

    `on_done` is told how many games are over.
    """
    scores, rows = [], panel.draws()
    for first in range(0, len(rows), slots):
        batch = rows[first : first + slots]
        actions = [plans[task.id] for task, _ in batch]
        latest = pool.reset({slot: task for slot, (task, _) in enumerate(batch)})
        for turn in range(max(map(len, actions))):
            playing = [s for s, plan in enumerate(actions) if turn < len(plan) and not latest[s].error]
            latest |= pool.step({slot: actions[slot][turn] for slot in playing})
        scores += [
            EpisodeScore(
                task.id,
                task.kind,
                latest[slot].won,
                len(actions[slot]),
                0,
                latest[slot].error,
                draw,
                optimal.get(task.id),
                latest[slot].trace,
            )
            for slot, (task, draw) in enumerate(batch)
        ]
        on_done(len(batch))
    return scores
