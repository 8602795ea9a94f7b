"""What clients of Search-R1 and verl-agent send, byte for byte, and what a server answers them.

The requests are those of `requests` 2.34 with the payloads and headers of the two projects' clients (Search-R1's
`_batch_search`; verl-agent's `call_search_api`, over a session). The answers have the form that FastAPI gives them.
"""

from __future__ import annotations

SEARCH_R1 = (
    b"POST /retrieve HTTP/1.1\r\nHost: 127.0.0.1:8000\r\nUser-Agent: python-requests/2.34.2\r\n"
    b"Accept-Encoding: gzip, deflate\r\nAccept: */*\r\nConnection: keep-alive\r\nContent-Length: 89\r\n"
    b"Content-Type: application/json\r\n\r\n"
    b'{"queries": ["who hunts foxes?", "R\\u00f6ntgen whale"], "topk": 3, "return_scores": true}'
)
VERL_AGENT = (  # two searches over one connection; the second comes in two pieces
    b"POST /retrieve HTTP/1.1\r\nHost: 127.0.0.1:8000\r\nUser-Agent: python-requests/2.34.2\r\n"
    b"Accept-Encoding: gzip, deflate\r\nAccept: application/json\r\nConnection: keep-alive\r\n"
    b"Content-Type: application/json\r\nContent-Length: 58\r\n\r\n"
    b'{"query": "whale songs", "topk": 3, "return_scores": true}',
    b"POST /retrieve HTTP/1.1\r\nHost: 127.0.0.1:8000\r\nUser-Agent: python-requests/2.34.2\r\n"
    b"Accept-Encoding: gzip, deflate\r\nAccept: application/json\r\nConnection: keep-alive\r\n"
    b"Content-Type: application/json\r\nContent-Length: 51\r\n\r\n",
    b'{"query": "dogs", "topk": 3, "return_scores": true}',
)

# Bodies of the answers, without the scores, which depend on the retriever: ids and contents for each query, best first.
FOX = {"id": "a", "contents": "Red Fox\nThe red fox is the largest of the true foxes."}
WHALE = {"id": "b", "contents": "Blue Whale\nThe blue whale is a marine mammal. Whale songs are long."}
HUNTING = {"id": "c", "contents": "Fox Hunting\nHunting of foxes with dogs."}
SEARCH_R1_FINDS = [[HUNTING, FOX], [WHALE]]
VERL_AGENT_FINDS = [[[WHALE]], [[HUNTING]]]  # of each request

UVICORN = (
    b"HTTP/1.1 200 OK\r\ndate: Wed, 29 Oct 2025 12:00:00 GMT\r\nserver: uvicorn\r\n"
    b"content-length: %d\r\ncontent-type: application/json\r\n\r\n%b"
)
SERVED = (
    b'{"result":[[{"document":{"id":"7","contents":"\\"Red Fox\\"\\nIt is r\xc3\xb6t."},"score":0.8125},'
    b'{"document":{"id":"3","contents":"Citibank\\nA bank."},"score":0.5}],[]]}'
)
SERVED_WITHOUT_SCORES = b'{"result":[[{"id":"7","contents":"\\"Red Fox\\"\\nIt is red."}],[]]}'
