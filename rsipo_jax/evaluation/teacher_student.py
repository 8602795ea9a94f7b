"""Fig. 2b: does the policy with a skill win more often than without, on tasks that it finds easy or hard?

Everything that is compared is drawn apart. Tasks are binned by `BINNING` episodes of their own: a bin made from the episodes
that are compared would hold the lucky ones (regression to the mean). The skill is written from one more episode.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from math import comb
from typing import Any

from rsipo_jax.agents.rollout import EVALUATE, EVALUATE_WRITE, Agent, Episode, rollout, sampling_of
from rsipo_jax.agents.trajectory import Trajectory
from rsipo_jax.evaluation.panels import Panel
from rsipo_jax.skills.writing import write_skills

BINNING = 4  # student episodes that bin a task by how many it won: 0 to 4


@dataclass(frozen=True)
class TaskComparison:
    """One task; `student` and `teacher` are wins of `episodes` each, void where the environment failed in any."""

    task_id: str
    kind: str
    bin: int  # wins of the binning episodes
    student: int
    teacher: int
    episodes: int
    skill: str
    status: str  # how the skill was parsed, or why there is none
    source_won: bool
    void: bool

    @property
    def compared(self) -> bool:
        """There is a skill to read, and every episode came to its end."""
        return bool(self.skill) and not self.void


def compare_with_teacher(
    agent: Agent,
    panel: Panel,
    step: int,
    episodes: int,
    on_done: Callable[[Trajectory], None] = lambda _: None,
) -> list[TaskComparison]:
    """Plays the panel with the weights the sampler holds, drawn as in training: a task's `BINNING` + 1 + 2 `episodes`.

    Draws are addressed by (step, place in the panel, number of the episode): binning, source, students, teachers in order.
    """
    sampling, plain = sampling_of(agent.config.rollout), BINNING + 1 + episodes
    plan = [Episode(task, i, n) for i, task in enumerate(panel.tasks) for n in range(plain)]
    played = rollout(agent, plan, EVALUATE, step, sampling, on_done)
    of_task = [played[i * plain : (i + 1) * plain] for i in range(len(panel.tasks))]
    skills = write_skills(agent, [group[BINNING] for group in of_task], step, sampling, None, EVALUATE_WRITE)
    taught = [
        Episode(task, i, plain + n, skill.text)
        for i, (task, skill) in enumerate(zip(panel.tasks, skills, strict=True))
        if skill.valid
        for n in range(episodes)
    ]
    teachers: dict[int, list[Trajectory]] = {}
    for trajectory in rollout(agent, taught, EVALUATE, step, sampling, on_done):
        teachers.setdefault(trajectory.group, []).append(trajectory)
    return [
        TaskComparison(
            task.id,
            task.kind,
            _wins(group[:BINNING]),
            _wins(group[BINNING + 1 :]),
            _wins(teachers.get(i, [])),
            episodes,
            skill.text if skill.valid else "",
            skill.status,
            group[BINNING].won,
            any(t.void for t in (*group, *teachers.get(i, []))),
        )
        for i, (task, group, skill) in enumerate(zip(panel.tasks, of_task, skills, strict=True))
    ]


def shares(comparisons: Sequence[TaskComparison]) -> list[dict[str, Any]]:
    """Per bin 0..4: the number of compared tasks, the shares better | equal | worse, and what chance would give.

    The chance level is exact given each task's wins of student and teacher together: were the skill without effect, every
    division of them between the two would be as likely as the draw of that many episodes of all. Better and worse are
    equally likely then; it needs no estimate of the task's success rate. None in an empty bin.
    """
    rows = []
    for number in range(BINNING + 1):
        tasks = [c for c in comparisons if c.compared and c.bin == number]
        counts = {
            "better": sum(c.teacher > c.student for c in tasks),
            "equal": sum(c.teacher == c.student for c in tasks),
            "worse": sum(c.teacher < c.student for c in tasks),
        }
        chance = sum(chance_better(c.student + c.teacher, c.episodes) for c in tasks)
        rows.append(
            {"bin": number, "tasks": len(tasks)}
            | {name: count / len(tasks) if tasks else None for name, count in counts.items()}
            | {"chance": chance / len(tasks) if tasks else None}
        )
    return rows


def chance_better(wins: int, episodes: int) -> float:
    """P(one side has more of the `wins` than the other), `episodes` each, when the sides are alike (hypergeometric)."""
    if wins % 2:
        return 0.5
    half = wins // 2
    tie = comb(episodes, half) ** 2 / comb(2 * episodes, wins) if half <= episodes else 0.0
    return 0.5 * (1.0 - tie)


def comparison_record(panel: Panel, step: int, comparisons: Sequence[TaskComparison]) -> dict[str, Any]:
    """What is written down: the shares and every task."""
    return {
        "panel": panel.name,
        "hash": panel.hash,
        "step": step,
        "binning": BINNING,
        "left_out": sum(not c.compared for c in comparisons),
        "bins": shares(comparisons),
        "tasks": [asdict(c) for c in comparisons],
    }


def _wins(trajectories: Sequence[Trajectory]) -> int:
    return sum(t.won for t in trajectories)
