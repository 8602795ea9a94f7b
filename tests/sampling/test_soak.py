"""Thousands of requests of every kind: each is answered once, and nothing is left behind."""

from __future__ import annotations

import gc
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from jax import monitoring

from rsipo_jax.parallel.sharding import sampling_mesh
from rsipo_jax.sampling import engine as module
from rsipo_jax.sampling.engine import Engine
from rsipo_jax.sampling.protocol import Address, Completion, Request, Sampling
from tests.models.reference import SMALL, make_params

MODEL = replace(SMALL, num_layers=1, hidden_size=16, intermediate_size=16)
SLOTS, MAX_LENGTH, STOP = 16, 64, 5
WARM_UP = 300  # requests, after which nothing compiles and memory stands still
MEMORY = 8 << 20  # bytes that a process may grow by all the same


@dataclass(frozen=True)
class Found:
    compiled: int  # programs, after the warm-up
    memory: tuple[int, int]  # bytes, after the warm-up and in the end
    nodes: int  # of the trie, at most
    seconds: float
    reused: float  # share of prompt tokens


def resident_memory() -> int:
    """Bytes that this process holds."""
    gc.collect()
    fields = Path("/proc/self/statm").read_text().split()
    return int(fields[1]) * 4096


def request(rng: np.random.Generator, i: int, openings: list[np.ndarray]) -> Request:
    """Number i, of any length that fits; most begin as others do."""
    limit = int(rng.integers(1, 30))
    own = rng.integers(0, MODEL.vocab_size, rng.integers(1, 30))
    opening = openings[rng.integers(len(openings))][: rng.integers(0, 40)]
    prompt = np.concatenate([opening, own])[: MAX_LENGTH - limit].astype(np.int32)
    stop = [
        tuple(rng.integers(0, MODEL.vocab_size, rng.integers(1, 4)).tolist()) for _ in range(rng.integers(3))
    ]
    sampling = Sampling(
        temperature=float(rng.choice([0.0, 0.5, 1.0, 2.0])), top_k=int(rng.choice([0, 0, 1, 5])),
        top_p=float(rng.choice([1.0, 0.9])), min_p=float(rng.choice([0.0, 0.05])),
        min_new_tokens=int(rng.integers(0, limit + 1)) if rng.random() < 0.2 else 0, stop=tuple(stop),
    )  # fmt: skip
    return Request(prompt, (0, i // 1000, i % 1000, 0, 0), limit, sampling)


def check(request: Request, done: Completion, cancelled: bool) -> None:
    n, s = len(done.tokens), request.sampling
    assert n == len(done.logprobs) == len(done.raw_logprobs) <= request.max_new_tokens
    assert np.isfinite(done.logprobs).all() and np.isfinite(done.raw_logprobs).all()
    stops = [(STOP,), *s.stop]
    ends = [
        k for k in range(max(1, s.min_new_tokens + 1), n + 1)
        if any(done.tokens[max(0, k - len(t)) : k].tolist() == list(t) for t in stops)
    ]  # fmt: skip
    assert ends == ([n] if done.finish == "stop" else [])
    assert done.finish != "length" or n == request.max_new_tokens
    assert done.finish != "cancelled" or cancelled


def soak(count: int) -> Found:
    engine = Engine(MODEL, sampling_mesh(1), SLOTS, MAX_LENGTH, (STOP,), 0)
    engine.load(make_params(MODEL), 0)
    rng = np.random.default_rng(0)
    openings = [rng.integers(0, MODEL.vocab_size, 40) for _ in range(30)]
    waiting: dict[Address, Request] = {}
    cancelled: set[Address] = set()
    submitted = answered = nodes = memory = 0
    compiled: list[str] = []

    def listen(event: str, _: float, **__: str | int) -> None:
        if event.endswith("backend_compile_duration"):
            compiled.append(event)

    monitoring.register_event_duration_secs_listener(listen)
    start = time.perf_counter()
    try:
        while submitted < count or waiting:
            # Bursts, and now and then a drought.
            for _ in range(min(count - submitted, int(rng.choice([0, 1, 4, 60], p=[0.6, 0.2, 0.15, 0.05])))):
                new = request(rng, submitted, openings)
                engine.submit(new)
                waiting[new.address] = new
                submitted += 1
            if waiting and rng.random() < 0.2:
                address = list(waiting)[rng.integers(len(waiting))]
                engine.cancel(address)
                cancelled.add(address)
            for done in engine.poll():
                check(waiting.pop(done.address), done, done.address in cancelled)
                answered += 1
            nodes = max(nodes, engine._tries[0].nodes())
            if not memory and answered >= WARM_UP:
                memory = resident_memory()
                compiled.clear()
    finally:
        monitoring.unregister_event_duration_listener(listen)
    seconds = time.perf_counter() - start
    assert answered == submitted == count and len(cancelled) > count // 50
    assert engine.poll() == [] and not (
        engine._active or engine._queue or engine._unanswered or engine._cancelled
    )
    assert sorted(engine._idle[0]) == list(range(SLOTS))
    work = engine.work
    found = Found(
        len(compiled), (memory, resident_memory()), nodes, seconds, work.reused_tokens / work.prompt_tokens
    )
    for slot in range(SLOTS):
        engine._tries[0].remove(slot)
    assert engine._tries[0].nodes() == 0
    return found


@pytest.mark.parametrize("count", [600, pytest.param(20_000, marks=pytest.mark.slow)])
def test_every_request_is_answered_once_and_nothing_is_left_behind(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PIECES", ((8, (4, 8)), (24, (2, 4))))
    found = soak(count)
    print(found)
    assert found.compiled == 0
    assert found.nodes <= SLOTS * MAX_LENGTH
    assert found.reused > 0.1
    assert found.memory[1] - found.memory[0] < MEMORY
