"""The data of a run: the encyclopaedia or people's files, the panels made of them, and what finds passages."""

from __future__ import annotations

import contextlib
import json
import lzma
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from rsipo_jax.config import Config, SearchConfig
from rsipo_jax.envs.search import bm25, data, written
from rsipo_jax.envs.search.data import SearchData, make_pool, open_data, open_retriever
from rsipo_jax.envs.search.encyclopedia import KINDS, make_encyclopedia
from rsipo_jax.envs.search.passages import Corpus
from rsipo_jax.envs.search.retrieval import Nothing
from rsipo_jax.evaluation.panels import PROBE, SPLIT_OF, build_panel
from rsipo_jax.validation import ConfigError
from tests.envs.search.test_dense import encoder_in
from tests.envs.search.test_sets import record, write

SMALL = SearchConfig(people=30, demonstrated=4, train=24, dev=8, test=12, seed=3)
REAL_SETS = ("nq", "popqa", "hotpotqa", "musique")


def config_of(**changes: Any) -> Config:
    return Config(search=replace(SMALL, **changes))


@pytest.fixture(scope="module")
def workdir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a small encyclopaedia."""
    folder = tmp_path_factory.mktemp("workdir")
    open_data(config_of(), folder)
    return folder


@pytest.fixture
def fictional(workdir: Path) -> SearchData:
    return open_data(config_of(), workdir)


@pytest.fixture
def real(tmp_path: Path) -> Config:
    """Questions of four data sets, of different splits, and a corpus."""
    folder = tmp_path / "questions"
    write(
        folder / "nq.jsonl",
        record("b", split="dev"),
        record("a", split="dev", gold_ids=["1"]),
        record("a", split="train"),
    )
    write(folder / "popqa/test.jsonl", record("0"))
    write(folder / "popqa/dev.jsonl", record("0"))
    write(folder / "hotpotqa/train.jsonl", record("0"), record("1"))
    write(folder / "musique/train.jsonl", record("0"))
    passages = [
        {"id": str(i), "contents": f'"Title {i}"\nanswer {word}'}
        for i, word in enumerate(("red", "green", "blue"))
    ]
    corpus = write(tmp_path / "corpus.jsonl.xz", *passages)
    return config_of(questions=str(folder), corpus=str(corpus))


@contextlib.contextmanager
def unseen(total: int) -> Iterator[Callable[[int], None]]:
    yield lambda _: None


def never(total: int) -> Any:
    pytest.fail("built again")


# The encyclopaedia


def test_the_encyclopaedia_is_kept_as_it_was_made(fictional: SearchData) -> None:
    made = make_encyclopedia(SMALL.seed, SMALL.people, {"train": 24, "dev": 8, "test": 12, "demonstrated": 4})
    assert fictional.corpus is not None
    with Corpus(fictional.corpus) as corpus:
        assert tuple(corpus) == made.passages
    for split, examples in made.examples.items():
        tasks = fictional.tasks(split)
        assert [task.id for task in tasks] == sorted(example.question.id for example in examples)
        assert [task.kind for task in tasks] == sorted(task.kind for task in tasks)  # kinds lie together
        assert {task.kind for task in tasks} == set(KINDS) and {task.split for task in tasks} == {split}
        for example in examples:
            id_ = example.question.id
            assert fictional.question(id_) == example.question and fictional.hops(id_) == example.hops
            assert fictional.question(id_).gold_ids == tuple(hop.passage for hop in example.hops)
        assert {task.answers for task in tasks} == {example.question.answers for example in examples}


def test_it_is_made_once_and_of_one_kind(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(written, "make_encyclopedia", lambda *_: pytest.fail("made again"))
        assert open_data(config_of(), workdir) == open_data(config_of(retriever="none"), workdir)
    for key in ("people", "demonstrated", "train", "dev", "test", "seed"):
        with pytest.raises(ConfigError, match=rf"of {key}=\d+, and config\.search\.{key}=40: choose another"):
            open_data(config_of(**{key: 40}), workdir)
    monkeypatch.setattr(written, "VERSION", 99)
    with pytest.raises(ConfigError, match=r"encyclopaedia of version=1"):
        open_data(config_of(), workdir)


def test_what_cannot_be_made_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"config\.search\.people=4000: there are not enough names"):
        open_data(config_of(people=4000), tmp_path)
    monkeypatch.setattr(written, "write_corpus", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        open_data(config_of(), tmp_path)
    assert list((tmp_path / "search").iterdir()) == []


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        (lambda old: "{broken", r"dev\.jsonl, line 2: .* must be a JSON object"),
        (
            lambda old: json.dumps(old | {"metadata": {"type": "single"}}),
            r"dev\.jsonl, line 2 does not say its hops",
        ),
        (lambda old: json.dumps(old | {"golden_answers": []}), r"dev\.jsonl, line 2 has no list of texts"),
    ],
)
def test_a_damaged_line_is_named(
    workdir: Path, tmp_path: Path, line: Callable[[Any], str], sentence: str
) -> None:
    shutil.copytree(workdir, tmp_path / "copy")
    path = tmp_path / "copy/search/encyclopedia/dev.jsonl"
    first, second, *rest = path.read_text().splitlines()
    path.write_text("\n".join([first, line(json.loads(second)), *rest]))
    with pytest.raises(ConfigError, match=sentence):
        open_data(config_of(), tmp_path / "copy")
    (path.parent / "settings.json").write_text("[]")
    with pytest.raises(ConfigError, match=r"settings\.json cannot be read"):
        open_data(config_of(), tmp_path / "copy")


# People's files


def test_real_questions_are_split_as_the_family_does(real: Config, tmp_path: Path) -> None:
    found = open_data(real, tmp_path)
    asked = {split: [task.id for task in found.tasks(split)] for split in ("train", "nq", "popqa", "musique")}
    assert asked == {
        "train": ["hotpotqa/train/0", "hotpotqa/train/1", "nq/train/a"],
        "nq": ["nq/dev/a", "nq/dev/b"],
        "popqa": ["popqa/test/0"],  # rather than dev
        "musique": ["musique/train/0"],  # nobody trains on it
    }
    (task, _) = found.tasks("nq")
    assert (task.kind, task.split, task.answers) == ("nq", "dev", ("answer a", "Röntgen"))
    assert found.question("nq/dev/a").gold_ids == ("1",) and found.hops("nq/dev/a") == ()
    # What is trained on is never what is measured.
    assert not found.has("hotpotqa")
    with pytest.raises(
        ConfigError, match=r"questions has no hotpotqa questions, only train, nq, popqa, musique: add"
    ):
        found.tasks("hotpotqa")
    assert "popqa/dev/0" not in found.questions  # nobody asks it


def test_the_sets_to_train_on_are_chosen(real: Config, tmp_path: Path) -> None:
    found = open_data(replace(real, search=replace(real.search, train_sets=("musique",))), tmp_path)
    assert [task.id for task in found.tasks("train")] == ["musique/train/0"]
    assert found.has("hotpotqa") and not found.has("musique")
    none = open_data(replace(real, search=replace(real.search, train_sets=("popqa",))), tmp_path)
    with pytest.raises(ConfigError, match="has no train questions"):
        none.tasks("train")


def test_tfds_own_sets_stand_in(real: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def own_set(name: str, folder: Path) -> dict[str, Any]:
        assert name not in REAL_SETS and folder == tmp_path / "theirs"
        return (
            {"dev": [replace(next(iter(open_real.values())), id="triviaqa/dev/0", source=name)]}
            if name == "triviaqa"
            else {}
        )

    open_real = open_data(real, tmp_path).questions
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "theirs"))
    monkeypatch.setattr(data, "own_set", own_set)
    assert [task.id for task in open_data(real, tmp_path).tasks("triviaqa")] == ["triviaqa/dev/0"]


def test_folders_and_corpora_that_are_not_there(real: Config, tmp_path: Path) -> None:
    def opened(**changes: Any) -> SearchData:
        return open_data(replace(real, search=replace(real.search, **changes)), tmp_path)

    with pytest.raises(ConfigError, match=r"config\.search\.questions='nowhere' is not a folder"):
        opened(questions="nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match=r"holds no questions of nq, .*natural_questions_open"):
        opened(questions=str(tmp_path / "empty"))
    for corpus in ("nowhere.jsonl", str(tmp_path)):
        with pytest.raises(ConfigError, match=r"config\.search\.corpus=.* is not a \*\.jsonl file"):
            opened(corpus=corpus)
    assert opened(corpus="", retriever="none").corpus is None


def test_panels(real: Config, fictional: SearchData, tmp_path: Path) -> None:
    found = open_data(real, tmp_path)
    for source, names in (
        (fictional, ("train", "dev", "test", "train_probe")),
        (found, ("nq", "popqa", "musique")),
    ):
        panels = {name: build_panel(name, source.tasks, seed=0, step=0) for name in names}
        assert len({panel.hash for panel in panels.values() if panel.name != "train_probe"}) == len(
            set(names) - {"train_probe"}
        )
        for name, panel in panels.items():
            assert panel.tasks == tuple(source.tasks(SPLIT_OF[name]))  # no more than PROBE
            assert len(panel.tasks) <= PROBE


# Retrievers


def test_bm25_over_the_encyclopaedia(fictional: SearchData, workdir: Path) -> None:
    seen: list[int] = []

    @contextlib.contextmanager
    def progress(total: int) -> Iterator[Callable[[int], None]]:
        seen.append(total)
        yield seen.append

    retriever = open_retriever(config_of(), fictional, workdir, progress)
    count = retriever.describe()["passages"]
    assert seen == [count, count]
    for task in fictional.tasks("test"):
        for hop in fictional.hops(task.id):
            (hits,) = retriever.search([hop.query], 3)
            assert hop.passage in [hit.passage.id for hit in hits]
    retriever.close()
    open_retriever(config_of(), fictional, workdir, never).close()


def test_an_index_of_something_else_is_refused(
    fictional: SearchData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_of(index=str(tmp_path / "index"))
    open_retriever(config, fictional, tmp_path, unseen).close()
    assert (tmp_path / "index/index.json").is_file()
    monkeypatch.setattr(bm25, "K1", 1.5)
    with pytest.raises(ConfigError, match=r"was made with k1=0\.9, here it is 1\.5: delete the folder"):
        open_retriever(config, fictional, tmp_path, never)


def test_a_packed_corpus_is_searched(real: Config, tmp_path: Path) -> None:
    found = open_data(real, tmp_path)
    retriever = open_retriever(real, found, tmp_path, unseen)
    assert [hit.passage.title for hit in retriever.search(["green answer"], 1)[0]] == ["Title 1"]
    retriever.close()
    Path(real.search.corpus).write_bytes(lzma.compress(b'{"id": "0", "contents": "x"}\n'))
    with pytest.raises(ConfigError, match="was made with passages=3, here it is 1"):
        open_retriever(real, open_data(real, tmp_path), tmp_path, never)


def test_dense_over_the_encyclopaedia(fictional: SearchData, tmp_path: Path) -> None:
    encoder_in(tmp_path / "encoder")
    config = config_of(retriever="dense", encoder=str(tmp_path / "encoder"), query_prefix="q ")
    done: list[int] = []

    @contextlib.contextmanager
    def progress(total: int) -> Iterator[Callable[[int], None]]:
        yield done.append
        assert sum(done) == total

    retriever = open_retriever(config, fictional, tmp_path, progress)
    assert retriever.describe()["query_prefix"] == "q " and retriever.describe()["passages"] == sum(done)
    assert [len(hits) for hits in retriever.search(["w1 w2"], 3)] == [3]
    retriever.close()
    open_retriever(config, fictional, tmp_path, never).close()


def test_other_retrievers_need_no_corpus(fictional: SearchData, tmp_path: Path) -> None:
    away = replace(fictional, corpus=None)
    nothing = open_retriever(config_of(retriever="none"), away, tmp_path, never)
    assert isinstance(nothing, Nothing) and nothing.search(["x", "y"], 3) == [[], []]
    remote = open_retriever(config_of(retriever="http", url="http://127.0.0.1:1"), away, tmp_path, never)
    assert remote.describe() == {"kind": "http", "url": "http://127.0.0.1:1/retrieve"}
    remote.close()
    with pytest.raises(ConfigError, match="'here' is not the URL of a retriever"):
        open_retriever(config_of(retriever="http", url="here"), away, tmp_path, never)


def test_the_oracles_searches_win_every_question(fictional: SearchData, workdir: Path) -> None:
    pool = make_pool(config_of(), fictional, open_retriever(config_of(), fictional, workdir, unseen))
    for task in fictional.tasks("test"):
        assert fictional.question(task.id).text in pool.reset({0: task})[0].text
        for hop in fictional.hops(task.id):
            assert hop.answer in pool.step({0: f"<search>{hop.query}</search>"})[0].text
        assert pool.step({0: f"<answer>{task.answers[0]}</answer>"})[0].won
    pool.close()
    assert (
        asdict(SMALL)["passage_chars"] == SearchConfig().passage_chars
    )  # passages of the encyclopaedia are shorter
