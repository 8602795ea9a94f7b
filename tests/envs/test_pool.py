"""The process pool: order, isolation, and what a dead, hung or raising environment costs."""

from __future__ import annotations

import functools
import os
import re
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rsipo_jax.envs.pool import ProcessPool
from rsipo_jax.envs.protocol import Observation, Task
from tests.envs.interleaving import MOVES, play_interleaved


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


@pytest.fixture(scope="module")
def shared_pool() -> Iterator[ProcessPool]:
    made = ProcessPool(Diary, workers=2, timeout_s=60.0)
    yield made
    made.close()


UNUSED = count(0, 6)  # the first of six slots that no example has played in
COMMANDS = st.lists(
    st.builds(diary, st.sampled_from("AB")) | st.sampled_from(("x", "y", "raise")), max_size=5
)


@given(scripts=st.lists(COMMANDS, min_size=1, max_size=6), moves=MOVES)
def test_any_interleaving_answers_every_command_once_and_as_a_lone_slot_would(
    shared_pool: ProcessPool, scripts: list[list[Task | str]], moves: list[int]
) -> None:
    first = next(UNUSED)
    seen = play_interleaved(shared_pool, dict(enumerate(scripts, first)), moves)
    for slot, script in enumerate(scripts, first):
        lone: str | None = None  # what a lone diary holds
        assert len(seen[slot]) == len(script)
        for command, answer in zip(script, seen[slot], strict=True):
            if isinstance(command, Task):
                lone = command.id
            elif lone is None:
                assert answer.error == f"Slot {slot} has no running game; reset it first."
                continue
            elif command == "raise":
                lone = None
                assert answer.error == "RuntimeError in step: out of ink"
                continue
            else:
                lone = f"{lone} {command}"
            assert not answer.error and answer.text == lone


def test_a_stopped_worker_keeps_nobody_else_waiting(pool: ProcessPool) -> None:
    texts(pool.reset({slot: diary(f"d{slot}") for slot in range(4)}))
    stopped = pool._workers[0]
    assert stopped.process.pid is not None
    os.kill(stopped.process.pid, signal.SIGSTOP)
    pool.send(0, "a")
    pool.send(2, "a")  # waits behind slot 0
    for turn in range(1, 4):
        pool.send(1, "b")
        assert texts(pool.receive(wait=True)) == {1: "d1" + " b" * turn}
    assert set(pool.unanswered) == {0, 2} and pool.receive(wait=False) == {}
    stopped.deadline = 0.0  # its time is up
    pool.send(3, "c")
    seen: dict[int, Observation] = {}
    while pool.unanswered:  # without waiting, late workers are found out all the same
        seen |= pool.receive(wait=False)
    assert seen.pop(0).error == "The environment of d0 failed: no answer within 20 s an action."
    assert texts(seen) == {2: "d2 a", 3: "d3 c"}
    assert pool._workers[0].process.pid != stopped.process.pid and not stopped.process.is_alive()


def test_a_worker_that_dies_is_found_out_without_waiting(pool: ProcessPool) -> None:
    texts(pool.reset({slot: diary(f"d{slot}") for slot in range(4)}))
    pool.send(2, "die")
    pool.send(0, "a")  # in the same worker
    seen: dict[int, list[Observation]] = defaultdict(list)
    waiting = Counter({1: 5})
    while pool.unanswered or waiting[1]:
        if waiting[1] and 1 not in pool.unanswered:
            pool.send(1, "b")
            waiting[1] -= 1
        for slot, observation in pool.receive(wait=False).items():
            seen[slot].append(observation)
    assert [o.error for o in seen[2]] == ["The environment of d2 failed: its process died (exit code -9)."]
    assert [o.text for o in seen[0]] == ["d0 a"]
    assert [o.text for o in seen[1]] == ["d1" + " b" * turn for turn in range(1, 6)]


def test_what_came_together_is_in_the_order_asked_for(pool: ProcessPool) -> None:
    texts(pool.reset({slot: diary(f"d{slot}") for slot in range(4)}))
    for slot in (3, 0, 1, 2):
        pool.send(slot, "a")
    while any(worker.serving is not None for worker in pool._workers):
        pool._look(1.0)
    assert list(pool.receive(wait=False)) == [3, 0, 1, 2]


def test_a_slot_has_one_unanswered_command(pool: ProcessPool) -> None:
    pool.send(0, diary("d0"))
    with pytest.raises(ValueError, match="Slot 0 has an unanswered command: receive it before the next one"):
        pool.send(0, "a")
    with pytest.raises(ValueError, match=r"Slots \[0\] have unanswered commands: receive them first"):
        pool.reset({1: diary("d1")})
    assert texts(pool.receive(wait=True)) == {0: "d0"} and not pool.receive(wait=True)
    assert texts(pool.step({0: "a"})) == {0: "d0 a"}


def test_closing_in_the_middle_of_a_command_is_quiet(capfd: pytest.CaptureFixture[str]) -> None:
    pool = ProcessPool(Diary, workers=1)
    texts(pool.reset({0: diary("d0")}))
    worker = pool._workers[0].process
    pool.send(0, "slow")
    pool.close()
    assert worker.exitcode == 0 and not pool.unanswered
    assert "Traceback" not in capfd.readouterr().err


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
