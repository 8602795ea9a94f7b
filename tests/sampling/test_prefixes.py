"""The trie of cached prefixes, against comparing every sequence."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rsipo_jax.sampling.prefixes import PrefixTrie

SLOTS = 5
Tokens = tuple[int, ...]
sequences = st.lists(st.integers(0, 2), max_size=9).map(tuple)  # so few ids that most share a beginning
changes = st.lists(st.tuples(st.integers(0, SLOTS - 1), st.none() | sequences), max_size=30)


def shared(a: Tokens, b: Tokens) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def best(held: dict[int, Tokens], prompt: Tokens) -> tuple[int, frozenset[int]]:
    longest = max((shared(tokens, prompt) for tokens in held.values()), default=0)
    return longest, frozenset(s for s, t in held.items() if longest and shared(t, prompt) == longest)


def array(tokens: Tokens) -> np.ndarray:
    return np.array(tokens, np.int32)


def filled(steps: list[tuple[int, Tokens | None]]) -> tuple[PrefixTrie, dict[int, Tokens]]:
    trie, held = PrefixTrie(), {}
    for slot, tokens in steps:
        if tokens is None:
            trie.remove(slot)
            held.pop(slot, None)
        else:
            trie.put(slot, array(tokens))
            held[slot] = tokens
    return trie, held


@given(changes, st.lists(sequences, min_size=1, max_size=5))
def test_matches_are_those_of_comparing_every_sequence(
    steps: list[tuple[int, Tokens | None]], prompts: list[Tokens]
) -> None:
    trie, held = filled(steps)
    for prompt in [*prompts, *held.values()]:
        assert trie.match(array(prompt)) == best(held, prompt)
    for slot in range(SLOTS):
        assert trie.length(slot) == len(held.get(slot, ()))


@given(changes, st.permutations(range(SLOTS)))
def test_a_node_is_there_as_long_as_a_sequence_runs_through_it(
    steps: list[tuple[int, Tokens | None]], order: list[int]
) -> None:
    trie, held = filled(steps)
    for slot in order:
        beginnings = {t[:n] for t in held.values() for n in range(1, len(t) + 1)}
        assert bool(held and any(held.values())) <= trie.nodes() <= len(beginnings)
        trie.remove(slot)
        held.pop(slot, None)
    assert trie.nodes() == 0 and trie.match(array((0, 1))) == (0, frozenset())


@given(changes)
def test_what_came_before_does_not_matter(steps: list[tuple[int, Tokens | None]]) -> None:
    trie, held = filled(steps)
    fresh, _ = filled(sorted(held.items(), reverse=True))
    for prompt in held.values():
        assert trie.match(array((*prompt, 1))) == fresh.match(array((*prompt, 1)))


def test_the_trie_keeps_its_own_copy() -> None:
    trie, tokens = PrefixTrie(), np.arange(5, dtype=np.int32)
    trie.put(0, tokens)
    tokens[:] = 7
    assert trie.match(np.arange(3, dtype=np.int32)) == (3, frozenset({0}))
