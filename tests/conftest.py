"""Settings of the whole suite: the CPU backend, repeatable hypothesis runs, and what several parts share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

os.environ["JAX_PLATFORMS"] = "cpu"  # before anything imports jax

import pytest
from hypothesis import settings

from rsipo_jax.text.sentencepiece_tokenizer import SentencePieceTokenizer, train_sentencepiece
from tests.models.real_weights import provide, write_smollm2

settings.register_profile("default", deadline=None, max_examples=50)
settings.register_profile("ci", deadline=None, max_examples=50, derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "default")


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> SentencePieceTokenizer:
    """About 500 pieces, learned from a few sentences of ALFWorld."""
    texts = [
        "You are in the middle of a room. Looking quickly around you, you see a bed 1, a desk 1, and a drawer 1.",
        "Your task is to: put a clean mug in desk.",
        "You arrive at drawer 1. The drawer 1 is closed. You open the drawer 1. In it, you see a mug 1.",
        "<think> find mug</think><action> go to drawer 1</action><action> take mug 1 from drawer 1</action>",
        "Skill for this episode, consult it before you act: go to drawer 1, open drawer 1, take mug 1",
        '{"episode_summary": "put a clean mug in desk", "episode_skill": "go to drawer 1, open drawer 1"}',
        "Reason about the next step, then give one action. Nothing happens. Admissible actions:",
    ]
    return train_sentencepiece(texts, tmp_path_factory.mktemp("tokenizer"), vocab_size=512)


@pytest.fixture(scope="session")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """SmolLM2-135M-Instruct in float32, as a Hugging Face folder; skips where its package is not installed."""
    yield from provide("smollm2", write_smollm2, tmp_path_factory.mktemp("weights"))
