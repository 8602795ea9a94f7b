"""The process pool: order, isolation, and what a dead, hung or raising environment costs."""

from __future__ import annotations

import functools
import os
import re
import signal
import time
from collections.abc import Iterator

import pytest

from rsipo_jax.envs.pool import ProcessPool
from rsipo_jax.envs.protocol import Observation, Task


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise ValueError


def unread() -> None:
    raise ValueError


class Unreadable:
    def __reduce__(self) -> tuple[object, tuple[()]]:
        return unread, ()


class Diary:
    """An environment that shows everything that was ever done in its episode, and obeys a few dangerous words."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    def reset(self, task: Task) -> Observation:
        self._lines = [task.id]
        return self._show()

    def step(self, action: str) -> Observation:
        match action:
            case "die":
                os.kill(os.getpid(), signal.SIGKILL)
            case "hang":
                time.sleep(60)
            case "slow":
                time.sleep(0.5)
            case "raise":
                raise RuntimeError("out of\nink")
            case "raise the unspeakable":
                raise Unspeakable
            case "say nothing":
                return None  # type: ignore[return-value]
            case "say what cannot be sent":
                return Observation(lambda: "", (), won=False)  # type: ignore[arg-type]
            case "say what cannot be read":
                return Observation(Unreadable(), (), won=False)  # type: ignore[arg-type]
            case "leave a child and die":
                if os.fork() == 0:
                    time.sleep(20)
                    os._exit(0)
                os._exit(3)
            case "process id":
                return Observation(str(os.getpid()), (), won=False)
        self._lines.append(action)
        return self._show()

    def close(self) -> None:
        pass

    def _show(self) -> Observation:
        return Observation(" ".join(self._lines), ("write",), won=False)


def diary(task: str) -> Task:
    return Task(task, "diary", "train")


@pytest.fixture
def pool() -> Iterator[ProcessPool]:
    made = ProcessPool(Diary, workers=2, timeout_s=20.0)
    yield made
    made.close()


def texts(answers: dict[int, Observation]) -> dict[int, str]:
    assert not any(observation.error for observation in answers.values())
    return {slot: observation.text for slot, observation in answers.items()}


def test_every_slot_has_its_own_environment(pool: ProcessPool) -> None:
    assert texts(pool.reset({slot: diary(f"d{slot}") for slot in range(5)})) == {s: f"d{s}" for s in range(5)}
    assert texts(pool.step({4: "x", 0: "y"})) == {4: "d4 x", 0: "d0 y"}
    assert texts(pool.step(dict.fromkeys(range(4), "z"))) == {
        0: "d0 y z",
        1: "d1 z",
        2: "d2 z",
        3: "d3 z",
    }
    assert texts(pool.reset({4: diary("new")})) == {4: "new"}


def test_answers_come_in_the_order_of_the_questions(pool: ProcessPool) -> None:
    """Not in that of the workers' answers: slot assignments further on would depend on timing."""
    pool.reset({slot: diary(f"d{slot}") for slot in range(4)})
    assert list(pool.step({0: "slow", 3: "a", 1: "a", 2: "a"})) == [0, 3, 1, 2]


def test_a_killed_worker_costs_its_own_slot_only(pool: ProcessPool) -> None:
    pool.reset({slot: diary(f"d{slot}") for slot in range(6)})
    pool.step(dict.fromkeys(range(6), "a"))
    answers = pool.step({2: "die", 0: "b", 4: "b", 1: "b"})  # 0, 2 and 4 share a worker
    assert answers[2].error == "The environment of d2 failed: its process died (exit code -9)."
    del answers[2]
    assert texts(answers) == {0: "d0 a b", 4: "d4 a b", 1: "d1 a b"}
    assert "reset it first" in pool.step({2: "c"})[2].error
    assert texts(pool.step(dict.fromkeys((0, 1, 3, 4, 5), "c"))) == {
        0: "d0 a b c", 1: "d1 a b c", 3: "d3 a c", 4: "d4 a b c", 5: "d5 a c",
    }  # fmt: skip
    assert texts(pool.reset({2: diary("again")})) == {2: "again"}


def test_a_worker_killed_while_idle_costs_nothing(pool: ProcessPool) -> None:
    pool.reset({slot: diary(f"d{slot}") for slot in range(2)})
    pool.step({0: "a", 1: "a"})
    victim = pool._workers[0].process
    victim.kill()
    victim.join()
    assert texts(pool.step({0: "b", 1: "b"})) == {0: "d0 a b", 1: "d1 a b"}


def test_an_exception_costs_its_own_slot_and_no_process(pool: ProcessPool) -> None:
    pool.reset({0: diary("d0"), 2: diary("d2")})
    before = pool.step({2: "process id"})[2].text
    answers = pool.step({0: "raise", 2: "a"})
    assert answers[0].error == "RuntimeError in step: out of ink"
    assert re.search(r"(?s)Traceback.*, in step\n.*RuntimeError: out of\nink", answers[0].trace)
    assert answers[2].text == "d2 a"
    assert pool.step({2: "process id"})[2].text == before


@pytest.mark.parametrize(
    ("action", "sentence"),
    [
        ("raise the unspeakable", "Unspeakable in step: <exception str() failed>"),
        ("say nothing", "TypeError in _work: the environment answered with a NoneType"),
        ("say what cannot be sent", "in dumps"),
        ("say what cannot be read", "its answer cannot be read (ValueError)"),
        ("leave a child and die", "its process died (exit code 3)"),
    ],
)
def test_an_answer_that_is_none_costs_its_own_slot(action: str, sentence: str, pool: ProcessPool) -> None:
    pool.reset({slot: diary(f"d{slot}") for slot in range(3)})
    answers = pool.step({0: action, 2: "a", 1: "a"})
    assert sentence in answers.pop(0).error
    assert texts(answers) == {2: "d2 a", 1: "d1 a"}
    assert texts(pool.step({2: "b"})) == {2: "d2 a b"}


def test_time_is_given_by_the_action() -> None:
    """Slots of a dead worker are replayed in one request, which may take as long as their actions did."""
    pool = ProcessPool(Diary, workers=1, timeout_s=2.0)
    try:
        texts(pool.reset({0: diary("d0")}))
        for _ in range(6):
            texts(pool.step({0: "slow"}))
        pool._workers[0].process.kill()
        pool._workers[0].process.join()
        assert texts(pool.step({0: "a"})) == {0: "d0 slow slow slow slow slow slow a"}
    finally:
        pool.close()


def test_a_hung_worker_is_given_up_and_replaced() -> None:
    pool = ProcessPool(Diary, workers=1, timeout_s=6.0)
    try:
        pool.reset({0: diary("d0"), 1: diary("d1")})
        answers = pool.step({0: "hang", 1: "a"})
        assert answers[0].error == "The environment of d0 failed: no answer within 6 s an action."
        assert answers[1].text == "d1 a"
    finally:
        pool.close()


def test_a_factory_that_fails_is_reported_by_every_slot() -> None:
    pool = ProcessPool(functools.partial(int, "not a number"), workers=1)  # type: ignore[arg-type]
    try:
        assert "ValueError" in pool.reset({0: diary("d0")})[0].error
    finally:
        pool.close()


def test_closing_ends_the_processes(pool: ProcessPool) -> None:
    pool.reset({0: diary("d0")})
    processes = [worker.process for worker in pool._workers]
    pool.close()
    assert not any(process.is_alive() for process in processes)


def test_a_pool_needs_a_worker() -> None:
    with pytest.raises(ValueError, match="at least one worker, not 0"):
        ProcessPool(Diary, workers=0)
