"""The sampler: log-probs of the scoring pass, draws that depend on their address alone, stops, caching, limits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import jax
import numpy as np
import pytest
from jax import monitoring
from scipy import stats

from rsipo_jax.models.decode import decode, extend
from rsipo_jax.models.transformer import Params
from rsipo_jax.parallel.sharding import sampling_mesh
from rsipo_jax.sampling import sampler as module
from rsipo_jax.sampling.sampler import Completion, Request, Sampler
from rsipo_jax.training.update import logprobs_of
from tests.models import reference
from tests.models.reference import SMALL, make_params

MODEL = replace(SMALL, num_layers=1)
MAX_LENGTH, MAX_NEW, SLOTS = 300, 8, 6
PROMPTS = [
    np.random.default_rng(i).integers(0, MODEL.vocab_size, n).astype(np.int32)
    for i, n in enumerate((3, 21, 40, 9))
]


@cache
def params(seed: int = 0) -> Params:
    return make_params(MODEL, seed)


def make_sampler(slots: int = SLOTS, stop_ids: tuple[int, ...] = (), seed: int = 0, **sizes: int) -> Sampler:
    made = Sampler(
        MODEL, sampling_mesh(1), slots, sizes.get("max_length", MAX_LENGTH), MAX_NEW, stop_ids, seed
    )
    made.load(params())
    return made


def ask(i: int, slot: int | None = None, limit: int = MAX_NEW, prompt: np.ndarray | None = None) -> Request:
    """Request number i: its own prompt and address, whatever its slot."""
    prompt = PROMPTS[i % len(PROMPTS)] if prompt is None else prompt
    return Request(i if slot is None else slot, prompt, (1, 2, i, 0, 5), limit)


def tokens(completions: Sequence[Completion]) -> list[list[int]]:
    return [c.tokens.tolist() for c in completions]


@cache
def usual() -> list[Completion]:
    """Requests 0 to 3 at temperature 1, in order, by a fresh sampler."""
    return make_sampler().generate([ask(i) for i in range(4)], 1.0)


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_log_probabilities_are_those_of_the_scoring_pass(temperature: float) -> None:
    made = make_sampler().generate([ask(i) for i in range(4)], temperature)
    rows = np.zeros((4, 64), np.int32)
    positions, segments = np.tile(np.arange(64, dtype=np.int32), (4, 1)), np.ones((4, 64), np.int32)
    for row, prompt, completion in zip(rows, PROMPTS, made, strict=True):
        row[: len(prompt) + MAX_NEW] = [*prompt, *completion.tokens]
    scored, _ = logprobs_of(params(), MODEL, rows, positions, segments, segments > 0, temperature)
    for row, prompt, completion in zip(np.asarray(scored), PROMPTS, made, strict=True):
        n = len(prompt)
        np.testing.assert_allclose(completion.logprobs, row[n : n + MAX_NEW], atol=1e-4)
        whole = np.concatenate([prompt, completion.tokens])
        wanted = reference.token_logprobs(params(), MODEL, whole, temperature)[n:]
        np.testing.assert_allclose(completion.logprobs, wanted, atol=1e-4)


@pytest.mark.parametrize(
    ("slots", "order"),
    [
        (SLOTS, [(2, 2)]),
        (SLOTS, [(3, 0), (1, 5), (0, 1), (2, 3)]),
        (4, [(2, 0), (0, 2), (3, 1), (1, 3)]),
        (1, [(1, 0)]),
    ],
    ids=["alone", "other slots", "every slot, out of order", "one slot"],
)
def test_a_completion_depends_on_prompt_and_address_alone(slots: int, order: list[tuple[int, int]]) -> None:
    made = make_sampler(slots).generate([ask(i, slot) for i, slot in order], 1.0)
    for (i, _), completion in zip(order, made, strict=True):
        assert completion.tokens.tolist() == usual()[i].tokens.tolist()
        np.testing.assert_allclose(completion.logprobs, usual()[i].logprobs, atol=1e-4)


def test_a_longer_limit_continues_the_same_draws() -> None:
    short = make_sampler().generate([ask(i, limit=i + 1) for i in range(4)], 1.0)
    assert tokens(short) == [c.tokens[: i + 1].tolist() for i, c in enumerate(usual())]


def test_every_coordinate_of_an_address_and_the_seed_change_the_draws() -> None:
    base = (1, 2, 0, 0, 5)
    addresses = [base] + [(*base[:k], base[k] + 1, *base[k + 1 :]) for k in range(5)]
    requests = [Request(slot, PROMPTS[0], address, MAX_NEW) for slot, address in enumerate(addresses)]
    made = tokens(make_sampler().generate(requests, 1.0))
    made += tokens(make_sampler(seed=1).generate(requests[:1], 1.0))
    assert len({tuple(m) for m in made}) == len(made)
    assert made[0] == usual()[0].tokens.tolist()


def test_temperature_zero_is_greedy_and_needs_no_address() -> None:
    first = make_sampler().generate([ask(i) for i in range(4)], 0.0)
    second = make_sampler(seed=3).generate([ask(i, slot=3 - i) for i in range(4)], 0.0)
    assert tokens(first) == tokens(second)
    for prompt, completion in zip(PROMPTS, first, strict=True):
        whole = np.concatenate([prompt, completion.tokens])
        likeliest = reference.logits(params(), MODEL, whole).argmax(axis=-1)
        np.testing.assert_array_equal(completion.tokens, likeliest[len(prompt) - 1 : -1])


def test_stop_tokens_end_a_completion_and_are_part_of_it() -> None:
    whole = [c.tokens.tolist() for c in usual()]
    # One id stops request 0 at once, another stops request 1 somewhere later.
    stops = (whole[0][0], whole[1][3])
    stopped = make_sampler(stop_ids=stops).generate([ask(i) for i in range(4)], 1.0)
    assert stopped[0].tokens.tolist() == whole[0][:1] and stopped[0].stopped
    for completion, all_tokens in zip(stopped, whole, strict=True):
        ends = [k + 1 for k, token in enumerate(all_tokens) if token in stops]
        count = min([*ends, MAX_NEW])
        assert completion.tokens.tolist() == all_tokens[:count]
        assert completion.stopped == bool(ends)
        assert len(completion.logprobs) == count
    assert not any(c.stopped for c in usual())


def test_a_stop_token_at_the_limit_counts_as_stopped() -> None:
    # A token that its request samples for the first time after two others or more.
    i, k = next(
        (i, k)
        for i in range(4)
        for k in range(2, MAX_NEW)
        if usual()[i].tokens[k] not in usual()[i].tokens[:k]
    )
    made = make_sampler(stop_ids=(int(usual()[i].tokens[k]),)).generate([ask(i, limit=k + 1)], 1.0)[0]
    assert made.stopped and made.tokens.tolist() == usual()[i].tokens[: k + 1].tolist()


def test_a_cached_prefix_saves_work_and_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    reused = make_sampler()
    first = reused.generate([ask(i) for i in range(3)], 1.0)
    follow = np.arange(5, dtype=np.int32)
    longer = [
        np.concatenate([PROMPTS[i], first[i].tokens, follow]) for i in range(3)
    ]  # as conversations go on
    changed = longer[1].copy()
    changed[10] ^= 1  # differs inside the old prompt
    prompts = [longer[0], changed, PROMPTS[2]]  # the last one is cached whole
    run: list[int] = []
    original = Sampler._run_extend

    def spy(
        self: Sampler, chunk: int, rows: Sequence[tuple[int, np.ndarray, int]]
    ) -> tuple[np.ndarray, jax.Array]:
        run.extend(len(new) for _, new, _ in rows)
        return original(self, chunk, rows)

    monkeypatch.setattr(Sampler, "_run_extend", spy)
    requests = [ask(i, prompt=prompt) for i, prompt in enumerate(prompts)]
    again = reused.generate(requests, 1.0)
    # What was not cached: the last sampled token and the new message; everything from the change on; one token.
    assert sorted(run) == sorted([1 + len(follow), len(changed) - 10, 1])
    fresh = make_sampler().generate(requests, 1.0)
    assert tokens(again) == tokens(fresh)
    for a, b in zip(again, fresh, strict=True):
        np.testing.assert_allclose(a.logprobs, b.logprobs, atol=1e-4)


def test_a_shorter_prompt_does_not_see_what_the_slot_held_before() -> None:
    made = make_sampler()
    made.generate([ask(2, slot=0)], 1.0)
    assert tokens(made.generate([ask(3, slot=0)], 1.0)) == [usual()[3].tokens.tolist()]


def test_new_weights_forget_what_old_ones_cached() -> None:
    made = make_sampler()
    made.generate([ask(i) for i in range(4)], 1.0)
    made.load(params(1))
    fresh = Sampler(MODEL, sampling_mesh(1), SLOTS, MAX_LENGTH, MAX_NEW, (), 0)
    fresh.load(params(1))
    requests = [ask(i) for i in range(4)]
    assert tokens(made.generate(requests, 1.0)) == tokens(fresh.generate(requests, 1.0))
    assert tokens(fresh.generate(requests, 1.0)) != tokens(usual())


def test_the_cache_grows_and_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CAPACITY_STEP", 32)
    long = np.random.default_rng(9).integers(0, MODEL.vocab_size, 120).astype(np.int32)
    grown = make_sampler()
    assert tokens(grown.generate([ask(0)], 1.0)) == [usual()[0].tokens.tolist()]
    kept = np.concatenate([PROMPTS[0], usual()[0].tokens])
    made = grown.generate(
        [ask(0, prompt=kept), ask(5, prompt=long)], 1.0
    )  # slot 0 goes on in the larger cache
    monkeypatch.setattr(module, "CAPACITY_STEP", MAX_LENGTH)
    at_once = make_sampler().generate([ask(0, prompt=kept), ask(5, prompt=long)], 1.0)
    assert tokens(made) == tokens(at_once)


def test_prompts_longer_than_the_longest_program_run_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNKS", (4, 16))
    monkeypatch.setattr(module, "EXTEND_TOKENS", 32)  # two rows of 16 a call
    made = make_sampler().generate([ask(i) for i in range(4)], 1.0)
    assert tokens(made) == tokens(usual())


def test_a_second_identical_round_compiles_nothing() -> None:
    def rounds() -> None:
        made = make_sampler(slots=3)
        for _ in range(2):
            first = made.generate([ask(i) for i in (0, 1, 2)], 1.0)
            follow = [np.concatenate([PROMPTS[i], c.tokens, PROMPTS[3]]) for i, c in enumerate(first)]
            made.generate([ask(i, prompt=p) for i, p in enumerate(follow)], 1.0)
            made.generate([ask(1)], 0.5)
            made.load(params())

    rounds()
    compiled: list[str] = []

    def listen(event: str, _: float, **__: str | int) -> None:
        if event.endswith("backend_compile_duration"):
            compiled.append(event)

    programs = extend._cache_size(), decode._cache_size()
    monitoring.register_event_duration_secs_listener(listen)
    try:
        rounds()
        jax.jit(lambda x: x + 1)(1.0)  # so that the test sees what it counts
    finally:
        monitoring.unregister_event_duration_listener(listen)
    assert len(compiled) == 1
    assert (extend._cache_size(), decode._cache_size()) == programs


def test_sampled_frequencies_follow_the_softmax() -> None:
    slots, rounds, temperature = 64, 32, 1.5
    made = make_sampler(slots)
    counts = np.zeros(MODEL.vocab_size)
    for i in range(rounds):
        requests = [Request(s, PROMPTS[0], (0, i, s % 8, s // 8, 0), 1) for s in range(slots)]
        for completion in made.generate(requests, temperature):
            counts[completion.tokens[0]] += 1
    p = reference.softmax(reference.logits(params(), MODEL, PROMPTS[0])[-1] / temperature)
    rare = p * slots * rounds < 5
    bins = np.where(rare, rare.argmax(), np.arange(len(p)))  # rare tokens are counted together
    observed, expected = (np.bincount(bins, x)[np.unique(bins)] for x in (counts, p * slots * rounds))
    assert len(expected) >= 10
    assert stats.chisquare(observed, expected).pvalue > 1e-3


@pytest.mark.parametrize(
    ("requests", "sentence"),
    [
        (
            [ask(0, prompt=np.zeros(MAX_LENGTH - MAX_NEW + 1, np.int32))],
            r"a prompt of 293 tokens with 8 new ones does not fit in config\.context\.max_length=300",
        ),
        ([ask(0, prompt=np.zeros(0, np.int32))], "a prompt of 0 tokens"),
        ([ask(0, limit=MAX_NEW + 1)], "9 new tokens cannot be sampled: ask for 1 to 8"),
        ([ask(0, limit=0)], "0 new tokens"),
        ([ask(0, slot=2), ask(1, slot=2)], "two requests name one slot"),
    ],
    ids=["too long", "empty", "too many", "none", "one slot twice"],
)
def test_impossible_requests_are_refused_before_anything_runs(requests: list[Request], sentence: str) -> None:
    made = make_sampler()
    with pytest.raises(ValueError, match=sentence):
        made.generate(requests, 1.0)
    assert tokens(made.generate([ask(i) for i in range(4)], 1.0)) == tokens(usual())


def test_a_prompt_that_just_fits_is_sampled_and_no_request_gives_nothing() -> None:
    made = make_sampler()
    assert (
        len(made.generate([ask(0, prompt=np.zeros(MAX_LENGTH - MAX_NEW, np.int32))], 1.0)[0].tokens)
        == MAX_NEW
    )
    assert made.generate([], 1.0) == []
