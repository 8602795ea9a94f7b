"""Exact match of answers, as SQuAD's script and the search-agent family (Search-R1, verl-agent) count it."""

from __future__ import annotations

import re
import string
from collections.abc import Iterable

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")


def normalized(answer: str) -> str:
    """Lower case, without ASCII punctuation and English articles, white space collapsed; in this order.

    Punctuation leaves no space behind ("U.S." is "us", "co-op" is "coop"), and articles are looked for after that.
    Letters keep their accents, and quotes and dashes beyond ASCII stay.
    """
    return " ".join(_ARTICLES.sub(" ", answer.lower().translate(_PUNCTUATION)).split())


def exact_match(answer: str, golds: Iterable[str]) -> bool:
    """Whether the answer equals one of the golden ones after normalisation. No answer ("") is never right."""
    given = normalized(answer)
    return bool(answer.strip()) and any(given == normalized(gold) for gold in golds)
