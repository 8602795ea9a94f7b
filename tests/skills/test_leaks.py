"""The leak guard: an answer in a skill is found in any spelling, and nothing else is taken for one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rsipo_jax.skills.leaks import leaks, normalised

WORDS = st.lists(st.text("bcdefghij", min_size=2, max_size=6), min_size=1, max_size=4)
OTHERS = st.lists(st.text("klmnopqr", min_size=2, max_size=6), max_size=5)


@pytest.mark.parametrize(
    ("skill", "answer"),
    [
        ("Answer with PARIS.", "Paris"),
        ("answer: the Beatles!", "Beatles"),
        ("it is Beatles", "The Beatles"),
        ("The U.S. is right", "US"),
        ("the US is right", "U.S."),
        ("look for a Paris-born painter", "Paris"),
        ("say São Paulo", "Sao Paulo"),
        ("say ﬁnland", "Finland"),
        ("say Stra\u00dfe", "STRASSE"),
        ("it was in “1984”", "1984"),
        ("go\nto new\tyork", "New  York"),
    ],
)
def test_an_answer_is_found_in_any_spelling(skill: str, answer: str) -> None:
    assert leaks(skill, [answer])


@pytest.mark.parametrize(
    ("skill", "answers"),
    [
        ("know the question first", ["no"]),
        ("parisian painters", ["Paris"]),
        ("search for the painter first", ["", "the", "?!", " a "]),
        ("new buildings in york", ["New York"]),
        ("anything", []),
    ],
)
def test_other_words_are_no_answer(skill: str, answers: list[str]) -> None:
    assert not leaks(skill, answers)


@given(before=OTHERS, answer=WORDS, after=OTHERS, data=st.data())
def test_case_articles_and_punctuation_hide_nothing(
    before: list[str], answer: list[str], after: list[str], data: st.DataObject
) -> None:
    def disguised(word: str) -> str:
        word = data.draw(st.sampled_from([word, word.upper(), word.title()]))
        article, end = (
            data.draw(st.sampled_from(["", "the ", "An "])),
            data.draw(st.sampled_from(["", ",", ".", '"'])),
        )
        return article + word + end

    told = " ".join([*before, *map(disguised, answer), *after])
    assert leaks(told, ["zzz", " ".join(answer)])
    assert not leaks(" ".join([*before, *after]), [" ".join(answer)])


@given(text=st.text(max_size=60), gap=st.sampled_from(["", " "]))
def test_any_text_is_normalised_once_and_for_all(text: str, gap: str) -> None:
    once = normalised(text, gap)
    assert normalised(once, gap) == once
    assert leaks(text, [text]) == bool(once or normalised(text, " "))
