"""From a response to the command that is sent to the environment.

`faithful` keeps the rules of the verl-agent family, quirks included, so that numbers compare with published ones;
`strict` accepts exactly one admissible action after the thought. Prompt and parser share the tags of
`rsipo_jax.text.tags`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from rsipo_jax.text.tags import ACTION_CLOSE, ACTION_OPEN, TAGS, THINK_CLOSE, THINK_OPEN

_CJK = re.compile(r"[\u4e00-\u9fff]")
_TEXT = rf"(?:(?!{'|'.join(map(re.escape, TAGS))}).)*"  # no tag inside
_STRICT = re.compile(
    rf"\s*{re.escape(THINK_OPEN)}{_TEXT}{re.escape(THINK_CLOSE)}"
    rf"\s*{re.escape(ACTION_OPEN)}(?P<action>{_TEXT}){re.escape(ACTION_CLOSE)}\s*",
    re.DOTALL,
)


@dataclass(frozen=True)
class ParsedAction:
    command: str  # what the environment receives
    valid: bool  # False costs the invalid-action penalty
    admissible: bool  # the command is one of the environment's


def parse_faithful(response: str, admissible: Sequence[str]) -> ParsedAction:
    """The family's rule: the lower-cased text between the first action tags, whether admissible or not.

    Invalid when action or think tags are missing or a CJK character occurs; without action tags the last 30 characters
    are sent. A closing tag before the opening one yields an empty command that counts as valid.
    """
    text = response.lower()
    start, end = text.find(ACTION_OPEN), text.find(ACTION_CLOSE)
    if start < 0 or end < 0:
        command, valid = text[-30:], False
    else:
        command = text[start + len(ACTION_OPEN) : end].strip()
        valid = THINK_OPEN in response and THINK_CLOSE in response and not _CJK.search(response)
    return ParsedAction(command, valid, command.strip() in admissible)


def parse_strict(response: str, admissible: Sequence[str]) -> ParsedAction:
    """One thought, then one action, nothing else, and the action is admissible. Anything else is invalid."""
    match = _STRICT.fullmatch(response)
    if not match:
        return ParsedAction("", False, False)
    command = match["action"].strip()
    known = command in admissible
    return ParsedAction(command, known, known)


PARSERS = {"faithful": parse_faithful, "strict": parse_strict}
