"""Many questions at once before one retriever: what is asked together is searched together.

An episode shows the question; a command is `<search>...</search>`, which shows passages, or `<answer>...</answer>`, which
ends it. Searches run in a thread of their own, so the policy goes on with other episodes meanwhile.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from rsipo_jax.envs.protocol import EnvPool, Observation, Task, no_game
from rsipo_jax.envs.search.answers import exact_match
from rsipo_jax.envs.search.questions import Question, asked
from rsipo_jax.envs.search.retrieval import Hit, RetrievalError, Retriever
from rsipo_jax.text.tags import (
    ANSWER_CLOSE,
    ANSWER_OPEN,
    INFORMATION_CLOSE,
    INFORMATION_OPEN,
    SEARCH_CLOSE,
    SEARCH_OPEN,
)

NO_HITS = "No passage was found."
REMINDER = (
    f"That was neither a search nor an answer: write one query inside {SEARCH_OPEN} {SEARCH_CLOSE}, "
    f"or the answer inside {ANSWER_OPEN} {ANSWER_CLOSE}."
)
_COMMAND = re.compile(
    rf"{SEARCH_OPEN}(?P<query>.*){SEARCH_CLOSE}|{ANSWER_OPEN}(?P<answer>.*){ANSWER_CLOSE}", re.DOTALL
)


class SearchPool(EnvPool):
    """All slots in this process."""

    def __init__(
        self, questions: Mapping[str, Question], retriever: Retriever, hits: int, passage_chars: int
    ) -> None:
        """`questions` by task id. A search shows `hits` passages, of each at most `passage_chars` characters."""
        self._questions, self._retriever = questions, retriever
        self._hits, self._passage_chars = hits, passage_chars
        self._playing: dict[int, Question] = {}
        self._answers: dict[int, Observation | None] = {}  # by slot, in the order asked for; None: not yet
        self._queries: dict[int, str] = {}  # to be searched next
        self._searching: tuple[list[int], Future[list[list[Hit]]]] | None = None
        self._thread = ThreadPoolExecutor(1, "retrieval")

    def receive(self, wait: bool) -> dict[int, Observation]:
        """See `EnvPool.receive`. Searches are made a batch at a time."""
        self._search(wait=False)
        while wait and self._answers and all(answer is None for answer in self._answers.values()):
            self._search(wait=True)
        come = {slot: answer for slot, answer in self._answers.items() if answer is not None}
        for slot in come:
            del self._answers[slot]
        return come

    @property
    def unanswered(self) -> Collection[int]:
        """See `EnvPool.unanswered`."""
        return self._answers.keys()

    def close(self) -> None:
        self._thread.shutdown(wait=True, cancel_futures=True)
        self._retriever.close()
        self._playing.clear()
        self._answers.clear()

    def _take(self, slot: int, command: Task | str) -> None:
        self._answers[slot] = (
            self._start(slot, command) if isinstance(command, Task) else self._play(slot, command)
        )

    def _start(self, slot: int, task: Task) -> Observation:
        self._playing.pop(slot, None)
        if (question := self._questions.get(task.id)) is None:
            return Observation("", (), won=False, error=f"There is no question {task.id!r}.")
        self._playing[slot] = question
        return Observation(f"Question: {asked(question.text)}", (), won=False)

    def _play(self, slot: int, command: str) -> Observation | None:
        question = self._playing.get(slot)
        if question is None:
            return no_game(slot)
        match = _COMMAND.fullmatch(command)
        if match is None or not (match["query"] or match["answer"] or "").strip():
            return Observation(REMINDER, (), won=False)
        if match["answer"] is not None:
            del self._playing[slot]
            answer = match["answer"].strip()
            return Observation("", (), won=exact_match(answer, question.answers), done=True, answer=answer)
        self._queries[slot] = match["query"].strip()
        return None

    def _search(self, wait: bool) -> None:
        """Takes in what was found, if it was (or is waited for), and starts the next batch."""
        if self._searching is not None and (wait or self._searching[1].done()):
            slots, found = self._searching
            self._searching = None
            try:
                shown = [
                    Observation(show(hits, self._passage_chars), (), won=False) for hits in found.result()
                ]
            except RetrievalError as error:
                shown = [Observation("", (), won=False, error=str(error))] * len(slots)
                for slot in slots:
                    del self._playing[slot]
            for slot, observation in zip(slots, shown, strict=True):
                self._answers[slot] = observation
        if self._searching is None and self._queries:
            queries, self._queries = self._queries, {}
            search = self._thread.submit(self._retriever.search, list(queries.values()), self._hits)
            self._searching = list(queries), search


def show(hits: Sequence[Hit], chars: int) -> str:
    """Passages inside information tags, each cut to so many characters by itself, so that the tag is always closed."""
    lines = [
        f"Doc {number} (Title: {hit.passage.title}) {_cut(hit.passage.text, chars)}"
        for number, hit in enumerate(hits, 1)
    ]
    return "\n".join([INFORMATION_OPEN, *(lines or [NO_HITS]), INFORMATION_CLOSE])


def _cut(text: str, chars: int) -> str:
    return text if len(text) <= chars else f"{text[:chars].rstrip()} ..."
