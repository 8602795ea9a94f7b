"""What runs on the devices between two looks of the host: pieces of prompts, copies of prefixes, a few tokens a slot."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax import lax

from rsipo_jax.models.cache import Fresh, KVCache, copy, init_fresh, write
from rsipo_jax.models.decode import new_tokens, next_token
from rsipo_jax.models.transformer import ModelConfig, Params
from rsipo_jax.models.vocabulary import logits
from rsipo_jax.parallel.sharding import constrain
from rsipo_jax.sampling.draw import Drawing, draw

STEPS = 16  # tokens a slot may get before the host looks
NO_TOKEN = -1  # fills stop sequences up from the left

Array = jax.Array


@struct.dataclass
class Slots:
    """What the host knows of n slots; those that do not decode have `room` 0. NumPy arrays on the host."""

    token: Any  # int32, the last one, which has not been run through the network
    length: Any  # int32, positions in the cache
    room: Any  # int32, tokens it may still get
    count: Any  # int32, tokens it has got
    min_count: Any  # int32, tokens before anything stops it
    tail: Any  # int32 [n, L], the last tokens it has got, the newest one last
    stops: Any  # int32 [n, J, L], sequences that end it, NO_TOKEN in front
    address: Any  # int32 [n, 5], of its draws
    drawing: Drawing


@struct.dataclass
class Sampled:
    tokens: Array  # int32 [n, STEPS]
    logprobs: Array  # float32 [n, STEPS], of the distributions that were drawn from
    raw_logprobs: Array  # float32 [n, STEPS]
    counts: Array  # int32 [n]
    stopped: Array  # bool [n]


def prefill(
    params: Params,
    config: ModelConfig,
    cache: KVCache,
    slots: np.ndarray,
    tokens: np.ndarray,
    starts: np.ndarray,
    counts: np.ndarray,
) -> KVCache:
    """Puts pieces of prompts into slots: the first counts[i] of tokens[i] at positions starts[i], ... of slot slots[i].

    tokens int32 [n, C]; the others int32 [n]; slots as in `attend_cached`, one out of range is a row of padding. The cache
    is donated. Two programs: in one, branches would read what is overwritten later, and XLA:CPU would copy the cache first.
    """
    return _put(cache, _piece(params, config, cache, slots, tokens, starts), slots, starts, counts)


@partial(jax.jit, static_argnums=1)
def _piece(
    params: Params, config: ModelConfig, cache: KVCache, slots: Array, tokens: Array, starts: Array
) -> Fresh:
    return new_tokens(params, config, cache, _by_rows(tokens), _by_rows(starts), _by_rows(slots))


@partial(jax.jit, donate_argnums=0)
def _put(cache: KVCache, fresh: Fresh, slots: Array, starts: Array, counts: Array) -> KVCache:
    return write(cache, fresh, _by_rows(starts), _by_rows(counts), _by_rows(slots))


@partial(jax.jit, donate_argnums=0)
def copy_prefixes(cache: KVCache, sources: Array, targets: Array, lengths: Array) -> KVCache:
    """See `copy` of models/cache.py."""
    return copy(cache, _by_rows(sources), _by_rows(targets), _by_rows(lengths))


@partial(jax.jit, static_argnums=1, donate_argnums=2)
def decode(
    params: Params,
    config: ModelConfig,
    cache: KVCache,
    slots: Array | None,
    rows: Slots,
    seed: Array,
    enough: Array,
) -> tuple[KVCache, Sampled]:
    """Samples for all rows with room until `enough` of them have ended, at most STEPS tokens each.

    Row i continues slot slots[i], as in `attend_cached`; None: the rows are all slots. A row ends with a stop sequence or
    when its room is used up. Draws are addressed by the seed, the row's address and its count.
    """
    rows, slots = jax.tree.map(_by_rows, (rows, slots))
    n = len(rows.token)
    running = rows.room > 0
    lengths = jnp.where(running, rows.length, 0)
    keys = _keys(seed, rows.address)
    empty = Sampled(
        jnp.zeros((n, STEPS), jnp.int32), jnp.zeros((n, STEPS)), jnp.zeros((n, STEPS)),
        jnp.zeros(n, jnp.int32), jnp.zeros(n, bool),
    )  # fmt: skip

    def go_on(state: tuple) -> Array:
        step, *_, active, _ = state
        return (step < STEPS) & jnp.any(active) & (jnp.sum(running & ~active) < enough)

    def advance(state: tuple) -> tuple:
        step, fresh, token, tail, active, out = state
        fresh, hidden = next_token(params, config, cache, fresh, token, lengths, step, slots)
        raw = logits(params, config, hidden)
        early = active & (rows.count + step < rows.min_count)
        scores = lax.cond(jnp.any(early), lambda z: _without_stops(z, rows.stops, early), lambda z: z, raw)
        uniform = jax.vmap(lambda key, i: jax.random.uniform(jax.random.fold_in(key, i)))(
            keys, rows.count + step
        )
        drawn = draw(raw, scores, rows.drawing, uniform)
        token = jnp.where(active, drawn.token, 0)
        tail = jnp.concatenate([tail[:, 1:], token[:, None]], axis=1)
        stopped = active & ~early & _ends_with(tail, rows.stops)
        out = Sampled(
            out.tokens.at[:, step].set(token),
            out.logprobs.at[:, step].set(jnp.where(active, drawn.logprob, 0.0)),
            out.raw_logprobs.at[:, step].set(jnp.where(active, drawn.raw_logprob, 0.0)),
            out.counts + active,
            out.stopped | stopped,
        )
        return step + 1, fresh, token, tail, active & ~stopped & (step + 1 < rows.room), out

    start = jnp.int32(0), init_fresh(config, n, STEPS), rows.token, rows.tail, running, empty
    _, fresh, *_, out = lax.while_loop(go_on, advance, start)
    # Every token that was run is written: all that were sampled but the last, and the one before them.
    return write(cache, fresh, rows.length, out.counts, slots), out


def _keys(seed: Array, addresses: Array) -> Array:
    """PRNG keys [n] from int32 addresses [n, 5]: one fold per coordinate."""
    keys = jax.vmap(lambda _: jax.random.key(seed))(addresses)
    for column in range(addresses.shape[1]):
        keys = jax.vmap(jax.random.fold_in)(keys, addresses[:, column])
    return keys


def _by_rows(a: Array) -> Array:
    return constrain(a, "batch", *[None] * (a.ndim - 1))


def _ends_with(tail: Array, stops: Array) -> Array:
    """Whether a stop sequence stands at the end of the tail, bool [n]."""
    same = (stops == tail[:, None, :]) | (stops == NO_TOKEN)
    return jnp.any(jnp.all(same, axis=-1) & (stops[..., -1] != NO_TOKEN), axis=-1)


def _without_stops(scores: Array, stops: Array, rows: Array) -> Array:
    """Scores without the single tokens that would stop these rows."""
    single = (stops[..., -1] != NO_TOKEN) & jnp.all(stops[..., :-1] == NO_TOKEN, axis=-1)
    token = jnp.where(single & rows[:, None], stops[..., -1], scores.shape[1])  # out of range: dropped
    return scores.at[jnp.arange(len(scores))[:, None], token].set(-jnp.inf, mode="drop")
