"""Contexts: which tokens the policy reads at each turn.

`Conversation` is one growing sequence: the next prompt is the last prompt, the sampled response, and the new
observation, ids exactly as they were. `Window` is the paper family's fresh prompt per turn with the last few exchanges.
Both keep one place for the skill, and both leave the same room for it whether it is there or not: a teacher prompt fits
where the student prompt did, and a skill gives an episode neither more turns nor fewer. What stands before that place
is encoded by itself, so text that stays the same from turn to turn there stays the same ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from rsipo_jax.agents import prompts
from rsipo_jax.agents.trajectory import Prompt, Trajectory, Turn
from rsipo_jax.agents.words import words_of
from rsipo_jax.config import Config
from rsipo_jax.text.tokenizer import Tokenizer

REQUEST_TOKENS = 64  # room for the words around a skill, or for the request to write one
# A window's prompt of one turn, by config.context.order.
MESSAGES = {"paper": prompts.window_message, "static_first": prompts.static_first_message}


class Context(Protocol):
    """`None` from either method means that the episode has no room left."""

    max_length: int  # tokens of a prompt and its response together

    def acting(self, trajectory: Trajectory, admissible: Sequence[str]) -> Prompt | None:
        """The prompt of the next turn, given that `trajectory.observations` ends with what has to be answered."""

    def analysis(self, trajectory: Trajectory) -> Prompt | None:
        """The prompt that asks for the skill of a finished episode."""

    def skill_tokens(self, skill: str) -> np.ndarray:
        """The ids that a skill adds at `Prompt.skill_at`, int32. Empty for no skill."""

    def skill_fits(self, skill: str) -> bool:
        """Whether the room that is left for a skill holds this one."""


class _Base:
    def __init__(self, tokenizer: Tokenizer, config: Config) -> None:
        self.tokenizer, self.words = tokenizer, words_of(config)
        self.show_admissible = config.context.show_admissible
        self.max_length = config.context.max_length
        self.turn_tokens = config.rollout.max_new_tokens
        self.writing_tokens = config.skill.max_new_tokens
        self.observation_chars = config.skill.observation_chars
        self.reserve = self.writing_tokens + REQUEST_TOKENS  # for a skill, or for the request to write one

    def skill_tokens(self, skill: str) -> np.ndarray:
        """See `Context.skill_tokens`."""
        return np.asarray(self.tokenizer.encode(prompts.skill_block(skill)) if skill else [], np.int32)

    def skill_fits(self, skill: str) -> bool:
        """See `Context.skill_fits`."""
        return len(self.skill_tokens(skill)) <= self.reserve

    def _digest(self, trajectory: Trajectory) -> Prompt | None:
        """A fresh prompt: the episode as numbered steps, then the request. The earliest steps are left out as far as they do
        not fit; the first observation stays."""
        steps = trajectory.exchanges()
        for dropped in range(len(steps) + 1):
            text = prompts.analysis_of_steps(
                trajectory.observations[0],
                steps[dropped:],
                trajectory.won,
                self.observation_chars,
                self.words,
                dropped,
            )
            prompt = self._opening(prompts.Message(text, ""), "")
            if len(prompt.tokens) + self.writing_tokens <= self.max_length:
                return prompt
        return None

    def _opening(self, message: prompts.Message, skill: str) -> Prompt:
        block = [prompts.skill_block(skill)] if skill else []
        head, before, *rest = self.tokenizer.opening([message.before, *block, message.after])
        return Prompt(_ids(head, before, *rest), len(head) + len(before))

    @property
    def _limit(self) -> int:
        """Longest prompt, its skill not counted: what is shown must not depend on whether there is a skill."""
        return self.max_length - self.turn_tokens - self.reserve

    def _shown(self, admissible: Sequence[str]) -> Sequence[str] | None:
        return admissible if self.show_admissible else None


class Conversation(_Base):
    """One growing token sequence per episode."""

    def acting(self, trajectory: Trajectory, admissible: Sequence[str]) -> Prompt | None:
        """See `Context.acting`."""
        shown, observation = self._shown(admissible), trajectory.observations[-1]
        if not trajectory.turns:
            message = prompts.conversation_opening(observation, shown, self.words)
            prompt = self._opening(message, trajectory.skill)
        else:
            prompt = self._continue(trajectory.turns[-1], prompts.conversation_following(observation, shown))
        length = len(prompt.tokens) - len(self.skill_tokens(trajectory.skill))
        return prompt if length <= self._limit else None

    def analysis(self, trajectory: Trajectory) -> Prompt | None:
        """The episode as it was, then the request; its digest, when that does not fit."""
        if not trajectory.turns:
            return None
        end = f"{trajectory.observations[-1]}\n{prompts.analysis_request(trajectory.won, self.words)}"
        prompt = self._continue(trajectory.turns[-1], end)
        fits = len(prompt.tokens) + self.writing_tokens <= self.max_length
        return prompt if fits else self._digest(trajectory)

    def _continue(self, last: Turn, message: str) -> Prompt:
        end = self.tokenizer.stop_ids[0]
        # A response that was cut, or that ended with another stop id, is closed here; the closing id was not sampled.
        closed = [] if last.response[-1] == end else [end]
        following = self.tokenizer.following([message])
        return Prompt(_ids(last.prompt.tokens, last.response, closed, *following), last.prompt.skill_at)


class Window(_Base):
    """A fresh prompt per turn: the task, the last exchanges, the observation."""

    def __init__(self, tokenizer: Tokenizer, config: Config) -> None:
        super().__init__(tokenizer, config)
        self.history = config.context.history
        self.message = MESSAGES[config.context.order]

    def acting(self, trajectory: Trajectory, admissible: Sequence[str]) -> Prompt | None:
        """Shows the last `history` exchanges, fewer when they do not fit (oldest dropped first)."""
        first, observation = trajectory.observations[0], trajectory.observations[-1]
        past, steps = trajectory.exchanges(), len(trajectory.turns)
        for shown in range(min(self.history, steps), -1, -1):
            message = self.message(
                first, past[steps - shown :], steps, observation, self._shown(admissible), self.words
            )
            bare = self._opening(message, "")
            if len(bare.tokens) <= self._limit:
                return self._opening(message, trajectory.skill) if trajectory.skill else bare
        return None

    def analysis(self, trajectory: Trajectory) -> Prompt | None:
        """The whole episode as numbered steps; the earliest steps are left out when they do not fit."""
        return self._digest(trajectory)


def make_context(tokenizer: Tokenizer, config: Config) -> Conversation | Window:
    """The context that `config.context.kind` names."""
    kinds: dict[str, type[Conversation | Window]] = {"conversation": Conversation, "window": Window}
    return kinds[config.context.kind](tokenizer, config)


def _ids(*pieces: Sequence[int] | np.ndarray) -> np.ndarray:
    return np.concatenate([np.asarray(piece, np.int32) for piece in pieces])
