"""Which rule makes a command of a response: by environment and `config.context.parser`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from rsipo_jax.agents import actions, search_actions
from rsipo_jax.agents.actions import ParsedAction
from rsipo_jax.config import Config

Parser = Callable[[str, Sequence[str]], ParsedAction]  # (response, admissible actions)

PARSERS: Mapping[str, Mapping[str, Parser]] = {
    "alfworld": actions.PARSERS,
    "search": search_actions.PARSERS,
}


def parser_of(config: Config) -> Parser:
    return PARSERS[config.env.name][config.context.parser]
