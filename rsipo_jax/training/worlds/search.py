"""Search: the questions and passages that a run names, else those of the fictional encyclopaedia."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

from rsipo_jax.config import Config
from rsipo_jax.envs.protocol import EnvPool, Task
from rsipo_jax.envs.search.data import FOLDER as QUESTIONS
from rsipo_jax.envs.search.data import make_pool, open_data, open_retriever
from rsipo_jax.envs.search.encyclopedia import DEMONSTRATED, Example
from rsipo_jax.envs.search.recall import Recall, recall
from rsipo_jax.envs.search.retrieval import Retriever
from rsipo_jax.evaluation.panels import Panel
from rsipo_jax.reports.console import make_console, progress
from rsipo_jax.text.tags import SEARCH_TAGS
from rsipo_jax.training.demonstrations.demonstration import Demonstration
from rsipo_jax.training.demonstrations.demonstrations_dataset_builder import (
    SearchDemonstrations,
    chosen,
    load_demonstrations,
)
from rsipo_jax.training.demonstrations.search import demonstrations, reading_questions
from rsipo_jax.validation import ConfigError

__all__ = ["QUESTIONS", "Search"]


class Search:
    """Implements `World`."""

    validation: str = "dev"
    tags: tuple[str, ...] = SEARCH_TAGS

    def __init__(self, config: Config, workdir: Path) -> None:
        """Reads the questions, or makes them in `workdir`. Raises ConfigError."""
        self._config, self._workdir = config, workdir
        self.data = open_data(config, workdir)

    def __str__(self) -> str:
        return str(self.data)

    def tasks(self, split: str) -> list[Task]:
        """See `World.tasks`."""
        return self.data.tasks(split)

    def has(self, split: str) -> bool:
        """See `World.has`."""
        return self.data.has(split)

    def left_out(self, split: str) -> str:
        """See `World.left_out`."""
        return ""

    def retriever(self) -> Retriever:
        """What finds passages. The caller closes it, or hands it to a pool, which does. Raises ConfigError."""
        shown = partial(progress, make_console(), "passages indexed")
        return open_retriever(self._config, self.data, self._workdir, shown)

    def pool(self) -> EnvPool:
        """See `World.pool`."""
        return make_pool(self._config, self.data, self.retriever())

    def demonstrations(self, folder: Path) -> list[Demonstration]:
        """See `World.demonstrations`. Raises ConfigError where the ways to the answers are not known."""
        if not self.has(DEMONSTRATED):
            raise ConfigError(
                f"config.sft.games={self._config.sft.games}, but nobody knows the searches that answer the questions of "
                f"{self}: set it to 0, and config.model.checkpoint to a policy that can search"
            )
        return load_demonstrations(SearchDemonstrations, folder, self._played)

    def _played(self) -> Iterator[tuple[str, Demonstration]]:
        sft, seed, search = self._config.sft, self._config.seed, self._config.search
        tasks = chosen(self.tasks(DEMONSTRATED), sft.games, seed)
        examples = [Example(self.data.question(task.id), self.data.hops(task.id)) for task in tasks]
        with closing(self.pool()) as pool:
            for task, example in zip(tasks, examples, strict=True):
                played = demonstrations(example, task, pool, seed, self._config.env.max_turns)
                for i, demo in enumerate(played):
                    yield f"{task.id}/{i}", demo
        ids = [task.id for task in tasks] * sft.reading_questions
        for i, demo in enumerate(reading_questions(ids, seed, search.passage_chars)):
            yield f"{demo.task_id}/reading/{i}", demo

    def optimal_turns(self, tasks: Iterable[Task]) -> dict[str, int]:
        """See `World.optimal_turns`: a search for each hop, and the answer."""
        known = {task.id: len(self.data.hops(task.id)) for task in tasks}
        return {id_: hops + 1 for id_, hops in known.items() if hops}

    def recall(self, panels: Iterable[Panel]) -> list[tuple[str, Recall]]:
        """What one search with the question itself finds, for each panel with questions whose passages are known."""
        with closing(self.retriever()) as retriever:
            found = [
                (panel.name, share)
                for panel in panels
                for share in recall(
                    map(self.data.question, (task.id for task in panel.tasks)),
                    retriever,
                    self._config.search.hits,
                ).values()
            ]
        return found
