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


def described(text: str) -> list[str]:
    """The words that count, letter by letter from the description of SQuAD's normalisation, without its expressions.

    In lower case; the 32 signs of ASCII are gone as if they had not been there; what is left falls into words of letters
    and digits, signs beyond ASCII, and white space; the words a, an and the count as white space.
    """
    kept = [c for c in text.lower() if not ("!" <= c <= "~") or c.isalnum()]
    pieces, word = list[str](), ""
    for c in [*kept, " "]:
        if c.isalnum():
            word += c
            continue
        pieces.append(" " if word in ("a", "an", "the") else word)
        word = ""
        pieces.append(" " if c.isspace() else c)
    return "".join(pieces).split()


@given(texts, st.lists(texts, max_size=3))
def test_it_is_what_squads_description_says(answer: str, golds: list[str]) -> None:
    assert normalized(answer) == " ".join(described(answer))
    right = any(described(answer) == described(gold) for gold in golds)
    assert exact_match(answer, golds) == (right and not answer.isspace() and answer != "")


def squad(text: str) -> str:
    """SQuAD v1.1's normalisation, as its script has it."""
    text = text.lower()
    text = "".join(ch for ch in text if ch not in set(string.punctuation))
    text = re.sub(r"\b(a|an|the)\b", " ", text)
    return " ".join(text.split())


@given(texts, st.lists(texts, max_size=3))
def test_it_is_what_squads_script_does(answer: str, golds: list[str]) -> None:
    assert normalized(answer) == squad(answer)
    assert exact_match(answer, golds) == (bool(answer.strip()) and squad(answer) in {squad(g) for g in golds})


@given(
    texts,
    st.sampled_from(["the {}", "{} a", " {}\t", "({})", "{}.", '"{}"', "{}!?"]),
    st.lists(texts, max_size=2),
)
def test_articles_signs_and_space_around_an_answer_do_not_count(
    answer: str, around: str, others: list[str]
) -> None:
    """And it does not matter which of the golds is met."""
    if answer.strip():
        assert exact_match(around.format(answer), [*others, answer])
        assert exact_match(answer, [around.format(answer), *others])


@pytest.mark.parametrize(
    ("answer", "gold", "same"),
    [("The U.S.", "us", True), ("an  apple.", "Apple", True), ("co-op", "co op", False), ("Rontgen", "Röntgen", False),
     ("10,000", "10000", True), ("1.5", "15", True), ("-5", "5", True), ("a.m.", "am", True), ("a. m.", "m", True),
     ("A-the-an", "athean", True), ("a_b", "ab", True), ("the_", "x", False), ("Rock 'n' Roll", "rock n roll", True),
     ("An’s", "’s", True), ("the—end", "—end", True), ("a\u0301", "\u0301", True), ("á", "a\u0301", False),
     ("İstanbul", "i\u0307stanbul", True), ("STRASSE", "straße", False), ("１", "1", False), ("A\u00a0B", "b", True),
     ("x\u200by", "xy", False), ("A", "the", True), ("?", "!", True), ("...", "", True), ("no", "", False),
     ("", "", False), (" ", "the", False), ("the", "", True), ("theatre", "atre", False)],
)  # fmt: skip
def test_by_hand(answer: str, gold: str, same: bool) -> None:
    assert exact_match(answer, [gold]) == same
