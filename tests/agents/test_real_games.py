"""Real games and a real, if random, policy: how much is played at once, kept or shared changes no episode."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from rsipo_jax.agents.context import make_context
from rsipo_jax.agents.rollout import ACT, Agent, Episode, rollout
from rsipo_jax.agents.trajectory import Trajectory
from rsipo_jax.config import Config, ContextConfig, EnvConfig, GamesConfig, RolloutConfig, SkillConfig
from rsipo_jax.envs.alfworld.data import find_tasks
from rsipo_jax.envs.alfworld.generator import generate_games
from rsipo_jax.envs.alfworld.pools import make_pool
from rsipo_jax.models.transformer import ModelConfig
from rsipo_jax.parallel.sharding import sampling_mesh
from rsipo_jax.sampling.engine import Engine
from rsipo_jax.sampling.protocol import Sampling, Work
from rsipo_jax.text.sentencepiece_tokenizer import SentencePieceTokenizer
from tests.agents.episodes import told
from tests.models.reference import make_params

TASKS, GROUP = 6, 2
# A uniform number decides between neighbours in the vocabulary. Where few tokens are left, rounding, which depends on the
# company, hardly ever moves the border between two of them across it.
FEW = Sampling(top_k=8)
CONFIGS = {
    kind: Config(
        env=EnvConfig(max_turns=4),
        context=context,
        rollout=RolloutConfig(max_new_tokens=8, slots=8),
        skill=SkillConfig(max_new_tokens=40),
    )
    for kind, context in {
        "conversation": ContextConfig(max_length=1024),
        "window": ContextConfig("window", history=1, order="static_first", max_length=1024),
    }.items()
}


@dataclass(frozen=True)
class Setting:
    games: Path
    tokenizer: SentencePieceTokenizer

    def play(self, config: Config) -> tuple[list[Trajectory], Work]:
        model = ModelConfig(self.tokenizer.vocab_size, 32, 48, 1, 2, 1, 16, scan_layers=False)
        stops = self.tokenizer.stop_ids
        rolling, length = config.rollout, config.context.max_length
        engine = Engine(model, sampling_mesh(1), rolling.slots, length, stops, 0, rolling.reuse_prefixes)
        engine.load(make_params(model), 1)
        tasks = find_tasks(self.games, "train")
        episodes = [Episode(task, x, i) for x, task in enumerate(tasks) for i in range(GROUP)]
        with closing(make_pool(config.env, self.games)) as pool:
            agent = Agent(engine, pool, make_context(self.tokenizer, config), self.tokenizer, config)
            return rollout(agent, episodes, ACT, 1, FEW), engine.work


@pytest.fixture(scope="module")
def setting(tmp_path_factory: pytest.TempPathFactory, tokenizer: SentencePieceTokenizer) -> Setting:
    root = tmp_path_factory.mktemp("games") / "games"
    generate_games(root, GamesConfig(train=TASKS, valid_seen=0, valid_unseen=0, max_per_kind=1, seed=3))
    return Setting(root, tokenizer)


@pytest.fixture(scope="module")
def usual(setting: Setting) -> Callable[[str], tuple[list[Trajectory], Work]]:
    """What is played in eight slots by the fast engine, prefixes reused."""
    return cache(lambda kind: setting.play(CONFIGS[kind]))


def assert_same(played: list[Trajectory], expected: list[Trajectory]) -> None:
    assert [told(t) for t in played] == [told(t) for t in expected]
    for a, b in zip(played, expected, strict=True):
        for x, y in zip(a.turns, b.turns, strict=True):
            np.testing.assert_allclose(x.logprobs, y.logprobs, atol=1e-4)
            np.testing.assert_allclose(x.raw_logprobs, y.raw_logprobs, atol=1e-4)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", CONFIGS)
@pytest.mark.parametrize(
    ("slots", "reuse"), [(8, False), (64, True), pytest.param(64, False, marks=pytest.mark.slow)]
)
def test_neither_slots_nor_kept_prefixes_change_an_episode(
    setting: Setting, usual: Callable, kind: str, slots: int, reuse: bool
) -> None:
    (expected, saved), config = usual(kind), CONFIGS[kind]
    played, work = setting.play(
        replace(config, rollout=replace(config.rollout, slots=slots, reuse_prefixes=reuse))
    )
    assert_same(played, expected)
    assert {t.status for t in expected} == {"out_of_turns"} and {t.policy_version for t in expected} == {1}
    texts = {turn.text for t in expected for turn in t.turns}
    assert len(texts) > TASKS * GROUP  # the policy is random: its responses differ
    assert (work.reused_tokens > 0) == reuse and 0 < saved.reused_tokens < saved.prompt_tokens
    assert work.prompt_tokens == saved.prompt_tokens and work.sampled_tokens == saved.sampled_tokens


@pytest.mark.parametrize("workers", [1, pytest.param(4, marks=pytest.mark.slow)])
def test_the_original_engine_in_any_number_of_processes_gives_the_same_episodes(
    setting: Setting, usual: Callable, workers: int
) -> None:
    pytest.importorskip("alfworld", reason="the original engine is not installed")
    config, (expected, _) = CONFIGS["conversation"], usual("conversation")
    env = replace(config.env, engine="textworld", workers=workers)
    played, _ = setting.play(replace(config, env=env))
    assert_same(played, expected)
