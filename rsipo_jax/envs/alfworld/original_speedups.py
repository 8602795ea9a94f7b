"""The original engine without its repeated work: the same text and commands, in a fifteenth of the time a step.

The engine parses the same few templates and queries again at every step, and translates a game's PDDL four times a
start: twice to load, twice to reset, each time once more for a planner that we never ask. Inside `sped_up` it keeps
what it has parsed and translated. The installed packages are changed only while the context is open, so whoever does
not ask plays the engine as it is. tests/envs/alfworld/test_differential.py compares the two.

Written for textworld 1.7.0; the names patched here are private to it.
"""

from __future__ import annotations

import contextlib
import copy
import functools
from collections.abc import Iterator
from typing import Any

_PARSES = 4096  # distinct templates, right-hand sides and queries; a game has about 200
_GRAMMARS = 64  # distinct grammars: games differ in the task sentence
_TRANSLATIONS = 4  # games; a translation takes some megabytes


@contextlib.contextmanager
def sped_up(env: Any) -> Iterator[None]:
    """Speed up the original engine while the context is open; every call of `env` must then be made inside one.

    `env` is a PddlEnv or a wrapper of it. Asking it for `policy_commands` or a walkthrough is not supported.
    """
    planner_skipped = (env.unwrapped.downward_lib, "load_sas_replan", lambda sas: None)
    with contextlib.ExitStack() as stack:
        for owner, name, replacement in (*_replacements(), planner_skipped):
            stack.callback(setattr, owner, name, vars(owner)[name])
            setattr(owner, name, replacement)
        yield


@functools.cache
def _replacements() -> tuple[tuple[Any, str, Any], ...]:
    """(owner, attribute, what to put there), made from the untouched originals."""
    import fast_downward
    from textworld.envs.pddl import logic, textgen
    from textworld.logic import Rule

    parse_symbols = textgen._parse_and_convert
    parse_query = functools.lru_cache(_PARSES)(Rule.parse_conjunctive_query)
    translate = functools.lru_cache(_TRANSLATIONS)(fast_downward.pddl2sas)

    def clone(symbol: Any) -> Any:
        """A symbol whose context may be set without changing the one it is made from."""
        twin = copy.copy(symbol)
        if isinstance(symbol, textgen.ListSymbol):
            twin.symbol = clone(symbol.symbol)
        elif isinstance(symbol, textgen.ConditionalSymbol):
            twin.expression = clone(symbol.expression)
        return twin

    @functools.lru_cache(_PARSES)
    def parsed(text: str) -> list[Any]:
        return parse_symbols(text, rule_name="symbols")

    def parse_and_convert(text: str, rule_name: str, trace: bool = False) -> list[Any]:
        assert rule_name == "symbols", rule_name  # the only one that textworld asks for
        return [clone(symbol) for symbol in parsed(text)]

    def copy_context(context: Any) -> Any:
        # entities and variables are only read, so that dicts of one's own are enough
        return {**context, "variables": dict(context["variables"]), "mapping": dict(context["mapping"])}

    def copy_symbol(self: Any, context: Any) -> Any:
        twin = clone(self)
        twin.context = copy_context(context)
        return twin

    def replace(self: Any, start: Any) -> list[Any]:
        """The first rule that applies, as in the original, but without testing the rules after it."""
        rules = self._rules.get(str(start))
        if not rules:
            raise textgen.CSGUnknownSymbolError(start)
        state, mapping = start.context["state"], start.context["mapping"]
        for rule in rules:
            if not rule.condition or any(
                True for _ in state.all_assignments(parse_query(rule.condition), mapping)
            ):
                return [copy_symbol(symbol, start.context) for symbol in rule.rhs]
        raise IndexError(f"no rule of {start} applies")

    def pddl2sas(domain: str, problem: str, verbose: bool = False, optimize: bool = False) -> Any:
        # the optimised translation serves the planner alone, whose loading `sped_up` skips
        return (None, "") if optimize else translate(domain, problem)

    return (
        (textgen, "_parse_and_convert", parse_and_convert),
        (textgen, "copy_context", copy_context),
        (textgen.Symbol, "copy", copy_symbol),
        (textgen.ContextSensitiveGrammar, "replace", replace),
        (Rule, "parse_conjunctive_query", staticmethod(parse_query)),
        (fast_downward, "pddl2sas", pddl2sas),
        (logic, "GameLogic", functools.lru_cache(_GRAMMARS)(logic.GameLogic)),
    )
