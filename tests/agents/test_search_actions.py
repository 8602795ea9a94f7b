"""Parsing searches and answers: the family's rule, the strict one, and what they never do."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rsipo_jax.agents.actions import ParsedAction
from rsipo_jax.agents.parsers import PARSERS as BY_ENVIRONMENT
from rsipo_jax.agents.search_actions import PARSERS, parse_faithful, parse_strict
from rsipo_jax.text.tags import SEARCH_TAGS
from rsipo_jax.validation.choices import ENVIRONMENTS
from rsipo_jax.validation.choices import PARSERS as NAMES

PIECES = st.lists(
    st.sampled_from([*SEARCH_TAGS, *map(str.upper, SEARCH_TAGS), "<action>", "who", " ", "\n", "<", "/search>", "é"])
).map("".join)  # fmt: skip


@pytest.mark.parametrize(
    ("response", "faithful", "strict"),
    [
        ("<think> a</think><search> who is it?</search>", "<search>who is it?</search>", True),
        ("<think>a</think>\n<answer> Ada \n</answer>\n", "<answer>Ada</answer>", True),
        ("<answer>Ada</answer>", "<answer>Ada</answer>", False),  # nobody checks for a thought, but strict
        ("<think>a</think><SEARCH>x</Search>", "<search>x</search>", False),
        ("<think>a</think><search>x</search> and so on", "<search>x</search>", False),
        ("<think>a <search>x</search></think><search>y</search>", "<search>x</search>", False),
        ("<think>a</think>", "", False),
        ("<think>a</think><search> </search>", "", False),
        ("<think>a</think><search>x", "", False),
        ("", "", False),
    ],
)
def test_one_block_is_the_command(response: str, faithful: str, strict: bool) -> None:
    assert parse_faithful(response, ()).command == faithful
    parsed = parse_strict(response, ())
    assert parsed == (ParsedAction(faithful, True, True) if strict else ParsedAction("", False, False))


@pytest.mark.parametrize(
    ("response", "command"),
    [
        ("<search>x</search><answer>y</answer>", "<search>x</search>"),
        (
            "<answer>y</answer><search>x</search>",
            "<answer>y</answer>",
        ),  # not Search-R1's rule, where a search wins
        ("<search>x</search><search>y</search>", "<search>x</search>"),
        ("<search>x</search></search>", "<search>x</search>"),
    ],
)
def test_more_than_a_block_is_invalid_and_its_first_one_is_done(response: str, command: str) -> None:
    assert parse_faithful(response, ()) == ParsedAction(command, False, True)
    assert not parse_strict(response, ()).valid


@given(PIECES)
def test_what_is_strict_is_faithful_and_a_command_is_one_block(response: str) -> None:
    faithful, strict = parse_faithful(response, ()), parse_strict(response, ())
    if strict.valid:
        assert strict == faithful
        assert response.count("<think>") == 1 and response.strip().startswith("<think>")
    for parsed in (faithful, strict):
        assert parsed.admissible == bool(parsed.command) and (parsed.command or not parsed.valid)
        if parsed.command:
            assert re.fullmatch(r"<(search|answer)>\S(.*\S)?</\1>", parsed.command, re.DOTALL)
    by_family = re.search(r"<(search|answer)>(.*?)</\1>", response.lower(), re.DOTALL)
    if by_family is None or not by_family[2].strip():
        assert faithful.command == ""
    else:
        assert faithful.command.lower() == f"<{by_family[1]}>{by_family[2].strip()}</{by_family[1]}>"


def test_every_environment_has_every_rule() -> None:
    assert set(BY_ENVIRONMENT) == set(ENVIRONMENTS)
    assert all(set(rules) == set(NAMES) for rules in BY_ENVIRONMENT.values()) and set(PARSERS) == set(NAMES)
