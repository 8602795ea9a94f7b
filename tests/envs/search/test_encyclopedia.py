"""The fictional encyclopaedia: a function of its seed, answerable from its passages, and of disjoint worlds."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rsipo_jax.envs.search.encyclopedia import KINDS, Encyclopedia, make_encyclopedia

COUNTS = {"train": 40, "dev": 12, "test": 40}


@pytest.fixture(scope="module")
def made() -> Encyclopedia:
    return make_encyclopedia(0, 60, COUNTS)


def test_it_is_a_function_of_the_seed(made: Encyclopedia) -> None:
    assert make_encyclopedia(0, 60, COUNTS) == made != make_encyclopedia(1, 60, COUNTS)


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 10**6), st.integers(12, 80))
def test_every_answer_stands_in_its_passages(seed: int, people: int) -> None:
    made = make_encyclopedia(seed, people, {"train": 24, "test": 12})
    passages = {passage.id: passage for passage in made.passages}
    assert len(passages) == len(made.passages)
    for split, examples in made.examples.items():
        assert (
            len({example.question.text for example in examples})
            == len(examples)
            == {"train": 24, "test": 12}[split]
        )
        for number, example in enumerate(examples):
            question, hops = example.question, example.hops
            assert question.kind == KINDS[number % 4]
            assert question.id == f"{split}/{question.kind}/{number:05}" and question.split == split
            assert question.gold_ids == tuple(hop.passage for hop in hops)
            for hop in hops:
                assert hop.passage.startswith(split)
                assert passages[hop.passage].title == hop.query and hop.answer in passages[hop.passage].text
            if question.kind == "comparison":
                years = {hop.query: int(hop.answer) for hop in hops}
                assert (
                    question.answers == (min(years, key=years.__getitem__),) and len(set(years.values())) == 2
                )
                assert all(hop.query in question.text for hop in hops)
            else:
                assert question.answers == (hops[-1].answer,)
                assert [hop.answer for hop in hops[:-1]] == [hop.query for hop in hops[1:]]
                # Only the first thing is named: the others have to be found.
                assert hops[0].query in question.text and not any(
                    hop.query in question.text for hop in hops[1:]
                )
                assert len(hops) == {"single": 1, "bridge": 2, "compositional": 3}[question.kind]


def test_no_name_is_in_two_worlds(made: Encyclopedia) -> None:
    names: dict[str, set[str]] = {}
    for passage in made.passages:
        names.setdefault(passage.id.partition("-")[0], set()).add(passage.title)
    assert set(names) == set(COUNTS)
    assert sum(map(len, names.values())) == len(set().union(*names.values())) == len(made.passages)
    # But their parts are: a reader who knows all parts knows all words.
    parts = {split: {word for name in own for word in name.split()} for split, own in names.items()}
    assert len(parts["test"] & parts["train"]) > 0.5 * len(parts["test"])


def test_what_cannot_be_made_is_refused() -> None:
    with pytest.raises(ValueError, match="too small: give at least 12"):
        make_encyclopedia(0, 5, {"train": 4})
    with pytest.raises(ValueError, match="give it more people"):
        make_encyclopedia(0, 12, {"train": 4000})
    with pytest.raises(ValueError, match="not enough names"):
        make_encyclopedia(0, 4000, {"train": 4, "dev": 4, "test": 4})
