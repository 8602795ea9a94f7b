"""Exact match equals the scorer of the family, written here as its scripts do it."""

from __future__ import annotations

import re
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rsipo_jax.envs.search.answers import exact_match, normalized

PIECES = [
    "a",
    "an",
    "the",
    "The",
    "A.",
    "U.S.",
    "co-op",
    "Röntgen",
    "“x”",
    "—",
    "'s",
    "1,000",
    " ",
    "\t",
    "an.",
    "theatre",
    "ß",
    "İ",
]
texts = st.lists(st.sampled_from(PIECES) | st.text(max_size=4), max_size=8).map(" ".join) | st.text()


def squad(text: str) -> str:
    """SQuAD v1.1's normalisation, step by step."""
    text = text.lower()
    text = "".join(ch for ch in text if ch not in set(string.punctuation))
    text = re.sub(r"\b(a|an|the)\b", " ", text)
    return " ".join(text.split())


@given(texts, st.lists(texts, max_size=3))
def test_it_is_squads(answer: str, golds: list[str]) -> None:
    assert normalized(answer) == squad(answer)
    assert exact_match(answer, golds) == (
        bool(answer.strip()) and squad(answer) in {squad(gold) for gold in golds}
    )


@pytest.mark.parametrize(
    ("answer", "gold", "same"),
    [("The U.S.", "us", True), ("an  apple.", "Apple", True), ("co-op", "co op", False), ("Rontgen", "Röntgen", False),
     ("", "", False), (" ", "the", False), ("the", "", True), ("theatre", "atre", False)],
)  # fmt: skip
def test_by_hand(answer: str, gold: str, same: bool) -> None:
    assert exact_match(answer, [gold]) == same
