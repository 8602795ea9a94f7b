"""The retrieval protocol of Search-R1 over HTTP: a client, and a server for any retriever.

    POST /retrieve {"queries": [str, ...], "topk": 3, "return_scores": true}
    -> {"result": [[{"document": {"id", "contents"}, "score"}, ...], ...]}

With `return_scores` false a hit is the document alone. verl-agent's dialect asks for one `query` and gets the same nesting.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

import requests
import urllib3

from rsipo_jax.envs.search.passages import Passage, unquoted
from rsipo_jax.envs.search.retrieval import Hit, RetrievalError, Retriever
from rsipo_jax.validation import ConfigError

PATH = "/retrieve"
SHOWN = 200  # characters of an answer that is not understood
LARGEST_REQUEST = 16 << 20  # bytes
MOST_HITS = 1000


class Client:
    """A `Retriever` that asks a server. It is asked for a batch at a time, and again when it does not answer in time."""

    def __init__(self, url: str, timeout_s: float = 60.0, retries: int = 3, pause_s: float = 1.0) -> None:
        """A whole answer has to come within `timeout_s`, at most another such time for its head.

        `pause_s` before the first retry, twice as long before each later one. Raises ConfigError for what is no URL.
        """
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise ConfigError(
                f"{url!r} is not the URL of a retriever: give one as http://127.0.0.1:8000{PATH}"
            )
        self._url = url if parts.path not in ("", "/") else url.rstrip("/") + PATH
        self._timeout_s, self._retries, self._pause_s = timeout_s, retries, pause_s
        self._session = requests.Session()
        self._session.headers["Accept-Encoding"] = "identity"

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """See `Retriever.search`."""
        if not queries:
            return []
        body = {"queries": list(queries), "topk": k, "return_scores": True}
        result = self._ask(body).get("result")
        if not isinstance(result, list) or len(result) != len(queries):
            shown = f"{len(result)} results" if isinstance(result, list) else "no list of results"
            raise RetrievalError(f"{self._url} answered {len(queries)} queries with {shown}")
        try:
            return [[_hit(record) for record in hits[:k]] for hits in result]
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise RetrievalError(
                f"{self._url} answered with a hit that has no document of id and contents, or no score ({error!r})"
            ) from error

    def describe(self) -> Mapping[str, Any]:
        return {"kind": "http", "url": self._url}

    def close(self) -> None:
        self._session.close()

    def _ask(self, body: Mapping[str, Any]) -> dict[str, Any]:
        failure = ""
        for attempt in range(1 + self._retries):
            if attempt:
                time.sleep(self._pause_s * 2 ** (attempt - 1))
            deadline = time.monotonic() + self._timeout_s
            try:
                with self._session.post(self._url, json=body, timeout=self._timeout_s, stream=True) as answer:
                    text = _body(answer, deadline)
            except (requests.RequestException, urllib3.exceptions.HTTPError) as error:
                failure = type(error).__name__
                continue
            if answer.status_code < HTTPStatus.BAD_REQUEST:
                return self._read(text)
            failure = f"status {answer.status_code}: {_shown(text)}"
            if (
                answer.status_code < HTTPStatus.INTERNAL_SERVER_ERROR
            ):  # the same question gets the same answer
                break
        raise RetrievalError(f"{self._url} cannot be searched: {failure} (after {attempt + 1} attempts)")

    def _read(self, text: bytes) -> dict[str, Any]:
        try:
            read = json.loads(text)
        except (ValueError, RecursionError):
            read = None
        if not isinstance(read, dict):
            raise RetrievalError(
                f"{self._url} answered with something else than a JSON object: {_shown(text)}"
            )
        return read


def _body(answer: requests.Response, deadline: float) -> bytes:
    """What was answered. A server that sends a byte now and then never exceeds the time that a socket may be silent.

    Raises requests.Timeout, and an error of requests or urllib3 for an answer that breaks off.
    """
    body = b""
    while chunk := answer.raw.read1():
        body += chunk
        if time.monotonic() > deadline:
            raise requests.Timeout
    if int(answer.headers.get("Content-Length", len(body))) > len(body):
        raise requests.ConnectionError  # `read1` does not count
    return body


def _hit(record: Mapping[str, Any]) -> Hit:
    document = record["document"]
    title, _, text = document["contents"].partition("\n")
    return Hit(Passage(str(document["id"]), unquoted(title), text), float(record["score"]))


def _shown(body: bytes) -> str:
    text = body.decode(errors="replace")
    return repr(text if len(text) <= SHOWN else text[:SHOWN] + " ...")


def make_server(retriever: Retriever, host: str, port: int, topk: int) -> ThreadingHTTPServer:
    """A server that is to be started with `serve_forever`; port 0 takes a free one. `topk` when a request names none.

    Searches run one at a time: a retriever is fastest when it has all cores.
    """
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            if self.path == "/health":
                self._send(HTTPStatus.OK, dict(retriever.describe()))
            else:
                self._send(HTTPStatus.NOT_FOUND, {"error": f"there is only POST {PATH} and GET /health"})

        def do_POST(self) -> None:
            given = self.headers.get("Content-Length") or "0"
            if not given.isdecimal():
                self.close_connection = True
                self._send(HTTPStatus.BAD_REQUEST, {"error": f"Content-Length is {given!r}"})
                return
            length = int(given)
            if length > LARGEST_REQUEST:
                self.close_connection = True  # its body is not read
                self._send(
                    HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                    {"error": f"a request has at most {LARGEST_REQUEST} bytes"},
                )
                return
            body = self.rfile.read(length)
            if self.path != PATH:
                self._send(HTTPStatus.NOT_FOUND, {"error": f"there is only POST {PATH} and GET /health"})
                return
            try:
                queries, k, scores = read_request(body, topk)
            except ValueError as error:
                self._send(HTTPStatus.BAD_REQUEST, {"error": str(error)})
                return
            try:
                with lock:
                    found = retriever.search(queries, k)
            except (RetrievalError, ConfigError) as error:  # asked in vain, or the corpus is not what it was
                self._send(HTTPStatus.BAD_GATEWAY, {"error": str(error)})
                return
            self._send(HTTPStatus.OK, {"result": [[_record(hit, scores) for hit in hits] for hits in found]})

        def log_message(self, format: str, *args: Any) -> None:
            """A line a request would slow down what it reports."""

        def _send(self, status: HTTPStatus, record: Mapping[str, Any]) -> None:
            body = json.dumps(record).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    return ThreadingHTTPServer((host, port), Handler)


def read_request(body: bytes, topk: int) -> tuple[list[str], int, bool]:
    """(queries, k, whether scores are wanted) in either dialect. Raises ValueError with a sentence."""
    try:
        request = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the request is not JSON: {error}") from error
    if not isinstance(request, dict):
        raise ValueError("the request must be a JSON object with 'queries' or 'query'")
    queries = request.get("queries", [request["query"]] if "query" in request else None)
    if not isinstance(queries, list) or not all(isinstance(query, str) for query in queries):
        raise ValueError("'queries' must be a list of texts, or 'query' a text")
    k = request.get("topk") or topk
    if not isinstance(k, int) or isinstance(k, bool) or not 0 < k <= MOST_HITS:
        raise ValueError(f"'topk' must be a whole number from 1 to {MOST_HITS}, not {k!r}")
    return queries, k, bool(request.get("return_scores", False))


def _record(hit: Hit, scores: bool) -> dict[str, Any]:
    document = {"id": hit.passage.id, "contents": hit.passage.contents}
    return {"document": document, "score": hit.score} if scores else document
