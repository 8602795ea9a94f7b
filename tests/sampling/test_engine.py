"""The engine: a completion depends on its request alone; reuse, stops, cancellation, limits, and what is refused."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import jax
import numpy as np
import pytest
from jax import monitoring
from scipy import stats

from rsipo_jax.models.transformer import Params
from rsipo_jax.parallel.sharding import sampling_mesh
from rsipo_jax.sampling import engine as module
from rsipo_jax.sampling.engine import Engine
from rsipo_jax.sampling.programs import STEPS, copy_prefixes, decode
from rsipo_jax.sampling.protocol import Address, Completion, Request, Sampling, generate
from rsipo_jax.training.update import logprobs_of
from rsipo_jax.validation import ConfigError
from tests.models import reference
from tests.models.reference import SMALL, make_params

MODEL = replace(SMALL, num_layers=1)
MAX_LENGTH, MAX_NEW, SLOTS = 120, 8, 8
USUAL = Sampling()
PROMPTS = [
    np.random.default_rng(i).integers(0, MODEL.vocab_size, n).astype(np.int32)
    for i, n in enumerate((3, 21, 40, 9))
]


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts here take several pieces, and few programs."""
    monkeypatch.setattr(module, "PIECES", ((8, (4, 8)), (24, (2, 4))))


@cache
def params(seed: int = 0) -> Params:
    return make_params(MODEL, seed)


def make_engine(
    slots: int = SLOTS, stop_ids: tuple[int, ...] = (), seed: int = 0, reuse: bool = True
) -> Engine:
    made = Engine(MODEL, sampling_mesh(1), slots, MAX_LENGTH, stop_ids, seed, reuse)
    made.load(params(), 0)
    return made


def ask(
    i: int, sampling: Sampling = USUAL, limit: int = MAX_NEW, prompt: np.ndarray | None = None
) -> Request:
    """Request number i: its own prompt and address."""
    prompt = PROMPTS[i % len(PROMPTS)] if prompt is None else prompt
    return Request(prompt, (1, 2, i, 0, 5), limit, sampling)


def tokens(completions: Iterable[Completion]) -> list[list[int]]:
    return [c.tokens.tolist() for c in completions]


def finishes(completions: Iterable[Completion]) -> list[str]:
    return [c.finish for c in completions]


@cache
def usual() -> list[Completion]:
    """Requests 0 to 3 at temperature 1, in order, by a fresh engine."""
    return generate(make_engine(), [ask(i) for i in range(4)])


# What a completion depends on.

TASKS, TURNS, STOP = 12, 3, 11
SAMPLINGS = (
    Sampling(),
    Sampling(0.0),
    Sampling(0.7, top_p=0.8),
    Sampling(1.3, top_k=9, min_new_tokens=3),
    Sampling(min_p=0.05, stop=((3, 4), (9,))),
)


def converse(engine: Engine, order: Sequence[int] = range(TASKS), burst: int = TASKS) -> dict[Address, Any]:
    """TASKS conversations of TURNS turns, each going on as soon as it may; at most `burst` submitted between polls.

    Some begin alike. What is compared: tokens and how they ended, and both log-probabilities.
    """
    opening = np.random.default_rng(5).integers(0, MODEL.vocab_size, 30).astype(np.int32)

    def request(i: int, turn: int, prompt: np.ndarray) -> Request:
        return Request(prompt, (0, 1, i, i % 2, turn), 3 + (5 * i + turn) % 9, SAMPLINGS[(i + turn) % 5])

    first = [np.concatenate([opening[: 5 * (i % 7)], [i, 1], PROMPTS[i % 4]]) for i in range(TASKS)]
    waiting = deque(request(i, 0, first[i]) for i in order)
    asked: dict[Address, Request] = {}
    done: dict[Address, Any] = {}
    while waiting or len(done) < len(asked):
        for _ in range(min(burst, len(waiting))):
            asked[waiting[0].address] = waiting[0]
            engine.submit(waiting.popleft())
        for c in engine.poll():
            assert c.address not in done
            done[c.address] = c.tokens.tolist(), c.finish, np.stack([c.logprobs, c.raw_logprobs])
            _, _, i, _, turn = c.address
            if turn + 1 < TURNS:
                message = np.array([turn, i, 2], np.int32)
                prompt = np.concatenate([asked[c.address].prompt, c.tokens, message])
                waiting.append(request(i, turn + 1, prompt))
    return done


def assert_same(found: dict[Address, Any], wanted: dict[Address, Any]) -> None:
    assert found.keys() == wanted.keys()
    for address, (tokens, finish, logprobs) in wanted.items():
        assert found[address][:2] == (tokens, finish)
        np.testing.assert_allclose(found[address][2], logprobs, atol=1e-4)


@cache
def usual_conversations() -> dict[Address, Any]:
    return converse(make_engine(stop_ids=(STOP,)))


def test_conversations_end_in_every_way_and_reuse_what_is_cached() -> None:
    engine = make_engine(stop_ids=(STOP,))
    assert_same(converse(engine), usual_conversations())
    assert {finish for _, finish, _ in usual_conversations().values()} == {"stop", "length"}
    assert engine.work.reused_tokens > engine.work.prompt_tokens // 3


@pytest.mark.parametrize(
    "slots", [3, 128, pytest.param(1, marks=pytest.mark.slow), pytest.param(64, marks=pytest.mark.slow)]
)
def test_the_number_of_slots_changes_nothing(slots: int) -> None:
    """With 3, slots are taken from conversations that go on."""
    assert_same(converse(make_engine(slots, (STOP,))), usual_conversations())


def test_reuse_changes_nothing() -> None:
    engine = make_engine(stop_ids=(STOP,), reuse=False)
    assert_same(converse(engine), usual_conversations())
    assert engine.work.reused_tokens == 0


def test_the_order_of_requests_changes_nothing() -> None:
    order = np.random.default_rng(0).permutation(TASKS).tolist()
    assert_same(converse(make_engine(stop_ids=(STOP,)), order, burst=2), usual_conversations())


def test_requests_of_others_change_nothing() -> None:
    engine = make_engine(stop_ids=(STOP,))
    for i in range(20):
        engine.submit(ask(i, Sampling(0.1 * i, top_k=i), limit=i + 1, prompt=PROMPTS[2][i:]))
        if i % 5 == 0:
            engine.poll()
    found = {}
    others = {(1, 2, i, 0, 5) for i in range(20)}
    poll = engine.poll
    engine.poll = lambda: [c for c in poll() if c.address not in others]  # type: ignore[method-assign]
    found = converse(engine)
    assert_same(found, usual_conversations())


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_log_probabilities_are_those_of_the_scoring_pass(temperature: float) -> None:
    made = generate(make_engine(), [ask(i, Sampling(temperature)) for i in range(4)])
    rows = np.zeros((4, 64), np.int32)
    positions, segments = np.tile(np.arange(64, dtype=np.int32), (4, 1)), np.ones((4, 64), np.int32)
    for row, prompt, completion in zip(rows, PROMPTS, made, strict=True):
        row[: len(prompt) + MAX_NEW] = [*prompt, *completion.tokens]
    scored, _ = logprobs_of(params(), MODEL, rows, positions, segments, segments > 0, temperature)
    for row, prompt, completion in zip(np.asarray(scored), PROMPTS, made, strict=True):
        n = len(prompt)
        np.testing.assert_allclose(completion.logprobs, row[n : n + MAX_NEW], atol=1e-4)
        whole = np.concatenate([prompt, completion.tokens])
        for found, of in ((completion.logprobs, temperature), (completion.raw_logprobs, 1.0)):
            wanted = reference.token_logprobs(params(), MODEL, whole, of)[n:]
            np.testing.assert_allclose(found, wanted, atol=1e-4)


def test_a_longer_limit_continues_the_same_draws() -> None:
    short = generate(make_engine(), [ask(i, limit=i + 1) for i in range(4)])
    assert tokens(short) == [c.tokens[: i + 1].tolist() for i, c in enumerate(usual())]


def test_every_coordinate_of_an_address_and_the_seed_change_the_draws() -> None:
    base = (1, 2, 0, 0, 5)
    addresses = [base] + [(*base[:k], base[k] + 1, *base[k + 1 :]) for k in range(5)]
    requests = [Request(PROMPTS[0], address, MAX_NEW) for address in addresses]
    made = tokens(generate(make_engine(), requests))
    made += tokens(generate(make_engine(seed=1), requests[:1]))
    assert len({tuple(m) for m in made}) == len(made)
    assert made[0] == usual()[0].tokens.tolist()


@pytest.mark.parametrize(
    "greedy", [Sampling(0.0), Sampling(1.7, top_k=1), Sampling(0.0, 5, 0.5, 0.1)], ids=str
)
def test_greedy_takes_the_likeliest_token_whatever_the_seed(greedy: Sampling) -> None:
    made = generate(make_engine(seed=3), [ask(i, greedy) for i in range(4)])
    for prompt, completion in zip(PROMPTS, made, strict=True):
        whole = np.concatenate([prompt, completion.tokens])
        likeliest = reference.logits(params(), MODEL, whole).argmax(axis=-1)
        np.testing.assert_array_equal(completion.tokens, likeliest[len(prompt) - 1 : -1])


def test_sampled_frequencies_follow_the_softmax() -> None:
    n, temperature = 2048, 1.5
    requests = [
        Request(PROMPTS[0], (0, i // 64, i % 8, i // 8 % 8, 0), 1, Sampling(temperature)) for i in range(n)
    ]
    counts = np.bincount(
        [c.tokens[0] for c in generate(make_engine(128), requests)], minlength=MODEL.vocab_size
    )
    p = reference.softmax(reference.logits(params(), MODEL, PROMPTS[0])[-1] / temperature)
    rare = p * n < 5
    bins = np.where(rare, rare.argmax(), np.arange(len(p)))  # rare tokens are counted together
    observed, expected = (np.bincount(bins, x)[np.unique(bins)] for x in (counts, p * n))
    assert len(expected) >= 10
    assert stats.chisquare(observed, expected).pvalue > 1e-3


# Stops.


def test_stop_tokens_end_a_completion_and_are_part_of_it() -> None:
    whole = [c.tokens.tolist() for c in usual()]
    # One id stops request 0 at once, another stops request 1 somewhere later.
    stops = (whole[0][0], whole[1][3])
    stopped = generate(make_engine(stop_ids=stops), [ask(i) for i in range(4)])
    assert stopped[0].tokens.tolist() == whole[0][:1] and stopped[0].finish == "stop"
    for completion, all_tokens in zip(stopped, whole, strict=True):
        ends = [k + 1 for k, token in enumerate(all_tokens) if token in stops]
        count = min([*ends, MAX_NEW])
        assert completion.tokens.tolist() == all_tokens[:count]
        assert completion.finish == ("stop" if ends else "length")
        assert len(completion.logprobs) == len(completion.raw_logprobs) == count
    assert finishes(usual()) == ["length"] * 4


def test_a_stop_token_at_the_limit_counts_as_stopped() -> None:
    # A token that its request samples for the first time after two others or more.
    i, k = next(
        (i, k)
        for i in range(4)
        for k in range(2, MAX_NEW)
        if usual()[i].tokens[k] not in usual()[i].tokens[:k]
    )
    engine = make_engine(stop_ids=(int(usual()[i].tokens[k]),))
    made = generate(engine, [ask(i, limit=k + 1)])[0]
    assert made.finish == "stop" and made.tokens.tolist() == usual()[i].tokens[: k + 1].tolist()


@pytest.mark.parametrize("looks", [False, True], ids=["in one look", "across looks"])
def test_stop_sequences_of_several_tokens_end_a_completion(looks: bool) -> None:
    a, b = usual()[1].tokens.tolist(), usual()[2].tokens.tolist()
    never = (a[2], a[1])
    requests = [
        ask(1, Sampling(stop=(never, tuple(a[2:5])))),
        ask(2, Sampling(stop=(tuple(b[1:3]), tuple(b[:8])))),
    ]
    engine = make_engine()
    if looks:  # a neighbour that ends makes the host look: after each token
        for i in range(6):
            requests.append(ask(10 + i, limit=i + 1))
    made = generate(engine, requests)
    assert tokens(made[:2]) == [a[:5], b[:3]]
    assert finishes(made[:2]) == ["stop", "stop"]


def test_a_stop_sequence_may_not_begin_in_the_prompt() -> None:
    a = usual()[1].tokens.tolist()
    made = generate(make_engine(), [ask(1, Sampling(stop=((int(PROMPTS[1][-1]), a[0]),)))])
    assert tokens(made) == [a]


def test_nothing_stops_before_the_minimum() -> None:
    minimum, a = 4, usual()[1].tokens.tolist()
    stop = a[1]
    made = generate(make_engine(stop_ids=(stop,)), [ask(1, Sampling(min_new_tokens=minimum)), ask(1 + 4)])[0]
    assert stop not in made.tokens[:minimum] and len(made.tokens) >= minimum
    assert made.tokens[0] == a[0]
    # Drawn from what is left without the stop id; the raw log-probability knows nothing of that.
    whole = np.concatenate([PROMPTS[1], made.tokens])
    p = reference.softmax(reference.logits(params(), MODEL, whole[:-1])[len(PROMPTS[1]) - 1 :])
    own = p[np.arange(len(made.tokens)), made.tokens]
    left = np.where(np.arange(len(own)) < minimum, 1 - p[:, stop], 1.0)
    np.testing.assert_allclose(made.logprobs, np.log(own / left), atol=1e-4)
    np.testing.assert_allclose(made.raw_logprobs, np.log(own), atol=1e-4)
    # Stop sequences of several tokens may be drawn, and do not stop.
    pair = Sampling(min_new_tokens=minimum, stop=(tuple(a[1:3]),))
    assert tokens(generate(make_engine(), [ask(1, pair)])) == [a]
    pair = replace(pair, min_new_tokens=2)
    assert tokens(generate(make_engine(), [ask(1, pair)])) == [a[:3]]


# What is computed once.


def test_a_turn_computes_its_new_tokens_alone() -> None:
    engine = make_engine()
    first = generate(engine, [ask(i) for i in range(3)])
    assert engine.work.prompt_tokens == sum(len(p) for p in PROMPTS[:3])
    assert engine.work.sampled_tokens == 3 * MAX_NEW <= engine.work.slot_steps
    before = engine.work.reused_tokens
    follow = np.arange(5, dtype=np.int32)
    longer = [np.concatenate([PROMPTS[i], c.tokens, follow]) for i, c in enumerate(first)]
    changed = longer[1].copy()
    changed[10] ^= 1  # differs inside the old prompt
    prompts = [longer[0], changed, PROMPTS[2]]  # the last one is cached whole
    requests = [ask(i, prompt=prompt) for i, prompt in enumerate(prompts)]
    again = generate(engine, requests)
    # Cached: all but the last sampled token; what is before the change; all but the token that decoding begins with.
    wanted = [len(PROMPTS[0]) + MAX_NEW - 1, 10, len(PROMPTS[2]) - 1]
    assert engine.work.reused_tokens - before == sum(wanted)
    fresh = generate(make_engine(), requests)
    assert tokens(again) == tokens(fresh)
    for a, b in zip(again, fresh, strict=True):
        np.testing.assert_allclose(a.logprobs, b.logprobs, atol=1e-4)


def test_idle_slots_do_not_decode_when_few_are_active() -> None:
    engine = make_engine(32)
    few = generate(engine, [ask(i, limit=1) for i in range(3)])
    assert engine.work.slot_steps == 8  # a quarter
    half = generate(engine, [ask(i, limit=1) for i in range(9)])
    assert engine.work.slot_steps == 8 + 16
    whole = generate(engine, [ask(i, limit=1) for i in range(17)])
    assert engine.work.slot_steps == 8 + 16 + 32
    assert tokens(few) == tokens(half[:3]) and tokens(half) == tokens(whole[:9])
    # They go on in their own slots.
    assert tokens(generate(engine, [ask(i) for i in range(4)])) == tokens(usual())


def test_rows_of_padding_sample_nothing() -> None:
    """Also when the last slot, which padding is copied from, is one of the few that go on."""
    engine = make_engine(32)
    limits = [1] * 29 + [MAX_NEW] * 3
    made = generate(engine, [ask(i, limit=limit) for i, limit in enumerate(limits)])
    assert [len(c.tokens) for c in made] == limits
    assert engine.work.sampled_tokens == sum(limits)


def test_members_of_a_group_compute_their_prompt_once() -> None:
    engine, prompt = make_engine(), PROMPTS[2]
    group = [Request(prompt, (1, 2, 2, member, 5), MAX_NEW) for member in range(5)]
    made = generate(engine, group)
    assert engine.work.prompt_tokens == 5 * len(prompt)
    assert engine.work.reused_tokens == 4 * (len(prompt) - 1)
    assert made[0].tokens.tolist() == usual()[2].tokens.tolist()
    alone = generate(make_engine(reuse=False), group[3:4])
    assert tokens(alone) == tokens(made[3:4])
    replayed = generate(engine, [replace(r, address=(1, 3, 2, i, 5)) for i, r in enumerate(group)])
    assert engine.work.reused_tokens == 9 * (len(prompt) - 1)
    assert len({tuple(t) for t in tokens([*made, *replayed])}) > 5


def test_a_shorter_prompt_does_not_see_what_the_slot_held_before() -> None:
    engine = make_engine(1)
    generate(engine, [ask(2)])
    assert tokens(generate(engine, [ask(3)])) == [usual()[3].tokens.tolist()]


def test_new_weights_forget_what_old_ones_cached_and_name_their_version() -> None:
    engine, requests = make_engine(), [ask(i) for i in range(4)]
    assert {c.version for c in generate(engine, requests)} == {0}
    engine.load(params(1), 17)
    assert engine.work.prompt_tokens == engine.work.sampled_tokens == 0
    fresh = make_engine()
    fresh.load(params(1), 17)
    made, wanted = generate(engine, requests), generate(fresh, requests)
    assert {c.version for c in made} == {17}
    assert tokens(made) == tokens(wanted) != tokens(usual())
    assert engine.work == fresh.work


def test_weights_are_not_changed_under_requests() -> None:
    engine = make_engine()
    engine.submit(ask(0))
    done: Sequence[Completion] = []
    while not done:  # waiting, then running
        with pytest.raises(RuntimeError, match="1 requests are unanswered: poll until none is"):
            engine.load(params(1), 1)
        done = engine.poll()
    assert tokens(done) == [usual()[0].tokens.tolist()] and done[0].version == 0
    engine.load(params(1), 1)


def test_a_second_identical_round_compiles_nothing() -> None:
    def rounds() -> None:
        engine = make_engine(3)
        for _ in range(2):
            first = generate(engine, [ask(i) for i in (0, 1, 2, 4, 5)])
            follow = [np.concatenate([PROMPTS[i], c.tokens, PROMPTS[3]]) for i, c in enumerate(first[:3])]
            generate(engine, [ask(i, prompt=p) for i, p in enumerate(follow)])
            generate(engine, [ask(1, Sampling(0.5, top_k=3, stop=((1, 2),)), limit=3)])
            engine.load(params(), 0)

    rounds()
    compiled: list[str] = []

    def listen(event: str, _: float, **__: str | int) -> None:
        if event.endswith("backend_compile_duration"):
            compiled.append(event)

    programs = decode._cache_size(), copy_prefixes._cache_size()
    monitoring.register_event_duration_secs_listener(listen)
    try:
        rounds()
        jax.jit(lambda x: x + 1)(1.0)  # so that the test sees what it counts
    finally:
        monitoring.unregister_event_duration_listener(listen)
    assert len(compiled) == 1
    assert (decode._cache_size(), copy_prefixes._cache_size()) == programs


# Cancellation and refusals.


def test_a_cancelled_request_is_answered_once_with_what_it_has() -> None:
    engine = make_engine(3)
    prompts = [np.concatenate([[i], PROMPTS[i % 4]]).astype(np.int32) for i in range(5)]  # share nothing
    requests = [ask(i, limit=60 if i < 3 else 8, prompt=prompt) for i, prompt in enumerate(prompts)]
    for request in requests:
        engine.submit(request)
    assert not engine.poll()  # three are running
    engine.cancel(requests[1].address)
    engine.cancel(requests[3].address)
    engine.cancel(requests[3].address)
    done = {c.address: c for c in engine.poll()}
    assert done[requests[3].address].finish == "cancelled" and not len(done[requests[3].address].tokens)
    while len(done) < 5:
        for c in engine.poll():
            assert c.address not in done
            done[c.address] = c
    whole = generate(make_engine(3), requests)
    part = done[requests[1].address]
    assert part.finish == "cancelled" and 0 < len(part.tokens) == len(part.logprobs) < 60
    assert part.tokens.tolist() == whole[1].tokens[: len(part.tokens)].tolist()
    for i in (0, 2, 4):
        assert done[requests[i].address].tokens.tolist() == whole[i].tokens.tolist()
    assert engine.poll() == [] and not engine._active and len(engine._idle[0]) == 3
    with pytest.raises(ValueError, match=r"no request with the address .* is unanswered: nothing to cancel"):
        engine.cancel(requests[1].address)
    # The address may be used again, and what was cancelled is a beginning like any other.
    assert tokens(generate(engine, [requests[1]])) == tokens(whole[1:2])


@pytest.mark.parametrize(
    ("request_", "sentence"),
    [
        (
            ask(0, prompt=np.zeros(MAX_LENGTH - MAX_NEW + 1, np.int32)),
            r"a prompt of 113 tokens with 8 new ones does not fit in config\.context\.max_length=120",
        ),
        (ask(0, prompt=np.zeros(0, np.int32)), "a prompt of 0 tokens"),
        (
            ask(0, prompt=np.array([1, MODEL.vocab_size], np.int32)),
            "token id 61 of a prompt is not in the voc",
        ),
        (
            ask(0, prompt=np.array([-1, 3], np.int32)),
            "token id -1 of a prompt is not in the vocabulary of 61",
        ),
        (ask(0, limit=0), "max_new_tokens=0 asks for nothing"),
        (ask(0, Sampling(-0.5)), r"temperature=-0\.5 is not possible: give 0 \(greedy\) or more"),
        (ask(0, Sampling(float("nan"))), "temperature=nan is not possible"),
        (ask(0, Sampling(float("inf"))), "temperature=inf is not possible"),
        (ask(0, Sampling(top_k=-1)), "top_k=-1 is not possible"),
        (ask(0, Sampling(top_p=0.0)), r"top_p=0\.0 is not possible"),
        (ask(0, Sampling(top_p=float("nan"))), "top_p=nan is not possible"),
        (ask(0, Sampling(min_p=1.5)), r"min_p=1\.5 is not possible"),
        (ask(0, Sampling(min_new_tokens=9)), "min_new_tokens=9 is not possible: give 0 to max_new_tokens=8"),
        (ask(0, Sampling(stop=((3, 99),))), "stop id 99 is not in the vocabulary of 61 tokens"),
        (ask(0, Sampling(stop=((),))), r"the stop sequence \(\) has 0 tokens"),
        (ask(0, Sampling(stop=((1,) * 9,))), "has 9 tokens: give 1 to 8"),
        (ask(0, Sampling(stop=((1,),) * 9)), "9 stop sequences are too many: give at most 8"),
        (ask(2), "two requests have the address"),
        # What only the devices, or NumPy on the way to them, would have met: in a poll, in which others are lost.
        (replace(ask(0), address=(1, 2, 2**31, 0, 0)), "give a tuple of 5 whole numbers of 32 bits"),
        (replace(ask(0), address=(1, 2, 3)), r"the address \(1, 2, 3\) is not possible"),
        (replace(ask(0), address=[1, 2, 3, 4, 5]), r"the address \[1, 2, 3, 4, 5\] is not possible"),
        (replace(ask(0), address=(1, 2, 3.5, 4, 5)), r"the address \(1, 2, 3\.5, 4, 5\) is not possible"),
        (replace(ask(0), address=None), "the address None is not possible"),
        (
            ask(0, prompt=np.zeros((3, 1), np.int32)),
            "a prompt of 2 dimensions and type int32 is not possible",
        ),
        (
            ask(0, prompt=np.zeros((2, 3), np.int32)),
            "a prompt of 2 dimensions and type int32 is not possible",
        ),
        (ask(0, prompt=np.ones(3)), "a prompt of 1 dimensions and type float64 is not possible"),
        (replace(ask(0), prompt=[[1], [2, 3]]), "give a list of token ids"),
        (replace(ask(0), prompt=None), "give a list of token ids"),
        (replace(ask(0), prompt="abc"), "give a list of token ids"),
        (ask(0, limit=3.5), r"max_new_tokens=3\.5 is no whole number"),
        (ask(0, limit=None), "max_new_tokens=None is no whole number"),
        (ask(0, None), "sampling=None is not possible"),
        (ask(0, Sampling(None)), "temperature=None is not possible"),
        (ask(0, Sampling(top_k=2.5)), r"top_k=2\.5 is not possible"),
        (ask(0, Sampling(top_k=float("inf"))), "top_k=inf is not possible"),
        (ask(0, Sampling(top_p=None)), "top_p=None is not possible"),
        (ask(0, Sampling(min_p=float("nan"))), "min_p=nan is not possible"),
        (ask(0, Sampling(min_new_tokens=1.5)), r"min_new_tokens=1\.5 is not possible"),
        (ask(0, Sampling(stop=(3, 4))), r"stop=\(3, 4\) is not possible: give a tuple of tuples"),
        (ask(0, Sampling(stop=None)), "stop=None is not possible"),
        (ask(0, Sampling(stop=((1.5,),))), r"stop id 1\.5 is not in the vocabulary"),
    ],
)
def test_what_cannot_be_answered_is_refused_and_others_do_not_notice(
    request_: Request, sentence: str
) -> None:
    engine = make_engine()
    good = [ask(i) for i in range(4)]
    engine.submit(replace(good[2], max_new_tokens=MAX_NEW + STEPS))  # more than a look
    done = list(engine.poll())
    with pytest.raises(ValueError, match=sentence) as error:
        engine.submit(request_)
    assert "\n" not in str(error.value)
    while not done:
        done = list(engine.poll())
    assert [t[:MAX_NEW] for t in tokens(done)] == tokens(usual()[2:3])
    assert tokens(generate(engine, good)) == tokens(usual())


def test_any_list_of_whole_numbers_is_a_prompt_and_is_the_request_s_own() -> None:
    wanted = usual()[1]
    for prompt in (PROMPTS[1].tolist(), PROMPTS[1].astype(np.int64), PROMPTS[1].astype(np.uint8)):
        assert tokens(generate(make_engine(), [replace(ask(1), prompt=prompt)])) == tokens([wanted])
    engine, buffer = make_engine(), PROMPTS[1].copy()
    engine.submit(ask(1, limit=STEPS + 1, prompt=buffer))
    assert not engine.poll()
    buffer[:] = PROMPTS[1][::-1]  # a caller that writes its next prompt into the same array
    assert engine.poll()
    assert tokens(generate(engine, [ask(2, prompt=buffer)])) == tokens(
        generate(make_engine(), [ask(2, prompt=buffer)])
    )


@pytest.mark.parametrize(
    ("extreme", "plain"),
    [
        (Sampling(1e-50), Sampling(1e-6)),
        (Sampling(1e-39, min_p=0.1), Sampling(1e-6)),
        (Sampling(3e38, top_k=3), Sampling(1e6, top_k=3)),
        (Sampling(1e39), Sampling(1e6)),
        (Sampling(top_p=1e-50), Sampling(top_p=1e-6)),
        (Sampling(top_k=2**31), Sampling()),
    ],
    ids=str,
)
def test_numbers_beyond_float32_draw_like_the_nearest_within(extreme: Sampling, plain: Sampling) -> None:
    made, wanted = (generate(make_engine(), [ask(i, s) for i in range(4)]) for s in (extreme, plain))
    assert tokens(made) == tokens(wanted)
    for a, b in zip(made, wanted, strict=True):
        np.testing.assert_allclose(a.logprobs, b.logprobs, atol=1e-4)


def test_requests_wait_for_weights_outside_of_the_engine() -> None:
    engine = Engine(MODEL, sampling_mesh(1), 1, MAX_LENGTH, (), 0)
    assert engine.poll() == []
    with pytest.raises(RuntimeError, match="there are no weights to answer a request with"):
        engine.submit(ask(0))
    engine.load(params(), 0)
    assert tokens(generate(engine, [ask(0)])) == tokens(usual()[:1])


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"slots": 0}, r"config\.rollout\.slots=0 leaves no room"),
        ({"max_length": 1}, r"config\.context\.max_length=1 does not hold"),
        ({"seed": 2**31}, r"config\.seed=2147483648 is out of range"),
        ({"stop_ids": tuple(range(9))}, "the tokenizer has 9 stop ids"),
        (
            {"stop_ids": (3, MODEL.vocab_size)},
            "stop id 61 of the tokenizer is not in the network's vocabulary",
        ),
    ],
    ids=str,
)
def test_an_engine_that_could_not_answer_is_not_made(change: dict[str, Any], sentence: str) -> None:
    usual = {"slots": 1, "max_length": 2, "stop_ids": (), "seed": 0}
    Engine(MODEL, sampling_mesh(1), **usual)
    with pytest.raises(ConfigError, match=sentence):
        Engine(MODEL, sampling_mesh(1), **usual | change)


def test_a_prompt_that_just_fits_is_sampled_and_no_request_gives_nothing() -> None:
    engine = make_engine()
    made = generate(engine, [ask(0, prompt=np.zeros(MAX_LENGTH - MAX_NEW, np.int32))])
    assert len(made[0].tokens) == MAX_NEW
    assert generate(engine, []) == [] and engine.poll() == []


def test_a_prompt_of_one_token_has_nothing_to_compute_first() -> None:
    prompt = np.array([7], np.int32)
    made = generate(make_engine(), [ask(0, Sampling(0.0), prompt=prompt)])[0]
    whole = np.concatenate([prompt, made.tokens])
    np.testing.assert_array_equal(made.tokens, reference.logits(params(), MODEL, whole).argmax(axis=-1)[:-1])
