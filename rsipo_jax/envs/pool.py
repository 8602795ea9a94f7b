"""Environments in worker processes, so that slow or fragile ones cost no more than their own episode.

Slot s lives in worker s % workers. A worker answers one request at a time, so the slot that hung or killed it
is known: that slot alone gets an Observation with an error. The worker is replaced, and its other slots are
replayed there from their own task and actions when they are next needed; environments are replayable, so
nobody sees it. There is no thread: the parent hands out requests in `send` and takes answers in `receive`.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import time
import traceback
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import ForkingPickler

from rsipo_jax.envs.protocol import Environment, EnvPool, Observation, Task, no_game

_CLOSE_SECONDS = 5.0
_CHECK_SECONDS = (
    1.0  # between looks whether a worker lives: a process that it left behind may hold its pipe open
)


@dataclass(frozen=True)
class _Request:
    """Play `actions` in a slot; with a task, start that task first."""

    slot: int
    task: Task | None
    actions: tuple[str, ...]


@dataclass
class _Episode:
    """What it takes to bring a slot to its present state in any worker."""

    task: Task
    actions: list[str] = field(default_factory=list)
    played: int = -1  # actions that its worker has played; -1: the worker does not know the episode


@dataclass
class _Worker:
    process: BaseProcess
    connection: Connection
    waiting: deque[int] = field(default_factory=deque)  # slots to serve after `serving`
    serving: int | None = None
    deadline: float = 0.0


class ProcessPool(EnvPool):
    """Slots in `workers` processes, where `make`, which must pickle, makes each slot's environment."""

    def __init__(self, make: Callable[[], Environment], workers: int, timeout_s: float = 120.0) -> None:
        if workers < 1:
            raise ValueError(f"A process pool needs at least one worker, not {workers}.")
        self._make = make
        self._timeout_s = timeout_s
        self._context = multiprocessing.get_context("spawn")  # never fork: the parent may run JAX's threads
        self._episodes: dict[int, _Episode] = {}
        self._answers: dict[int, Observation | None] = {}  # by slot, in the order asked for; None: not yet
        self._workers = [self._start_worker() for _ in range(workers)]

    def receive(self, wait: bool) -> dict[int, Observation]:
        """See `EnvPool.receive`. Also finds out who is dead or late, and gives the workers that are free their next."""
        self._look(0.0)
        while wait and self._answers and all(answer is None for answer in self._answers.values()):
            self._look(_CHECK_SECONDS)
        # In the order asked for, not in that of the workers' answers: what came together is told apart by no timing.
        come = {slot: answer for slot, answer in self._answers.items() if answer is not None}
        for slot in come:
            del self._answers[slot]
        return come

    @property
    def unanswered(self) -> Collection[int]:
        """See `EnvPool.unanswered`."""
        return self._answers.keys()

    def close(self) -> None:
        """End all workers."""
        for worker in self._workers:
            worker.connection.close()  # a worker ends when its pipe does
        for worker in self._workers:
            worker.process.join(_CLOSE_SECONDS)
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()
        self._workers = []
        self._episodes.clear()
        self._answers.clear()

    def _take(self, slot: int, command: Task | str) -> None:
        if isinstance(command, Task):
            self._episodes[slot] = _Episode(command)
        elif slot in self._episodes:
            self._episodes[slot].actions.append(command)
        else:
            self._answers[slot] = no_game(slot)
            return
        self._answers[slot] = None
        number = slot % len(self._workers)
        self._workers[number].waiting.append(slot)
        if self._workers[number].serving is None:
            self._send_next(number)

    def _look(self, timeout_s: float) -> None:
        """Take in what the workers have answered, waiting up to `timeout_s` for the first; replace the dead and late."""
        busy = {w.connection: n for n, w in enumerate(self._workers) if w.serving is not None}
        if not busy:
            return
        earliest = min(self._workers[number].deadline for number in busy.values())
        ready = wait(list(busy), timeout=min(timeout_s, max(0.0, earliest - time.monotonic())))
        for connection, number in busy.items():
            if connection in ready or not self._workers[number].process.is_alive():
                self._read(number)
            elif self._workers[number].deadline < time.monotonic():
                self._replace(number, f"no answer within {self._timeout_s:g} s an action")

    def _send_next(self, number: int) -> None:
        worker = self._workers[number]
        if not worker.waiting:
            return
        if not worker.process.is_alive():  # it died while idle, which is no slot's fault
            self._replace(number, "")
            return
        slot = worker.waiting.popleft()
        episode = self._episodes[slot]
        task = episode.task if episode.played < 0 else None
        request = _Request(slot, task, tuple(episode.actions[max(0, episode.played) :]))
        worker.serving = slot
        worker.deadline = time.monotonic() + self._timeout_s * (len(request.actions) + (task is not None))
        with contextlib.suppress(OSError):  # a worker that has just died is found out by _read
            worker.connection.send(request)

    def _read(self, number: int) -> None:
        worker = self._workers[number]
        try:
            if not worker.connection.poll():  # dead, though its pipe is open
                raise EOFError
            answered, observation = worker.connection.recv()
        except (EOFError, OSError):
            worker.process.join(_CLOSE_SECONDS)
            self._replace(number, f"its process died (exit code {worker.process.exitcode})")
            return
        except Exception as error:  # whatever unpickling an environment's answer may raise
            self._replace(number, f"its answer cannot be read ({type(error).__name__})")
            return
        assert worker.serving is not None
        if answered != worker.serving:  # a second answer, say of a process that the environment forked
            self._replace(number, f"it answered for slot {answered}")
            return
        slot, worker.serving = worker.serving, None
        self._answers[slot] = observation
        if observation.error:
            del self._episodes[slot]
        else:
            self._episodes[slot].played = len(self._episodes[slot].actions)
        self._send_next(number)

    def _replace(self, number: int, reason: str) -> None:
        """Start a fresh worker in place of a dead or hung one; the slot it was serving has failed."""
        old = self._workers[number]
        old.process.kill()
        old.process.join()
        old.connection.close()
        if old.serving is not None:
            episode = self._episodes.pop(old.serving)
            self._answers[old.serving] = _failure(f"The environment of {episode.task.id} failed: {reason}.")
        for slot, episode in self._episodes.items():
            if slot % len(self._workers) == number:
                episode.played = -1
        self._workers[number] = self._start_worker()
        self._workers[number].waiting = old.waiting
        self._send_next(number)

    def _start_worker(self) -> _Worker:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=_work, args=(theirs, self._make), daemon=True)
        process.start()
        theirs.close()  # so that a dead worker shows as the end of the pipe
        return _Worker(process, ours)


def _work(connection: Connection, make: Callable[[], Environment]) -> None:
    """A worker: answer requests until the pipe ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which then closes the pipe
    environments: dict[int, Environment] = {}
    while True:
        try:
            request: _Request = connection.recv()
        except EOFError:
            break
        try:
            observation = _play(environments, make, request)
            if not isinstance(observation, Observation):
                raise TypeError(f"the environment answered with a {type(observation).__name__}")
            answer = ForkingPickler.dumps((request.slot, observation))
        except Exception as error:  # the episode is void; the process and its other slots are sound
            environments.pop(request.slot, None)
            where = traceback.extract_tb(error.__traceback__)[-1].name
            message = "".join(traceback.format_exception_only(error)).partition(":")[2]  # even if str() fails
            sentence = " ".join(f"{type(error).__name__} in {where}: {message}".split())
            failure = _failure(sentence, "".join(traceback.format_exception(error)))
            answer = ForkingPickler.dumps((request.slot, failure))
        try:
            connection.send_bytes(answer)
        except OSError:  # the pool was closed meanwhile
            break
    for environment in environments.values():
        environment.close()


def _play(
    environments: dict[int, Environment], make: Callable[[], Environment], request: _Request
) -> Observation:
    if request.slot not in environments:
        environments[request.slot] = make()
    environment = environments[request.slot]
    if request.task is not None:
        observation = environment.reset(request.task)
    for action in request.actions:
        observation = environment.step(action)
    return observation


def _failure(sentence: str, trace: str = "") -> Observation:
    return Observation("", (), won=False, error=sentence, trace=trace)
