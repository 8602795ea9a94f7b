"""The sampler: slots that hold sequences, prompts extended where they differ from what a slot already holds.

Invariants: tokens in, tokens out (no text passes through here); randomness is addressed, not consumed (a completion is
a function of the weights, the prompt and its address, whatever else is in the batch); reusing a cached prefix saves its
computation and changes nothing. Both hold up to the rounding of matrix products, whose shapes do depend on the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from rsipo_jax.models.decode import KVCache, decode, extend, init_cache
from rsipo_jax.models.transformer import ModelConfig, Params
from rsipo_jax.parallel.sharding import TENSOR
from rsipo_jax.sampling.reshard import to_sampling_mesh

Address = tuple[int, int, int, int, int]  # names one completion: (purpose, step, task, rollout, turn)
CHUNKS = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096)  # padded prompt lengths; one compiled program each
EXTEND_TOKENS = 2048  # tokens of one `extend` call, padding included: bounds its temporaries
CAPACITY_STEP = 256  # the cache grows in these steps up to max_length, so that short contexts stay cheap


@dataclass(frozen=True)
class Request:
    slot: int
    prompt: np.ndarray  # int32 [n], the whole prompt; what the slot already holds of it is not computed again
    address: Address
    max_new_tokens: int


@dataclass(frozen=True)
class Completion:
    tokens: np.ndarray  # int32 [m], the stop token included when there is one
    logprobs: np.ndarray  # float32 [m], under the distribution that was sampled from
    stopped: bool  # False: cut at max_new_tokens


@partial(jax.jit, static_argnums=0)
def _keys(seed: int, addresses: jax.Array) -> jax.Array:
    """PRNG keys [n] from int32 addresses [n, 5]: one fold per coordinate."""
    keys = jax.vmap(lambda _: jax.random.key(seed))(addresses)
    for column in range(addresses.shape[1]):
        keys = jax.vmap(jax.random.fold_in)(keys, addresses[:, column])
    return keys


class Sampler:
    """Decodes up to `slots` sequences of up to `max_length` tokens together, with fixed shapes."""

    def __init__(
        self,
        config: ModelConfig,
        mesh: Mesh,
        slots: int,
        max_length: int,
        max_new_tokens: int,
        stop_ids: tuple[int, ...],
        seed: int,
    ) -> None:
        self._shards = mesh.size // mesh.shape[TENSOR]  # each has as many slots
        self.config, self.mesh, self.slots = config, mesh, -(-slots // self._shards) * self._shards
        self.max_length, self.seed = max_length, seed
        self.max_new_tokens, self.stop_ids = max_new_tokens, stop_ids
        self._cached = np.zeros(
            (self.slots, max_length), np.int32
        )  # ids whose keys and values the slot holds
        self._cached_length = np.zeros(self.slots, np.int64)
        self._params: Params = {}

    def load(self, params: Params) -> None:
        """Takes new weights from any mesh, and starts from an empty cache of the smallest capacity.

        The old cache belongs to the old weights; and what is sampled now must not depend on how long the sequences of
        earlier steps were, not even by rounding, or a run that resumes here would differ from one that went through.
        """
        self._cached_length[:] = 0
        self._params, self._cache = {}, KVCache([], [])  # their memory is for what comes
        self._params = to_sampling_mesh(params, self.config, self.mesh)
        with jax.set_mesh(self.mesh):
            self._cache = init_cache(self.config, self.slots, min(CAPACITY_STEP, self.max_length))

    def generate(self, requests: Sequence[Request], temperature: float) -> list[Completion]:
        """Completions in the order of the requests; temperature 0 is greedy.

        Raises ValueError for an empty prompt, for one that does not fit into the cache with its new tokens, for more
        new tokens than the sampler was made for, and when two requests name one slot.
        """
        for r in requests:
            n, more = len(r.prompt), r.max_new_tokens
            if not 0 < more <= self.max_new_tokens:
                raise ValueError(f"{more} new tokens cannot be sampled: ask for 1 to {self.max_new_tokens}")
            if not 0 < n <= self.max_length - more:
                raise ValueError(
                    f"a prompt of {n} tokens with {more} new ones does not fit in "
                    f"config.context.max_length={self.max_length}: shorten the prompt or raise that length"
                )
        if len({r.slot for r in requests}) != len(requests):
            raise ValueError("two requests name one slot: give each sequence its own")
        if not requests:
            return []
        with jax.set_mesh(self.mesh):
            return self._generate(requests, temperature)

    def _generate(self, requests: Sequence[Request], temperature: float) -> list[Completion]:
        self._reserve(max(len(r.prompt) + r.max_new_tokens for r in requests))
        scores = self._extend(requests)

        limits = np.zeros(self.slots, np.int32)
        lengths = np.zeros(self.slots, np.int32)
        addresses = np.zeros((self.slots, 5), np.int32)
        for r in requests:
            limits[r.slot], lengths[r.slot] = r.max_new_tokens, len(r.prompt)
            addresses[r.slot] = r.address
        self._cache, sampled = decode(
            self._params, self.config, self.max_new_tokens, self.stop_ids, self._cache, scores,
            lengths, limits, _keys(self.seed, addresses), jnp.float32(temperature),
        )  # fmt: skip
        tokens, logprobs, counts = (np.asarray(a) for a in (sampled.tokens, sampled.logprobs, sampled.counts))
        out = []
        for r in requests:
            n, m = len(r.prompt), counts[r.slot]
            new = tokens[r.slot, :m].copy()
            # The last token has not been run through the network.
            self._cached[r.slot, n : n + m - 1] = new[:-1]
            self._cached_length[r.slot] = n + m - 1
            out.append(Completion(new, logprobs[r.slot, :m].copy(), bool(new[-1] in self.stop_ids)))
        return out

    def _reserve(self, length: int) -> None:
        """Lets the cache grow to hold sequences of `length` tokens."""
        capacity = min(-(-length // CAPACITY_STEP) * CAPACITY_STEP, self.max_length)
        if capacity > self._cache.keys[0].shape[2]:
            grow = capacity - self._cache.keys[0].shape[2]
            self._cache = jax.tree.map(lambda a: jnp.pad(a, ((0, 0), (0, 0), (0, grow), (0, 0))), self._cache)

    def _extend(self, requests: Sequence[Request]) -> jax.Array:
        """Runs what each slot does not hold yet of its prompt; logits [slots, V] after the last prompt token."""
        scores = jnp.zeros((self.slots, self.config.vocab_size), jnp.float32)
        by_chunk: dict[int, list[tuple[int, np.ndarray, int]]] = {}
        for r in requests:
            n, held = len(r.prompt), int(self._cached_length[r.slot])
            shared = min(held, n - 1)  # at least one token runs, since its logits are needed
            differs = np.flatnonzero(self._cached[r.slot, :shared] != r.prompt[:shared])
            start = int(differs[0]) if differs.size else shared
            while n - start > CHUNKS[-1]:  # longer than the longest program: run leading pieces first
                self._run_extend(CHUNKS[-1], [(r.slot, r.prompt[start : start + CHUNKS[-1]], start)])
                start += CHUNKS[-1]
            chunk = next(c for c in CHUNKS if c >= n - start)
            by_chunk.setdefault(chunk, []).append((r.slot, r.prompt[start:], start))
            self._cached[r.slot, :n] = r.prompt
            self._cached_length[r.slot] = n
        for chunk, rows in sorted(by_chunk.items()):
            tile = self._tile(chunk)
            for i in range(0, len(rows), tile):
                slots, new = self._run_extend(chunk, rows[i : i + tile])
                scores = scores.at[slots].set(new, mode="drop")
        return scores

    def _tile(self, chunk: int) -> int:
        """Rows of one `extend` call: EXTEND_TOKENS on each device that has slots of its own."""
        return self._shards * max(1, min(self.slots // self._shards, EXTEND_TOKENS // chunk))

    def _run_extend(
        self, chunk: int, rows: Sequence[tuple[int, np.ndarray, int]]
    ) -> tuple[np.ndarray, jax.Array]:
        """Extends slots by tokens [1 to chunk] from a position on; `rows` are (slot, tokens, position)."""
        n = self._tile(chunk)
        slots = np.full(n, self.slots, np.int32)  # out of range: a padding row
        tokens, start, count = np.zeros((n, chunk), np.int32), np.zeros(n, np.int32), np.ones(n, np.int32)
        for i, (slot, new, first) in enumerate(rows):
            slots[i], start[i], count[i] = slot, first, len(new)
            tokens[i, : len(new)] = new
        self._cache, scores = extend(self._params, self.config, self._cache, slots, tokens, start, count)
        return slots, scores
