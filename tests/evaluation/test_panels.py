import dataclasses
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rsipo_jax.envs.protocol import Task
from rsipo_jax.evaluation.panels import DRAWS, PROBE, SPLIT_OF, Panel, build_panel, make_panel
from rsipo_jax.validation.choices import PANELS, SEARCH_PANELS

KINDS = ("look_at_obj_in_light", "pick_and_place_simple", "pick_heat_then_place_in_recep")


def tasks(count: int) -> list[Task]:
    return [
        Task(f"valid_seen/{KINDS[i % 3]}-Mug-{i:03}/trial_1", KINDS[i % 3], "valid_seen")
        for i in range(count)
    ]


def test_hash_is_sha256_of_the_sorted_ids() -> None:
    panel = make_panel("p", [Task(id, "k", "s") for id in ("b/y-1/t", "a/x-2/t", "a/x-1/t")])
    # printf 'a/x-1/t\na/x-2/t\nb/y-1/t' | sha256sum
    assert panel.hash == "93544d9768ce9bbcbd45803a3be29ef9dee8e2d2028741bad1962bc13538076a"


@given(st.randoms(use_true_random=False), st.integers(0, 25))
def test_order_of_the_games_does_not_matter(rng: random.Random, limit: int) -> None:
    games = tasks(20)
    shuffled = rng.sample(games, len(games))
    assert make_panel("p", shuffled, limit) == make_panel("p", games, limit)


@given(st.integers(1, 40), st.integers(1, 50))
def test_limit_keeps_that_many_distinct_games_and_each_kind_its_share(count: int, limit: int) -> None:
    games = tasks(count)
    panel = make_panel("p", games, limit)
    assert len({task.id for task in panel.tasks}) == len(panel.tasks) == min(limit, count)
    for kind in KINDS:
        share = sum(task.kind == kind for task in games) * len(panel.tasks) / count
        assert abs(sum(task.kind == kind for task in panel.tasks) - share) < 1


def test_other_games_other_hash_other_name_same_hash() -> None:
    panel = make_panel("p", tasks(20))
    assert panel.hash != make_panel("p", tasks(19)).hash
    assert panel.hash == dataclasses.replace(panel, name="q").hash


def test_refusals() -> None:
    one, two = tasks(2)
    with pytest.raises(ValueError, match="twice"):
        make_panel("p", [one, two, one])
    with pytest.raises(ValueError, match="'valid_seen' has no games"):
        make_panel("valid_seen", [])
    with pytest.raises(ValueError, match="limit is -1"):
        make_panel("p", [one], -1)
    with pytest.raises(ValueError, match="not sorted"):
        Panel("p", (two, one))
    with pytest.raises(ValueError, match="not sorted"):
        Panel("p", (two, one), drawn="by hand")


def test_every_panel_has_a_split_and_plays_it() -> None:
    asked = []

    def find(split: str) -> list[Task]:
        asked.append(split)
        return tasks(200)

    panels = {name: build_panel(name, find, seed=0, step=0) for name in SPLIT_OF}
    assert asked == list(SPLIT_OF.values())
    assert {*PANELS, *SEARCH_PANELS, "train"} == set(SPLIT_OF)
    sizes = {name: len(panel.tasks) for name, panel in panels.items()}
    assert sizes == dict.fromkeys(SPLIT_OF, 200) | {"train_probe": PROBE, "literature": DRAWS}
    assert [name for name, panel in panels.items() if panel.drawn] == ["literature"]


def test_the_literature_draws_with_repetition_and_says_so() -> None:
    """140 seen games and 128 draws: about 84 distinct ones, as field studies of the protocol count."""
    games = tasks(140)
    panels = [build_panel("literature", lambda _: games, seed, 3) for seed in range(30)]
    distinct = [len(set(panel.tasks)) for panel in panels]
    assert 78 < sum(distinct) / len(distinct) < 90
    assert f"{DRAWS} draws with repetition, {distinct[0]} distinct games of 140" in panels[0].drawn
    again, later = (build_panel("literature", lambda _: games, 0, step) for step in (3, 4))
    assert panels[0] == again != later
    # an environment deals its whole order before a game comes again
    orders = [build_panel("literature", lambda _: games[:5], 0, step) for step in range(5)]
    assert sum(panel.tasks.count(games[0]) for panel in orders) == DRAWS


def test_draws_tell_the_episodes_of_a_panel_apart() -> None:
    one, two = tasks(2)
    panel = Panel("p", (one, one, two), drawn="by hand")
    assert panel.draws() == [(one, 0), (one, 1), (two, 0)]
