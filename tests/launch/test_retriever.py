"""The command line of launch/retriever.py: what it refuses, in one sentence, and what it serves."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from rsipo_jax.envs.search import bm25
from rsipo_jax.envs.search.http import Client
from rsipo_jax.envs.search.passages import Corpus, Passage, write_corpus
from tests.launch.launching import ROOT, python

PASSAGES = [Passage("a", "Red Fox", "The red fox is a fox."), Passage("b", "Whale", "It sings.")]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With a corpus and its index."""
    write_corpus(tmp_path / "corpus.jsonl", PASSAGES)
    with Corpus(tmp_path / "corpus.jsonl") as corpus:
        bm25.build(corpus, tmp_path / "index")
    return tmp_path


def refused(*arguments: str) -> str:
    """The sentence."""
    result = python("launch/retriever.py", *arguments)
    assert result.returncode == 2, result
    assert result.stderr.startswith("retriever.py: ") and result.stderr.count("\n") == 1
    return result.stderr


def test_a_missing_corpus() -> None:
    assert "none.jsonl is not a file: name a corpus" in refused("--corpus=none.jsonl", "--index=none")


def test_a_corrupt_line_is_named(tmp_path: Path) -> None:
    (tmp_path / "corpus.jsonl").write_text('{"id": "0", "contents": "x"}\n{broken\n')
    sentence = refused(f"--corpus={tmp_path / 'corpus.jsonl'}", f"--index={tmp_path / 'index'}", "--build")
    assert "corpus.jsonl, line 2: " in sentence and not (tmp_path / "index").exists()


def test_an_index_of_another_version(folder: Path) -> None:
    path = folder / "index/index.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"bm25s": "0.1"}))
    sentence = refused(f"--corpus={folder / 'corpus.jsonl'}", f"--index={folder / 'index'}")
    assert "made with bm25s='0.1', here it is " in sentence and "delete the folder" in sentence


def test_a_truncated_index(folder: Path) -> None:
    path = folder / "index/data.csc.index.npy"
    path.write_bytes(path.read_bytes()[:-4])
    sentence = refused(f"--corpus={folder / 'corpus.jsonl'}", f"--index={folder / 'index'}")
    assert "data.csc.index.npy is not as it was written" in sentence


def test_a_port_that_is_taken(folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        sentence = refused(
            f"--corpus={folder / 'corpus.jsonl'}", f"--index={folder / 'index'}", f"--port={port}"
        )
    assert f"--port={port} cannot be listened at" in sentence


def test_it_serves_until_it_is_interrupted(folder: Path) -> None:
    command = [sys.executable, "launch/retriever.py", f"--corpus={folder / 'corpus.jsonl'}", f"--index={folder / 'index'}",
               "--port=0"]  # fmt: skip
    inherited = os.environ | {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    # Where the tests run in the background of a shell, interrupts are ignored, and children inherit that.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    process = subprocess.Popen(command, cwd=ROOT, env=inherited, text=True, **pipes)
    signal.signal(signal.SIGINT, before)
    with process:
        assert process.stdout is not None and process.stderr is not None
        while "Listening at " not in (line := process.stdout.readline()):
            assert line, process.stderr.read()
        found = Client(line.split()[-1]).search(["fox", "", "the", "whale fox"], 3)
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=60)[1]
    assert [[hit.passage.id for hit in hits] for hits in found] == [["a"], [], [], ["a", "b"]]
    assert process.returncode == 130 and "Traceback" not in said
