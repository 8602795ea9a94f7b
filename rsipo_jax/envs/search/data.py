"""What a search run is about: its questions, the passages it searches, and what finds them.

Everything that is made is kept in `workdir/search` and found again: the encyclopaedia, prepared data sets, unpacked
corpora and indexes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import jax
from tensorflow_datasets.core.constants import get_default_data_dir

from rsipo_jax.config import Config, SearchConfig
from rsipo_jax.envs.protocol import Task
from rsipo_jax.envs.search import bm25, dense
from rsipo_jax.envs.search.encyclopedia import SOURCE, Hop
from rsipo_jax.envs.search.http import Client
from rsipo_jax.envs.search.packed import ending, unpacked
from rsipo_jax.envs.search.passages import Corpus
from rsipo_jax.envs.search.pool import SearchPool
from rsipo_jax.envs.search.questions import SETS, Question, set_files
from rsipo_jax.envs.search.retrieval import Cached, Nothing, Retriever
from rsipo_jax.envs.search.search_questions_dataset_builder import OWN_SETS, decode, own_set, prepare_set
from rsipo_jax.envs.search.written import CORPUS, read_examples, write_encyclopedia
from rsipo_jax.validation import ConfigError

FOLDER = "search"  # of the workdir

# Shows the progress over so many passages, and yields what is told how many more are done.
Progress = Callable[[int], AbstractContextManager[Callable[[int], None]]]


@dataclass(frozen=True)
class SearchData:
    """The questions of a run, by task id and by split.

    Splits are train, dev and test of the encyclopaedia; else train, the training questions of `search.train_sets`, and
    for each data set that there is its own name: its questions of test, or else of dev, or else (of a set that is not
    trained on) of train, as the family evaluates.
    """

    place: str  # where the questions come from, for messages
    corpus: Path | None  # passages to search, where this process does it
    questions: Mapping[str, Question]
    splits: Mapping[str, tuple[str, ...]]  # ids, increasing
    ways: Mapping[str, tuple[Hop, ...]]  # of the encyclopaedia's questions

    def __str__(self) -> str:
        return self.place

    def has(self, split: str) -> bool:
        """Whether there are questions of this split."""
        return bool(self.splits.get(split))

    def tasks(self, split: str) -> list[Task]:
        """The questions of a split sorted by id. Raises ConfigError when there are none.

        Their kind is that of the question in the encyclopaedia, else the data set.
        """
        if not self.has(split):
            known = ", ".join(name for name in self.splits if self.has(name))
            raise ConfigError(
                f"{self} has no {split} questions, only {known}: add them, or name other data sets"
            )
        return [self._task(self.questions[id_]) for id_ in self.splits[split]]

    def question(self, id_: str) -> Question:
        return self.questions[id_]

    def hops(self, id_: str) -> tuple[Hop, ...]:
        """The searches that lead to the answer; none where nobody knows them."""
        return self.ways.get(id_, ())

    def _task(self, question: Question) -> Task:
        kind = question.kind if question.source == SOURCE else question.source
        return Task(question.id, kind, question.split, question.answers)


def open_data(config: Config, workdir: Path) -> SearchData:
    """The questions that `config.search` names, or those about the encyclopaedia, which is made if need be.

    Raises ConfigError for files that are missing or damaged, and for an encyclopaedia of other settings in `workdir`.
    """
    search, folder = config.search, workdir / FOLDER
    return _real(search, folder) if search.questions else _fictional(search, folder / "encyclopedia")


def open_retriever(config: Config, data: SearchData, workdir: Path, progress: Progress) -> Retriever:
    """What finds passages in the corpus of `data`, as `config.search` says; an index that is missing is built.

    Raises ConfigError for a corpus or an encoder that is missing or damaged, and for an index of another corpus, of
    other settings or by another version.
    """
    search = config.search
    if search.retriever == "none":
        return Nothing()
    if search.retriever == "http":
        return Cached(Client(search.url, search.timeout_s, search.retries))
    assert data.corpus is not None
    corpus = Corpus(data.corpus)
    folder = (
        Path(search.index).expanduser() if search.index else workdir / FOLDER / f"{search.retriever}_index"
    )
    if search.retriever == "bm25":
        if not folder.exists():
            with progress(len(corpus)) as advance:
                bm25.build(corpus, folder)
                advance(len(corpus))
        return Cached(bm25.BM25(corpus, folder))
    prefixes = dense.Prefixes(search.query_prefix, search.passage_prefix)
    encoder = dense.Encoder(Path(search.encoder).expanduser(), prefixes)
    if not folder.exists():
        with progress(len(corpus)) as advance:
            dense.build(corpus, encoder, folder, advance)
    mesh = jax.make_mesh((jax.device_count(),), (dense.ROWS,))
    return Cached(dense.Dense(corpus, encoder, folder, mesh))


def make_pool(config: Config, data: SearchData, retriever: Retriever) -> SearchPool:
    """The environment: all questions of `data` before one retriever, which the pool closes."""
    return SearchPool(data.questions, retriever, config.search.hits, config.search.passage_chars)


def _fictional(search: SearchConfig, folder: Path) -> SearchData:
    write_encyclopedia(folder, search)
    examples = read_examples(folder)
    every = [example for split in examples.values() for example in split]
    return SearchData(
        str(folder),
        folder / CORPUS,
        {example.question.id: example.question for example in every},
        {split: tuple(sorted(e.question.id for e in own)) for split, own in examples.items()},
        {example.question.id: example.hops for example in every},
    )


def _real(search: SearchConfig, folder: Path) -> SearchData:
    place = Path(search.questions).expanduser()
    files, own = set_files(place), Path(get_default_data_dir()).expanduser()
    questions: dict[str, Question] = {}
    splits: dict[str, tuple[str, ...]] = {"train": ()}
    for name in SETS:
        trained = name in search.train_sets
        if name in files:
            prepared = prepare_set(name, files[name], folder / "questions")
            found = {s: decode(name, s, prepared[s]) for s in _wanted(set(prepared), trained)}
        else:
            found = own_set(name, own)
        evaluated = _evaluated(set(found), trained)
        for split in _wanted(set(found), trained):
            ids = tuple(question.id for question in found[split])
            questions |= {question.id: question for question in found[split]}
            if split == evaluated:
                splits[name] = ids
            else:
                splits["train"] += ids
    if not questions:
        raise ConfigError(
            f"config.search.questions={search.questions!r} holds no questions of {', '.join(SETS)}: put them there as "
            f"NAME/test.jsonl, test.parquet or NAME.jsonl, or prepare TFDS's {' and '.join(OWN_SETS.values())}"
        )
    splits["train"] = tuple(sorted(splits["train"]))
    return SearchData(search.questions, _corpus(search, folder), questions, splits, {})


def _evaluated(splits: set[str], trained: bool) -> str | None:
    """The split that a set is evaluated on; never the one that is trained on."""
    order = ("test", "dev") if trained else ("test", "dev", "train")
    return next((split for split in order if split in splits), None)


def _wanted(splits: set[str], trained: bool) -> list[str]:
    """The splits of a set that are used at all."""
    used = {_evaluated(splits, trained), "train" if trained else None}
    return [split for split in sorted(splits) if split in used]


def _corpus(search: SearchConfig, folder: Path) -> Path | None:
    if not search.corpus:
        return None
    path = Path(search.corpus).expanduser()
    if not path.is_file() or ending(path) != ".jsonl":
        raise ConfigError(
            f"config.search.corpus={search.corpus!r} is not a *.jsonl file, plain or packed: name one with an object "
            "{'id', 'contents'} a line"
        )
    return unpacked(path, folder)
