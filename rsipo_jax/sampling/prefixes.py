"""Which slots hold the beginning of a prompt: a trie of token ids.

Invariant: a node is there exactly as long as some slot's sequence runs through it; the set of those slots is its
reference count. What the trie says is a function of the sequences alone, in whatever order they came.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np


@dataclass
class _Node:
    tokens: np.ndarray  # int32, of the edge that leads here
    holders: set[int] = field(default_factory=set)  # slots whose sequences run through the whole edge
    children: dict[int, _Node] = field(default_factory=dict)  # by the first token of their edges


class PrefixTrie:
    """The token sequence that each slot holds, found by prefix."""

    def __init__(self) -> None:
        self._root = _Node(np.zeros(0, np.int32))
        self._sequences: dict[int, np.ndarray] = {}

    def length(self, slot: int) -> int:
        """Tokens that the slot holds."""
        return len(self._sequences.get(slot, ()))

    def put(self, slot: int, tokens: np.ndarray) -> None:
        """The slot now holds these tokens int32 [n], and nothing else."""
        self.remove(slot)
        tokens = np.array(tokens, np.int32)
        self._sequences[slot] = tokens
        node, at = self._root, 0
        while at < len(tokens):
            child = node.children.get(int(tokens[at]))
            if child is None:
                node.children[int(tokens[at])] = _Node(tokens[at:], {slot})
                return
            shared = _shared(child.tokens, tokens[at:])
            if shared < len(child.tokens):
                child = self._split(node, child, shared)
            child.holders.add(slot)
            node, at = child, at + shared

    def remove(self, slot: int) -> None:
        """The slot holds nothing."""
        tokens = self._sequences.pop(slot, None)
        node, at = self._root, 0
        while tokens is not None and at < len(tokens):
            first = int(tokens[at])
            child = node.children[first]
            child.holders.discard(slot)
            at += len(child.tokens)
            if not child.holders:  # and so nobody is behind it
                del node.children[first]
                return
            node = child

    def match(self, tokens: np.ndarray) -> tuple[int, frozenset[int]]:
        """How many of the first tokens some slot holds, and all slots that hold as many; (0, none) if there is none."""
        node, at = self._root, 0
        while at < len(tokens) and (child := node.children.get(int(tokens[at]))) is not None:
            shared = _shared(child.tokens, tokens[at:])
            node, at = child, at + shared
            if shared < len(child.tokens):
                break
        return at, frozenset(node.holders)

    def nodes(self) -> int:
        """How many nodes there are, the root not counted."""
        count, waiting = 0, [self._root]
        while waiting:
            children = waiting.pop().children.values()
            count += len(children)
            waiting += children
        return count

    @staticmethod
    def _split(parent: _Node, child: _Node, at: int) -> _Node:
        """Puts a node into the edge to `child` behind its first `at` tokens."""
        upper = _Node(child.tokens[:at], set(child.holders), {int(child.tokens[at]): child})
        parent.children[int(child.tokens[0])] = upper
        child.tokens = child.tokens[at:]
        return upper


def _shared(a: np.ndarray, b: np.ndarray) -> int:
    """Length of the common prefix."""
    n = min(len(a), len(b))
    differs = np.flatnonzero(a[:n] != b[:n])
    return int(differs[0]) if differs.size else n
