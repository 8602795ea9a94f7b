"""The sampler on this process's devices: slots that hold sequences, filled as they become free.

Everything is one loop without a clock: what runs when follows from the order of the calls alone. A look is one round:
waiting requests take free slots, every active slot gets a few tokens, and those that have ended are answered. Whoever
needs time between two looks (an environment in a process of its own) has it while the other slots go on.

A new prompt starts from the slot that holds most of it: in that slot, if it holds nothing else, otherwise in the one
that was not used for the longest time, into which that beginning is copied. So a conversation goes on where it stopped,
a group shares its opening, and what is common to the prompts of different turns is computed once.

Invariants: tokens in, tokens out (no text passes through here); randomness is addressed, not consumed (a completion is
a function of the weights, the prompt, its sampling and its address, whatever else is in the batch); reusing a prefix
saves its computation and changes nothing. All hold up to the rounding of sums, whose order depends on the batch: a draw
that lies so close to the border between two tokens may fall to either side.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from rsipo_jax.models.cache import init_cache
from rsipo_jax.models.transformer import ModelConfig, Params
from rsipo_jax.parallel.sharding import TENSOR
from rsipo_jax.sampling.draw import Drawing
from rsipo_jax.sampling.prefixes import PrefixTrie
from rsipo_jax.sampling.programs import NO_TOKEN, Sampled, Slots, copy_prefixes, decode, prefill
from rsipo_jax.sampling.protocol import Address, Completion, Finish, Request, Work
from rsipo_jax.sampling.requests import checked
from rsipo_jax.sampling.reshard import to_sampling_mesh
from rsipo_jax.validation import ConfigError

MAX_STOPS, MAX_STOP_TOKENS = 8, 8  # stop sequences of a request, and tokens of one
# Prompts run in pieces of these sizes, filled up with padding, so many together: (tokens, rows).
PIECES = ((16, (4, 16)), (64, (1, 4, 8)), (256, (1, 2)))
SIDE_BY_SIDE = (
    4  # prompts that fill the device together in middling pieces: these pad less, and attend to less at once
)
CALL = 100  # tokens: what a call costs beside those of its rows
COPIES = (2, 16)  # prefixes copied together
LEAST_SHARED = 16  # tokens: to wait for fewer costs more than to compute them
PATIENCE = 8  # the host looks when one active slot in so many has ended
SHARES, LEAST_ROWS = (
    (4, 2),
    8,
)  # when few slots are active, a quarter or half of all decode, if these are so many rows
HOT = 1e30  # a temperature at which all tokens are equally likely


@dataclass
class _Slot:
    """A request that has a slot."""

    request: Request
    tokens: list[np.ndarray] = field(default_factory=list)
    logprobs: list[np.ndarray] = field(default_factory=list)
    raw_logprobs: list[np.ndarray] = field(default_factory=list)


@dataclass(frozen=True)
class _Start:
    """How a request gets into its slot."""

    request: Request
    slot: int
    source: int  # slot that holds the first `reused` tokens
    reused: int
    goes_on: bool  # in the slot that holds them, and nothing else


class Engine:
    """A `Sampler` that decodes up to `slots` sequences of up to `max_length` tokens together, with fixed shapes."""

    def __init__(
        self,
        config: ModelConfig,
        mesh: Mesh,
        slots: int,
        max_length: int,
        stop_ids: tuple[int, ...],
        seed: int,
        reuse: bool = True,
    ) -> None:
        """`stop_ids` end every completion. `reuse` False computes every prompt from its beginning.

        The slots are rounded up to as many for each part of the mesh that has slots of its own. Raises ConfigError.
        """
        _check_engine(slots, max_length, stop_ids, seed, config.vocab_size)
        self._shards = mesh.size // mesh.shape[TENSOR]
        self._per_shard = -(-slots // self._shards)
        self.config, self.mesh, self.slots = config, mesh, self._per_shard * self._shards
        self.max_length, self.stop_ids, self.seed, self.reuse = max_length, stop_ids, seed, reuse
        self.version, self.work = -1, Work()
        self._params: Params = {}
        self._cache: Any  # KVCache, once there are weights
        self._forget()

    def _forget(self) -> None:
        """Back to where there was no request yet, and no cache."""
        self._cache = None
        self._tries = [PrefixTrie() for _ in range(self._shards)]
        self._idle = [
            dict.fromkeys(self._slots_of(shard)) for shard in range(self._shards)
        ]  # the oldest first
        self._active: dict[int, _Slot] = {}
        self._queue: deque[Request] = deque()
        self._unanswered: set[Address] = set()
        self._cancelled: set[Address] = set()
        self._rows = _no_rows(self.slots)

    def load(self, params: Params, version: int) -> None:
        """Takes new weights from any mesh. What is cached belongs to the old ones and is forgotten.

        Raises RuntimeError while requests are unanswered.
        """
        if self._unanswered:
            raise RuntimeError(
                f"{len(self._unanswered)} requests are unanswered: poll until none is, then load weights"
            )
        self._tries = [PrefixTrie() for _ in self._tries]
        self._params = {}  # their memory is for what comes
        self._params = to_sampling_mesh(params, self.config, self.mesh)
        self.version, self.work = version, Work()
        if self._cache is None:
            with jax.set_mesh(self.mesh):
                self._cache = init_cache(self.config, self.slots, self.max_length)

    def submit(self, request: Request) -> None:
        """See `Sampler.submit`. Raises RuntimeError before there are weights."""
        if not self._params:
            raise RuntimeError("there are no weights to answer a request with: load some first")
        request = checked(
            request,
            self.config.vocab_size,
            self.max_length,
            MAX_STOPS - len(self.stop_ids),
            MAX_STOP_TOKENS,
        )
        if request.address in self._unanswered:
            raise ValueError(
                f"two requests have the address {request.address}: they would be the same sample"
            )
        self._unanswered.add(request.address)
        self._queue.append(request)

    def cancel(self, address: Address) -> None:
        """See `Sampler.cancel`. Raises ValueError when there is no such request."""
        if address not in self._unanswered:
            raise ValueError(f"no request with the address {address} is unanswered: nothing to cancel")
        self._cancelled.add(address)

    def poll(self) -> Sequence[Completion]:
        """See `Sampler.poll`. What interrupts it leaves an engine without requests and weights: load some again."""
        try:
            dropped = self._drop_cancelled()
            with jax.set_mesh(self.mesh):
                self._admit()
                advanced = self._advance()
            return [*dropped, *(self._collect(*advanced) if advanced else ())]
        except BaseException:  # out of memory, Ctrl-C: half of a round must not look like a whole one
            self._forget()
            self._params = {}
            raise

    # What comes from the devices.

    def _collect(self, sampled: Sampled, decoded: np.ndarray) -> Iterable[Completion]:
        """Waits for the tokens under way; completions of the slots that have ended. Row i is of slot decoded[i]."""
        tokens, logprobs, raw = map(np.asarray, (sampled.tokens, sampled.logprobs, sampled.raw_logprobs))
        counts, stopped = np.asarray(sampled.counts), np.asarray(sampled.stopped)
        self.work.sampled_tokens += int(counts.sum())
        self.work.slot_steps += int(counts.max()) * len(decoded)
        rows = self._rows
        for row, slot in enumerate(decoded.tolist()):
            if (active := self._active.get(slot)) is None:
                continue
            n = counts[row]
            active.tokens.append(tokens[row, :n])
            active.logprobs.append(logprobs[row, :n])
            active.raw_logprobs.append(raw[row, :n])
            rows.length[slot] += n
            rows.room[slot] -= n
            rows.count[slot] += n
            rows.token[slot] = tokens[row, n - 1]
            rows.tail[slot] = np.concatenate([rows.tail[slot], tokens[row, :n]])[-MAX_STOP_TOKENS:]
            if stopped[row] or not rows.room[slot]:
                yield self._end(slot, "stop" if stopped[row] else "length")
            elif active.request.address in self._cancelled:
                yield self._end(slot, "cancelled")

    def _end(self, slot: int, finish: Finish) -> Completion:
        active = self._active.pop(slot)
        tokens = np.concatenate(active.tokens)
        self._rows.room[slot] = 0
        # The last token has not been run through the network.
        self._trie(slot).put(slot, np.concatenate([active.request.prompt, tokens[:-1]]))
        self._idle[slot // self._per_shard][slot] = None
        return self._answer(
            active.request,
            tokens,
            np.concatenate(active.logprobs),
            np.concatenate(active.raw_logprobs),
            finish,
        )

    def _answer(
        self, request: Request, tokens: np.ndarray, logprobs: np.ndarray, raw: np.ndarray, finish: Finish
    ) -> Completion:
        self._unanswered.remove(request.address)
        self._cancelled.discard(request.address)
        return Completion(request.address, tokens, logprobs, raw, finish, self.version)

    def _drop_cancelled(self) -> Iterable[Completion]:
        """Completions of cancelled requests that have no slot yet."""
        dropped = [r for r in self._queue if r.address in self._cancelled]
        self._queue = deque(r for r in self._queue if r.address not in self._cancelled)
        none = np.zeros(0, np.float32)
        return [self._answer(r, np.zeros(0, np.int32), none, none, "cancelled") for r in dropped]

    # What goes to the devices.

    def _admit(self) -> None:
        """Gives free slots to waiting requests, the first come first, and runs their prompts.

        A prompt whose beginning is only just being computed waits for the next wave, and then copies it.
        """
        while self._queue and any(self._idle):
            wave: dict[int, _Start] = {}  # by slot
            sources: set[int] = set()
            for going_on in (True, False):  # first those whose slot waits for them, lest others take it
                for _ in range(len(self._queue)):
                    request = self._queue.popleft()
                    start = self._place(request, wave.keys(), sources)
                    if start is None or (going_on and not start.goes_on):
                        self._queue.append(request)  # all are looked at once, so that their order stays
                        continue
                    wave[start.slot] = start
                    sources.add(start.source)
                    self._take(start)
            if not wave:
                return
            self._copy([s for s in wave.values() if s.reused and s.source != s.slot])
            self._prefill(wave.values())

    def _place(self, request: Request, written: Set[int], sources: set[int]) -> _Start | None:
        """The slot for a request; None if it has to wait, for a slot or for the one that computes its beginning."""
        beginning = request.prompt[:-1]  # the last token runs with the first step of decoding
        best: _Start | None = None
        most = -1, -1
        for shard, idle in enumerate(self._idle):
            free = [slot for slot in idle if slot not in sources]
            if not free:
                continue
            reused, holders = self._tries[shard].match(beginning) if self.reuse else (0, frozenset())
            whole = [slot for slot in free if slot in holders and self._tries[shard].length(slot) <= reused]
            if reused < LEAST_SHARED and not (whole or holders - written):
                reused, holders = 0, frozenset()
            worth = reused if reused >= LEAST_SHARED else 0, len(idle)
            if worth <= most:
                continue
            most = worth
            # In place where nothing is lost, otherwise over what has not been used for the longest time.
            slot = whole[0] if whole else free[0]
            source = slot if slot in holders or not holders else min(holders - written or holders)
            best = _Start(request, slot, source, reused, bool(whole))
        return None if best is None or (best.reused and best.source in written) else best

    def _take(self, start: _Start) -> None:
        """Books a slot for a request."""
        slot, request, s, rows = start.slot, start.request, start.request.sampling, self._rows
        del self._idle[slot // self._per_shard][slot]
        self._active[slot] = _Slot(request)
        self._trie(slot).put(slot, request.prompt[:-1])
        stops = np.full((MAX_STOPS, MAX_STOP_TOKENS), NO_TOKEN, np.int32)
        for i, stop in enumerate([*((t,) for t in self.stop_ids), *s.stop]):
            stops[i, -len(stop) :] = stop
        rows.token[slot], rows.length[slot] = request.prompt[-1], len(request.prompt) - 1
        rows.room[slot], rows.count[slot], rows.min_count[slot] = request.max_new_tokens, 0, s.min_new_tokens
        rows.tail[slot], rows.stops[slot], rows.address[slot] = NO_TOKEN, stops, request.address
        drawing = rows.drawing
        # What float32 cannot hold or divide by draws like the nearest number that it can.
        drawing.temperature[slot] = s.temperature and np.clip(s.temperature, 1 / HOT, HOT)
        drawing.top_k[slot] = min(s.top_k, self.config.vocab_size)
        drawing.top_p[slot], drawing.min_p[slot] = max(s.top_p, 1 / HOT), s.min_p
        self.work.prompt_tokens += len(request.prompt)
        self.work.reused_tokens += start.reused

    def _copy(self, starts: Sequence[_Start]) -> None:
        for part, rows in self._tiles(starts, COPIES, self.max_length):
            sources, targets, lengths = np.zeros((3, self._shards, rows), np.int32)
            targets[:] = self._per_shard  # out of range: padding
            for shard, i, start in part:
                sources[shard, i] = start.source % self._per_shard
                targets[shard, i], lengths[shard, i] = start.slot % self._per_shard, start.reused
            self._cache = copy_prefixes(self._cache, *(a.reshape(-1) for a in (sources, targets, lengths)))

    def _prefill(self, starts: Iterable[_Start]) -> None:
        """Runs what each slot does not hold of its prompt, but for the last token."""
        prompts = {start.slot: start.request.prompt[:-1] for start in starts}
        at = {start.slot: start.reused for start in starts}
        while left := {
            slot: len(prompt) - at[slot] for slot, prompt in prompts.items() if at[slot] < len(prompt)
        }:
            # The longest first, a call at a time: so short ends meet, and all are done together.
            sizes = {slot: piece_size(tokens, len(left)) for slot, tokens in left.items()}
            size = max(sizes.values())
            slots = sorted((slot for slot in left if sizes[slot] == size), key=lambda slot: -left[slot])
            part, rows = next(iter(self._tiles(slots, dict(PIECES)[size], size)))
            self._prefill_pieces(
                [(shard, i, slot, at[slot], prompts[slot]) for shard, i, slot in part], rows, size
            )
            for _, _, slot in part:
                at[slot] += size

    def _prefill_pieces(
        self, part: Sequence[tuple[int, int, int, int, np.ndarray]], rows: int, size: int
    ) -> None:
        """One call: (shard, row, slot, where the piece begins, prompt) of each piece."""
        shape = self._shards, rows
        tokens = np.zeros((*shape, size), np.int32)
        into, first, counts = np.full(shape, self._per_shard, np.int32), *np.zeros((2, *shape), np.int32)
        for shard, i, slot, at, prompt in part:
            piece = prompt[at : at + size]
            into[shard, i], first[shard, i], counts[shard, i] = slot % self._per_shard, at, len(piece)
            tokens[shard, i, : len(piece)] = piece
        self._cache = prefill(
            self._params, self.config, self._cache, into.reshape(-1), tokens.reshape(-1, size),
            first.reshape(-1), counts.reshape(-1),
        )  # fmt: skip

    def _tiles(
        self, items: Sequence[Any], counts: Sequence[int], size: int
    ) -> Iterable[tuple[list[tuple[int, int, Any]], int]]:
        """The items (slots, or what has one) as (shard, row, item), in calls of one of `counts` rows a shard of `size` tokens."""
        by_shard: list[list[Any]] = [[] for _ in range(self._shards)]
        for item in items:
            by_shard[getattr(item, "slot", item) // self._per_shard].append(item)
        while left := max(map(len, by_shard)):
            rows = min(reversed(counts), key=lambda n: (CALL + n * size) / min(n, left))
            yield (
                [(shard, i, item) for shard, own in enumerate(by_shard) for i, item in enumerate(own[:rows])],
                rows,
            )
            by_shard = [own[rows:] for own in by_shard]

    def _advance(self) -> tuple[Sampled, np.ndarray] | None:
        """Starts the next tokens of all active slots; with them the slot of every row, -1 for padding."""
        if not self._active:
            return None
        by_shard = [
            [slot for slot in self._slots_of(shard) if slot in self._active] for shard in range(self._shards)
        ]
        most = max(map(len, by_shard))
        sizes = (self._per_shard // share for share in SHARES)
        size = next((n for n in sizes if n >= max(most, LEAST_ROWS)), self._per_shard)
        if size == self._per_shard:  # read in place
            decoded, slots = np.arange(self.slots), None
            rows = jax.tree.map(np.copy, self._rows)  # the program may read them while the next ones are made
        else:
            decoded = np.asarray([[*own, *[-1] * (size - len(own))] for own in by_shard]).reshape(-1)
            padding = decoded < 0
            slots = np.where(padding, self._per_shard, decoded % self._per_shard).astype(np.int32)
            rows = jax.tree.map(lambda a: a[decoded], self._rows)
            rows.room[padding] = 0
        enough = max(1, len(self._active) // PATIENCE)
        self._cache, sampled = decode(
            self._params, self.config, self._cache, slots, rows, np.int32(self.seed), np.int32(enough)
        )
        return sampled, decoded

    def _trie(self, slot: int) -> PrefixTrie:
        return self._tries[slot // self._per_shard]

    def _slots_of(self, shard: int) -> range:
        return range(shard * self._per_shard, (shard + 1) * self._per_shard)


def piece_size(tokens: int, prompts: int) -> int:
    """The piece to run next of so many tokens: the smallest that holds them, unless most of it would be padding.

    `prompts` are under way: many of them do not run in the largest pieces.
    """
    sizes = [size for size, _ in PIECES]
    if prompts >= SIDE_BY_SIDE:
        sizes = sizes[:-1]
    fitting = next((size for size in sizes if tokens <= size), sizes[-1])
    smaller = [size for size in sizes if size < fitting]
    return smaller[-1] if smaller and 2 * tokens <= fitting else fitting


def _check_engine(slots: int, max_length: int, stop_ids: tuple[int, ...], seed: int, vocabulary: int) -> None:
    if slots < 1:
        raise ConfigError(f"config.rollout.slots={slots} leaves no room for a sequence: give at least 1")
    if max_length < 2:
        raise ConfigError(
            f"config.context.max_length={max_length} does not hold a prompt and an answer: give at least 2"
        )
    if not 0 <= seed <= np.iinfo(np.int32).max:
        raise ConfigError(f"config.seed={seed} is out of range: give a value from 0 to 2147483647")
    if len(stop_ids) > MAX_STOPS:
        raise ConfigError(
            f"the tokenizer has {len(stop_ids)} stop ids, of which the sampler knows at most {MAX_STOPS}: "
            "leave some out of its eos_token_id"
        )
    if unknown := [t for t in stop_ids if not 0 <= t < vocabulary]:
        raise ConfigError(
            f"stop id {unknown[0]} of the tokenizer is not in the network's vocabulary of {vocabulary} tokens: it never "
            "comes, so take the tokenizer that belongs to the network"
        )


def _no_rows(slots: int) -> Slots:
    def zeros(*shape: int) -> np.ndarray:
        return np.zeros((slots, *shape), np.int32)

    return Slots(
        token=zeros(), length=zeros(), room=zeros(), count=zeros(), min_count=zeros(),
        tail=zeros(MAX_STOP_TOKENS), stops=zeros(MAX_STOPS, MAX_STOP_TOKENS), address=zeros(5),
        drawing=Drawing(np.ones(slots, np.float32), zeros(), np.ones(slots, np.float32), np.zeros(slots, np.float32)),
    )  # fmt: skip
