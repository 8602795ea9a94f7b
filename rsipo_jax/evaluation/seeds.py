"""Means and differences over seeds and games, with a two-level bootstrap.

A measurement is a matrix x[s, g]: what seed s scored in game g (1 or 0 when a run is measured; -1, 0 or 1 when one is
subtracted from another, game by game, within the seed), NaN where nothing valid is known. Its mean is

    mean_s mean_k mean_{g in k} x[s, g]

over seeds s, strata k and the known games of a stratum. One stratum of all games gives the episode-weighted mean, the task
kinds as strata the macro average; a stratum in which a seed knows nothing is left out of that seed's mean, and a seed that
knows nothing is left out.

The bootstrap draws S of the S seeds with replacement, and within every stratum its n_k games with replacement, and takes
the same mean of what was drawn; the ends are the 2.5% and 97.5% quantiles of 10,000 such means. All seeds of a resample get
the same games: they were measured on one panel, so what is particular to a game is shared by them and does not average out
over seeds (Owen 2007, "The pigeonhole bootstrap", does so for crossed factors; its variance is rather too large than too
small in the noise of single episodes). Between few seeds it is too small by (S - 1) / S, and with one seed the interval is
about the games only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rsipo_jax.evaluation.scores import EpisodeScore

Key = tuple[str, int]  # of an episode in its panel, `EpisodeScore.key`
RESAMPLES = 10_000


@dataclass(frozen=True)
class SeedsMean:
    """A mean over seeds and games with its two-level bootstrap 95% interval."""

    mean: float
    low: float
    high: float
    per_seed: tuple[float, ...]  # the mean of each seed that knows a game, in the order given
    episodes: int  # known entries, over all seeds


def wins(episodes: Sequence[EpisodeScore]) -> dict[Key, float]:
    """What a run scored in every valid game: 1 for a win, else 0."""
    return {e.key: float(e.won) for e in episodes if not e.error}


def differences(first: Sequence[EpisodeScore], second: Sequence[EpisodeScore]) -> dict[Key, float]:
    """`second` minus `first` in every game that is valid in both."""
    before, after = wins(first), wins(second)
    return {key: after[key] - before[key] for key in before if key in after}


def kinds(seeds: Sequence[Sequence[EpisodeScore]]) -> dict[Key, str]:
    """The task kind of every game."""
    return {e.key: e.kind for episodes in seeds for e in episodes}


def mean_over_seeds(
    seeds: Sequence[Mapping[Key, float]],
    kind_of: Mapping[Key, str] | None = None,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> SeedsMean:
    """The mean over `seeds` (what each scored, by game) as the module says; the macro average where `kind_of` is given.

    Depends on neither the order of the games nor the names of the kinds' order. Raises ValueError when no seed knows a game.
    """
    games = sorted({key for known in seeds for key in known})
    seeds = [known for known in seeds if known]
    if not games:
        raise ValueError("no seed has a valid episode: there is nothing to average")
    x = np.array([[known.get(game, np.nan) for game in games] for known in seeds])  # [seeds, games]
    names = [kind_of[game] if kind_of is not None else "" for game in games]
    strata = [x[:, [name == kind for name in names]] for kind in sorted(set(names))]
    per_seed = _over_strata(strata, [np.ones((1, part.shape[1])) for part in strata])[0]
    rng = np.random.default_rng(seed)
    games_drawn = [
        rng.multinomial(n, np.full(n, 1 / n), resamples) for n in (part.shape[1] for part in strata)
    ]
    drawn = rng.multinomial(len(seeds), np.full(len(seeds), 1 / len(seeds)), resamples)  # [resamples, seeds]
    rates = _over_strata(strata, games_drawn)  # [resamples, seeds]
    known = drawn * ~np.isnan(rates)
    total, count = (known * np.nan_to_num(rates)).sum(1), known.sum(1)
    # a resample that drew nothing but unknown entries says nothing
    low, high = np.quantile(total[count > 0] / count[count > 0], [0.025, 0.975])
    return SeedsMean(
        float(per_seed.mean()),
        float(low),
        float(high),
        tuple(map(float, per_seed)),
        int((~np.isnan(x)).sum()),
    )


def _over_strata(
    strata: Sequence[NDArray[np.float64]], weights: Sequence[NDArray[np.float64] | NDArray[np.int64]]
) -> NDArray[np.float64]:
    """The mean over strata of weighted means: x [seeds, n_k] and weights [r, n_k] of each to [r, seeds]; NaN: unknown."""
    total = count = np.zeros((len(weights[0]), len(strata[0])))
    for x, weight in zip(strata, weights, strict=True):
        known = weight @ (~np.isnan(x)).T.astype(np.float64)
        means = np.divide(weight @ np.nan_to_num(x).T, known, out=np.zeros_like(known), where=known > 0)
        total, count = total + means, count + (known > 0)
    return np.divide(total, count, out=np.full_like(total, np.nan), where=count > 0)
