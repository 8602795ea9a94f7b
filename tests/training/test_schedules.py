"""lambda and eta over the steps, and the band in which the teacher's pull is held."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rsipo_jax.config import Config, LossConfig, SkillConfig, TrainConfig
from rsipo_jax.training.schedules import STEP_OF_SCALE, next_scale, scheduled, strengths

BAND = LossConfig(distill_low=0.05, distill_high=0.2)


@given(
    kind=st.sampled_from(["linear", "cosine"]),
    start=st.floats(0, 1),
    final=st.floats(0, 1),
    steps=st.integers(2, 300),
)
def test_a_schedule_goes_from_its_start_to_its_end_without_turning(
    kind: str, start: float, final: float, steps: int
) -> None:
    values = [scheduled(kind, start, final, step, steps) for step in range(1, steps + 1)]
    assert values[0] == pytest.approx(start) and values[-1] == pytest.approx(final, abs=1e-12)
    changes = [b - a for a, b in itertools.pairwise(values)]
    assert all(c * (final - start) >= -1e-12 for c in changes)
    middle = scheduled(kind, start, final, (steps + 1) // 2, steps)
    assert steps % 2 == 0 or middle == pytest.approx((start + final) / 2)


def test_both_have_schedules_of_their_own_and_constant_is_the_default() -> None:
    config = Config(
        train=TrainConfig(steps=3),
        loss=LossConfig(distill=0.4, distill_schedule="linear", distill_final=0.2),
        skill=SkillConfig(eta=0.1),
    )
    assert [strengths(config, step, 1.0) for step in (1, 2, 3)] == [
        (pytest.approx(lam), 0.1) for lam in (0.4, 0.3, 0.2)
    ]
    faded = replace(config, skill=SkillConfig(eta=0.1, eta_schedule="cosine"), loss=LossConfig(distill=0.4))
    assert [strengths(faded, step, 0.5) for step in (1, 2, 3)] == [
        (0.2, pytest.approx(eta)) for eta in (0.1, 0.05, 0.0)
    ]
    assert strengths(replace(config, train=TrainConfig(steps=1)), 1, 1.0)[0] == 0.4


def test_lambda_is_moved_towards_the_band_and_stays_inside() -> None:
    scale = 1.0
    for _ in range(30):  # the ratio is proportional to lambda
        scale = next_scale(scale, 2.0 * scale, BAND)
    assert 2.0 * scale == pytest.approx(0.2)
    assert next_scale(1.0, 0.1, BAND) == 1.0
    assert next_scale(1.0, 0.01, BAND) == STEP_OF_SCALE
    assert next_scale(1.0, 0.21, BAND) == pytest.approx(0.2 / 0.21)


@given(scale=st.floats(0.1, 10), ratio=st.floats(0, allow_nan=False))
def test_the_scale_stays_positive_and_finite(scale: float, ratio: float) -> None:
    assert next_scale(scale, ratio, LossConfig()) == scale  # no band
    assert 0.1 <= next_scale(scale, ratio, BAND) <= 10
    assert next_scale(scale, 0.0, BAND) == scale
