"""The words of an environment: what differs between the prompts of one and another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rsipo_jax.config import Config
from rsipo_jax.text.tags import (
    ACTION_CLOSE,
    ACTION_OPEN,
    ANSWER_CLOSE,
    ANSWER_OPEN,
    INFORMATION_CLOSE,
    INFORMATION_OPEN,
    SEARCH_CLOSE,
    SEARCH_OPEN,
    THINK_CLOSE,
    THINK_OPEN,
)


@dataclass(frozen=True)
class Words:
    role: str  # the first sentence of a window prompt
    form: str  # what a response looks like
    task: str  # stands before the task in the first observation, and in prompts that repeat it
    won: str  # asks for the skill of an episode that was won
    lost: str  # and of one that was not
    banner: str = ""  # what the environment greets with; never shown


ALFWORLD = Words(
    role="You act in a simulated household through text commands.\n",
    form=f"Reason about the next step inside {THINK_OPEN} {THINK_CLOSE}, "
    f"then give one action inside {ACTION_OPEN} {ACTION_CLOSE}.",
    task="Your task is to: ",
    won="The task is solved. Write JSON with episode_summary and episode_skill: "
    "the short workflow that solves this task.",
    lost="The task is not solved. Write JSON with episode_summary and episode_skill: "
    "the mistake to avoid in this task, its warning sign, and what to do instead.",
    banner="-= Welcome to TextWorld, ALFRED! =-\n\n",
)

SEARCH = Words(
    role="You answer a question with the help of a search engine, "
    f"whose passages come inside {INFORMATION_OPEN} {INFORMATION_CLOSE}.\n",
    form=f"Reason about the next step inside {THINK_OPEN} {THINK_CLOSE}, "
    f"then give either one query inside {SEARCH_OPEN} {SEARCH_CLOSE} "
    f"or the final answer, nothing but it, inside {ANSWER_OPEN} {ANSWER_CLOSE}.",
    task="Question: ",
    won="The answer is right. Write JSON with episode_summary and episode_skill: "
    "the short order of searches that leads to it, without the answer itself.",
    lost="There is no right answer. Write JSON with episode_summary and episode_skill: "
    "the mistake to avoid with this question, its warning sign, and what to search instead.",
)

WORDS: Mapping[str, Words] = {"alfworld": ALFWORLD, "search": SEARCH}


def words_of(config: Config) -> Words:
    """The words of the environment that `config.env.name` names."""
    return WORDS[config.env.name]
