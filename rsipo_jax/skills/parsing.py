"""Reading the skill the policy wrote: `{"episode_summary": "...", "episode_skill": "..."}` in whatever text.

Three attempts, in order: the whole text is the object; some balanced {...} in it is; the two values stand
behind their keys although the JSON around them is broken. No text makes this raise: what cannot be read is an
invalid skill, which the skill reward punishes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

SKILL_KEY = "episode_skill"
SUMMARY_KEY = "episode_summary"

# The string behind `"key":` up to a quote that the next key, a closing brace or the end of the text follows.
# It may hold bare line breaks and unescaped quotes; a string that never closes is a thought cut short and is
# not accepted. The possessive `*+` keeps pages of white space, which a collapsed policy does write, from
# costing quadratic time.
_VALUE = r"""["']?{key}["']?\s*+:\s*+"(.*?)"\s*+,?\s*+(?:["']?(?:episode|step)_|\}}|(?:```\s*+)?$)"""
_REPAIRS = {key: re.compile(_VALUE.format(key=key), re.DOTALL) for key in (SKILL_KEY, SUMMARY_KEY)}

# <think>, </action>, <|im_end|>, ```json. Each becomes a space: removing one cannot complete another.
_DEBRIS = re.compile(r"</?[A-Za-z_]\w*/?>|<\|\w+\|>|`{3,}(?:json)?", re.IGNORECASE)
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]")  # lone surrogates cannot be encoded


@dataclass(frozen=True)
class ParsedSkill:
    """A skill as it goes into a prompt. `text` is non-empty exactly when `valid`."""

    text: str
    summary: str  # for people; may be missing (then "")
    valid: bool
    status: str  # "strict" | "balanced" | "repaired" | "invalid"


def parse_skill(text: str) -> ParsedSkill:
    """Parse the model's whole response. Never raises; without a readable skill the status is "invalid"."""
    for status, candidates in (("strict", _strict), ("balanced", _balanced), ("repaired", _repaired)):
        for fields in candidates(text):
            skill = _clean(fields.get(SKILL_KEY))
            if skill:
                return ParsedSkill(skill, _clean(fields.get(SUMMARY_KEY)), True, status)
    return ParsedSkill("", "", False, "invalid")


def _strict(text: str) -> Iterator[dict[str, Any]]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return
    if isinstance(value, dict):
        yield value


def _balanced(text: str) -> Iterator[dict[str, Any]]:
    """Every outermost JSON object in the text, from the left."""
    decoder = json.JSONDecoder()
    start = text.find("{")
    while start >= 0:
        end = start + 1
        try:
            value, end = decoder.raw_decode(text, start)
            yield value
        except RecursionError:  # nested beyond reason, and so is every object inside it
            return
        except ValueError:
            pass
        start = text.find("{", end)


def _repaired(text: str) -> Iterator[dict[str, Any]]:
    """The values by their keys: survives bare line breaks, unescaped quotes, stray commas, no last brace."""
    found = {key: match[1] for key, pattern in _REPAIRS.items() if (match := pattern.search(text))}
    yield {key: _unescape(value) for key, value in found.items()}


def _unescape(value: str) -> str:
    escaped = re.sub(r'\\(?!["\\/bfnrtu])', "", re.sub(r'(?<!\\)"', r"\"", value))
    try:
        return str(json.loads(f'"{escaped}"', strict=False))
    except ValueError:
        return ""


def _clean(value: Any) -> str:
    """The value as prompt text, or "" if nothing is left of it.

    Removes tags, code fences and control characters, and from the ends what a broken object leaves there:
    braces, commas, quotes around everything.
    """
    if not isinstance(value, str):
        return ""
    value = re.sub(" {2,}", " ", _DEBRIS.sub(" ", _CONTROL.sub("", value)))
    before = None
    while value != before:
        before = value
        value = value.strip().strip("{},").strip()
        if '"' not in value[1:-1]:
            value = value.strip('"')
    return value if any(map(str.isalnum, value)) else ""
