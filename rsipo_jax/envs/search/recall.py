"""How often one search with the question itself finds what is needed: what the retriever is worth by itself."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from rsipo_jax.envs.search.questions import Question
from rsipo_jax.envs.search.retrieval import Retriever

_TOGETHER = 256  # queries


@dataclass(frozen=True)
class Recall:
    questions: int  # with known passages
    any_gold: float  # share of them of which the first k passages hold one, 0 to 1
    all_golds: float  # share of them of which they hold all that are needed


def recall(questions: Iterable[Question], retriever: Retriever, k: int) -> dict[str, Recall]:
    """Recall@k by data set, over the questions that say which passages tell their answer; the others do not count.

    Of `Question.gold_ids` all are needed, of `Question.answer_ids`, which count where there are no gold ones, any one.
    Raises RetrievalError.
    """
    known = [question for question in questions if question.gold_ids or question.answer_ids]
    outcomes: dict[str, list[tuple[bool, bool]]] = defaultdict(list)
    for first in range(0, len(known), _TOGETHER):
        batch = known[first : first + _TOGETHER]
        found = retriever.search([question.text for question in batch], k)
        for question, hits in zip(batch, found, strict=True):
            shown = {hit.passage.id for hit in hits}
            some = not shown.isdisjoint(question.gold_ids or question.answer_ids)
            outcomes[question.source].append(
                (some, shown.issuperset(question.gold_ids) if question.gold_ids else some)
            )
    return {
        source: Recall(len(own), *(sum(column) / len(own) for column in zip(*own, strict=True)))
        for source, own in outcomes.items()
    }
