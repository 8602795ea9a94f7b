"""Import of Hugging Face checkpoints: which configs and tensors are read, into which shards, and one-sentence refusals."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import huggingface_hub
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from rsipo_jax.models.huggingface import CheckpointError, load_params, read_config, resolve_checkpoint
from rsipo_jax.models.transformer import Llama3Rope, ModelConfig

GOLDENS = Path(__file__).parent / "goldens"
ROOT = Path(__file__).parents[2]


# The fields of published config.json files that matter, in the spelling they were published in.
SMOLLM2: dict[str, Any] = {
    "attention_bias": False,
    "attention_dropout": 0.0,
    "hidden_act": "silu",
    "hidden_size": 576,
    "intermediate_size": 1536,
    "mlp_bias": False,
    "model_type": "llama",
    "num_attention_heads": 9,
    "num_hidden_layers": 30,
    "num_key_value_heads": 3,
    "rms_norm_eps": 1e-05,
    "rope_scaling": None,
    "rope_theta": 100000,
    "tie_word_embeddings": True,
    "vocab_size": 49152,
}
QWEN2: dict[str, Any] = {
    "attention_dropout": 0.0,
    "hidden_act": "silu",
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "max_window_layers": 28,
    "model_type": "qwen2",
    "num_attention_heads": 28,
    "num_hidden_layers": 28,
    "num_key_value_heads": 4,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "sliding_window": 131072,
    "tie_word_embeddings": False,
    "use_sliding_window": False,
    "vocab_size": 152064,
}
QWEN3: dict[str, Any] = {
    "attention_bias": False,
    "attention_dropout": 0.0,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "max_window_layers": 28,
    "model_type": "qwen3",
    "num_attention_heads": 16,
    "num_hidden_layers": 28,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "sliding_window": None,
    "tie_word_embeddings": True,
    "use_sliding_window": False,
    "vocab_size": 151936,
}
NEW_ROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}


# Llama-3.1's rotary scaling, as its config.json has it.
LLAMA3: dict[str, Any] = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
    "rope_type": "llama3",
}


def config_of(folder: Path, fields: dict[str, Any]) -> ModelConfig:
    (folder / "config.json").write_text(json.dumps(fields))
    return read_config(folder, "bfloat16", scan_layers=True)


def test_published_configs_are_read(tmp_path: Path) -> None:
    assert config_of(tmp_path, SMOLLM2) == ModelConfig(
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_layers=30,
        num_heads=9,
        num_kv_heads=3,
        head_dim=64,
        rope_theta=1e5,
        rms_norm_eps=1e-5,
        tie_embeddings=True,
        qkv_bias=False,
        qk_norm=False,
        dtype="bfloat16",
        scan_layers=True,
    )
    qwen2, qwen3 = config_of(tmp_path, QWEN2), config_of(tmp_path, QWEN3)
    assert (qwen2.head_dim, qwen2.tie_embeddings, qwen2.rope_theta) == (128, False, 1e6)
    assert (qwen2.qkv_bias, qwen2.qk_norm, qwen3.qkv_bias, qwen3.qk_norm) == (True, False, False, True)
    assert qwen3.head_dim * qwen3.num_heads == 2 * qwen3.hidden_size


@pytest.mark.parametrize(
    ("change", "field", "value"),
    [
        (NEW_ROPE, "rope_theta", 5e5),
        ({"rope_theta": None} | NEW_ROPE, "rope_theta", 5e5),
        ({"rope_scaling": {"type": "default"}}, "rope_theta", 1e6),
        ({"head_dim": None}, "head_dim", 128),
        ({"head_dim": 64}, "head_dim", 64),
        ({"num_key_value_heads": None}, "num_kv_heads", 28),
        ({"tie_word_embeddings": True}, "tie_embeddings", True),
        ({"use_sliding_window": True, "sliding_window": None}, "num_layers", 28),
        ({"use_sliding_window": True, "max_window_layers": 28}, "num_layers", 28),
        ({"layer_types": ["full_attention"] * 28}, "num_layers", 28),
        ({"per_layer_config": {}}, "num_layers", 28),
        ({"attention_bias": True}, "qkv_bias", True),
    ],
)
def test_harmless_variants_are_read(tmp_path: Path, change: dict[str, Any], field: str, value: Any) -> None:
    assert getattr(config_of(tmp_path, QWEN2 | change), field) == value


@pytest.mark.parametrize(
    ("change", "trained"),
    [
        ({"rope_scaling": LLAMA3}, 8192),
        ({"rope_parameters": LLAMA3 | {"rope_theta": 1e5}}, 8192),
        # transformers prefers a length beside the mapping, and without one takes the model's
        ({"rope_scaling": LLAMA3, "original_max_position_embeddings": 2048}, 2048),
        (
            {
                "rope_scaling": {k: v for k, v in LLAMA3.items() if k != "original_max_position_embeddings"},
                "max_position_embeddings": 512,
            },
            512,
        ),
    ],
)
def test_llama_3s_rotary_scaling_is_read_in_both_spellings(
    tmp_path: Path, change: dict[str, Any], trained: int
) -> None:
    config = config_of(tmp_path, SMOLLM2 | change)
    assert config.rope_scaling == Llama3Rope(8.0, 1.0, 4.0, trained)
    assert config.rope_theta == 1e5


def test_fields_left_out_have_transformers_defaults(tmp_path: Path) -> None:
    optional = ("head_dim", "rope_theta", "rms_norm_eps", "tie_word_embeddings", "hidden_act")
    config = config_of(tmp_path, {name: value for name, value in QWEN3.items() if name not in optional})
    assert (config.head_dim, config.rope_theta, config.rms_norm_eps, config.tie_embeddings) == (
        128,
        1e4,
        1e-6,
        False,
    )


@pytest.mark.parametrize(
    ("base", "change", "said"),
    [
        (QWEN2, {"model_type": "gemma3"}, 'model_type="gemma3", but only qwen2 or qwen3 or llama'),
        (QWEN2, {"model_type": None}, "model_type=null"),
        (QWEN2, {"hidden_act": "gelu"}, 'hidden_act="gelu", but only "silu"'),
        (QWEN2, {"attention_dropout": 0.1}, "attention_dropout=0.1, but only 0"),
        (QWEN2, {"is_causal": False}, "is_causal=false, but only true"),
        (QWEN2, {"quantization_config": {"bits": 4}}, 'quantization_config={"bits": 4}, but only null'),
        (SMOLLM2, {"attention_bias": True}, "attention_bias=true, but only false"),
        (QWEN3, {"attention_bias": True}, "attention_bias=true, but only false"),
        (SMOLLM2, {"mlp_bias": True}, "mlp_bias=true, but only false"),
        (
            QWEN2,
            {"use_sliding_window": True, "max_window_layers": 21},
            "use_sliding_window=true, but only false",
        ),
        (QWEN3, {"layer_types": ["full_attention", "sliding_attention"]}, 'layer_types="sliding_attention"'),
        (QWEN3, {"layer_types": 5}, "layer_types=5"),
        (
            QWEN2,
            {"use_sliding_window": True, "sliding_window": 3, "max_window_layers": "x"},
            'max_window_layers="x", but only a whole number',
        ),
        (SMOLLM2, {"sliding_window": 4096}, "sliding_window=4096, but only null"),
        (SMOLLM2, {"attention_chunk_size": 64}, "attention_chunk_size=64, but only null"),
        (QWEN3, {"per_layer_config": {"0": {"head_dim": 64}}}, "per_layer_config="),
        (SMOLLM2, {"rope_scaling": LLAMA3 | {"factor": None}}, "rope_scaling.factor=null"),
        (
            SMOLLM2,
            {"rope_scaling": LLAMA3 | {"low_freq_factor": 4.0}},
            "low_freq_factor=4.0, but only less than",
        ),
        (
            SMOLLM2,
            {"rope_parameters": LLAMA3 | {"attention_factor": 2.0}},
            "rope_parameters.attention_factor=2.0",
        ),
        (
            SMOLLM2,
            {"rope_scaling": LLAMA3 | {"original_max_position_embeddings": None}},
            "original_max_position_embeddings=null, but only a whole number above 0",
        ),
        (QWEN2, {"rope_parameters": {"full_attention": NEW_ROPE}}, "rope_parameters.full_attention="),
        (QWEN2, {"tie_word_embeddings": "false"}, 'tie_word_embeddings="false", but only true or false'),
        (QWEN2, {"rope_scaling": {"type": "yarn", "factor": 4.0}}, 'rope_scaling.rope_type="yarn"'),
        (QWEN2, {"rope_parameters": {"rope_type": "linear"}}, 'rope_parameters.rope_type="linear"'),
        (QWEN2, {"rope_parameters": {"mrope_section": [16, 24]}}, "rope_parameters.mrope_section="),
        (QWEN2, {"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor=0.5"),
        (SMOLLM2, {"partial_rotary_factor": 0.5}, "partial_rotary_factor=0.5, but only 1"),
        (
            QWEN2,
            {"rope_parameters": {"rope_theta": "big"}},
            'rope_theta="big", but only a finite number above 0',
        ),
        (QWEN2, {"rope_parameters": [1]}, "rope_parameters=[1], but only a mapping"),
        (QWEN2, {"rms_norm_eps": 0}, "rms_norm_eps=0, but only a finite number above 0"),
        (QWEN2, {"vocab_size": None}, "vocab_size=null, but only a whole number above 0"),
        (QWEN2, {"hidden_size": 35.5}, "hidden_size=35.5"),
        (QWEN2, {"num_hidden_layers": True}, "num_hidden_layers=true"),
        (QWEN2, {"num_key_value_heads": 3}, "num_key_value_heads=3, but only a divisor of 28 heads"),
        (QWEN2, {"head_dim": 33}, "head_dim=33, but only an even width"),
    ],
)
def test_what_we_do_not_compute_is_refused_in_one_sentence(
    tmp_path: Path, base: dict[str, Any], change: dict[str, Any], said: str
) -> None:
    with pytest.raises(CheckpointError) as refusal:
        config_of(tmp_path, base | change)
    sentence = str(refusal.value)
    assert said in sentence and "is supported" in sentence and "config.model.checkpoint" in sentence
    assert str(tmp_path / "config.json") in sentence and "\n" not in sentence


@pytest.mark.parametrize(
    ("content", "said"),
    [(None, "holds no config.json"), ("{", "is not JSON"), ("[]", "is not a JSON object")],
)
def test_an_unreadable_config_is_one_sentence(tmp_path: Path, content: str | None, said: str) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(CheckpointError, match=said):
        read_config(tmp_path, "float32", scan_layers=True)


Tensors = dict[str, np.ndarray]
EMBED, HEAD, NORM = "model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"


def load_changed(folder: Path, change: Callable[[Tensors], Any]) -> Any:
    """Loads the tied Qwen2 golden after `change` was made to its tensors."""
    tensors = load_file(GOLDENS / "qwen2-tied" / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")
    return load_params(folder, read_config(GOLDENS / "qwen2-tied", "float32", scan_layers=True))


def test_a_shared_head_stored_twice_and_rotary_tables_are_accepted(tmp_path: Path) -> None:
    def change(tensors: Tensors) -> None:
        tensors[HEAD] = tensors[EMBED].copy()
        tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.ones(4, np.float32)

    assert "lm_head" not in load_changed(tmp_path, change)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda t: t.pop(NORM), f"lack tensors for its config.json ({NORM})"),
        (
            lambda t: [t.pop(name) for name in list(t) if name.endswith("bias")],
            "lack tensors for its config.json (model.layers.0.self_attn.k_proj.bias, "
            "model.layers.0.self_attn.q_proj.bias and 4 more)",
        ),
        (
            lambda t: t.update(score=np.ones(3, np.float32)),
            "hold unexpected tensors for its config.json (score)",
        ),
        (
            lambda t: t.update({EMBED: t[EMBED][:90].copy()}),
            f"{EMBED} in FOLDER has the shape (90, 32), but its config.json asks for (96, 32)",
        ),
        (lambda t: t.update({NORM: np.ones(32, np.int8)}), f"{NORM} in FOLDER has the type I8"),
        (lambda t: t.update({HEAD: t[EMBED] + 1}), f"{HEAD} in FOLDER differs from {EMBED}"),
        (lambda t: t.update({HEAD: t[EMBED][:5].copy()}), f"{HEAD} in FOLDER has the shape (5, 32)"),
    ],
)
def test_tensors_that_do_not_fit_are_one_sentence(
    tmp_path: Path, change: Callable[[Tensors], Any], said: str
) -> None:
    with pytest.raises(CheckpointError) as refusal:
        load_changed(tmp_path, change)
    assert said in str(refusal.value).replace(str(tmp_path), "FOLDER")
    assert ": set " in str(refusal.value) or ": fetch " in str(refusal.value)


def on_eight_devices(*arguments: str | Path) -> None:
    """Runs the program of that name, which asserts by itself."""
    program = Path(__file__).with_name("on_eight_devices.py")
    subprocess.run(
        [sys.executable, program, *arguments], check=True, env=os.environ | {"PYTHONPATH": str(ROOT)}
    )


def test_every_mesh_reads_each_tensor_once_into_the_shards_of_the_table() -> None:
    on_eight_devices("layouts", GOLDENS / "qwen2-untied")


def test_reading_takes_little_more_memory_than_the_shards(tmp_path: Path) -> None:
    on_eight_devices("write_wide", tmp_path / "wide")
    on_eight_devices("memory", tmp_path / "wide")
    shutil.rmtree(tmp_path / "wide")


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    return Path(shutil.copytree(GOLDENS / "qwen2-untied", tmp_path / "sharded"))


def cut_short(folder: Path) -> None:
    shard = folder / "model-00001-of-00003.safetensors"
    shard.write_bytes(shard.read_bytes()[:-100])


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda f: (f / "model.safetensors.index.json").unlink(), "holds neither model.safetensors nor"),
        (lambda f: (f / "model.safetensors.index.json").write_text("{}"), "has no weight_map"),
        (
            lambda f: (f / "model.safetensors.index.json").write_text('{"weight_map": {"a": "../a"}}'),
            "has no weight_map",
        ),
        (
            lambda f: (f / "model-00002-of-00003.safetensors").unlink(),
            "model-00002-of-00003.safetensors cannot",
        ),
        (cut_short, "model-00001-of-00003.safetensors cannot be read as safetensors"),
    ],
)
def test_damaged_files_are_one_sentence(sharded: Path, damage: Callable[[Path], Any], said: str) -> None:
    damage(sharded)
    with pytest.raises(CheckpointError, match=said) as refusal:
        load_params(sharded, read_config(sharded, "float32", scan_layers=True))
    assert "\n" not in str(refusal.value)


def test_a_local_folder_is_a_checkpoint_as_it_is(tmp_path: Path) -> None:
    assert resolve_checkpoint(str(tmp_path)) == tmp_path


def test_a_hub_id_is_fetched_without_foreign_formats(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    files = ("config.json", "model-00001-of-00002.safetensors", "tokenizer.json", "chat_template.jinja")
    foreign = ("pytorch_model.bin", "onnx/model.safetensors", "original/consolidated.00.pth", "modeling.py")
    kept: list[str] = []

    def snapshot_download(name: str, allow_patterns: list[str]) -> str:
        assert name == "Qwen/Qwen2.5-1.5B-Instruct"
        kept.extend(
            huggingface_hub.utils.filter_repo_objects((*files, *foreign), allow_patterns=allow_patterns)
        )
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    assert resolve_checkpoint("Qwen/Qwen2.5-1.5B-Instruct") == tmp_path
    assert kept == list(files)


@pytest.mark.parametrize("name", ["Qwen/Qwen2.5-1.5B-Instruct", "/no/such/folder"])
def test_a_checkpoint_that_is_nowhere_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    def no_network(*args: Any, **kwargs: Any) -> Any:
        raise huggingface_hub.errors.OfflineModeIsEnabled("the test is offline\nand says so twice")

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(huggingface_hub.HfApi, "repo_info", no_network)
    with pytest.raises(CheckpointError, match=r"set config\.model\.checkpoint to its folder") as refusal:
        resolve_checkpoint(name)
    assert repr(name) in str(refusal.value) and "\n" not in str(refusal.value)
