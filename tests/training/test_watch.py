"""The watch over the sampler: no difference in float32, little in bfloat16, and a stop when it is another policy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rsipo_jax.agents.context import make_context
from rsipo_jax.agents.rollout import ACT, Agent, Episode, rollout
from rsipo_jax.agents.trajectory import Trajectory
from rsipo_jax.config import Config, RolloutConfig
from rsipo_jax.evaluation.panels import make_panel
from rsipo_jax.models.transformer import ModelConfig, Params
from rsipo_jax.parallel.sharding import sampling_mesh
from rsipo_jax.sampling.engine import Engine
from rsipo_jax.sampling.protocol import Sampling
from rsipo_jax.skills.writing import write_skills
from rsipo_jax.text.sentencepiece_tokenizer import SentencePieceTokenizer
from rsipo_jax.training import step, watch
from rsipo_jax.training.rows import CONTEXT, rows_from
from rsipo_jax.training.step import Learner
from rsipo_jax.training.watch import Drift, play_watched
from rsipo_jax.validation import ConfigError
from tests.agents.episodes import ScriptedPool, make_config, task
from tests.models.reference import make_params
from tests.training.trajectories import some_trajectories

PLAIN = Sampling()
FATES = ("never", "win:2", "fail:1", "never")


def rolling(**changes: float) -> Config:
    """Settings with changes of the rollout section. Sizes as in test_real_games.py, whose compiled programs serve here."""
    sizes = {"env__max_turns": 3, "rollout__max_new_tokens": 8, "context__max_length": 1024}
    return make_config(**sizes, **changes)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def model(tokenizer: SentencePieceTokenizer) -> ModelConfig:
    return ModelConfig(tokenizer.vocab_size, 32, 48, 1, 2, 1, 16, scan_layers=False)


@pytest.fixture(scope="module")
def make_agent(tokenizer: SentencePieceTokenizer) -> Callable[[ModelConfig, Config], Agent]:
    """An agent with a real sampler, without weights yet."""

    def make(model: ModelConfig, config: Config) -> Agent:
        engine = Engine(model, sampling_mesh(1), 8, config.context.max_length, tokenizer.stop_ids, seed=0)
        return Agent(engine, ScriptedPool(), make_context(tokenizer, config), tokenizer, config)

    return make


@pytest.fixture(scope="module")
def play(make_agent: Callable) -> Callable[..., list[Trajectory]]:
    """Four episodes by the weights of `make_params`, with skills written of them."""

    @cache
    def play(model: ModelConfig, sampling: Sampling = PLAIN) -> list[Trajectory]:
        agent = make_agent(model, rolling())
        agent.sampler.load(make_params(model), 7)
        plan = [Episode(task(fate, i), i, 0) for i, fate in enumerate(FATES)]
        played = rollout(agent, plan, ACT, 7, sampling)
        write_skills(agent, played, 7, sampling)
        return played

    return play


def acted(trajectories: list[Trajectory]) -> int:
    return sum(len(turn.response) for t in trajectories if not t.void for turn in t.turns)


@pytest.mark.parametrize("sampling", [PLAIN, Sampling(0.5, top_k=5, top_p=0.8, min_p=0.05)])
def test_in_float32_there_is_only_rounding_however_tokens_are_drawn(
    model: ModelConfig, play: Callable, sampling: Sampling
) -> None:
    played = play(model, sampling)
    drift = watch.watch(make_params(model), model, played, rolling())
    # All acting tokens of the sound episodes are compared, at temperature 1; the skills, written later, are not.
    assert drift.tokens == acted(played) > 40
    assert 0 < drift.mean <= drift.largest < 2e-5 and drift.mean < 5e-6
    sound = [t for t in played if not t.void]  # a conversation is one row
    few = watch.watch(make_params(model), model, played, rolling(rollout__watch_rows=2))
    assert few.tokens == acted([sound[0], sound[-1]])


@pytest.mark.slow  # to compile
def test_rounding_to_bfloat16_is_seen_and_does_not_stop_a_run(model: ModelConfig, play: Callable) -> None:
    coarse = replace(model, dtype=jnp.bfloat16)
    drift = watch.watch(make_params(coarse), coarse, play(coarse), rolling())
    assert RolloutConfig().reuse_drift < drift.mean < RolloutConfig().max_drift / 4


def test_nothing_to_compare_is_no_drift(model: ModelConfig, play: Callable) -> None:
    void = [t for t in play(model) if t.void]
    assert void and watch.watch(make_params(model), model, void, rolling()) == Drift()


def one_sentence(raised: pytest.ExceptionInfo[ConfigError]) -> str:
    message = str(raised.value)
    assert "\n" not in message and ". " not in message
    return message


def nudged(params: Params, by: float) -> Params:
    rng = np.random.default_rng(1)
    return jax.tree.map(lambda a: a + rng.normal(0, by, a.shape).astype(np.float32), params)


def test_another_policy_s_episodes_stop_the_run(model: ModelConfig, play: Callable) -> None:
    with pytest.raises(ConfigError) as raised:
        watch.watch(nudged(make_params(model), 0.1), model, play(model), rolling())
    message = one_sentence(raised)
    assert "with the weights of step 7" in message and "config.rollout.max_drift=0.2" in message
    # A run's settings are fixed: its own workdir would refuse either.
    assert "in another --workdir, compute with config.model.dtype='float32'" in message
    # Weights that are a little off are seen long before that.
    little = nudged(make_params(model), 1e-3)
    drift = watch.watch(little, model, play(model), rolling())
    assert drift.mean > 1e-4
    with pytest.raises(ConfigError, match=r"max_drift=0\.0001"):
        watch.watch(little, model, play(model), rolling(rollout__max_drift=1e-4))


def test_what_is_not_a_number_stops_the_run(model: ModelConfig, play: Callable) -> None:
    params = make_params(model)
    with pytest.raises(ConfigError) as raised:
        watch.watch(params | {"final_norm": params["final_norm"] * np.nan}, model, play(model), rolling())
    message = one_sentence(raised)
    assert "weights of step 7" in message and "lower config.train.learning_rate=" in message
    assert "max_drift" not in message  # which cannot be raised above it


def test_an_evaluation_stops_too_when_the_weights_are_changed_behind_the_sampler_s_back(
    model: ModelConfig, make_agent: Callable
) -> None:
    agent, ended = make_agent(model, rolling()), list[int]()
    panel = make_panel("valid_seen", [task(fate, i) for i, fate in enumerate(FATES)])
    params = make_params(model)
    scores = play_watched(agent, model, params, panel, 3, {}, ended.append)
    assert [s.task_id for s in scores] == [t.id for t in panel.tasks] and ended == [1] * len(FATES)

    load = agent.sampler.load
    agent.sampler.load = lambda params, version: load(nudged(params, 0.1), version)
    with pytest.raises(ConfigError, match=r"weights of step 4 .* config\.rollout\.max_drift"):
        play_watched(agent, model, params, panel, 4, {}, ended.append)


@pytest.mark.parametrize(
    ("drift", "changes", "again"),
    [
        (1e-6, {}, False),
        (1e-6, {"rollout__temperature": 0.5}, False),
        (9e-4, {}, False),
        (2e-3, {}, True),  # as in bfloat16
        (2e-3, {"rollout__reuse_drift": 1e-2}, False),
        (1e-6, {"rollout__reuse_drift": 0.0}, True),
        # Filters change the distribution that was drawn from: the learner's has none.
        (1e-6, {"rollout__top_k": 5}, True),
        (1e-6, {"rollout__top_p": 0.9}, True),
        (1e-6, {"rollout__min_p": 0.1}, True),
    ],
)
def test_the_sampler_s_log_probabilities_are_the_old_policy_s_where_they_are_equal(
    model: ModelConfig, make_agent: Callable, drift: float, changes: dict, again: bool
) -> None:
    params, rows = make_params(model), rows_from(some_trajectories())
    learner = Learner(make_agent(model, rolling(**changes)), model, {}, nudged(params, 0.01), [])
    scores = step._scores(learner, params, rows, None, Drift(drift, drift, 1))
    sampled = rows.kind != CONTEXT
    apart = np.abs(scores.old - rows.logprobs)[sampled]  # those of `some_trajectories` are made up
    assert (apart > 0).all() if again else not apart.any()
    assert (scores.ref != scores.old)[sampled].all() and not scores.old[~sampled].any()
    np.testing.assert_array_equal(scores.teacher, scores.old)
