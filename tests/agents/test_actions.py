"""Reading the action out of a response: the family's quirks one by one, the strict rule, and any text at all."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rsipo_jax.agents.actions import PARSERS, ParsedAction, parse_faithful, parse_strict
from rsipo_jax.config import ContextConfig
from rsipo_jax.text.tags import ACTION_CLOSE, ACTION_OPEN, TAGS
from rsipo_jax.validation.choices import PARSERS as NAMES

ADMISSIBLE = ("go to desk 1", "inventory", "look")
TEXTS = st.lists(
    st.sampled_from([*TAGS, *map(str.upper, TAGS), *ADMISSIBLE, " ", "\n", "<", "/think>", "看", "İ"])
    | st.text(max_size=3),
    max_size=12,
).map("".join)


@pytest.mark.parametrize(
    ("response", "command", "valid", "admissible"),
    [
        ("<think>x</think><action>look</action>", "look", True, True),
        ("<think>x</think><action> Look\n</action>", "look", True, True),
        ("<think>x</think><action>fly to moon</action>", "fly to moon", True, False),
        ("<think>x</think></action>oops<action>look", "", True, False),
        ("<think>x</think><action></action>", "", True, False),
        ("<think>I could <action>look</action> but</think><action>go to desk 1</action>", "look", True, True),
        ("<THINK>x</THINK><ACTION>Look</ACTION>", "look", False, True),
        ("<action>look</action><think>after</think>", "look", True, True),
        ("<think>看</think><action>look</action>", "look", False, True),
        ("<action>look</action>", "look", False, True),
        ("<think>x<action>look</action>", "look", False, True),
        (
            "<think>x</think> I would rather LOOK AROUND A LITTLE",
            "ld rather look around a little",
            False,
            False,
        ),
        ("<think>x</think><action>look", "<think>x</think><action>look", False, False),
        ("inventory", "inventory", False, True),
        (" look ", " look ", False, True),
        ("", "", False, False),
    ],
)
def test_the_family_s_rule(response: str, command: str, valid: bool, admissible: bool) -> None:
    assert parse_faithful(response, ADMISSIBLE) == ParsedAction(command, valid, admissible)


@pytest.mark.parametrize(
    ("response", "command"),
    [
        ("<think>x</think><action>look</action>", "look"),
        (" <think> find\nmug </think>\n<action> go to desk 1 </action>\n", "go to desk 1"),
        ("<think></think><action>inventory</action>", "inventory"),
    ],
)
def test_the_strict_rule_accepts_one_thought_and_one_admissible_action(response: str, command: str) -> None:
    assert parse_strict(response, ADMISSIBLE) == ParsedAction(command, True, True)


@pytest.mark.parametrize(
    "response",
    [
        "",
        "look",
        "<action>look</action>",
        "<action>look</action><think>x</think>",
        "<think>x</think><action>look</action> ok",
        "well <think>x</think><action>look</action>",
        "<think>x</think> so <action>look</action>",
        "<think>x</think><action>look</action><action>look</action>",
        "<think>x</think><think>y</think><action>look</action>",
        "<think>a</think>b</think><action>look</action>",
        "<think>a</action></think><action>look</action>",
        "<think>a<think></think><action>look</action>",
        "<think>I could <action>look</action> but</think><action>look</action>",
        "<think>x</think><action>fly to moon</action>",
        "<think>x</think><action>Look</action>",
        "<think>x</think><action></action>",
        "<think>x</think><action>look</think></action>",
        "<THINK>x</THINK><ACTION>look</ACTION>",
    ],
)
def test_the_strict_rule_refuses_everything_else(response: str) -> None:
    parsed = parse_strict(response, ADMISSIBLE)
    assert not parsed.valid and not parsed.admissible


@given(response=TEXTS)
def test_no_text_breaks_a_parser(response: str) -> None:
    faithful, strict = parse_faithful(response, ADMISSIBLE), parse_strict(response, ADMISSIBLE)
    assert faithful.admissible == (faithful.command.strip() in ADMISSIBLE)
    assert not faithful.valid or all(tag in response.lower() for tag in TAGS)
    assert not {ACTION_OPEN, ACTION_CLOSE} <= {tag for tag in TAGS if tag in faithful.command}
    if strict.valid:
        assert strict.command in ADMISSIBLE and all(response.count(tag) == 1 for tag in TAGS)
        assert faithful.command == strict.command


def test_the_settings_name_every_parser() -> None:
    assert set(NAMES) == set(PARSERS) and ContextConfig().parser in PARSERS
