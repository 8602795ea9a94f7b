"""Recorded episodes, and the two ways to drive an engine through them. Nothing but the standard library: every engine's
environment imports this.

A recording says what is read and how many tokens are sampled, so every engine does the same work whatever it samples,
and environments cost nothing. What a growing prompt repeats are the tokens that the engine itself sampled: prefix caches
find what they would find in a real run.
"""

from __future__ import annotations

import json
import resource
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

Name = tuple[int, int]  # of a completion: (episode, turn)


class Turn(NamedTuple):
    ids: list[int]  # what is read: the whole prompt, or what follows the last response
    response: int  # tokens to sample


@dataclass(frozen=True)
class Recording:
    grows: bool  # a prompt is the last one, what was sampled after it, and the turn's ids; else the turn's ids alone
    episodes: list[list[Turn]]

    def lengths(self) -> Iterator[tuple[int, int]]:
        """(prompt, response) of every turn, in tokens."""
        for episode in self.episodes:
            held = 0
            for turn in episode:
                prompt = held + len(turn.ids)
                held = prompt + turn.response if self.grows else 0
                yield prompt, turn.response

    @property
    def max_length(self) -> int:
        """Tokens of the longest prompt with its response."""
        return max(prompt + response for prompt, response in self.lengths())

    @property
    def max_response(self) -> int:
        return max(response for _, response in self.lengths())


@dataclass(frozen=True)
class Played:
    seconds: float
    cpu_seconds: float  # of this process and of its children that have ended
    prompt_tokens: int  # of all prompts, whether an engine had to compute them or not
    new_tokens: int
    requests: int


def write(recording: Recording, path: Path) -> None:
    path.write_text(json.dumps(asdict(recording)), encoding="utf-8")  # a turn is a pair


def read(path: Path) -> Recording:
    raw = json.loads(path.read_text(encoding="utf-8"))
    return Recording(raw["grows"], [[Turn(*turn) for turn in episode] for episode in raw["episodes"]])


def cpu_seconds() -> float:
    usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in usage)


class _Players:
    """The prompts of all episodes as they grow, and a count of what passed through."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._held: list[list[int]] = [[] for _ in recording.episodes]
        self.prompt_tokens = self.new_tokens = self.requests = 0

    def ask(self, name: Name) -> tuple[list[int], int]:
        """The prompt of a turn and how many tokens to sample."""
        episode, turn = name
        ids, response = self._recording.episodes[episode][turn]
        if not self._recording.grows:
            self._held[episode] = []
        self._held[episode] += ids
        self.prompt_tokens += len(self._held[episode])
        self.requests += 1
        return list(self._held[episode]), response

    def answer(self, name: Name, tokens: Sequence[int]) -> Name | None:
        """Takes what was sampled; the episode's next turn, None at its end. Raises ValueError for another number of tokens."""
        episode, turn = name
        wanted = self._recording.episodes[episode][turn].response
        if len(tokens) != wanted:
            raise ValueError(f"turn {turn} of episode {episode} got {len(tokens)} tokens instead of {wanted}")
        self._held[episode] += tokens
        self.new_tokens += wanted
        return (episode, turn + 1) if turn + 1 < len(self._recording.episodes[episode]) else None


def behind_barrier(
    recording: Recording, generate: Callable[[list[list[int]], list[int]], list[list[int]]]
) -> Played:
    """All live episodes take a turn together: `generate` gets their prompts and response lengths, and gives the responses."""
    players, clock = _Players(recording), _Clock()
    names: list[Name] = [(episode, 0) for episode in range(len(recording.episodes))]
    while names:
        prompts, lengths = map(list, zip(*(players.ask(name) for name in names), strict=True))
        sampled = generate(prompts, lengths)
        following = [players.answer(name, tokens) for name, tokens in zip(names, sampled, strict=True)]
        names = [name for name in following if name]
    return clock.stop(players)


def independently(
    recording: Recording,
    submit: Callable[[Name, list[int], int], None],
    poll: Callable[[], Sequence[tuple[Name, Sequence[int]]]],
) -> Played:
    """Every episode goes on as soon as it is answered. `poll` works for a while and gives what is finished."""
    players, clock = _Players(recording), _Clock()
    waiting = 0
    for episode in range(len(recording.episodes)):
        submit((episode, 0), *players.ask((episode, 0)))
        waiting += 1
    while waiting:
        for name, tokens in poll():
            waiting -= 1
            if following := players.answer(name, list(tokens)):
                submit(following, *players.ask(following))
                waiting += 1
    return clock.stop(players)


class _Clock:
    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), cpu_seconds()

    def stop(self, players: _Players) -> Played:
        return Played(
            time.perf_counter() - self._wall,
            cpu_seconds() - self._cpu,
            players.prompt_tokens,
            players.new_tokens,
            players.requests,
        )
