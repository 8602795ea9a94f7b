"""A rollout over worker processes in which one dies or hangs in the middle: one episode is void, the others are as ever."""

from __future__ import annotations

import functools
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from rsipo_jax.agents.context import make_context
from rsipo_jax.agents.rollout import ACT, Agent, Episode, rollout
from rsipo_jax.agents.trajectory import Trajectory
from rsipo_jax.config import Config, ContextConfig, EnvConfig, GamesConfig, RolloutConfig
from rsipo_jax.envs.alfworld.data import find_tasks, load_game
from rsipo_jax.envs.alfworld.generator import generate_games
from rsipo_jax.envs.alfworld.planner import solve
from rsipo_jax.envs.alfworld.textworld import TextWorldGame
from rsipo_jax.envs.pool import ProcessPool
from rsipo_jax.envs.protocol import Observation, Task
from rsipo_jax.sampling.protocol import Address, Sampling
from rsipo_jax.text.sentencepiece_tokenizer import SentencePieceTokenizer, train_sentencepiece
from tests.agents.episodes import ScriptedSampler, told

pytest.importorskip("alfworld", reason="the original engine is not installed (pip install alfworld==0.4.2)")

GAMES = 6
VICTIM, TURN = 2, 1  # the game that fails, and its turn
CONFIG = Config(
    env=EnvConfig(max_turns=6),
    context=ContextConfig(max_length=16384),
    rollout=RolloutConfig(max_new_tokens=64, slots=4),
)


class Fragile(TextWorldGame):
    """The original engine, which dies or hangs at its next step once a file named after its task says so."""

    def __init__(self, root: Path, orders: Path) -> None:
        super().__init__(root)
        self._orders = orders

    def reset(self, task: Task) -> Observation:
        self._order = order_file(self._orders, task)
        return super().reset(task)

    def step(self, action: str) -> Observation:
        if self._order.exists():
            order = self._order.read_text()
            self._order.unlink()
            if order == "die":
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(600)
        return super().step(action)


def order_file(orders: Path, task: Task) -> Path:
    return orders / task.id.replace("/", "_")


@dataclass(frozen=True)
class Setting:
    """Games, the planner's commands for each, and a tokenizer that knows these commands."""

    root: Path
    tasks: list[Task]
    plans: list[list[str]]
    tokenizer: SentencePieceTokenizer

    def play(self, orders: Path, order: str = "", timeout_s: float = 120.0) -> list[Trajectory]:
        """Play the plans, in four slots over two workers; the victim gets its order at its turn."""

        def respond(address: Address) -> str:
            _, _, game, _, turn = address
            if order and (game, turn) == (VICTIM, TURN):
                order_file(orders, self.tasks[game]).write_text(order)
            return f"<action>{self.plans[game][turn]}</action>"

        pool = ProcessPool(functools.partial(Fragile, self.root, orders), workers=2, timeout_s=timeout_s)
        try:
            sampler, context = ScriptedSampler(self.tokenizer, respond), make_context(self.tokenizer, CONFIG)
            agent = Agent(sampler, pool, context, self.tokenizer, CONFIG)
            episodes = [Episode(task, group=i, rollout=0) for i, task in enumerate(self.tasks)]
            return rollout(agent, episodes, ACT, 1, Sampling())
        finally:
            pool.close()


@pytest.fixture(scope="module")
def setting(tmp_path_factory: pytest.TempPathFactory) -> Setting:
    root = tmp_path_factory.mktemp("failures") / "games"
    generate_games(root, GamesConfig(train=GAMES, valid_seen=0, valid_unseen=0, max_per_kind=2, seed=3))
    tasks = find_tasks(root, "train")
    plans = [solve(load_game(root, task)) or [] for task in tasks]
    spoken = [f"<action>{command}</action>" for plan in plans for command in plan]
    tokenizer = train_sentencepiece(spoken * 20, tmp_path_factory.mktemp("tokenizer"), 320)
    return Setting(root, tasks, plans, tokenizer)


@pytest.fixture(scope="module")
def undisturbed(setting: Setting, tmp_path_factory: pytest.TempPathFactory) -> list[Trajectory]:
    played = setting.play(tmp_path_factory.mktemp("orders"))
    assert all(len(t.turns) == min(len(plan), 6) for t, plan in zip(played, setting.plans, strict=True))
    assert "won" in {t.status for t in played} <= {"won", "out_of_turns"}
    return played


@pytest.mark.parametrize(
    ("order", "timeout_s", "reason"),
    [
        ("die", 120.0, "its process died (exit code -9)"),
        pytest.param("hang", 30.0, "no answer within 30 s an action", marks=pytest.mark.slow),
    ],
)
def test_a_worker_that_fails_in_mid_rollout_costs_one_episode(
    order: str, timeout_s: float, reason: str, setting: Setting, undisturbed: list[Trajectory], tmp_path: Path
) -> None:
    played = setting.play(tmp_path, order, timeout_s)
    failed = played[VICTIM]
    assert failed.status == "env_error" and failed.void and len(failed.turns) == TURN + 1
    assert failed.error == f"The environment of {failed.task.id} failed: {reason}."
    assert failed.observations == undisturbed[VICTIM].observations[: TURN + 1]
    for game, (disturbed, expected) in enumerate(zip(played, undisturbed, strict=True)):
        assert game == VICTIM or told(disturbed) == told(expected)
