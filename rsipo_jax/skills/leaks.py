"""Whether a skill gives the answer away: replayed with it, any policy would answer right, whatever the skill is worth.

Texts are compared as SQuAD's exact match compares them (Rajpurkar et al. 2016: case, punctuation, articles, white space),
and without the accents and the compatibility forms of Unicode.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable

_ARTICLES = re.compile(r"\b(?:a|an|the)\b")


def normalised(text: str, gap: str = "") -> str:
    """The words that count, lower case, one space between two; punctuation becomes `gap`."""
    letters = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", text).casefold())
    kept = (
        # letters, numbers and spaces stay, accents (M) and invisible characters (C) vanish, the rest is punctuation
        c if c.isalnum() else " " if c.isspace() else "" if unicodedata.category(c)[0] in "MC" else gap
        for c in letters
    )
    return " ".join(_ARTICLES.sub(" ", "".join(kept)).split())


def leaks(skill: str, answers: Iterable[str]) -> bool:
    """Whether one of the answers occurs in the skill as whole words.

    Punctuation is tried as nothing ("U.S." is "US") and as a space ("Paris-born" holds "Paris"). An answer without a word
    that counts is in no skill.
    """
    for gap in ("", " "):
        held = f" {normalised(skill, gap)} "
        if any((words := normalised(answer, gap)) and f" {words} " in held for answer in answers):
            return True
    return False
