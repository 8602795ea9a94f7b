"""Reading skills: the three attempts in order, and that no text whatever breaks the reader."""

from __future__ import annotations

import json
import re
import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rsipo_jax.skills.parsing import ParsedSkill, parse_skill

SKILL = "Check the fridge first, then heat the mug."


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ('{"episode_summary": "Won.", "episode_skill": "%s"}', "strict"),
        ('\n  {"episode_skill": "%s", "episode_summary": "Won.", "step_skills": {"0": "x"}}\n', "strict"),
        ('Here it is:\n```json\n{"episode_summary": "Won.", "episode_skill": "%s"}\n```\nDone.', "balanced"),
        (
            '{x} {"a": 1} {"episode_summary": "Won.", "episode_skill": "%s"} {"episode_skill": "no"}',
            "balanced",
        ),
        ('<think>{}</think>{"episode_summary": "Won.", "episode_skill": "%s"}', "balanced"),
        ('{"episode_summary": "Won.", "episode_skill": "%s",}', "repaired"),  # trailing comma
        ('{"episode_summary": "Won.", "episode_skill": "%s"', "repaired"),  # missing brace
        ('{"episode_summary": "Won." "episode_skill": "%s"}', "repaired"),  # missing comma
        ('{\'episode_summary\': "Won.", episode_skill: "%s"}', "repaired"),  # bad key quotes
        ('```json\n{"episode_summary": "Won.", "episode_skill": "%s"\n```', "repaired"),
        ('{"episode_summary": "Won.", "episode_skill": "%s", "step_sk', "repaired"),  # cut after the skill
        ('{"lesson": {"episode_summary": "Won.", "episode_skill": "%s"}}', "repaired"),  # a level too deep
    ],
)
def test_attempts_in_order(text: str, status: str) -> None:
    assert parse_skill(text % SKILL) == ParsedSkill(SKILL, "Won.", True, status)


def test_bare_line_breaks_and_unescaped_quotes_are_repaired() -> None:
    text = '{"episode_summary": "It said "no" twice.",\n "episode_skill": "%s\n2. Don\\\'t wait,\\nlook."}'
    skill = '1. Say "go".\n2. Don\'t wait,\nlook.'
    assert parse_skill(text % '1. Say "go".') == ParsedSkill(skill, 'It said "no" twice.', True, "repaired")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Always check the fridge first.",
        "{}",
        "null",
        '["episode_skill", "x"]',
        '{"episode_summary": "Won."}',
        '{"episode_summary": "Won.", "episode_skill": ""}',
        '{"episode_summary": "Won.", "episode_skill": "  \\n "}',
        '{"episode_summary": "Won.", "episode_skill": "..."}',
        '{"episode_summary": "Won.", "episode_skill": "<think></think>"}',
        '{"episode_summary": "Won.", "episode_skill": ["a list"]}',
        '{"episode_summary": "Won.", "episode_skill": null}',
        '{"episode_summary": "Won.", "episode_skill": "cut in the middle of a sen',
    ],
)
def test_invalid_skills(text: str) -> None:
    assert parse_skill(text) == ParsedSkill("", "", False, "invalid")


def test_a_missing_summary_does_not_cost_the_skill() -> None:
    assert parse_skill('{"episode_skill": "Look twice."}') == ParsedSkill("Look twice.", "", True, "strict")


@pytest.mark.parametrize(
    "written",
    [
        "<think>hm</think>{}",
        "{} <action>go north</action><|im_end|>",
        "```json {}```",
        '{{"{}"}},',
        '"{}',
        '"{}"',
        "\x00{}\x07\ud800",
    ],
)
def test_debris_is_removed(written: str) -> None:
    skill = parse_skill(json.dumps({"episode_skill": written.replace("{}", SKILL)})).text
    assert SKILL in skill
    assert not any(debris in skill for debris in ("<", ">", "`", "{", "}", "\x00", "\ud800"))
    assert skill == skill.strip(' \n",')


def test_removing_a_tag_does_not_complete_another() -> None:
    assert "<think>" not in parse_skill(json.dumps({"episode_skill": "<th<b>ink>" + SKILL})).text


def test_quotes_and_comparisons_that_belong_to_the_skill_stay() -> None:
    skill = 'If 2 < 3 shelves are seen, say "open drawer 1"'
    assert parse_skill(json.dumps({"episode_skill": skill})).text == skill


KEYS = ['{"episode_skill": "', '"episode_summary"', "episode_skill:"]
PIECES = [*KEYS, ":", '"', "\\", "{", "}", ",", "```", "<a", ">", "\n", "\\u", "é", "x"]


@given(st.one_of(st.text(), st.lists(st.sampled_from(PIECES), max_size=60).map("".join)))
@example('{"a":' * 50_000)
@example("[" * 50_000)
@example('{"episode_skill": ' + "9" * 5_000 + "}")
@example('{"episode_skill": "\\ud800"}')
@example('{"episode_skill": "a\\')
def test_no_text_raises_and_every_valid_skill_is_usable(text: str) -> None:
    skill = parse_skill(text)
    assert skill.valid == bool(skill.text) == (skill.status != "invalid")
    assert skill.status in ("strict", "balanced", "repaired", "invalid")
    assert skill.text == skill.text.strip()
    assert (skill.text + skill.summary).encode().decode() == skill.text + skill.summary  # no lone surrogates
    if skill.valid:  # what was cleaned once is clean
        assert parse_skill(json.dumps({"episode_skill": skill.text})).text == skill.text


@given(st.text(), st.text(), st.sampled_from(["{}", "Sure! {}", "```json\n{}\n```"]))
def test_well_formed_json_is_never_left_to_the_repair(skill: str, summary: str, frame: str) -> None:
    parsed = parse_skill(
        frame.replace("{}", json.dumps({"episode_summary": summary, "episode_skill": skill}))
    )
    assert parsed.status in (("strict" if frame == "{}" else "balanced"), "invalid")
    assert parsed.valid or not any(map(str.isalnum, re.sub("(?i)<.*?>|`.*?json", "", skill)))


@pytest.mark.parametrize(
    "noise",
    [
        " \n" * 10_000,
        '"' + " " * 20_000,
        '"episode_skill": "' * 1_000,
        "<a" * 10_000,
        "<" * 5_000 + "a>" * 5_000,
        '{"a":' * 4_000,
    ],
)
def test_degenerate_output_is_read_quickly(noise: str) -> None:
    start = time.perf_counter()
    parse_skill('{"episode_skill": "a' + noise)
    parse_skill(json.dumps({"episode_skill": noise}))
    assert time.perf_counter() - start < 2.0
