"""The search environment: what is asked together is searched together, and a failure is never an observation."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from rsipo_jax.envs.protocol import Observation, Task
from rsipo_jax.envs.search.passages import Passage
from rsipo_jax.envs.search.pool import REMINDER, SearchPool
from rsipo_jax.envs.search.questions import Question
from rsipo_jax.envs.search.retrieval import Hit, RetrievalError

QUESTIONS = {
    "q0": Question("q0", "nq", "who is it", ("Ada Lovelace", "Ada")),
    "q1": Question("q1", "nq", "what is the capital?", ("Beijing",)),
}


class Library:
    """Finds a passage of the query's own words; holds searches back while `gate` is closed."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.gate = threading.Event()
        self.gate.set()
        self.down = self.closed = False

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        self.batches.append(list(queries))
        assert self.gate.wait(10)
        if self.down:
            raise RetrievalError("the library burnt down")
        return [
            [Hit(Passage(q, q, f"about {q} " + "x" * 30), 1.0)] * (k if q != "nothing" else 0)
            for q in queries
        ]

    def describe(self) -> Mapping[str, Any]:
        return {}

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def library() -> Library:
    return Library()


@pytest.fixture
def pool(library: Library) -> SearchPool:
    return SearchPool(QUESTIONS, library, hits=2, passage_chars=12)


def task(name: str) -> Task:
    return Task(name, "nq", "train")


def test_an_episode(pool: SearchPool, library: Library) -> None:
    assert pool.reset({0: task("q0")}) == {0: Observation("Question: who is it?", (), won=False)}
    shown = pool.step({0: "<search> first programmer </search>"})[0]
    assert shown.text == (
        "<information>\nDoc 1 (Title: first programmer) about first ...\n"
        "Doc 2 (Title: first programmer) about first ...\n</information>"
    )
    assert not shown.won and not shown.done and library.batches == [["first programmer"]]
    assert (
        pool.step({0: "<search>nothing</search>"})[0].text
        == "<information>\nNo passage was found.\n</information>"
    )
    ended = Observation("", (), won=True, done=True, answer="the ADA.")
    assert pool.step({0: "<answer> the ADA.</answer>"}) == {0: ended}
    assert "no running game" in pool.step({0: "<search>x</search>"})[0].error
    pool.close()
    assert library.closed


@pytest.mark.parametrize(
    "command",
    [
        "",
        "Ada",
        "<search></search>",
        "<search> </search>",
        "<answer>\n</answer>",
        "<search>x",
        "</search>x<search>",
    ],
)
def test_what_is_neither_search_nor_answer_is_told(pool: SearchPool, library: Library, command: str) -> None:
    pool.reset({0: task("q0")})
    assert pool.step({0: command})[0] == Observation(REMINDER, (), won=False)
    assert not library.batches


def test_no_answer_is_wrong_even_where_the_prompt_names_it(pool: SearchPool) -> None:
    """Search-R1 reads the example answer of its own prompt, Beijing, as that of an episode without one."""
    pool.reset({0: task("q1")})
    assert not pool.step({0: "I do not know"})[0].won
    assert pool.step({0: "<answer>Peking</answer>"})[0] == Observation(
        "", (), won=False, done=True, answer="Peking"
    )


def test_slots_are_searched_together_and_answered_apart(pool: SearchPool, library: Library) -> None:
    pool.reset({slot: task("q0") for slot in range(4)})
    commands = {0: "<search>a</search>", 1: "<answer>Ada</answer>", 2: "<search>b</search>", 3: ""}
    found = pool.step(commands)
    assert library.batches == [["a", "b"]]
    assert list(found) == [0, 1, 2, 3]
    assert (
        "about a" in found[0].text
        and found[1].won
        and "about b" in found[2].text
        and found[3].text == REMINDER
    )


def test_a_search_does_not_hold_up_the_others(pool: SearchPool, library: Library) -> None:
    pool.reset({slot: task("q0") for slot in range(3)})
    library.gate.clear()
    pool.send(0, "<search>slow</search>")
    assert pool.receive(wait=False) == {}
    pool.send(1, "<answer>Ada</answer>")
    pool.send(2, "<search>next</search>")
    assert list(pool.receive(wait=True)) == [1]  # without waiting for the search
    with pytest.raises(ValueError, match="Slot 0 has an unanswered command"):
        pool.send(0, "<search>again</search>")
    library.gate.set()
    got: dict[int, Observation] = {}
    while pool.unanswered:
        got |= pool.receive(wait=True)
    assert "about slow" in got[0].text and "about next" in got[2].text
    assert library.batches == [["slow"], ["next"]]


def test_a_retriever_that_is_down_voids_the_episodes_that_asked(pool: SearchPool, library: Library) -> None:
    pool.reset({slot: task("q0") for slot in range(3)})
    library.down = True
    found = pool.step({0: "<search>a</search>", 1: "<search>b</search>", 2: "<answer>Ada</answer>"})
    assert [found[slot].error for slot in range(3)] == [
        "the library burnt down",
        "the library burnt down",
        "",
    ]
    assert found[0].text == "" and found[2].won
    library.down = False
    assert "no running game" in pool.step({0: "<search>a</search>"})[0].error
    assert pool.reset({0: task("q0")})[0].error == ""


def test_an_unknown_question(pool: SearchPool) -> None:
    assert pool.reset({0: task("q7")})[0].error == "There is no question 'q7'."
