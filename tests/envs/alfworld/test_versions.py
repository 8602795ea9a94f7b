"""Telling the versions apart exactly, turning one into another, and sentences in grammars."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from rsipo_jax.envs.alfworld import versions
from rsipo_jax.envs.alfworld.versions import (
    PLACEHOLDER,
    VERSIONS,
    converted,
    plain,
    split_grammar,
    version_of,
)

# sha256 of the texts that the official games of version 2.1.1 carry, the grammar with PLACEHOLDER for its sentence.
DOMAIN_2_1_1 = "34172c333dff7e62eb90e85367fa5519b5f31b3849e56123d96dbc0deda50e27"
GRAMMAR_2_1_1 = "d955e6db384c68ac5797e881b795fd36d788e87a03547f9a87e48fbd7c5b361b"


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def logic(source: str, version: str) -> tuple[str, str]:
    return versions._domain_text(source, version), versions._grammar_text(version)


def test_the_official_texts_are_made_byte_for_byte() -> None:
    domain, grammar = logic("official", "2.1.1")
    assert (sha256(domain), sha256(grammar)) == (DOMAIN_2_1_1, GRAMMAR_2_1_1)


@pytest.mark.parametrize("source", ["official", "package"])
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("wanted", VERSIONS)
def test_versions_are_known_and_turn_into_one_another(source: str, version: str, wanted: str) -> None:
    assert version_of(*logic(source, version)) == version
    assert converted(*logic(source, version), wanted) == logic(source, wanted)


def test_the_versions_differ_as_said() -> None:
    (old_domain, old), (new_domain, new) = logic("official", "2.1.1"), logic("official", "2.1.2")
    assert "put {o} in/on {r}" in old and "move {o} to {r}" not in old and "action help" not in old
    assert "move {o} to {r}" in new and "put {o} in/on {r}" not in new and "action help" in new
    assert "You arrive at {lend.name}." in old and "You arrive at {r.name}." in new
    assert "(:action help" in new_domain and "(:action help" not in old_domain


def test_the_grammar_of_alfworlds_own_patch_is_known() -> None:
    """There the help text stands in the action itself; TextWorld shows the same."""
    domain, grammar = logic("official", "2.1.2")
    patched = versions._patched_grammar()
    assert patched != grammar and 'feedback :: "\nAvailable commands:\n  look:' in patched
    assert version_of(domain, patched) == "2.1.2"
    assert converted(domain, patched, "2.1.1") == logic("official", "2.1.1")


def test_spacing_and_line_ends_do_not_matter() -> None:
    domain, grammar = logic("official", "2.1.1")
    assert version_of(domain.replace("\n", "\r\n"), grammar.replace("\n", "\r\n")) == "2.1.1"
    assert version_of(domain + "\n; the end\n", grammar.replace("\n\n", "\n")) == "2.1.1"


@pytest.mark.parametrize(
    ("in_domain", "in_grammar"),
    [
        (("(not (opened ?r))", "(opened ?r)"), None),
        (("(increase (total-cost) 5)", "(increase (total-cost) 6)"), None),
        (None, ("You open the", "You opened the")),
        (None, ("move {o} to {r}", "place {o} on {r}")),
        (None, ("action look", "action gaze")),
    ],
)
def test_other_rules_or_words_are_unknown(
    in_domain: tuple[str, str] | None, in_grammar: tuple[str, str] | None
) -> None:
    domain, grammar = logic("official", "2.1.2")
    changed = domain.replace(*in_domain) if in_domain else domain
    reworded = grammar.replace(*in_grammar) if in_grammar else grammar
    assert (changed, reworded) != (domain, grammar)
    assert version_of(changed, reworded) == ""
    assert converted(changed, reworded, "2.1.1") is None


def test_rules_and_words_of_two_versions_do_not_mix() -> None:
    (old_domain, old), (new_domain, new) = logic("package", "2.1.1"), logic("package", "2.1.2")
    assert version_of(old_domain, new) == version_of(new_domain, old) == ""


@given(line=st.integers(0, 436), text=st.text("abcdef {}#:\"'", max_size=12))
def test_a_changed_line_makes_a_grammar_unknown(line: int, text: str) -> None:
    domain, grammar = logic("package", "2.1.2")
    lines = grammar.split("\n")
    assume(lines[line].strip() != text.strip())
    lines[line] = text
    assert version_of(domain, "\n".join(lines)) == ""


@given(st.text())
@example("")
@example("two. stops.. ")
@example("a {__import__('os')} in\n the [desk | #task#];")
def test_a_sentence_comes_back_out_of_a_grammar(text: str) -> None:
    _, template = logic("package", "2.1.2")
    sentence = plain(text)
    assert len(sentence) == len(text) and not set(sentence) & set('{}[]#|;<>"\\\n')
    assert split_grammar(template.replace(PLACEHOLDER, sentence)) == (template, sentence)


@given(st.text())
def test_any_text_is_a_grammar_or_none(text: str) -> None:
    assert split_grammar(text) is None
    assert version_of(text, text) == ""


@pytest.mark.parametrize("sentence", ['put a "mug"', "put a {mug}", "put\na mug", "put a mug;"])
def test_a_sentence_that_would_not_be_shown_as_it_is_is_none(sentence: str) -> None:
    _, template = logic("package", "2.1.2")
    assert split_grammar(template.replace(PLACEHOLDER, sentence)) is None
