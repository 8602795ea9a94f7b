"""Scores of a panel and the paired comparison of two runs over it.

Two averages exist and differ by several points on ALFWorld: the episode-weighted mean (every game counts
once; called `success`) and the macro average (every task kind counts once; called `success_macro`). Both are
always computed, and shown with their names. Episodes the environment spoiled (`error` not empty) are void:
left out of every rate, and counted.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rsipo_jax.evaluation.panels import Panel

RESAMPLES = 10_000  # of a bootstrap
Z95 = 1.959963984540054  # 97.5% point of the standard normal distribution


@dataclass(frozen=True)
class EpisodeScore:
    """How one episode of a panel ended."""

    task_id: str
    kind: str
    won: bool
    turns: int  # actions taken
    invalid_actions: int  # turns whose action was malformed
    error: str = ""  # not empty: the environment failed, and the episode says nothing about the policy
    draw: int = 0  # how often the panel drew this game before; 0 unless its games are drawn with repetition
    optimal: int | None = None  # fewest turns that win the game, where an environment can tell
    trace: str = ""  # the stack trace behind an error, where there is one

    @property
    def key(self) -> tuple[str, int]:
        """What names an episode in its panel."""
        return self.task_id, self.draw


@dataclass(frozen=True)
class KindScore:
    """Successes of one task kind; `success` is None when every episode of the kind is void."""

    episodes: int  # valid ones
    wins: int
    errors: int
    success: float | None  # wins / episodes
    interval: tuple[float, float]  # Wilson 95%
    optimal: (
        float | None
    )  # fewest turns that win, mean over the valid episodes; None where they are not known


@dataclass(frozen=True)
class Score:
    """The result of a panel. Rates are in [0, 1]; means are over the valid episodes."""

    success: float  # episode-weighted mean
    interval: tuple[float, float]  # Wilson 95% of the episode-weighted mean
    success_macro: float  # mean over the kinds that have a valid episode, each weighted equally
    episodes: int  # valid ones
    wins: int
    errors: int
    turns: float
    invalid_actions: float  # per episode
    optimal: float | None  # as in KindScore
    won_turns: float | None  # mean over the won episodes, None when there are none
    won_optimal: float | None  # the fewest turns of the same games
    kinds: Mapping[str, KindScore]  # sorted by kind

    def record(self) -> dict[str, Any]:
        """The score as plain JSON values, the form the run log keeps and the tables read."""
        return dataclasses.asdict(self)


@dataclass(frozen=True)
class PairedDifference:
    """Success of the second run minus success of the first, over the games both finished."""

    mean: float  # in [-1, 1], episode-weighted
    low: float  # bootstrap 95% interval of the mean
    high: float
    episodes: int  # pairs compared
    excluded: int  # pairs left out because either episode is void
    gained: int  # games only the second run won
    lost: int  # games only the first run won

    def record(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def wilson(wins: ArrayLike, episodes: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Wilson 95% score interval of a success rate: (low, high), elementwise, float64.

    With w wins of n: (w + z^2/2 -+ z sqrt(w (n - w) / n + z^2/4)) / (n + z^2) (Wilson 1927); (0, 1) at n = 0.
    """
    w, n = np.asarray(wins, np.float64), np.asarray(episodes, np.float64)
    centre = w + Z95**2 / 2
    half = Z95 * np.sqrt(w * (n - w) / np.maximum(n, 1) + Z95**2 / 4)
    low = np.where(
        w == 0, 0.0, (centre - half) / (n + Z95**2)
    )  # exact ends: rounding would leave 1e-17 there
    high = np.where(w == n, 1.0, (centre + half) / (n + Z95**2))
    return low, high


def score(panel: Panel, episodes: Iterable[EpisodeScore]) -> Score:
    """The score of `panel` from its episodes, in any order.

    Raises ValueError unless the episodes are those of the panel, each exactly once, and at least one of them
    is valid.
    """
    rows = _by_key(episodes)
    keys = [(task.id, draw) for task, draw in panel.draws()]
    _same_games(rows.keys(), keys, "the episodes", f"panel {panel.name!r}")
    ordered = [rows[key] for key in keys]
    valid = np.array([not row.error for row in ordered])
    if not valid.any():
        raise ValueError(
            f"panel {panel.name!r} has no valid episode: all {len(ordered)} failed in the environment, "
            f"the first with {ordered[0].error!r}; fix the environment and evaluate again"
        )
    won = np.array([row.won for row in ordered]) & valid
    turns = np.array([row.turns for row in ordered], np.float64)
    optimal = np.array([np.nan if row.optimal is None else row.optimal for row in ordered], np.float64)
    names, kind = np.unique([row.kind for row in ordered], return_inverse=True)
    n = np.bincount(kind, weights=valid, minlength=len(names))
    wins = np.bincount(kind, weights=won, minlength=len(names))
    errors = np.bincount(kind, weights=~valid, minlength=len(names))
    rates = np.divide(wins, n, out=np.full(len(names), np.nan), where=n > 0)
    lows, highs = wilson(wins, n)
    low, high = wilson(wins.sum(), n.sum())
    return Score(
        success=float(wins.sum() / n.sum()),
        interval=(float(low), float(high)),
        success_macro=float(np.nanmean(rates)),
        episodes=int(n.sum()),
        wins=int(wins.sum()),
        errors=int(errors.sum()),
        turns=float(turns[valid].mean()),
        invalid_actions=float(np.mean([row.invalid_actions for row in ordered], where=valid)),
        optimal=_mean(optimal[valid]),
        won_turns=_mean(turns[won]),
        won_optimal=_mean(optimal[won]),
        kinds={
            str(name): KindScore(
                episodes=int(n[k]),
                wins=int(wins[k]),
                errors=int(errors[k]),
                success=float(rates[k]) if n[k] else None,
                interval=(float(lows[k]), float(highs[k])),
                optimal=_mean(optimal[valid & (kind == k)]),
            )
            for k, name in enumerate(names)
        },
    )


def paired_bootstrap(
    a: Sequence[EpisodeScore], b: Sequence[EpisodeScore], resamples: int = RESAMPLES, seed: int = 0
) -> PairedDifference:
    """Success of `b` minus success of `a` with its bootstrap 95% percentile interval, matched game by game.

    A game's difference is -1, 0 or 1, so drawing n games with replacement is one multinomial draw of the
    three counts: the same distribution as indexing, at a cost that does not depend on n. The result depends
    on the counts and the seed only, not on the order of the episodes. Raises ValueError when the two runs did
    not play the same games, when a game occurs twice, or when no pair is valid.
    """
    before, after = _by_key(a), _by_key(b)
    _same_games(before.keys(), after.keys(), "the first run", "the second run")
    pairs = [(before[key], after[key]) for key in before if not (before[key].error or after[key].error)]
    if not pairs:
        raise ValueError(
            f"no game is valid in both runs: each of the {len(before)} pairs has an environment failure"
        )
    n = len(pairs)
    difference = np.array([int(second.won) - int(first.won) for first, second in pairs])
    lost, tied, gained = (int(np.sum(difference == d)) for d in (-1, 0, 1))
    draws = np.random.default_rng(seed).multinomial(n, np.array([lost, tied, gained]) / n, size=resamples)
    low, high = np.quantile((draws[:, 2] - draws[:, 0]) / n, [0.025, 0.975])
    return PairedDifference(
        mean=(gained - lost) / n,
        low=float(low),
        high=float(high),
        episodes=n,
        excluded=len(before) - n,
        gained=gained,
        lost=lost,
    )


def mean_of_panels(panels: Sequence[Sequence[EpisodeScore]]) -> tuple[float, float, float]:
    """Mean success of several panels, each weighted equally, in [0, 1], with its bootstrap 95% interval.

    Episodes are drawn again within their panels; void ones are left out. Raises ValueError for a panel without valid ones.
    """
    rng, total = np.random.default_rng(0), np.zeros(RESAMPLES)
    mean = 0.0
    for episodes in panels:
        won = [episode.won for episode in episodes if not episode.error]
        if not won:
            raise ValueError("a panel has no valid episode, so there is no mean over panels")
        mean += sum(won) / len(won) / len(panels)
        total += rng.binomial(len(won), sum(won) / len(won), RESAMPLES) / len(won) / len(panels)
    low, high = np.percentile(total, [2.5, 97.5])
    return mean, float(low), float(high)


def _mean(values: NDArray[np.float64]) -> float | None:
    """The mean, None where there is nothing or something unknown to average."""
    return None if not len(values) or np.isnan(values).any() else float(values.mean())


def _by_key(episodes: Iterable[EpisodeScore]) -> dict[tuple[str, int], EpisodeScore]:
    rows: dict[tuple[str, int], EpisodeScore] = {}
    for row in episodes:
        if row.key in rows:
            raise ValueError(
                f"game {row.task_id!r} has two episodes in one evaluation: each game is played once"
            )
        rows[row.key] = row
    return rows


def _same_games(
    left: Iterable[tuple[str, int]], right: Iterable[tuple[str, int]], left_name: str, right_name: str
) -> None:
    """Raises ValueError naming one game that only one side played."""
    only_left, only_right = set(left) - set(right), set(right) - set(left)
    if only_left or only_right:
        example, _ = min(only_left or only_right)
        raise ValueError(
            f"{left_name} and {right_name} are not over the same games: {len(only_left)} only in "
            f"{left_name}, {len(only_right)} only in {right_name} (for example {example!r}); "
            "evaluate both on one panel"
        )
