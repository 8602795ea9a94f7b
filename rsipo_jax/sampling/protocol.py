"""What the agent loop asks of a sampler, and nothing more: small enough for an external server to stand behind it.

Requests go in at any time and are answered in any order, each exactly once. A completion is a function of the weights,
the prompt, the sampling parameters and the address, whatever else the sampler is doing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from rsipo_jax.models.transformer import Params

Address = tuple[int, int, int, int, int]  # names one completion: (purpose, step, task, rollout, turn)
Finish = Literal["stop", "length", "cancelled"]


@dataclass(frozen=True)
class Sampling:
    """How the tokens of one completion are drawn: from the softmax of logits / temperature, cut by three filters.

    Each filter keeps the likeliest tokens, and those that tie with the last one it keeps; a token must pass them all.
    """

    temperature: float = 1.0  # 0 takes the likeliest token
    top_k: int = 0  # keeps so many tokens; 0 keeps all
    top_p: float = 1.0  # keeps the fewest tokens whose probabilities sum to this at least; 1 keeps all
    min_p: float = 0.0  # keeps tokens with at least this share of the likeliest one's probability
    min_new_tokens: int = 0  # until then single stop tokens are not drawn and stop sequences do not stop
    stop: tuple[
        tuple[int, ...], ...
    ] = ()  # sequences of ids that end a completion, beside the sampler's stop ids


@dataclass(frozen=True)
class Request:
    prompt: (
        np.ndarray
    )  # int32 [n], the whole prompt; a sampler does not compute again what it still holds of it
    address: Address  # its draws, and its name among the requests that are not answered yet
    max_new_tokens: int
    sampling: Sampling = Sampling()


@dataclass(frozen=True)
class Completion:
    address: Address
    tokens: np.ndarray  # int32 [m], what ended it included
    logprobs: (
        np.ndarray
    )  # float32 [m], under the distribution that was sampled from (temperature 0: as for 1)
    raw_logprobs: np.ndarray  # float32 [m], under the softmax of the logits as they are
    finish: Finish
    version: int  # of the weights


@dataclass
class Work:
    """What a sampler has done since its weights came."""

    prompt_tokens: int = 0
    reused_tokens: int = 0  # of prompts, not computed again
    sampled_tokens: int = 0
    slot_steps: int = 0  # tokens that could have been sampled: steps x slots


class Sampler(Protocol):
    work: Work

    def load(self, params: Params, version: int) -> None:
        """Takes new weights from any mesh. No request may be unanswered."""

    def submit(self, request: Request) -> None:
        """Queues a request. Raises ValueError, in one sentence, for one that cannot be answered; others do not notice."""

    def cancel(self, address: Address) -> None:
        """Ends an unanswered request as soon as may be; its completion has what was sampled so far."""

    def poll(self) -> Sequence[Completion]:
        """Works for a short while and returns what is finished; without unanswered requests nothing."""


def generate(sampler: Sampler, requests: Iterable[Request]) -> list[Completion]:
    """Submits the requests and waits for all: completions in their order. The sampler must have no others."""
    order = []
    for request in requests:
        sampler.submit(request)
        order.append(request.address)
    done: dict[Address, Completion] = {}
    while len(done) < len(order):
        done |= {completion.address: completion for completion in sampler.poll()}
    return [done[address] for address in order]
