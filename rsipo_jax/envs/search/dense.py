"""Dense retrieval: an encoder in JAX, and the exact best inner products as a sharded matrix product on the devices.

The folder of an index holds the passages' unit vectors (`vectors.npy`, one row each) and `index.json`, which names the
corpus and the encoder with its prefixes: vectors of another encoder are not searched.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from tokenizers import Tokenizer

from rsipo_jax.envs.search import index
from rsipo_jax.envs.search.passages import Corpus
from rsipo_jax.envs.search.retrieval import Hit
from rsipo_jax.models.encoder import encode, load_encoder
from rsipo_jax.validation import ConfigError

VECTORS = "vectors.npy"
ROWS = "rows"  # the mesh axis that passages are cut by
LENGTH_STEP = 32  # tokens: lengths are rounded up, so that few programs are compiled
BATCH = 32  # passages encoded together
QUERIES = 64  # queries searched together
FILLED_TO = (1, 8, BATCH, QUERIES)  # rows of a batch, as above: a lone query should not cost what many do
CHUNK = 1 << 16  # passages whose scores are held at once, a device
FEWEST_BF16 = (
    8  # XLA multiplies one row of bfloat16 by another program on CPUs, five times as slowly as eight
)
SAME = 0.99  # cosine from which two vectors of a text count as one: the index has 16 bits, devices multiply differently

Array = jax.Array


@dataclass(frozen=True)
class Prefixes:
    """What an encoder wants in front of its texts: E5 "query: " and "passage: ", MiniLM nothing."""

    query: str = ""
    passage: str = ""


class Encoder:
    """Texts to unit vectors, by a Hugging Face folder of the BERT family."""

    def __init__(self, folder: Path, prefixes: Prefixes, max_tokens: int = 256) -> None:
        """Raises ConfigError for a folder without network or tokenizer.json."""
        self._config, params = load_encoder(folder)
        self._params = jax.tree.map(jnp.asarray, params)
        self.prefixes, self.max_tokens = prefixes, min(max_tokens, self._config.max_positions)
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise ConfigError(f"{folder} has no tokenizer.json: encoders bring their tokenizer in this form")
        self._tokenizer = Tokenizer.from_file(str(path))
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(self.max_tokens)
        self._checksums = {
            "encoder_sha256": index.sha256(folder / "model.safetensors"),
            "tokenizer_sha256": index.sha256(path),
        }

    @property
    def size(self) -> int:
        """Numbers of a vector."""
        return self._config.hidden_size

    def describe(self) -> dict[str, Any]:
        return (
            self._checksums
            | {"max_tokens": self.max_tokens}
            | {f"{name}_prefix": prefix for name, prefix in asdict(self.prefixes).items()}
        )

    def queries(self, texts: Sequence[str]) -> np.ndarray:
        """float32 [n, size]."""
        return self._encode([self.prefixes.query + text for text in texts])

    def passages(self, texts: Sequence[str]) -> np.ndarray:
        """float32 [n, size]."""
        return self._encode([self.prefixes.passage + text for text in texts])

    def _encode(self, texts: Sequence[str]) -> np.ndarray:
        ids = [encoding.ids for encoding in self._tokenizer.encode_batch(list(texts))]
        order = sorted(range(len(ids)), key=lambda i: len(ids[i]))
        vectors = np.empty((len(ids), self.size), np.float32)
        for first in range(0, len(order), BATCH):
            rows = order[first : first + BATCH]
            longest = -(-max(len(ids[i]) for i in rows) // LENGTH_STEP) * LENGTH_STEP
            filled = _filled(len(rows))
            tokens, lengths = (
                np.zeros((filled, min(longest, self._config.max_positions)), np.int32),
                np.zeros(filled, np.int32),
            )
            for row, i in enumerate(rows):
                tokens[row, : len(ids[i])], lengths[row] = ids[i], len(ids[i])
            vectors[rows] = np.asarray(encode(self._params, self._config, tokens, lengths))[: len(rows)]
        return vectors


def settings_of(corpus: Corpus, encoder: Encoder) -> dict[str, Any]:
    """What an index depends on."""
    return {
        "kind": "dense",
        "passages": len(corpus),
        "corpus_sha256": corpus.fingerprint(),
    } | encoder.describe()


def build(corpus: Corpus, encoder: Encoder, folder: Path, advance: Callable[[int], None]) -> None:
    """Encodes a corpus, see `index.make`. `advance` is told how many passages are done.

    Raises ConfigError for a corrupt line.
    """

    def write(partial_folder: Path) -> None:
        vectors = np.lib.format.open_memmap(
            partial_folder / VECTORS, mode="w+", dtype=np.float16, shape=(len(corpus), encoder.size)
        )
        step = 32 * BATCH  # sorted by length among themselves
        for first in range(0, len(corpus), step):
            rows = range(first, min(first + step, len(corpus)))
            vectors[rows.start : rows.stop] = encoder.passages([corpus[row].contents for row in rows])
            advance(len(rows))
        vectors.flush()

    index.make(folder, settings_of(corpus, encoder), write)


class Dense:
    """A `Retriever` over the index in a folder; vectors lie on the devices of `mesh` (axis "rows") in `dtype`."""

    def __init__(
        self, corpus: Corpus, encoder: Encoder, folder: Path, mesh: Mesh, dtype: str = "bfloat16"
    ) -> None:
        """Raises ConfigError when the folder has no index, one of something else, or a damaged one."""
        self._settings = settings_of(corpus, encoder)
        index.check(folder, self._settings)
        vectors = np.load(folder / VECTORS, mmap_mode="r")
        rows = [0, len(corpus) // 2, len(corpus) - 1]
        again = encoder.passages([corpus[row].contents for row in rows])
        for row, alike in zip(rows, (again * vectors[rows]).sum(1), strict=True):
            if alike < SAME:
                raise ConfigError(
                    f"line {row + 1} of {corpus.path} is encoded otherwise than in {folder} (their cosine is {alike:.3f}): "
                    f"{index.ANEW}"
                )
        self._corpus, self._encoder, self._mesh, self._count = corpus, encoder, mesh, len(corpus)
        self._vectors = on_mesh(vectors, mesh, dtype)
        self._fewest = FEWEST_BF16 if dtype == "bfloat16" else 1

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """See `Retriever.search`."""
        found: list[list[Hit]] = [[] for _ in queries]
        asked = [i for i, query in enumerate(queries) if query.strip()]
        for first in range(0, len(asked), QUERIES):
            own = asked[first : first + QUERIES]
            vectors = np.zeros((_filled(len(own), self._fewest), self._encoder.size), np.float32)
            vectors[: len(own)] = self._encoder.queries([queries[i] for i in own])
            scores, rows = map(
                np.asarray, best(self._vectors, vectors, min(k, self._count), self._count, self._mesh)
            )
            for row, i in enumerate(own):
                found[i] = [
                    Hit(self._corpus[int(r)], float(s))
                    for s, r in zip(scores[row], rows[row], strict=True)
                    if r >= 0
                ]
        return found

    def describe(self) -> Mapping[str, Any]:
        return self._settings

    def close(self) -> None:
        self._corpus.close()


def _filled(rows: int, fewest: int = 1) -> int:
    """Rows of the smallest batch that holds so many."""
    return next(size for size in FILLED_TO if size >= max(rows, fewest))


def on_mesh(vectors: np.ndarray, mesh: Mesh, dtype: str) -> tuple[Array, ...]:
    """Vectors [n, D] cut by rows over the mesh; every device's share is cut into chunks, filled up to one size.

    The arrays of the tuple hold the first chunk of every device, the second, and so on: a chunk that had to be cut out
    of a larger array would be copied for every search.
    """
    devices = mesh.shape[ROWS]
    share = -(-len(vectors) // devices)
    chunk = min(CHUNK, share)
    chunks = -(-share // chunk)
    sharding = NamedSharding(mesh, PartitionSpec(ROWS, None))

    def part(number: int, index: tuple[slice, ...] | None) -> np.ndarray:
        assert index is not None
        device = index[0].indices(chunk * devices)[0] // chunk
        first = (device * chunks + number) * chunk
        own = np.zeros((chunk, vectors.shape[1]), dtype)
        held = vectors[first : first + chunk]
        own[: len(held)] = held
        return own

    shape = chunk * devices, vectors.shape[1]
    return tuple(
        jax.make_array_from_callback(shape, sharding, partial(part, number)) for number in range(chunks)
    )


@partial(jax.jit, static_argnums=(2, 3, 4))
def best(vectors: tuple[Array, ...], queries: Array, k: int, count: int, mesh: Mesh) -> tuple[Array, Array]:
    """The k largest inner products float32 [q, k] of queries [q, D] with the first `count` of `on_mesh`'s vectors.

    With them come their rows. Every device goes through its own chunks and keeps its best; the best of all devices are
    merged. Of equal products the lower row comes first. A row is -1 where there are fewer than k.
    """

    def local(vectors: tuple[Array, ...], queries: Array) -> tuple[Array, Array]:
        chunk = len(vectors[0])
        first = lax.axis_index(ROWS) * len(vectors) * chunk
        scores, rows = jnp.zeros((len(queries), 0)), jnp.zeros((len(queries), 0), jnp.int32)
        for number, part in enumerate(vectors):
            products = jnp.einsum(
                "qd,nd->qn", queries.astype(part.dtype), part, preferred_element_type=jnp.float32
            )
            own = first + number * chunk + jnp.arange(chunk)
            products = jnp.where(own < count, products, -jnp.inf)
            chunk_scores, chunk_rows = _top(products, jnp.broadcast_to(own, products.shape), k)
            scores, rows = _top(
                jnp.concatenate([scores, chunk_scores], 1), jnp.concatenate([rows, chunk_rows], 1), k
            )
        return lax.all_gather(scores, ROWS, axis=1, tiled=True), lax.all_gather(
            rows, ROWS, axis=1, tiled=True
        )

    scores, rows = jax.shard_map(
        local, mesh=mesh, in_specs=(PartitionSpec(ROWS, None), PartitionSpec()), out_specs=PartitionSpec(), check_vma=False
    )(vectors, queries)  # fmt: skip
    return _top(scores, rows, k)


def _top(scores: Array, rows: Array, k: int) -> tuple[Array, Array]:
    scores, places = lax.top_k(scores, min(k, scores.shape[1]))
    rows = jnp.take_along_axis(rows, places, axis=1)
    return scores, jnp.where(jnp.isfinite(scores), rows, -1)
