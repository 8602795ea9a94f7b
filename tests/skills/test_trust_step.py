"""The settings of trust inside a training step: which weight reaches which episode's tokens.

The scripted step of tests/training/test_step.py with two replays of each skill. Task 0, one of two plain episodes won:
skill 0 wins both replays, skill 1 none. Task 1, no plain episode won: skill 3 wins one of two, skill 2 cannot be read.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rsipo_jax.agents.rollout import REPLAY
from rsipo_jax.config import TrustConfig
from rsipo_jax.skills.tokens import token_shrinkage
from rsipo_jax.text.sentencepiece_tokenizer import SentencePieceTokenizer
from rsipo_jax.training.rows import ACTION
from tests.skills import reference_trust as plain
from tests.training import test_step
from tests.training.test_step import run_step, tokenizer  # noqa: F401

WINS, LOSES = ["win"], ["look", "look"]
REPLAYS = {(0, 0): WINS, (0, 1): WINS, (0, 2): LOSES, (0, 3): LOSES, (1, 2): WINS, (1, 3): LOSES}


def step(
    tokenizer: SentencePieceTokenizer,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    **trust: Any,
) -> tuple:
    """(result, rows, scores, credit, the trust of each episode's action tokens)."""
    for address, turns in REPLAYS.items():
        monkeypatch.setitem(test_step.SCRIPT, (REPLAY, *address), turns)
    # What the update makes of the credit is not looked at, and its compilation takes long.
    monkeypatch.setattr(test_step.step_module, "_update", lambda learner, state, *_: (state, [], []))
    base = test_step.config()
    config = replace(base, skill=replace(base.skill, replays=2), trust=TrustConfig(**trust))
    result, _, rows, scores, credit = run_step(tokenizer, config, monkeypatch)
    of_episode = [credit.trust[(rows.token_episode == e) & (rows.kind == ACTION)] for e in range(4)]
    return result, rows, scores, credit, of_episode


@pytest.mark.parametrize("unit", ["task", "skill", "hier"])
def test_each_episode_has_the_weight_of_its_unit(
    tokenizer: SentencePieceTokenizer,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    unit: str,
) -> None:
    result, *_, found = step(tokenizer, monkeypatch, unit=unit, signed=True)
    # too few units for a prior of their own: it is the start, N(0, 0.02), of `hier` half of it for tasks
    if unit == "task":
        both = plain.posterior((2, 4, 1, 2), 0, 0.02, 0)["m"]
        expected = [both, both, 0.0, plain.posterior((1, 2, 0, 2), 0, 0.02, 0)["m"]]
    elif unit == "skill":
        counts = [(2, 2, 1, 2), (0, 2, 1, 2), None, (1, 2, 0, 2)]
        expected = [plain.posterior(c, 0, 0.02, 0)["m"] if c else 0.0 for c in counts]
    else:
        noise = [plain.smoothed(2, 2), plain.smoothed(0, 2)]
        pair, *_ = plain.dense_task(
            np.array([0.5, -0.5]), np.array(noise), plain.smoothed(1, 2), 0, 0.01, 0.01
        )
        lone, *_ = plain.dense_task(
            np.array([0.5]), np.array([plain.smoothed(1, 2)]), plain.smoothed(0, 2), 0, 0.01, 0.01
        )
        expected = [*pair, 0.0, *lone]
    for weights, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(weights, wanted, atol=1e-6)
    assert [s["trust"] for s in result.skills if s["valid"]] == pytest.approx(
        [expected[0], expected[1], expected[3]], abs=1e-6
    )
    units = {"task": 2, "skill": 3, "hier": 2}[unit]
    assert float(result.prior.N[0]) == units
    assert result.metrics["prior_skill_variance"] == pytest.approx(0.01 if unit == "hier" else 0.0)


def test_classes_by_outcome_leave_out_the_source(
    tokenizer: SentencePieceTokenizer,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    result, *_, found = step(tokenizer, monkeypatch, prior_class="outcome")
    # skill 0 is from the won episode, so that the other, lost, one is its rate; skill 1 the other way round
    counts = [(2, 2, 0, 1), (0, 2, 1, 1), None, (1, 2, 0, 1)]
    expected = [max(plain.posterior(c, 0, 0.02, 0)["m"], 0) if c else 0.0 for c in counts]
    for weights, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(weights, wanted, atol=1e-6)
    assert result.prior.N.tolist() == [3, 2, 1, 0]


def test_token_shrinkage_scales_the_weights(
    tokenizer: SentencePieceTokenizer,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, rows, scores, plainly, _ = step(tokenizer, monkeypatch)
    _, _, _, shrunken, _ = step(tokenizer, monkeypatch, token_shrinkage=True)
    taught = (rows.kind == ACTION) & (rows.token_episode != 2)
    factor = token_shrinkage(np.clip(scores.teacher - scores.old, -5, 5), rows.token_episode, taught)
    np.testing.assert_allclose(shrunken.trust, plainly.trust * factor, atol=1e-6)
    assert len(set(factor[taught].tolist())) > 1 and plainly.trust.any()
