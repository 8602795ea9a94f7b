"""The James-Stein factor of an episode's log-ratios."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rsipo_jax.skills.tokens import token_shrinkage

tokens = st.lists(st.tuples(st.floats(-5, 5), st.integers(0, 3), st.booleans()), min_size=1, max_size=40)


def test_against_plain_arithmetic() -> None:
    """Episode 0 stands out; episode 1 differs less than the mean, episode 2 has two tokens, 3 is not taught."""
    delta = np.array([2.0, -2.0, 2.0, 2.0, 0.1, 0.1, -0.1, 0.0, 0.5, 0.5, np.nan])
    episode = np.array([0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 3])
    mask = np.arange(11) < 10
    sigma2 = (16 + 0.03 + 0.5) / 10
    found = token_shrinkage(delta, episode, mask)
    np.testing.assert_allclose(found[:4], 1 - 2 * sigma2 / 16, rtol=1e-6)
    assert (found[4:8] == 0).all() and (found[8:10] == 1).all() and found[10] == 0


@given(tokens, st.floats(0.1, 10))
def test_any_tokens(drawn: list[tuple[float, int, bool]], scale: float) -> None:
    delta, episode, mask = (np.array(x) for x in zip(*drawn, strict=True))
    found = token_shrinkage(delta, episode, mask)
    assert found.dtype == np.float32 and ((found >= 0) & (found <= 1)).all() and not found[~mask].any()
    for e in set(episode[mask].tolist()):
        assert len(set(found[mask & (episode == e)].tolist())) == 1
    np.testing.assert_allclose(token_shrinkage(scale * delta, episode, mask), found, atol=1e-4)


def test_in_simulation_shrinking_loses_less_than_the_raw_log_ratios() -> None:
    """Three in four teachers say nothing, one says much: what is kept is nearer to what they have to say."""
    rng = np.random.default_rng(0)
    signal = np.where(np.arange(64) % 4 == 0, 1.0, 0.0)[:, None] * rng.choice([-1, 1], (64, 50))
    delta = signal + rng.normal(0, 0.5, (64, 50))
    factor = token_shrinkage(delta.ravel(), np.repeat(np.arange(64), 50), np.ones(3200, bool)).reshape(64, 50)
    assert ((factor * delta - signal) ** 2).mean() < 0.8 * ((delta - signal) ** 2).mean()
