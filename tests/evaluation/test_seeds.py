"""Means over seeds and games, and their two-level bootstrap."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom

from rsipo_jax.evaluation.seeds import Key, differences, kinds, mean_over_seeds, wins
from tests.evaluation.study_records import episodes


def scores(*values: float | None) -> dict[Key, float]:
    return {(f"g{i}", 0): value for i, value in enumerate(values) if value is not None}


def test_wins_and_differences_by_hand() -> None:
    first, second = episodes("010x1"), episodes("110x0")
    assert wins(first) == {("g0", 0): 0, ("g1", 0): 1, ("g2", 0): 0, ("g4", 0): 1}
    assert differences(first, second) == {("g0", 0): 1, ("g1", 0): 0, ("g2", 0): 0, ("g4", 0): -1}
    assert differences(episodes("x1"), episodes("11")) == {("g1", 0): 0}


def test_means_by_hand() -> None:
    seeds = [scores(1, 0, 1, 1), scores(0, 0, None, 1)]
    result = mean_over_seeds(seeds)
    assert result.per_seed == pytest.approx((3 / 4, 1 / 3))
    assert result.mean == pytest.approx((3 / 4 + 1 / 3) / 2)  # every seed counts once
    assert result.episodes == 7
    macro = mean_over_seeds(seeds, kinds([episodes("0000")]))
    assert macro.per_seed == pytest.approx(((1 + 1 / 2) / 2, (0 + 1 / 2) / 2))
    assert macro.mean == pytest.approx(0.5)


def test_a_kind_or_a_seed_without_a_valid_game_is_left_out() -> None:
    kind_of = kinds([episodes("000")])  # g0 and g2 are one kind, g1 the other
    assert mean_over_seeds([scores(1, None, 0)], kind_of).mean == 0.5
    two = mean_over_seeds([scores(1, None, 0), scores(1, 1, 1)], kind_of)  # the other seed knows it
    assert two.per_seed == pytest.approx((0.5, 1))
    assert mean_over_seeds([scores(1, 1, 1), {}]).per_seed == (1.0,)
    with pytest.raises(ValueError, match="nothing to average"):
        mean_over_seeds([{}, {}])


def test_games_alone_give_the_binomial_interval() -> None:
    """With one seed, the number of wins drawn is binomial; quantiles may be one win off."""
    result = mean_over_seeds([scores(*[1.0] * 20, *[0.0] * 30)])
    np.testing.assert_allclose(
        [result.low, result.high], binom.ppf([0.025, 0.975], 50, 0.4) / 50, atol=1.01 / 50
    )


def test_seeds_alone_give_the_interval_of_their_means() -> None:
    """Games that all score the same leave the draw of seeds: of three, all equal in 1 of 27 draws, more than 2.5%."""
    result = mean_over_seeds([scores(*[value] * 5) for value in (-1.0, 0.0, 1.0)])
    assert (result.mean, result.low, result.high) == (0, -1, 1)
    # of four, (1/4)^4 is too rare: all but one the lowest, at -1 + 1/2 of three lowest and one next to it
    four = mean_over_seeds([scores(*[value] * 5) for value in (0.0, 1.0, 2.0, 3.0)])
    draws = [np.mean(d) for d in np.stack(np.meshgrid(*[[0.0, 1, 2, 3]] * 4)).reshape(4, -1).T]
    np.testing.assert_allclose([four.low, four.high], np.quantile(draws, [0.025, 0.975]), atol=0.26)
    assert four.low > 0 and four.high < 3


def test_what_is_particular_to_a_game_does_not_average_out_over_seeds() -> None:
    row = scores(*[1.0] * 8, *[0.0] * 12)
    one, three = mean_over_seeds([row]), mean_over_seeds([row] * 3)
    assert (three.mean, three.low, three.high) == pytest.approx((one.mean, one.low, one.high))


def test_both_levels_widen_the_interval() -> None:
    """Its standard error is about that of independent seeds and games together (normal, rough)."""
    rng = np.random.default_rng(3)
    rates = rng.uniform(0.2, 0.8, 12)
    seeds = [scores(*(rng.random(60) < rate).astype(float)) for rate in rates]
    result = mean_over_seeds(seeds)
    within = np.mean([np.var(list(s.values())) for s in seeds])
    between = np.var(result.per_seed)
    error = np.sqrt(between / 12 + 2 * within / (60 * 12))
    assert (result.high - result.low) / (2 * 1.96) == pytest.approx(error, rel=0.2)
    # seeds alone, or games alone, are narrower by far
    assert (result.high - result.low) / (2 * 1.96) > 1.5 * np.sqrt(within / (60 * 12))


tables = st.integers(1, 4).flatmap(
    lambda seeds: st.lists(
        st.lists(st.sampled_from([-1.0, 0.0, 1.0, None]), min_size=seeds, max_size=seeds),
        min_size=1,
        max_size=8,
    ).filter(lambda games: any(value is not None for game in games for value in game))
)


@settings(max_examples=60, deadline=None)
@given(tables, st.booleans(), st.randoms(use_true_random=False))
def test_properties(games: list[list[float | None]], macro: bool, rng: random.Random) -> None:
    seeds = [scores(*column) for column in zip(*games, strict=True)]
    kind_of = kinds([episodes("0" * len(games))]) if macro else None
    result = mean_over_seeds(seeds, kind_of, resamples=300)
    values = [value for seed in seeds for value in seed.values()]
    tiny = 1e-12
    assert min(values) - tiny <= result.low <= result.high <= max(values) + tiny
    assert min(values) - tiny <= result.mean <= max(values) + tiny
    assert result.episodes == len(values)
    assert result.mean == pytest.approx(np.mean(result.per_seed))
    shuffled = [dict(rng.sample(list(seed.items()), len(seed))) for seed in seeds]
    assert mean_over_seeds(shuffled, kind_of, resamples=300) == result
    negated = mean_over_seeds([{k: -v for k, v in seed.items()} for seed in seeds], kind_of, resamples=300)
    assert negated.mean == pytest.approx(-result.mean)
    assert (-negated.high, -negated.low) == pytest.approx((result.low, result.high))
