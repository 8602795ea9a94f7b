"""Serves passages over HTTP in the protocol of Search-R1, or builds an index only.

    python launch/retriever.py --corpus=FILE.jsonl --index=FOLDER [--kind=dense --encoder=FOLDER] [--port=8000]
    python launch/retriever.py --corpus=FILE.jsonl --index=FOLDER --build

POST /retrieve {"queries": [...], "topk": 3, "return_scores": true}; GET /health says what is served. The index is built
where the folder does not exist, and refused where it belongs to another corpus, encoder or version.
"""

from functools import partial
from pathlib import Path

import jax
from absl import flags
from flags import errors_as_sentences, no_more, parse
from rich.console import Console

from rsipo_jax.envs.search import bm25, dense
from rsipo_jax.envs.search.http import make_server
from rsipo_jax.envs.search.passages import Corpus
from rsipo_jax.envs.search.retrieval import Retriever
from rsipo_jax.reports.console import make_console, progress
from rsipo_jax.validation import ConfigError

flags.DEFINE_string("corpus", "", "Passages, one JSON object {'id', 'contents'} a line.")
flags.DEFINE_string("index", "", "Folder of the index.")
flags.DEFINE_enum("kind", "bm25", ["bm25", "dense"], "How passages are found.")
flags.DEFINE_string("encoder", "", "Hugging Face folder of a BERT encoder, for --kind=dense.")
flags.DEFINE_string("query_prefix", "", "What the encoder wants before queries; E5: 'query: '.")
flags.DEFINE_string("passage_prefix", "", "What the encoder wants before passages; E5: 'passage: '.")
flags.DEFINE_bool("build", False, "Builds the index and ends.")
flags.DEFINE_string("host", "127.0.0.1", "Address to listen at.")
flags.DEFINE_integer("port", 8000, "Port to listen at.", lower_bound=0, upper_bound=65535)
flags.DEFINE_integer("topk", 3, "Passages for a request that does not say how many.", lower_bound=1)


def main() -> None:
    no_more(parse())
    given = flags.FLAGS
    for name in ("corpus", "index"):
        if not given[name].value:
            raise ConfigError(f"--{name} is missing: {given[name].help}")
    if (given.kind == "dense") != bool(given.encoder):
        raise ConfigError("--encoder and --kind=dense belong together: give both or neither")
    console = make_console()
    retriever = open_retriever(console)
    console.print(f"{given.index}: {dict(retriever.describe())}", soft_wrap=True)
    if given.build:
        retriever.close()
        return
    try:
        server = make_server(retriever, given.host, given.port, given.topk)
    except OSError as error:
        raise ConfigError(
            f"--host={given.host} --port={given.port} cannot be listened at ({error.strerror}): name others"
        ) from error
    host, port = server.server_address[:2]
    console.print(f"Listening at http://{host!s}:{port}/retrieve")
    try:
        server.serve_forever()
    finally:
        server.server_close()
        retriever.close()


def open_retriever(console: Console) -> Retriever:
    """What the flags ask for."""
    given = flags.FLAGS
    corpus, folder = Corpus(Path(given.corpus)), Path(given.index)
    console.print(f"{given.corpus}: {len(corpus):,} passages")
    if given.kind == "bm25":
        return bm25.open_or_build(corpus, folder)
    encoder = dense.Encoder(Path(given.encoder), dense.Prefixes(given.query_prefix, given.passage_prefix))
    if not folder.exists():
        with progress(console, "passages", len(corpus)) as advance:
            dense.build(corpus, encoder, folder, partial(advance))
    mesh = jax.make_mesh((jax.device_count(),), (dense.ROWS,))
    return dense.Dense(corpus, encoder, folder, mesh)


if __name__ == "__main__":
    with errors_as_sentences():
        main()
