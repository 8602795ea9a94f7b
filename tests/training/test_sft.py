"""The cold start: demonstrations become the rows that RL would see, and exactly the right tokens are learned."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rsipo_jax.agents.actions import parse_faithful
from rsipo_jax.agents.context import make_context
from rsipo_jax.config import Config, SFTConfig
from rsipo_jax.models.transformer import ModelConfig
from rsipo_jax.text.sentencepiece_tokenizer import SentencePieceTokenizer
from rsipo_jax.training import sft
from rsipo_jax.training.demonstrations.demonstration import Demonstration
from rsipo_jax.training.packing import pack
from rsipo_jax.training.rows import ACTION, CONTEXT, NOISE, SKILL, Rows
from rsipo_jax.training.sft import as_trajectory, sft_batches, sft_rows, token_weights, train_sft
from rsipo_jax.training.state import cosine
from rsipo_jax.training.update import logprobs_of
from tests.agents.episodes import ADMISSIBLE, FIRST, make_config
from tests.models.reference import make_params

SAID = (
    "<think> find mug</think><action> go to drawer 1</action>",
    "<think> find mug</think><action> look</action>",
)
DEMO = Demonstration(
    task_id="train/game/trial",
    kind="pick_and_place_simple",
    skill="",
    observations=(FIRST, "You arrive at drawer 1.", "You see a mug 1."),
    admissible=(ADMISSIBLE, ADMISSIBLE),
    responses=SAID,
    imitate=(True, False),
    won=True,
    analysis='{"episode_skill": "go to drawer 1"}',
)


def config(kind: str = "conversation", **fields: float) -> Config:
    made = make_config(kind, context__max_length=360)
    return replace(made, sft=replace(SFTConfig(batch_tokens=720, learning_rate=1e-2), **fields))  # type: ignore[arg-type]


def model(tokenizer: SentencePieceTokenizer) -> ModelConfig:
    return ModelConfig(tokenizer.vocab_size, 32, 48, 1, 2, 1, 16, scan_layers=False)


@pytest.mark.parametrize("kind", ["conversation", "window"])
def test_a_demonstration_becomes_the_trajectory_of_a_policy_that_said_it(
    tokenizer: SentencePieceTokenizer, kind: str
) -> None:
    context = make_context(tokenizer, make_config(kind))
    trajectory = as_trajectory(replace(DEMO, skill="take mug 1"), context, tokenizer)
    assert trajectory.skill == "take mug 1" and trajectory.won
    assert trajectory.observations == list(DEMO.observations)
    for i, turn in enumerate(trajectory.turns):
        assert turn.response.tolist() == [*tokenizer.encode(SAID[i]), *tokenizer.stop_ids]
        parsed = parse_faithful(SAID[i], ADMISSIBLE)
        assert (turn.text, turn.command, turn.valid, turn.admissible) == (SAID[i], parsed.command, True, True)
        assert turn.imitate == DEMO.imitate[i]
    assert trajectory.writing is not None and trajectory.writing.imitate
    assert trajectory.writing.response.tolist() == [*tokenizer.encode(DEMO.analysis), *tokenizer.stop_ids]
    assert as_trajectory(replace(DEMO, analysis=""), context, tokenizer).writing is None


def test_a_demonstration_ends_where_the_room_does(tokenizer: SentencePieceTokenizer) -> None:
    long = replace(DEMO, observations=(FIRST, "mug " * 500, "The end."))
    trajectory = as_trajectory(long, make_context(tokenizer, make_config()), tokenizer)
    assert len(trajectory.turns) == 1 and trajectory.writing is None


@pytest.mark.parametrize("kind", ["conversation", "window"])
def test_weights_are_one_on_what_to_say_and_zero_on_noise(
    tokenizer: SentencePieceTokenizer, kind: str
) -> None:
    rows = sft_rows([DEMO], make_context(tokenizer, make_config(kind)), tokenizer)
    good, noise, skill = (
        [*tokenizer.encode(text), *tokenizer.stop_ids] for text in (SAID[0], SAID[1], DEMO.analysis)
    )
    for wanted, where in ((good, ACTION), (noise, NOISE), (skill, SKILL)):
        assert rows.tokens[rows.kind == where].tolist() == wanted
    weights = token_weights(rows, SFTConfig(observation_weight=0.2))
    assert set(weights[(rows.kind == ACTION) | (rows.kind == SKILL)]) == {1.0}
    assert not weights[rows.kind == NOISE].any() and not weights[rows.starts[:-1]].any()
    read = rows.kind == CONTEXT
    read[rows.starts[:-1]] = False
    np.testing.assert_array_equal(weights[read], np.float32(0.2))
    assert token_weights(rows, SFTConfig()).sum() == len(good) + len(skill)


def episodes_only(rows: Rows) -> np.ndarray:
    return np.zeros(len(rows), bool)


def test_reading_questions_come_first_and_once(tokenizer: SentencePieceTokenizer) -> None:
    settings = config(epochs=3, batch_tokens=360)
    demos = [replace(DEMO, skill="mug " * n) for n in range(1, 5)]
    rows = sft_rows(demos, make_context(tokenizer, settings), tokenizer)
    reading = np.asarray([False, True, True, False])[rows.episode]
    batches = sft_batches(rows, reading, settings)
    lessons = [reading[rows.token_row[b.source[b.source >= 0]]].all() for b in batches]
    first = lessons.index(False)
    assert first > 0 and not any(lessons[first:])
    seen = np.bincount(
        rows.token_row[np.concatenate([b.source[b.source >= 0] for b in batches])], minlength=len(rows)
    )
    np.testing.assert_array_equal(seen, rows.lengths * np.where(reading, 1, 3))


def test_every_epoch_teaches_every_row_once_in_a_new_order(
    tokenizer: SentencePieceTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sft, "PACKING_POOL", 7)
    demos = [replace(DEMO, skill="mug " * n) for n in range(1, 12)]
    settings = config(epochs=2, batch_tokens=360)
    rows = sft_rows(demos, make_context(tokenizer, settings), tokenizer)
    batches = sft_batches(rows, episodes_only(rows), settings)
    half = len(batches) // 2
    epochs = [
        np.concatenate([b.source[b.source >= 0] for b in part]) for part in (batches[:half], batches[half:])
    ]
    for epoch in epochs:
        np.testing.assert_array_equal(np.sort(epoch), np.arange(len(rows.tokens)))
    assert not np.array_equal(*epochs)
    again = sft_batches(rows, episodes_only(rows), settings)
    assert all(np.array_equal(a.source, b.source) for a, b in zip(batches, again, strict=True))


def test_rows_with_nothing_to_teach_are_left_out(tokenizer: SentencePieceTokenizer) -> None:
    settings = config("window", epochs=1)
    noise = replace(DEMO, imitate=(False, False), analysis="")
    context = make_context(tokenizer, settings)
    noisy = sft_rows([noise], context, tokenizer)
    assert sft_batches(noisy, episodes_only(noisy), settings) == []
    rows = sft_rows([noise, DEMO], context, tokenizer)
    taught = np.concatenate(
        [b.source[b.source >= 0] for b in sft_batches(rows, episodes_only(rows), settings)]
    )
    assert set(rows.token_row[taught]) == {2, 4}  # the first turn of the second episode, and its analysis
    network = model(tokenizer)
    start = make_params(network)
    trained = train_sft(start, network, rows, [], settings)
    jax.tree.map(np.testing.assert_array_equal, trained, start)
    empty = sft_rows([], context, tokenizer)
    assert sft_batches(empty, episodes_only(empty), settings) == []


def test_the_gradient_is_that_of_the_weighted_mean_and_noise_has_no_part_in_it(
    tokenizer: SentencePieceTokenizer,
) -> None:
    network, settings = model(tokenizer), config(observation_weight=0.2)
    params = make_params(network)
    rows = sft_rows([DEMO, replace(DEMO, skill="mug")], make_context(tokenizer, settings), tokenizer)
    weights = token_weights(rows, settings.sft)
    (batch,) = pack(rows.starts, [0, 1], settings.context.max_length, 2)
    inputs = batch.take(rows.tokens), batch.positions, batch.segment_ids
    loss, grads = sft._gradient(params, {}, network, *inputs, batch.take(weights))
    logprobs, _ = logprobs_of(params, network, *inputs, batch.segment_ids > 0, 1.0)
    assert float(loss) == pytest.approx(
        -np.average(np.asarray(logprobs), weights=batch.take(weights)), rel=1e-5
    )
    # Only what is said is learned: with every trained token masked out, nothing moves.
    taught = (rows.kind == ACTION) | (rows.kind == SKILL)
    only = sft._gradient(params, {}, network, *inputs, batch.take(np.where(taught, weights, 0)))
    strict = token_weights(rows, SFTConfig())
    jax.tree.map(
        np.testing.assert_array_equal, only, sft._gradient(params, {}, network, *inputs, batch.take(strict))
    )
    assert not np.allclose(np.asarray(grads["embed"]), np.asarray(only[1]["embed"]))


def test_training_learns_the_demonstration_and_leaves_the_start_alone(
    tokenizer: SentencePieceTokenizer,
) -> None:
    network, settings = model(tokenizer), config(epochs=25)
    params = make_params(network)
    kept = jax.tree.map(jnp.copy, params)
    rows = sft_rows([DEMO], make_context(tokenizer, settings), tokenizer)
    losses: list[float] = []
    trained = train_sft(
        params, network, rows, sft_batches(rows, episodes_only(rows), settings), settings, losses.append
    )
    assert len(losses) == 25 and losses[-1] < 0.3 * losses[0] and np.isfinite(losses).all()
    jax.tree.map(np.testing.assert_array_equal, params, kept)
    assert jax.tree.structure(trained) == jax.tree.structure(params)


def test_the_learning_rate_warms_up_and_falls_to_a_tenth() -> None:
    rates = [cosine(i, 100, 1.0, 0.05) for i in range(100)]
    assert rates[0] == pytest.approx(0.2) and rates[5] == pytest.approx(1.0)
    assert np.all(np.diff(rates[5:]) <= 0) and rates[-1] == pytest.approx(0.1, abs=0.01)
