"""Dense search: the exact best inner products, on any mesh, and indexes that belong to their encoder and corpus."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from rsipo_jax.envs.search import dense
from rsipo_jax.envs.search.passages import Corpus, Passage, write_corpus
from rsipo_jax.validation import ConfigError
from tests.launch.launching import python
from tests.models.test_encoder import write_bert

BARE = dense.Prefixes()
WORDS = [f"w{i}" for i in range(28)]
PASSAGES = [Passage(str(i), WORDS[i], f"{WORDS[i]} {WORDS[i]} {WORDS[(i + 1) % 28]}") for i in range(28)]


def one_device() -> jax.sharding.Mesh:
    return jax.make_mesh((1,), (dense.ROWS,))


def encoder_in(folder: Path, seed: int = 0, prefixes: dense.Prefixes = BARE) -> dense.Encoder:
    write_bert(folder, seed)
    tokenizer = Tokenizer(
        WordLevel({"[UNK]": 0, "q": 1} | {word: i + 2 for i, word in enumerate(WORDS)}, unk_token="[UNK]")
    )
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    return dense.Encoder(folder, prefixes)


@pytest.fixture
def corpus(tmp_path: Path) -> Iterator[Corpus]:
    write_corpus(tmp_path / "corpus.jsonl", PASSAGES)
    with Corpus(tmp_path / "corpus.jsonl") as opened:
        yield opened


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 30), st.integers(5, 15), st.integers(1, 12), st.integers(0, 10**6))
def test_the_best_are_the_best(rows: int, chunk: int, k: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    vectors, queries = (rng.integers(-3, 4, (n, 4)).astype(np.float32) for n in (rows, 5))  # with ties
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dense, "CHUNK", chunk)
        mesh = one_device()
        dense.best.clear_cache()
        scores, found = map(
            np.asarray, dense.best(dense.on_mesh(vectors, mesh, "float32"), queries, min(k, rows), rows, mesh)
        )
        dense.best.clear_cache()
    wanted = queries @ vectors.T
    order = np.argsort(-wanted, axis=1, kind="stable")[:, :k]
    np.testing.assert_array_equal(found, order)
    np.testing.assert_array_equal(scores, np.take_along_axis(wanted, order, axis=1))


def test_search_finds_what_the_vectors_say(corpus: Corpus, tmp_path: Path) -> None:
    encoder = encoder_in(tmp_path / "encoder", prefixes=dense.Prefixes("q ", ""))
    done: list[int] = []
    dense.build(corpus, encoder, tmp_path / "index", done.append)
    assert sum(done) == len(PASSAGES)
    retriever = dense.Dense(corpus, encoder, tmp_path / "index", one_device(), "float32")
    queries = [*WORDS, "", " ", "w1 w2 w3"] * 3  # more than run together
    found = retriever.search(queries, 3)
    vectors = encoder.passages([p.contents for p in PASSAGES]).astype(np.float16).astype(np.float32)
    for query, hits in zip(queries, found, strict=True):
        if not query.strip():
            assert hits == []
            continue
        scores = vectors @ encoder.queries([query])[0]
        order = np.argsort(-scores, kind="stable")[:3]
        assert [hit.passage.id for hit in hits] == [str(i) for i in order]
        np.testing.assert_allclose([hit.score for hit in hits], scores[order], atol=1e-5)
    assert [len(hits) for hits in retriever.search(["w1"], 1000)] == [28]
    # The prefix is part of what is encoded.
    bare = encoder_in(tmp_path / "encoder")
    assert not np.allclose(bare.queries(["w1"]), encoder.queries(["w1"]))
    np.testing.assert_allclose(bare.queries(["q w1"]), encoder.queries(["w1"]), atol=1e-6)


def test_an_index_belongs_to_its_encoder_and_corpus(corpus: Corpus, tmp_path: Path) -> None:
    encoder = encoder_in(tmp_path / "encoder")
    with pytest.raises(ConfigError, match="holds no index"):
        dense.Dense(corpus, encoder, tmp_path / "index", one_device())
    dense.build(corpus, encoder, tmp_path / "index", lambda _: None)
    with pytest.raises(ConfigError, match="made with encoder_sha256="):
        dense.Dense(corpus, encoder_in(tmp_path / "other", seed=1), tmp_path / "index", one_device())
    with pytest.raises(ConfigError, match="made with query_prefix='', here it is 'query: '"):
        dense.Dense(
            corpus,
            encoder_in(tmp_path / "encoder", prefixes=dense.Prefixes("query: ")),
            tmp_path / "index",
            one_device(),
        )
    made_of = json.loads((tmp_path / "index/index.json").read_text())
    (tmp_path / "index/index.json").write_text(json.dumps(made_of | {"passages": 3}))
    with pytest.raises(ConfigError, match="made with passages=3, here it is 28"):
        dense.Dense(corpus, encoder, tmp_path / "index", one_device())
    (tmp_path / "encoder/tokenizer.json").unlink()
    with pytest.raises(ConfigError, match=r"has no tokenizer\.json"):
        dense.Encoder(tmp_path / "encoder", dense.Prefixes())


_SEVERAL_DEVICES = """
import jax, numpy as np
from rsipo_jax.envs.search import dense
dense.CHUNK = 7
rng = np.random.default_rng(0)
for count in (1, 28, 61):
    vectors, queries = (rng.integers(-2, 3, (n, 4)).astype(np.float32) for n in (count, 6))  # with ties
    wanted = np.argsort(-(queries @ vectors.T), axis=1, kind="stable")[:, :9]
    for devices in (2, 8):
        mesh = jax.make_mesh((devices,), (dense.ROWS,), devices=jax.devices()[:devices])
        _, rows = dense.best(dense.on_mesh(vectors, mesh, "float32"), queries, min(9, count), count, mesh)
        np.testing.assert_array_equal(rows, wanted)
"""


def test_any_mesh_finds_the_same() -> None:
    done = python("-c", _SEVERAL_DEVICES, XLA_FLAGS="--xla_force_host_platform_device_count=8")
    assert done.returncode == 0, done.stderr
