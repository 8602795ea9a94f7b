"""From a response to a search or an answer, the commands of the search environment.

`faithful` keeps the rules of the verl-agent family: the first block counts, and anything beside it makes the turn invalid
without changing what is done. `strict` accepts one thought, then one search or answer, and nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from rsipo_jax.agents.actions import ParsedAction
from rsipo_jax.text.tags import (
    ANSWER_CLOSE,
    ANSWER_OPEN,
    SEARCH_CLOSE,
    SEARCH_OPEN,
    SEARCH_TAGS,
    THINK_CLOSE,
    THINK_OPEN,
)

_COMMAND_TAGS = (SEARCH_OPEN, SEARCH_CLOSE, ANSWER_OPEN, ANSWER_CLOSE)
_BLOCK = re.compile(
    rf"{SEARCH_OPEN}(?P<query>.*?){SEARCH_CLOSE}|{ANSWER_OPEN}(?P<answer>.*?){ANSWER_CLOSE}",
    re.DOTALL | re.IGNORECASE,
)
_TEXT = rf"(?:(?!{'|'.join(map(re.escape, SEARCH_TAGS))}).)*"  # no tag inside
_STRICT = re.compile(
    rf"\s*{THINK_OPEN}{_TEXT}{THINK_CLOSE}\s*"
    rf"(?:{SEARCH_OPEN}(?P<query>{_TEXT}){SEARCH_CLOSE}|{ANSWER_OPEN}(?P<answer>{_TEXT}){ANSWER_CLOSE})\s*",
    re.DOTALL,
)
_NOTHING = ParsedAction("", False, False)


def parse_faithful(response: str, admissible: Sequence[str]) -> ParsedAction:
    """The family's rule: the first search or answer block is done, tags in any case; thoughts are asked for, not checked.

    Invalid without a block, with both kinds of tags, or with one of the tags twice.
    """
    match = _BLOCK.search(response)
    if match is None:
        return _NOTHING
    tags = [response.lower().count(tag) for tag in _COMMAND_TAGS]
    return _parsed(match, valid=sum(tags) == 2)


def parse_strict(response: str, admissible: Sequence[str]) -> ParsedAction:
    """One thought, then one search or answer that is not empty, nothing else. Anything else is invalid."""
    match = _STRICT.fullmatch(response)
    return _NOTHING if match is None else _parsed(match, valid=True)


def _parsed(match: re.Match[str], valid: bool) -> ParsedAction:
    """A block as a command; an empty one is none."""
    searched = match["query"] is not None
    text = (match["query"] if searched else match["answer"]).strip()
    if not text:
        return _NOTHING
    command = f"{SEARCH_OPEN}{text}{SEARCH_CLOSE}" if searched else f"{ANSWER_OPEN}{text}{ANSWER_CLOSE}"
    return ParsedAction(command, valid, True)


PARSERS = {"faithful": parse_faithful, "strict": parse_strict}
