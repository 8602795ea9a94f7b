"""Real tokenizers, made once per session; their tests skip where the package is not installed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.models.real_weights import provide
from tests.text.real_qwen import write_qwen3, write_qwen25


@pytest.fixture(scope="session")
def qwen25(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The tokenizer folder of Qwen2.5-Instruct."""
    yield from provide("qwen2.5-tokenizer", write_qwen25, tmp_path_factory.mktemp("tokenizers"))


@pytest.fixture(scope="session")
def qwen3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The tokenizer folder of Qwen3."""
    yield from provide("qwen3-tokenizer", write_qwen3, tmp_path_factory.mktemp("tokenizers"))
