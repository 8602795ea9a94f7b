"""Export: what was written reads back bit for bit, is what transformers computes too, and is complete or absent."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file
from transformers import AutoConfig, GenerationConfig

from rsipo_jax.models.hf_export import save_checkpoint
from rsipo_jax.models.huggingface import load_params, max_position_embeddings, read_config
from rsipo_jax.models.lora import add_adapters, join, split
from rsipo_jax.models.transformer import (
    LORA_A,
    LORA_B,
    Llama3Rope,
    ModelConfig,
    Params,
    cast_params,
    hidden_states,
)
from rsipo_jax.models.vocabulary import logits
from tests.models.reference import SMALL, make_params

FAMILIES: Mapping[str, ModelConfig] = {
    "qwen2": SMALL,
    "qwen2-untied": replace(SMALL, tie_embeddings=False, rope_theta=1e6),
    "qwen3": replace(SMALL, qkv_bias=False, qk_norm=True, head_dim=16),
    "llama": replace(SMALL, qkv_bias=False, rms_norm_eps=1e-5),
    "llama3": replace(SMALL, qkv_bias=False, rope_theta=5e5, rope_scaling=Llama3Rope(8.0, 1.0, 4.0, 16)),
}
TARGETS = ("q", "v", "o", "down")


def save(folder: Path, params: Params, config: ModelConfig, **changes: Any) -> None:
    arguments: dict[str, Any] = {
        "dtype": "float32",
        "max_length": 64,
        "stop_ids": (7, 3),
        "pad_id": 1,
        "also": lambda draft: None,
    }
    save_checkpoint(folder, params, config, **arguments | changes)


def with_adapters(params: Params) -> Params:
    """Adapters that compute something: a fresh one adds zero."""
    adapted = add_adapters(params, 4, TARGETS, jax.random.key(1))
    return jax.tree_util.tree_map_with_path(
        lambda path, a: a + 0.1 if path[-1].key.endswith("_lora_b") else a, adapted
    )


def assert_equal(tree: Params, other: Params) -> None:
    assert jax.tree.structure(tree) == jax.tree.structure(other)
    jax.tree.map(np.testing.assert_array_equal, tree, other)
    assert [a.dtype for a in jax.tree.leaves(tree)] == [a.dtype for a in jax.tree.leaves(other)]


@pytest.mark.parametrize("file_bytes", [10**9, 20_000])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_checkpoint_reads_back_bit_for_bit(tmp_path: Path, family: str, file_bytes: int) -> None:
    config = FAMILIES[family]
    params = make_params(config)
    folder = tmp_path / "new" / "out"
    save(folder, params, config, file_bytes=file_bytes)
    assert read_config(folder, "float32", config.scan_layers) == config
    assert max_position_embeddings(folder) == 64
    assert_equal(load_params(folder, config), params)

    files = sorted(path.name for path in folder.glob("*.safetensors"))
    if file_bytes == 10**9:
        assert files == ["model.safetensors"]
        return
    assert len(files) > 2 and files[0] == f"model-00001-of-{len(files):05d}.safetensors"
    tensors = [load_file(folder / file) for file in files]
    assert all(len(each) == 1 or sum(a.nbytes for a in each.values()) <= file_bytes for each in tensors)
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    assert index["weight_map"] == {n: f for f, each in zip(files, tensors, strict=True) for n in each}
    assert index["metadata"]["total_size"] == sum(a.nbytes for each in tensors for a in each.values())


def test_bfloat16_is_rounded_once_and_kept(tmp_path: Path) -> None:
    config = FAMILIES["qwen3"]
    params = make_params(config)
    save(tmp_path / "out", params, config, dtype="bfloat16")
    rounded = jax.tree.map(lambda a: a.astype(jnp.bfloat16), params)
    read = load_params(tmp_path / "out", config, "bfloat16")
    assert_equal(
        read, jax.tree.map(lambda a, like: a.astype(like.dtype), rounded, cast_params(params, "bfloat16"))
    )
    assert read["layers"]["q_norm"].dtype == jnp.float32 and read["layers"]["wq"].dtype == jnp.bfloat16

    save(tmp_path / "again", read, config, dtype="bfloat16")
    for file in ("model.safetensors", "config.json"):
        assert (tmp_path / "again" / file).read_bytes() == (tmp_path / "out" / file).read_bytes()


@pytest.mark.parametrize("held", ["float32", "bfloat16"])
def test_adapters_are_merged_in_float32(tmp_path: Path, held: str) -> None:
    """Also into a network that is held in bfloat16, which small changes would not move."""
    config = FAMILIES["llama"]
    adapters, base = split(with_adapters(make_params(config)))
    params = join(adapters, cast_params(base, held))
    save(tmp_path / "out", params, config)
    read = load_params(tmp_path / "out", config)
    for name, found in read["layers"].items():
        wanted = np.asarray(params["layers"][name], np.float32)
        if (down := params["layers"].get(name + LORA_A)) is not None:
            low_rank = np.einsum("nir,nro->nio", down, params["layers"][name + LORA_B])
            assert np.abs(low_rank).max() > 0
            wanted = wanted + config.lora_alpha / down.shape[-1] * low_rank
        np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("family", FAMILIES)
def test_transformers_reads_the_configs(tmp_path: Path, family: str) -> None:
    config = FAMILIES[family]
    save(tmp_path / "out", make_params(config), config)
    read, generation = (kind.from_pretrained(tmp_path / "out") for kind in (AutoConfig, GenerationConfig))
    kind = next(kind for kind in ("qwen2", "qwen3", "llama") if kind in family)
    assert (read.model_type, read.architectures) == (kind, [f"{kind.capitalize()}ForCausalLM"])
    assert (read.hidden_size, read.num_hidden_layers, read.vocab_size, read.head_dim) == (
        config.hidden_size, config.num_layers, config.vocab_size, config.head_dim,
    )  # fmt: skip
    assert (read.num_attention_heads, read.num_key_value_heads) == (config.num_heads, config.num_kv_heads)
    assert (read.rms_norm_eps, read.tie_word_embeddings) == (config.rms_norm_eps, config.tie_embeddings)
    assert read.rope_parameters["rope_theta"] == config.rope_theta
    assert read.rope_parameters["rope_type"] == ("llama3" if config.rope_scaling else "default")
    assert (read.max_position_embeddings, read.hidden_act, str(read.dtype)[-7:]) == (64, "silu", "float32")
    assert (generation.eos_token_id, generation.pad_token_id) == ([7, 3], 1)


def test_a_checkpoint_is_complete_or_absent(tmp_path: Path) -> None:
    config = FAMILIES["qwen2"]

    def interrupted(draft: Path) -> None:
        assert (draft / "model.safetensors").exists()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        save(tmp_path / "out", make_params(config), config, also=interrupted)
    assert not list(tmp_path.iterdir())

    (tmp_path / "out").mkdir()
    save(tmp_path / "out", make_params(config), config, also=lambda draft: (draft / "more").write_text("."))
    assert [path.name for path in tmp_path.iterdir()] == ["out"] and (tmp_path / "out" / "more").exists()


@pytest.mark.parametrize("adapted", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_torch_computes_the_same_logits(tmp_path: Path, family: str, adapted: bool) -> None:
    torch = pytest.importorskip(
        "torch", reason="torch is not installed here; `make goldens` runs this where it is"
    )
    from transformers import AutoModelForCausalLM

    config = FAMILIES[family]
    params = with_adapters(make_params(config)) if adapted else make_params(config)
    save(tmp_path / "out", params, config, file_bytes=20_000)
    model, report = AutoModelForCausalLM.from_pretrained(
        tmp_path / "out", dtype=torch.float32, output_loading_info=True
    )
    assert not any(report.values()), report
    tokens = np.random.default_rng(0).integers(config.vocab_size, size=(2, 40))
    with torch.no_grad():
        theirs = model.eval()(torch.from_numpy(tokens)).logits.numpy()
    positions = np.broadcast_to(np.arange(40), tokens.shape)
    inputs = (jnp.asarray(x, jnp.int32) for x in (tokens, positions, np.ones_like(tokens)))
    ours = logits(params, config, hidden_states(params, config, *inputs))
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-4)
