"""The versions of ALFWorld's rules and wording that the fast engine knows, and turning one into another.

A game file carries its rules (pddl_domain) and its wording (grammar). Version 2.1.2 (alfworld >= 0.4) differs from
2.1.1 by the edits of ALFWorld's own scripts/patch_tw-pddl.py: `move X to Y` for `put X in/on Y`, the receptacle's
name for the location's in "You arrive at", and the command `help`. Both come with two domains: that of the official
games, and that of the alfworld package, which alfworld-generate (and our generator) writes; there a receptacle of
type SinkType does not clean, and no official game has one. All of them are edits of the two files in logic/.
"""

from __future__ import annotations

import functools
import importlib.resources
import re

from rsipo_jax.envs.alfworld.pddl import Expression, PddlError, parse_expression

VERSIONS = ("2.1.1", "2.1.2")
PLACEHOLDER = "UNKNOWN GOAL"  # stands in a grammar where the task sentence goes

# Text that TextWorld's grammar would read as markup ({...} even as Python), or that JSON does not allow in a string.
_MARKUP = r'\x00-\x1f\x7f"\\;|<>\[\]#{}'
_NOT_TEXT = re.compile(f"[{_MARKUP}]")
_TASK = re.compile(rf'"rhs": "Your task is to: ([^{_MARKUP}]*)\."')

_HELP_RULE = """\
(:action help
    :parameters (?a - agent)
    :precondition
        ()
    :effect
        (and
            (checked ?a)
        )
)
"""
_WORDS_2_1_2_TO_2_1_1 = (
    ("You arrive at {r.name}.", "You arrive at {lend.name}."),
    ("move {o} to {r}", "put {o} in/on {r}"),
    ("You move the {o.name} to the {r.name}.", "You put the {o.name} in/on the {r.name}."),
)
_HELP_ACTION = "\naction help {"


def split_grammar(grammar: str) -> tuple[str, str] | None:
    """The grammar with PLACEHOLDER for its task sentence, and the sentence without full stop; None if it has none."""
    task = _TASK.search(grammar)
    if task is None:
        return None
    return f"{grammar[: task.start(1)]}{PLACEHOLDER}{grammar[task.end(1) :]}", task.group(1)


def plain(sentence: str) -> str:
    """A sentence that a grammar shows as it is: characters that it would not show become spaces."""
    return _NOT_TEXT.sub(" ", sentence)


@functools.lru_cache(16)
def version_of(domain: str, template: str) -> str:
    """The version of a game with this domain and this grammar (as split_grammar leaves it); "" for any other.

    Exact but for what means nothing: comments and spacing of the domain, indentation of the grammar.
    """
    known = _domains().get(_tree(domain))
    version = "" if known is None else known[1]
    return version if _grammars().get(_lines(template)) == version else ""


@functools.lru_cache(16)
def converted(domain: str, template: str, version: str) -> tuple[str, str] | None:
    """Domain and grammar of a game in another version; None for a game of no known version."""
    own = version_of(domain, template)
    if not own or own == version:
        return (domain, template) if own else None
    source, _ = _domains()[_tree(domain)]
    return _domain_text(source, version), _grammar_text(version)


def _shipped(name: str) -> str:
    return (importlib.resources.files("rsipo_jax.envs.alfworld") / "logic" / name).read_text(encoding="utf-8")


@functools.cache
def _domain_text(source: str, version: str) -> str:
    """The domain of the "package" or of the "official" games, byte for byte."""
    text = _shipped("alfred.pddl")
    if source == "official":
        text = text.replace(";(receptacleType ?r SinkType)", "(receptacleType ?r SinkType)")
        text = text.replace(f"{_HELP_RULE}\n)", f"{_HELP_RULE})")
    return text if version == "2.1.2" else text.replace(_HELP_RULE, "")


@functools.cache
def _grammar_text(version: str) -> str:
    """The grammar, byte for byte; 2.1.2 as the alfworld package has it."""
    text = _shipped("alfred.twl2")
    if version == "2.1.2":
        return text
    text = text[: text.index(_HELP_ACTION)]
    for new, old in _WORDS_2_1_2_TO_2_1_1:
        text = text.replace(new, old)
    return text


def _patched_grammar() -> str:
    """2.1.2 as patch_tw-pddl.py writes it: the help text stands in the action, with real line ends."""
    text = _shipped("alfred.twl2")
    rules, help_action = text.split(_HELP_ACTION)
    shown = re.findall(r'"rhs": "(.*)"', help_action)[0].replace("\\n", "\n")
    return f'{rules}{_HELP_ACTION}\n    template :: "help";\n    feedback :: "{shown}";\n}}\n'


@functools.cache
def _domains() -> dict[Expression, tuple[str, str]]:
    """Parsed domain -> (source, version)."""
    return {
        _tree(_domain_text(source, version)): (source, version)
        for source in ("official", "package")
        for version in VERSIONS
    }


@functools.cache
def _grammars() -> dict[str, str]:
    """Grammar without indentation -> version."""
    made = {_lines(_grammar_text(version)): version for version in VERSIONS}
    return made | {_lines(_patched_grammar()): "2.1.2"}


def _tree(domain: str) -> Expression:
    """The parsed domain; empty for text that is no PDDL."""
    try:
        return parse_expression(domain)
    except PddlError:
        return ()


def _lines(grammar: str) -> str:
    lines = (line.strip() for line in grammar.split("\n"))
    return "\n".join(line for line in lines if line)
