"""Drawing: filters against a sorted reference, draws against the cumulative distribution, both kinds of log-probability."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import special, stats

from rsipo_jax.sampling.draw import BLOCK, Drawing, Drawn, draw, threshold

ROWS = 4  # of a call
VOCABULARIES = (1, 7, BLOCK, 2 * BLOCK + 61)
LAST = float(np.nextafter(np.float32(1), np.float32(0)))  # the largest number that is drawn
SLACK = 2e-5  # of shares and of scaled scores: float32 sums and logarithms

_threshold, _draw = jax.jit(threshold), jax.jit(draw)


def drawing(rows: int = ROWS, **given: Any) -> Drawing:
    """The same for all rows."""
    usual = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0} | given
    return Drawing(
        **{k: np.full(rows, v, np.int32 if k == "top_k" else np.float32) for k, v in usual.items()}
    )


def lowest_kept(scores: np.ndarray, d: Drawing, row: int, slack: float = 0.0) -> float:
    """The lowest score [V] that the filters of a row keep, by sorting; slack > 0 keeps a little more."""
    temperature = float(d.temperature[row]) or 1.0
    z = np.sort(scores.astype(np.float64))[::-1]
    scaled = (z - z[0]) / temperature
    k = int(d.top_k[row]) or len(z)
    by_k = z[min(k, len(z)) - 1]
    weights = np.where(z >= by_k, np.exp(scaled), 0)
    enough = np.flatnonzero(np.cumsum(weights) >= (float(d.top_p[row]) + slack) * weights.sum())
    by_p = z[enough[0]] if len(enough) and d.top_p[row] < 1 else z[-1]
    least = min(np.log(d.min_p[row]) - slack, 0.0) if d.min_p[row] > 0 else -np.inf
    by_m = z[scaled >= least][-1]
    return max(by_k, by_p, by_m)


def shares(scores: np.ndarray, lowest: float, temperature: float) -> np.ndarray:
    """The distribution [V] that is drawn from, in float64."""
    kept = np.where(scores >= lowest, scores.astype(np.float64), -np.inf)
    return special.softmax((kept - kept.max()) / (temperature or 1.0))


@st.composite
def cases(draw: st.DrawFn) -> tuple[np.ndarray, Drawing]:
    """Scores [ROWS, V] (ties, -inf, huge and tiny ones) and what filters them."""
    size = draw(st.sampled_from(VOCABULARIES))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    rows = []
    for _ in range(ROWS):
        kind = draw(st.sampled_from(("normal", "ties", "equal")))
        row = {"normal": rng.normal(0, 3, size), "ties": rng.integers(-4, 4, size), "equal": np.ones(size)}[
            kind
        ]
        row = row * draw(st.sampled_from((1.0, 30.0, 1e-6, 1e30))) + draw(st.sampled_from((0.0, 50.0)))
        forbidden = rng.random(size) < draw(st.sampled_from((0.0, 0.3, 0.95)))
        forbidden[rng.integers(size)] = False
        rows.append(np.where(forbidden, -np.inf, row))
    scores = np.stack(rows).astype(np.float32) + np.float32(0)  # without -0.0
    share = st.floats(2**-7, 1, width=32)
    found = [
        (
            draw(st.sampled_from((0.0, 0.05, 0.7, 1.0, 4.0))),
            draw(st.one_of(st.just(0), st.integers(1, size + 3))),
            draw(st.one_of(st.just(1.0), share)),
            draw(st.one_of(st.just(0.0), st.just(1.0), share)),
        )
        for _ in range(ROWS)
    ]
    columns = (np.array(column) for column in zip(*found, strict=True))
    t, k, p, m = columns
    return scores, Drawing(
        t.astype(np.float32), k.astype(np.int32), p.astype(np.float32), m.astype(np.float32)
    )


@given(cases())
def test_a_threshold_is_what_sorting_gives(case: tuple[np.ndarray, Drawing]) -> None:
    scores, d = case
    found = np.asarray(_threshold(scores, d))
    for row in range(ROWS):
        low, high = (lowest_kept(scores[row], d, row, slack) for slack in (SLACK, -SLACK))
        assert low <= found[row] <= high


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ({}, 6),
        ({"top_k": 2}, 3),  # two tokens tie with the second one
        ({"top_k": 99}, 6),
        ({"top_p": 0.4}, 1),
        ({"top_p": 0.41}, 3),
        ({"top_p": 0.81}, 4),
        ({"top_k": 3, "top_p": 0.49}, 1),  # a share of what top_k has kept: 0.4 of 0.8
        ({"top_k": 3, "top_p": 0.51}, 3),
        ({"min_p": 0.3}, 4),
        ({"min_p": 0.26, "top_k": 2}, 3),
        ({"min_p": 1.0}, 1),
        ({"temperature": 2.0, "min_p": 0.55}, 4),  # of the tempered distribution
        ({"temperature": 0.5, "min_p": 0.26}, 1),
    ],
)
def test_filters_keep_what_their_names_say(given: dict[str, float], kept: int) -> None:
    p = np.array([0.2, 0.4, 0.05, 0.2, 0.0, 0.14, 0.01])
    with np.errstate(divide="ignore"):
        scores = np.tile(np.log(p), (ROWS, 1)).astype(np.float32)
    lowest = np.asarray(_threshold(scores, drawing(**given)))
    assert (np.sum((scores >= lowest[:, None]) & (scores > -np.inf), axis=1) == kept).all()


@given(
    cases(),
    st.lists(
        st.one_of(st.just(0.0), st.just(LAST), st.floats(0, LAST, width=32)), min_size=ROWS, max_size=ROWS
    ),
)
def test_a_draw_is_where_the_cumulative_distribution_passes_its_random_number(
    case: tuple[np.ndarray, Drawing], uniform: list[float]
) -> None:
    scores, d = case
    rng = np.random.default_rng(scores.shape[1])
    raw = np.where(np.isinf(scores), rng.normal(size=scores.shape), scores).astype(np.float32)
    drawn = jax.tree.map(np.asarray, _draw(raw, scores, d, np.array(uniform, np.float32)))
    lowest = np.asarray(_threshold(scores, d))
    for row, token in enumerate(drawn.token):
        p = shares(scores[row], lowest[row], d.temperature[row])
        assert p[token] > 0
        if d.temperature[row] == 0:
            assert token == scores[row].argmax()
        else:
            passed = np.cumsum(p)[token]
            assert passed - p[token] - SLACK <= uniform[row] <= passed + SLACK
        np.testing.assert_allclose(drawn.logprob[row], np.log(p[token]), rtol=1e-5, atol=1e-4)
        wanted = special.log_softmax(raw[row].astype(np.float64))[token]
        rounding = 1e-4 + 1e-6 * np.abs(raw[row]).max()
        np.testing.assert_allclose(drawn.raw_logprob[row], wanted, rtol=0, atol=rounding)


def at_the_edges(rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Scores [rows, V], most of them -inf, all rows the same, and numbers beside those where one token ends."""
    rng = np.random.default_rng(seed)
    size = 2 * BLOCK + 61
    scores = np.where(rng.random(size) < 0.8, -np.inf, rng.normal(0, 2, size)).astype(np.float32)
    ends = np.cumsum(special.softmax(scores.astype(np.float64)))
    edges = rng.choice(ends, rows).astype(np.float32) * (1 + rng.integers(-4, 5, rows) * np.float32(2**-24))
    edges[:2] = 0, LAST
    return np.tile(scores, (rows, 1)), np.clip(edges, 0, LAST).astype(np.float32)


def test_no_random_number_draws_a_token_of_probability_zero() -> None:
    for seed in range(10):
        scores, uniform = at_the_edges(4096, seed)
        drawn = jax.tree.map(np.asarray, _draw(np.zeros_like(scores), scores, drawing(4096), uniform))
        assert np.isfinite(scores[0][drawn.token]).all()
        assert np.isfinite(drawn.logprob).all()


@pytest.mark.parametrize(
    "given", [{}, {"temperature": 0.6}, {"top_k": 40}, {"top_p": 0.7}, {"min_p": 0.05}], ids=str
)
def test_frequencies_are_the_probabilities(given: dict[str, float]) -> None:
    n, size = 8192, BLOCK + 61  # beyond the first block, which the vocabulary is no multiple of
    rng = np.random.default_rng(0)
    scores = np.tile(rng.normal(0, 1.5, size).astype(np.float32), (n, 1))
    d = drawing(n, **given)
    uniform = np.array(jax.random.uniform(jax.random.key(0), (n,)))
    drawn = jax.tree.map(np.asarray, _draw(scores, scores, d, uniform))
    p = shares(scores[0], lowest_kept(scores[0], d, 0), float(d.temperature[0]))
    assert (p[drawn.token] > 0).all()
    rare = p * n < 5
    bins = np.where(rare, 0, np.arange(1, size + 1))  # rare tokens are counted together
    counts, expected = (
        np.bincount(bins, x, size + 1) for x in (np.bincount(drawn.token, minlength=size), p * n)
    )
    some = expected > 0
    assert some.sum() >= 10 and expected[BLOCK + 1 :].any()
    assert stats.chisquare(counts[some], expected[some]).pvalue > 1e-3


def test_rows_do_not_meet() -> None:
    rng = np.random.default_rng(1)
    scores = rng.normal(size=(ROWS, 61)).astype(np.float32)
    mixed = Drawing(
        np.array([0, 1, 0.5, 2], np.float32), np.array([0, 3, 0, 9], np.int32),
        np.array([1, 1, 0.5, 0.9], np.float32), np.array([0, 0.2, 0, 0], np.float32),
    )  # fmt: skip
    uniform = rng.random(ROWS).astype(np.float32)
    together = _draw(scores, scores, mixed, uniform)
    for row in range(ROWS):
        own = jax.tree.map(lambda a, row=row: np.repeat(a[row : row + 1], ROWS, 0), (scores, mixed, uniform))
        alone: Drawn = _draw(own[0], own[0], own[1], own[2])
        assert int(alone.token[0]) == int(together.token[row])
        np.testing.assert_allclose(alone.logprob[0], together.logprob[row], rtol=1e-6)
