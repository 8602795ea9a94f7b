"""What a sampler refuses, each in one sentence, before anything of it is computed: a refusal harms no other request."""

from __future__ import annotations

from dataclasses import replace
from numbers import Integral, Real
from typing import Any

import numpy as np

from rsipo_jax.sampling.protocol import Address, Request, Sampling

COORDINATES = 5  # of an address
INT32 = np.iinfo(np.int32)


def checked(
    request: Request, vocabulary: int, max_length: int, max_stops: int, max_stop_tokens: int
) -> Request:
    """The request with its prompt as an int32 array of its own, which the caller's later changes do not reach.

    Raises ValueError, in one sentence, for one that cannot be answered: it must fit into `max_length` tokens, and have at
    most so many stop sequences of at most so many tokens.
    """
    more = request.max_new_tokens
    _check_address(request.address)
    if not _whole(more):
        raise ValueError(f"max_new_tokens={more!r} is no whole number: give at least 1")
    if more < 1:
        raise ValueError(f"max_new_tokens={more} asks for nothing: give at least 1")
    prompt = _ids(request.prompt)
    if not 0 < len(prompt) <= max_length - more:
        raise ValueError(
            f"a prompt of {len(prompt)} tokens with {more} new ones does not fit in "
            f"config.context.max_length={max_length}: shorten the prompt or raise that length"
        )
    outside = prompt[(prompt < 0) | (prompt >= vocabulary)]
    if len(outside):
        raise ValueError(f"token id {outside[0]} of a prompt is not in the vocabulary of {vocabulary}")
    _check_sampling(request.sampling, more)
    _check_stops(request.sampling.stop, vocabulary, max_stops, max_stop_tokens)
    return replace(request, prompt=prompt.astype(np.int32))


def _check_address(address: Address) -> None:
    """An address is folded into a key as int32; only a tuple names a request."""
    whole = isinstance(address, tuple) and len(address) == COORDINATES and all(map(_whole, address))
    if not whole or not all(INT32.min <= x <= INT32.max for x in address):
        raise ValueError(
            f"the address {address!r} is not possible: give a tuple of {COORDINATES} whole numbers of 32 bits"
        )


def _ids(prompt: Any) -> np.ndarray:
    """The prompt as an array [n] of whole numbers, of whatever type."""
    try:
        ids = np.asarray(prompt)
    except ValueError:  # lists of different lengths
        ids = np.asarray(None)
    if ids.ndim != 1 or (ids.size and not (ids.dtype.kind in "iu" or all(map(_whole, ids)))):
        raise ValueError(
            f"a prompt of {ids.ndim} dimensions and type {ids.dtype} is not possible: give a list of token ids"
        )
    return ids


def _check_sampling(s: Sampling, more: int) -> None:
    if not isinstance(s, Sampling):
        raise ValueError(f"sampling={s!r} is not possible: give a Sampling")
    for name, kind, low, high, wanted in (
        ("temperature", Real, 0, np.inf, "0 (greedy) or more"),
        ("top_k", Integral, 0, np.inf, "0 (all tokens) or more"),
        ("top_p", Real, 0, 1, "a share above 0, at most 1 (all tokens)"),
        ("min_p", Real, 0, 1, "a share from 0 (all tokens) to 1"),
        ("min_new_tokens", Integral, 0, more, f"0 to max_new_tokens={more}"),
    ):
        value: Any = getattr(s, name)
        possible = _of_kind(value, kind) and low <= value <= high
        if not possible or value == np.inf or (name == "top_p" and value == 0):
            raise ValueError(f"{name}={value!r} is not possible: give {wanted}")


def _check_stops(stops: Any, vocabulary: int, most: int, longest: int) -> None:
    if not isinstance(stops, list | tuple) or not all(isinstance(s, list | tuple) for s in stops):
        raise ValueError(f"stop={stops!r} is not possible: give a tuple of tuples of token ids")
    if len(stops) > most:
        raise ValueError(f"{len(stops)} stop sequences are too many: give at most {most}")
    for stop in stops:
        if not 0 < len(stop) <= longest:
            raise ValueError(f"the stop sequence {stop} has {len(stop)} tokens: give 1 to {longest}")
        if unknown := [t for t in stop if not _whole(t) or not 0 <= t < vocabulary]:
            raise ValueError(
                f"stop id {unknown[0]!r} is not in the vocabulary of {vocabulary} tokens: it never comes"
            )


def _whole(x: Any) -> bool:
    return _of_kind(x, Integral)


def _of_kind(x: Any, kind: type) -> bool:
    """Whether x is such a number; True and False are none."""
    return isinstance(x, kind) and not isinstance(x, bool)
