import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rsipo_jax.envs.protocol import Task
from rsipo_jax.evaluation.panels import Panel, make_panel
from rsipo_jax.evaluation.scores import EpisodeScore, mean_of_panels, paired_bootstrap, score, wilson


def episodes(outcomes: list[bool | None], kind: str = "pick") -> list[EpisodeScore]:
    """One episode each; None is a void one (recorded as won, which must not count)."""
    return [
        EpisodeScore(
            f"{kind}/{i:03}", kind, won is not False, 10 + i, i % 2, "worker died" if won is None else ""
        )
        for i, won in enumerate(outcomes)
    ]


def panel_of(rows: list[EpisodeScore]) -> Panel:
    return make_panel("p", [Task(row.task_id, row.kind, "s") for row in rows])


@pytest.mark.parametrize(
    ("wins", "games", "low", "high"),
    [
        (81, 263, 0.2552885198782742, 0.36620957698280004),  # Newcombe (1998), table I: .2553 to .3662
        (15, 148, 0.06238639953073629, 0.16048724172330803),  # .0624 to .1605
        (0, 20, 0.0, 0.16112515805281935),  # .0000 to .1611
        (1, 29, 0.006113214292762667, 0.17175521879320282),  # .0061 to .1718
        (29, 29, 0.8830302015002592, 1.0),  # scipy.stats.binomtest(...).proportion_ci(method="wilson")
        (140, 210, 0.6004193945242017, 0.7269259218893706),
    ],
)
def test_wilson_golden(wins: int, games: int, low: float, high: float) -> None:
    np.testing.assert_allclose(wilson(wins, games), (low, high), rtol=1e-12, atol=1e-15)


def test_wilson_without_games_says_nothing() -> None:
    assert wilson(0, 0) == (0.0, 1.0)


def test_score_by_hand() -> None:
    rows = (
        episodes([True, False, False, False], "pick")
        + episodes([True, None], "heat")
        + episodes([None], "cool")
    )
    result = score(panel_of(rows), reversed(rows))
    assert (result.episodes, result.wins, result.errors) == (5, 2, 2)
    assert result.success == 2 / 5
    assert result.success_macro == (1 / 4 + 1) / 2  # "cool" has no valid episode
    assert result.turns == (10 + 11 + 12 + 13 + 10) / 5
    assert result.invalid_actions == 2 / 5
    assert list(result.kinds) == ["cool", "heat", "pick"]
    cool, heat, pick = result.kinds.values()
    assert (cool.episodes, cool.errors, cool.success, cool.interval) == (0, 1, None, (0.0, 1.0))
    assert (heat.episodes, heat.wins, heat.errors, heat.success) == (1, 1, 1, 1.0)
    assert (pick.episodes, pick.wins, pick.success) == (4, 1, 0.25)
    assert pick.interval == tuple(float(bound) for bound in wilson(1, 4))
    assert result.interval == tuple(float(bound) for bound in wilson(2, 5))


def test_score_wants_the_panel_exactly_once() -> None:
    rows = episodes([True, False])
    with pytest.raises(ValueError, match=r"1 only in panel 'p' .*'pick/001'"):
        score(panel_of(rows), rows[:1])
    with pytest.raises(ValueError, match="'pick/000' has two episodes"):
        score(panel_of(rows), [*rows, rows[0]])
    with pytest.raises(ValueError, match="worker died"):
        score(panel_of(rows), episodes([None, None]))


outcome_pairs = st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=60)


@given(outcome_pairs, st.randoms(use_true_random=False))
def test_bootstrap_properties(pairs: list[tuple[bool, bool]], rng: random.Random) -> None:
    a, b = episodes([first for first, _ in pairs]), episodes([second for _, second in pairs])
    result = paired_bootstrap(a, b, resamples=500)
    assert result.mean == pytest.approx(np.mean([int(second) - int(first) for first, second in pairs]))
    assert -1 <= result.low <= result.high <= 1
    assert result.gained + result.lost == sum(first != second for first, second in pairs)
    if len(set(pairs)) > 1:  # wide enough a sample puts the mean between the ends
        assert result.low - 1 / len(pairs) <= result.mean <= result.high + 1 / len(pairs)
    shuffled = paired_bootstrap(rng.sample(a, len(a)), rng.sample(b, len(b)), resamples=500)
    assert shuffled == result
    assert paired_bootstrap(b, a, resamples=500).mean == -result.mean
    same = paired_bootstrap(a, a, resamples=500)
    assert (same.mean, same.low, same.high) == (0, 0, 0)


def test_bootstrap_equals_drawing_games_with_replacement() -> None:
    rng = np.random.default_rng(1)
    first, second = rng.random(210) < 0.4, rng.random(210) < 0.55
    a, b = episodes([bool(won) for won in first]), episodes([bool(won) for won in second])
    difference = second.astype(int) - first
    drawn = difference[rng.integers(0, 210, (10_000, 210))].mean(1)
    result = paired_bootstrap(a, b)
    np.testing.assert_allclose((result.low, result.high), np.quantile(drawn, [0.025, 0.975]), atol=0.01)
    assert result == paired_bootstrap(a, b)
    assert len({paired_bootstrap(a, b, resamples=20, seed=seed).low for seed in range(5)}) > 1


def test_bootstrap_leaves_out_void_pairs() -> None:
    a, b = episodes([False, None, False, True]), episodes([True, True, None, True])
    result = paired_bootstrap(a, b)
    assert (result.mean, result.episodes, result.excluded) == (0.5, 2, 2)
    assert (result.gained, result.lost) == (1, 0)


def test_bootstrap_refuses_other_games() -> None:
    with pytest.raises(ValueError, match=r"0 only in the first run, 1 only in the second run .*'pick/002'"):
        paired_bootstrap(episodes([True] * 2), episodes([True] * 3))
    with pytest.raises(ValueError, match="no game is valid in both runs"):
        paired_bootstrap(episodes([None]), episodes([True]))


def test_fewest_turns_are_averaged_where_all_are_known() -> None:
    rows = [
        EpisodeScore("a", "pick", True, 8, 0, optimal=4),
        EpisodeScore("b", "pick", False, 15, 0, optimal=6),
        EpisodeScore("c", "heat", True, 7, 0, optimal=7),
        EpisodeScore("d", "heat", True, 1, 0, "worker died", optimal=9),
    ]
    result = score(panel_of(rows), rows)
    assert (result.optimal, result.won_turns, result.won_optimal) == ((4 + 6 + 7) / 3, 7.5, 5.5)
    assert {name: kind.optimal for name, kind in result.kinds.items()} == {"pick": 5.0, "heat": 7.0}
    unknown = [*rows[:2], EpisodeScore("c", "heat", False, 7, 0)]
    result = score(panel_of(unknown), unknown)
    assert (result.optimal, result.won_optimal) == (None, 4.0)
    lost = [EpisodeScore("a", "pick", False, 8, 0)]
    assert score(panel_of(lost), lost).won_turns is None


def test_draws_of_one_game_are_episodes_of_their_own() -> None:
    game = Task("a", "pick", "s")
    panel = Panel("p", (game, game), drawn="by hand")
    rows = [EpisodeScore("a", "pick", won, 3, 0, draw=draw) for draw, won in enumerate((True, False))]
    assert score(panel, rows).success == 0.5
    assert paired_bootstrap(rows, rows[::-1]).episodes == 2
    with pytest.raises(ValueError, match="two episodes"):
        score(panel, [rows[0], rows[0]])
    with pytest.raises(ValueError, match="only in panel 'p'"):
        score(panel, rows[:1])


def test_the_mean_of_panels_weighs_each_the_same_and_has_the_spread_of_its_episodes() -> None:
    few, many = episodes([True, True, False, False, None]), episodes([True] * 30 + [False] * 70)
    mean, low, high = mean_of_panels([few, many])
    assert mean == pytest.approx((0.5 + 0.3) / 2)
    deviation = np.sqrt(0.25 / 4 + 0.21 / 100) / 2
    assert (high - low) / 2 == pytest.approx(1.96 * deviation, rel=0.1) and low < mean < high
    assert mean_of_panels([episodes([True] * 3)]) == (1.0, 1.0, 1.0)
    with pytest.raises(ValueError, match="no valid episode"):
        mean_of_panels([many, episodes([None])])
