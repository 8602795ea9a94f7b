"""A demonstration: an episode as text, as an expert plays it."""

from __future__ import annotations

from dataclasses import dataclass

READING = "reading"  # the kind of a demonstration that is a question about a text, not an episode


@dataclass(frozen=True)
class Demonstration:
    task_id: str
    kind: str  # task kind, or READING
    skill: str  # skill in context, "" for none
    observations: tuple[str, ...]  # n + 1
    admissible: tuple[tuple[str, ...], ...]  # n, what could be done at each turn
    responses: tuple[str, ...]  # n
    imitate: tuple[bool, ...]  # n, False where the response was a slip
    won: bool
    analysis: str  # the JSON to write at the end; "" when this episode does not teach it
