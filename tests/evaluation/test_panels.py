import dataclasses
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rsipo_jax.envs.protocol import Task
from rsipo_jax.evaluation.panels import Panel, make_panel

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
    assert panel.short_hash == "93544d9768ce"


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
