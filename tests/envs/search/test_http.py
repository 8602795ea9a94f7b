"""The protocol of Search-R1 and verl-agent on the wire, both ways, and servers that fail in every way."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from rsipo_jax.envs.protocol import Task
from rsipo_jax.envs.search import bm25
from rsipo_jax.envs.search.http import Client, make_server
from rsipo_jax.envs.search.passages import Corpus, Passage, write_corpus
from rsipo_jax.envs.search.pool import SearchPool
from rsipo_jax.envs.search.questions import Question
from rsipo_jax.envs.search.retrieval import Hit, RetrievalError
from tests.envs.search import conversations
from tests.envs.search.conversations import FOX, HUNTING, SERVED, UVICORN, WHALE

TOPK = 2


@pytest.fixture
def corpus(tmp_path: Path) -> Iterator[Corpus]:
    records = [(r["id"], *r["contents"].split("\n")) for r in (FOX, WHALE, HUNTING)]
    write_corpus(tmp_path / "corpus.jsonl", [Passage(*record) for record in records])
    with Corpus(tmp_path / "corpus.jsonl") as opened:
        yield opened


@pytest.fixture
def port(corpus: Corpus, tmp_path: Path) -> Iterator[int]:
    """Of a server of ours."""
    server = make_server(bm25.open_or_build(corpus, tmp_path / "index"), "127.0.0.1", 0, TOPK)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_address[1]
    server.shutdown()
    server.server_close()


def answered(connection: socket.socket) -> Any:
    """The JSON of the next answer."""
    answer = http.client.HTTPResponse(connection)
    answer.begin()
    assert answer.status == 200 and answer.headers["Content-Type"] == "application/json"
    return json.loads(answer.read())


def without_scores(result: list[list[dict]]) -> list[list[dict]]:
    """The documents; scores are there, above 0, and fall."""
    for hits in result:
        scores = [hit["score"] for hit in hits]
        assert all(type(score) is float and score > 0 for score in scores)
        assert scores == sorted(scores, reverse=True)
        assert all(hit.keys() == {"document", "score"} for hit in hits)
    return [[hit["document"] for hit in hits] for hits in result]


def test_our_server_answers_search_r1(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(conversations.SEARCH_R1)
        answer = answered(connection)
    assert answer.keys() == {"result"}
    assert without_scores(answer["result"]) == conversations.SEARCH_R1_FINDS


def test_our_server_answers_verl_agent_over_one_connection(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(conversations.VERL_AGENT[0])
        first = answered(connection)
        connection.sendall(conversations.VERL_AGENT[1])
        time.sleep(0.05)
        connection.sendall(conversations.VERL_AGENT[2])
        second = answered(connection)
    assert [without_scores(answer["result"]) for answer in (first, second)] == conversations.VERL_AGENT_FINDS


def ask(port: int, request: Any) -> Any:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("POST", "/retrieve", json.dumps(request))
    return json.loads(connection.getresponse().read())["result"]


@pytest.mark.parametrize("topk", [None, 0])
def test_topk_falls_back_to_the_servers(port: int, topk: int | None) -> None:
    assert [len(hits) for hits in ask(port, {"queries": ["fox whale foxes"], "topk": topk})] == [TOPK]


def test_without_scores_hits_are_documents(port: int) -> None:
    """For any number of queries: Search-R1's own server answers this for two at most, and wrongly."""
    for queries in (["whale"], ["whale", "dogs"], ["whale", "dogs", "largest"]):
        expected = [[WHALE], [HUNTING], [FOX]][: len(queries)]
        assert ask(port, {"queries": queries, "topk": 3, "return_scores": False}) == expected


def test_queries_without_words_find_nothing(port: int) -> None:
    assert ask(port, {"queries": [], "topk": 3, "return_scores": True}) == []
    assert ask(port, {"queries": ["", " \n", "?", "the"], "topk": 3, "return_scores": True}) == [
        [],
        [],
        [],
        [],
    ]
    assert ask(port, {"query": "", "topk": 3, "return_scores": True}) == [[]]


@pytest.mark.parametrize("length", ["-1", "many"])
def test_a_request_of_no_length_is_refused(port: int, length: str) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(f"POST /retrieve HTTP/1.1\r\nContent-Length: {length}\r\n\r\n".encode())
        assert connection.recv(1000).startswith(b"HTTP/1.1 400 ")


def test_a_corpus_that_changes_while_it_is_served_is_said(corpus: Corpus, port: int) -> None:
    corpus.path.write_bytes(b"x" * corpus.path.stat().st_size)
    with pytest.raises(RetrievalError, match=r"status 502: .*corpus\.jsonl, line 2"):
        Client(f"http://127.0.0.1:{port}", retries=0).search(["whale"], 3)


# Our client, and a server that says what the test wants


def body_of(connection: socket.socket) -> dict[str, Any] | None:
    """The JSON of the next request to /retrieve, None when there is none."""
    data = b""
    while b"\r\n\r\n" not in data:
        if not (piece := connection.recv(65536)):
            return None
        data += piece
    head, _, body = data.partition(b"\r\n\r\n")
    first, *headers = head.decode().split("\r\n")
    assert first == "POST /retrieve HTTP/1.1"
    values = {name.lower(): value for name, _, value in (line.partition(": ") for line in headers)}
    assert values["content-type"] == "application/json"
    while len(body) < int(values["content-length"]):
        body += connection.recv(65536)
    return json.loads(body)


@contextmanager
def server(*answers: Callable[[socket.socket], None]) -> Iterator[tuple[str, list[dict]]]:
    """Answers requests in turn, over as many connections as it takes. Gives its URL and what it was asked."""
    heard: list[dict] = []
    left = list(answers)

    def serve() -> None:
        while left:
            connection, _ = listening.accept()
            with connection:
                while left and (request := body_of(connection)) is not None:
                    heard.append(request)
                    try:
                        left.pop(0)(connection)
                    except OSError:  # who asked is gone, or was left
                        break

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/retrieve", heard
        thread.join(10)
        assert not thread.is_alive(), "not every answer was asked for"


def says(body: bytes, status: bytes = b"200 OK") -> Callable[[socket.socket], None]:
    return lambda connection: connection.sendall((UVICORN % (len(body), body)).replace(b"200 OK", status))


def in_chunks(connection: socket.socket) -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
    pieces = SERVED[:10], SERVED[10:]
    connection.sendall(head + b"".join(b"%x\r\n%b\r\n" % (len(p), p) for p in pieces) + b"0\r\n\r\n")


def byte_by_byte(connection: socket.socket) -> None:
    """A socket that is never silent for long, and an answer that is never complete in time."""
    for byte in UVICORN % (len(SERVED), SERVED):
        connection.sendall(bytes([byte]))
        time.sleep(0.02)


def breaks_off(connection: socket.socket) -> None:
    connection.sendall(UVICORN % (len(SERVED), SERVED[:20]))
    raise ConnectionAbortedError


def breaks_off_between_chunks(connection: socket.socket) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n")
    raise ConnectionAbortedError


def hangs_up(connection: socket.socket) -> None:
    raise ConnectionAbortedError


def silent(connection: socket.socket) -> None:
    time.sleep(0.6)
    raise ConnectionAbortedError


FOUND = [
    [Hit(Passage("7", "Red Fox", "It is röt."), 0.8125), Hit(Passage("3", "Citibank", "A bank."), 0.5)],
    [],
]
QUERIES = ["fox “röt”", "nothing"]


def client(url: str, retries: int = 0) -> Client:
    return Client(url, timeout_s=0.4, retries=retries, pause_s=0.01)


@pytest.mark.parametrize("answer", [says(SERVED), in_chunks])
def test_our_client_reads_what_search_r1s_server_answers(answer: Callable[[socket.socket], None]) -> None:
    with server(answer) as (url, heard):
        assert client(url).search(QUERIES, 3) == FOUND
    assert heard == [{"queries": QUERIES, "topk": 3, "return_scores": True}]


def test_our_client_uses_one_connection_and_no_more_hits_than_it_asked_for() -> None:
    with server(says(SERVED), says(SERVED)) as (url, heard):
        asking = client(url)
        assert asking.search(QUERIES, 1) == [FOUND[0][:1], []]
        assert asking.search(QUERIES, 3) == FOUND
    assert len(heard) == 2


@pytest.mark.parametrize("stumble", [says(b"oops", b"500 Internal Server Error"), says(b"", b"503 Busy"), byte_by_byte,
                                     breaks_off, hangs_up, silent])  # fmt: skip
def test_our_client_asks_again_after_a_stumble(stumble: Callable[[socket.socket], None]) -> None:
    with server(stumble, says(SERVED)) as (url, heard):
        assert client(url, retries=1).search(QUERIES, 3) == FOUND
    assert heard[0] == heard[1]


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (byte_by_byte, r"cannot be searched: Timeout \(after 1 "),
        (breaks_off, r"cannot be searched: ConnectionError \(after 1 "),
        (breaks_off_between_chunks, r"cannot be searched: \w+ \(after 1 "),
        (hangs_up, "cannot be searched: ConnectionError"),
        (silent, "cannot be searched: ReadTimeout"),
        (says(b"<html>busy</html>"), "something else than a JSON object: '<html>busy</html>'"),
        (says(b"\xff\xfe"), "something else than a JSON object"),
        (says(b"[" * 100_000), "something else than a JSON object"),
        (says(b'{"detail":"no"}', b"422 Unprocessable Entity"), "status 422: '{\"detail\":\"no\"}'"),
        (says(conversations.SERVED_WITHOUT_SCORES), "a hit that has no document of id and contents, or no score"),
        (says(b'{"result":[[],[],[]]}'), "answered 2 queries with 3 results"),
        (says(b'{"result":[null,[]]}'), "a hit that has no document"),
        (says(b'{"result":[{},[]]}'), "a hit that has no document"),
        (says(b'{"result":[[{"document":{"id":1,"contents":null},"score":1}],[]]}'), "a hit that has no document"),
        (says(b'{"result":[[{"document":{"id":1,"contents":"x"},"score":null}],[]]}'), "or no score"),
    ],
)  # fmt: skip
def test_a_failure_is_a_sentence_and_an_environment_error(
    answer: Callable[[socket.socket], None], sentence: str
) -> None:
    """In the environment, the episodes that asked are void; no observation is made of a failure."""
    questions = {"q": Question("q", "nq", "who", ("x",))}
    with server(answer) as (url, _):
        pool = SearchPool(questions, client(url), hits=3, passage_chars=100)
        pool.reset({0: Task("q", "nq", "train"), 1: Task("q", "nq", "train")})
        observations = pool.step({slot: f"<search>{query}</search>" for slot, query in enumerate(QUERIES)})
        pool.close()
    for observation in observations.values():
        assert observation.text == "" and not observation.won
        assert observation.error.startswith(url)
        with pytest.raises(RetrievalError, match=sentence):
            raise RetrievalError(observation.error)


def test_a_retriever_that_is_down_is_an_environment_error() -> None:
    pool = SearchPool({"q": Question("q", "nq", "who", ("x",))}, client("http://127.0.0.1:1"), 3, 100)
    pool.reset({0: Task("q", "nq", "train")})
    observation = pool.step({0: "<search>x</search>"})[0]
    pool.close()
    assert "cannot be searched: ConnectionError" in observation.error
    assert observation.text == "" and not observation.won
