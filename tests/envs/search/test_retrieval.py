"""BM25, dense and remote search find what they should, and say what is wrong when they cannot."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from rsipo_jax.envs.search import bm25
from rsipo_jax.envs.search.encyclopedia import make_encyclopedia
from rsipo_jax.envs.search.http import Client, make_server, read_request
from rsipo_jax.envs.search.passages import Corpus, Passage, write_corpus
from rsipo_jax.envs.search.retrieval import Cached, Hit, RetrievalError
from rsipo_jax.validation import ConfigError

PASSAGES = [
    Passage("a", "Red Fox", "The red fox is the largest of the true foxes."),
    Passage("b", "Blue Whale", "The blue whale is a marine mammal. Whale songs are long."),
    Passage("c", "Fox Hunting", "Hunting of foxes with dogs."),
]


@pytest.fixture
def corpus(tmp_path: Path) -> Iterator[Corpus]:
    write_corpus(tmp_path / "corpus.jsonl", PASSAGES)
    with Corpus(tmp_path / "corpus.jsonl") as opened:
        yield opened


@pytest.fixture
def index(corpus: Corpus, tmp_path: Path) -> bm25.BM25:
    return bm25.open_or_build(corpus, tmp_path / "index")


def ids(found: Sequence[Sequence[Hit]]) -> list[list[str]]:
    return [[hit.passage.id for hit in hits] for hits in found]


def test_bm25_finds_what_has_the_words(index: bm25.BM25) -> None:
    found = index.search(["blue whale", "fox", "xylophone", "", "the of", "hunting"], 3)
    assert ids(found)[0] == ["b"] and set(ids(found)[1]) == {"a", "c"}
    assert ids(found)[2:] == [[], [], [], ["c"]]  # no word is known: nothing, rather than the last rows
    assert index.search([], 3) == []
    assert ids(index.search(["whale"], 1000)) == [["b"]]  # more than there are
    assert all(hit.score > 0 for hits in found for hit in hits)


def test_an_index_is_used_again_and_no_other(
    corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "index"
    bm25.open_or_build(corpus, folder)
    monkeypatch.setattr(bm25, "build", lambda *_: pytest.fail("built again"))
    assert ids(bm25.open_or_build(corpus, folder).search(["whale"], 1)) == [["b"]]
    made_of = json.loads((folder / "index.json").read_text())
    (folder / "index.json").write_text(json.dumps(made_of | {"bm25s": "0.1"}))
    with pytest.raises(ConfigError, match=r"made with bm25s='0\.1', here it is .*: delete the folder"):
        bm25.open_or_build(corpus, folder)
    (folder / "index.json").write_text(json.dumps(made_of))
    write_corpus(tmp_path / "other.jsonl", [*PASSAGES[:2], PASSAGES[0]])
    with Corpus(tmp_path / "other.jsonl") as other, pytest.raises(ConfigError, match="corpus_sha256"):
        bm25.open_or_build(other, folder)
    (folder / "index.json").unlink()
    with pytest.raises(ConfigError, match="holds no index"):
        bm25.open_or_build(corpus, folder)


def test_a_build_that_fails_leaves_no_index(tmp_path: Path) -> None:
    (tmp_path / "corpus.jsonl").write_text('{"id": "0", "contents": "x"}\n{broken\n')
    with Corpus(tmp_path / "corpus.jsonl") as corpus, pytest.raises(ConfigError, match="line 2"):
        bm25.open_or_build(corpus, tmp_path / "index")
    assert not (tmp_path / "index").exists()


class Counting:
    """Answers every query with itself."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        self.batches.append(list(queries))
        return [[Hit(Passage(q, q, q), float(k))] for q in queries]

    def describe(self) -> Mapping[str, Any]:
        return {"kind": "counting"}

    def close(self) -> None:
        pass


def test_what_was_searched_is_not_searched_again() -> None:
    inner = Counting()
    cached = Cached(inner, capacity=2)
    assert ids(cached.search(["A b", "a  B", "c"], 1)) == [["a b"], ["a b"], ["c"]]
    assert inner.batches == [["a b", "c"]]
    cached.search(["a b", "c"], 1)
    cached.search(["a b"], 2)  # another k
    assert inner.batches == [["a b", "c"], ["a b"]]
    cached.search(["a b"], 1)  # the one that was not asked for the longest time is gone
    assert inner.batches == [["a b", "c"], ["a b"], ["a b"]]
    assert (cached.asked, cached.searched) == (7, 4)


# Over HTTP


@pytest.fixture
def served(index: bm25.BM25) -> Iterator[str]:
    server = make_server(index, "127.0.0.1", 0, topk=2)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


def test_our_client_hears_from_our_server_what_the_index_says(served: str, index: bm25.BM25) -> None:
    queries = ["blue whale", "fox", "xylophone", "Röntgen “fox”"]
    client = Client(served, retries=0)
    assert client.search(queries, 3) == index.search(queries, 3)
    assert client.search([], 3) == []
    client.close()


@pytest.mark.parametrize(
    ("request_", "result"),
    [
        # As clients of Search-R1 and verl-agent ask.
        ({"queries": ["whale", "dogs"], "topk": 1, "return_scores": True},
         [[{"document": {"id": "b", "contents": PASSAGES[1].contents}, "score": ...}],
          [{"document": {"id": "c", "contents": PASSAGES[2].contents}, "score": ...}]]),
        ({"query": "whale", "topk": 1, "return_scores": True},
         [[{"document": {"id": "b", "contents": PASSAGES[1].contents}, "score": ...}]]),
        ({"queries": ["whale"], "return_scores": False}, [[{"id": "b", "contents": PASSAGES[1].contents}]]),
        ({"queries": ["whale"], "topk": None}, [[{"id": "b", "contents": PASSAGES[1].contents}]]),
        ({"queries": ["fox"], "topk": 0}, ...),
        ({"queries": []}, []),
    ],
)  # fmt: skip
def test_the_server_speaks_both_dialects(served: str, request_: dict, result: Any) -> None:
    import requests

    answer = requests.post(f"{served}/retrieve", json=request_, timeout=10)
    assert answer.status_code == 200 and answer.headers["Content-Type"] == "application/json"
    got = answer.json()["result"]
    if result is ...:
        assert [len(hits) for hits in got] == [2]  # the server's own
        return
    for hits in got:
        for hit in hits:
            if "score" in hit:
                assert hit["score"] > 0
                hit["score"] = ...
    assert got == result


@pytest.mark.parametrize(
    ("body", "sentence"),
    [(b"{", "is not JSON"), (b"[]", "must be a JSON object"), (b"{}", "'queries' must be a list"),
     (b'{"queries": "x"}', "must be a list"),
     (b'{"queries": [1]}', "list of texts"), (b'{"queries": ["x"], "topk": -1}', "'topk' must be"),
     (b'{"query": "x", "topk": 1.5}', "'topk'"),
     (b'{"query": "x", "topk": 1000000}', "from 1 to 1000")],
)  # fmt: skip
def test_a_bad_request_is_refused_in_a_sentence(body: bytes, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        read_request(body, 3)


def test_bad_requests_harm_nobody(served: str) -> None:
    import requests

    for body in (b"{", b"", b"\xff"):
        answer = requests.post(f"{served}/retrieve", data=body, timeout=10)
        assert answer.status_code == 400 and "not JSON" in answer.json()["error"]
    assert requests.get(f"{served}/retrieve", timeout=10).status_code == 404
    assert requests.post(f"{served}/other", json={"query": "x"}, timeout=10).status_code == 404
    assert requests.get(f"{served}/health", timeout=10).json()["kind"] == "bm25"
    assert ids(Client(served).search(["whale"], 1)) == [["b"]]


class Scripted(BaseHTTPRequestHandler):
    """Answers with the script's next (status, body, seconds)."""

    script: ClassVar[list[tuple[int, bytes, float]]] = []
    heard: ClassVar[list[dict]] = []

    def do_POST(self) -> None:
        self.heard.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        status, body, seconds = self.script.pop(0)
        threading.Event().wait(seconds)
        try:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
        except OSError:  # who asked is gone
            pass

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def scripted() -> Iterator[tuple[str, type[Scripted]]]:
    class Handler(Scripted):
        script: ClassVar[list[tuple[int, bytes, float]]] = []
        heard: ClassVar[list[dict]] = []

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}/retrieve", Handler
    server.shutdown()
    server.server_close()


GOOD = json.dumps(
    {"result": [[{"document": {"id": 3, "contents": '"Red Fox"\nIt is red.'}, "score": 0.5}]]}
).encode()


def test_the_client_asks_as_the_protocol_says(scripted: tuple[str, type[Scripted]]) -> None:
    url, handler = scripted
    handler.script = [(200, GOOD, 0)]
    assert Client(url).search(["fox"], 3) == [[Hit(Passage("3", "Red Fox", "It is red."), 0.5)]]
    assert handler.heard == [{"queries": ["fox"], "topk": 3, "return_scores": True}]


def test_the_client_asks_again_when_the_server_stumbles(scripted: tuple[str, type[Scripted]]) -> None:
    url, handler = scripted
    handler.script = [(500, b"oops", 0), (200, GOOD, 1.0), (200, GOOD, 0)]
    client = Client(url, timeout_s=0.3, retries=2, pause_s=0.01)
    assert len(client.search(["fox"], 3)) == 1 and len(handler.heard) == 3


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [((500, b"<html>" + b"x" * 500, 0), r"status 500: '<html>x+ \.\.\.' \(after 2 attempts\)"),
     ((404, b"no", 0), r"status 404: 'no' \(after 1 "),
     ((200, b"<html>", 0), "something else than a JSON object: '<html>'"), ((200, b"[]", 0), "than a JSON object"),
     ((200, b'{"result": []}', 0), "answered 1 queries with 0 results"), ((200, b'{"results": []}', 0), "no list of results"),
     ((200, b'{"result": [[{"id": 1, "contents": "x"}]]}', 0), "no document of id and contents"),
     ((200, GOOD, 1.0), r"ReadTimeout \(after 2")],
)  # fmt: skip
def test_a_server_that_fails_is_no_observation(
    scripted: tuple[str, type[Scripted]], answer: Any, sentence: str
) -> None:
    url, handler = scripted
    handler.script = [answer, answer]
    with pytest.raises(RetrievalError, match=sentence):
        Client(url, timeout_s=0.3, retries=1, pause_s=0.01).search(["fox"], 3)


def test_a_server_that_is_down(scripted: tuple[str, type[Scripted]]) -> None:
    with pytest.raises(
        RetrievalError, match=r"http://127\.0\.0\.1:1/retrieve cannot be searched: ConnectionError"
    ):
        Client("http://127.0.0.1:1", retries=1, pause_s=0.01).search(["fox"], 3)
    with pytest.raises(ConfigError, match="is not the URL of a retriever"):
        Client("localhost")


def test_bm25_finds_the_passages_of_every_hop(tmp_path: Path) -> None:
    """The embedded default can be learned: whoever searches for the names finds what tells the answer."""
    made = make_encyclopedia(0, 60, {"train": 40, "test": 40})
    write_corpus(tmp_path / "corpus.jsonl", made.passages)
    with Corpus(tmp_path / "corpus.jsonl") as corpus:
        index = bm25.open_or_build(corpus, tmp_path / "index")
        hops = [hop for examples in made.examples.values() for example in examples for hop in example.hops]
        found = ids(index.search([hop.query for hop in hops], 3))
    assert sum(hop.passage in own for hop, own in zip(hops, found, strict=True)) >= 0.97 * len(hops)
