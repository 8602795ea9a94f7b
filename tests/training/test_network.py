"""The network before SFT: what is trained, what is frozen, and in which type each is held."""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rsipo_jax.models.lora import join, split
from rsipo_jax.models.transformer import cast_params
from rsipo_jax.text.sentencepiece_tokenizer import SentencePieceTokenizer
from rsipo_jax.training.setup import TOKENIZER, load_network
from tests.training.tiny_run import config

ADAPTERS = {"lora.rank": 2, "lora.alpha": 8.0, "lora.targets": ("q", "down"), "sft.optimizer": "adamw"}


@pytest.fixture
def workdir(tmp_path: Path, tokenizer: SentencePieceTokenizer) -> Path:
    tokenizer.save(tmp_path / TOKENIZER)
    return tmp_path


def test_without_adapters_all_parameters_are_float32(workdir: Path) -> None:
    network = load_network(config(**{"model.dtype": "bfloat16"}), workdir)
    assert {a.dtype for a in jax.tree.leaves(network.params)} == {jnp.dtype("float32")}
    assert split(network.params)[1] == {}


def test_adapters_are_float32_on_a_frozen_network_in_the_compute_dtype(workdir: Path) -> None:
    network = load_network(config(**{"model.dtype": "bfloat16"}, **ADAPTERS), workdir)
    trained, frozen = split(network.params)
    assert sum(a.size for a in jax.tree.leaves(trained)) == 2 * (2 * (32 + 32) + 2 * (64 + 32))  # 2 layers
    assert {a.dtype for a in jax.tree.leaves(trained)} == {jnp.dtype("float32")}
    norms = {"input_norm", "post_norm", "final_norm"}
    for path, a in jax.tree_util.tree_flatten_with_path(frozen)[0]:
        assert a.dtype == ("float32" if path[-1].key in norms else "bfloat16"), path
    assert network.model.lora_alpha == 8.0
    # The reference is held in the compute dtype: it shares every frozen array, and has adapters of its own.
    reference = cast_params(join(trained, frozen), "bfloat16")
    shared = [
        a is b for a, b in zip(jax.tree.leaves(split(reference)[1]), jax.tree.leaves(frozen), strict=True)
    ]
    assert all(shared)


def test_a_seed_draws_the_same_network_with_adapters_or_without(workdir: Path) -> None:
    plain, adapted = (load_network(config(**changes), workdir).params for changes in ({}, ADAPTERS))
    jax.tree.map(np.testing.assert_array_equal, plain, split(adapted)[1])
