"""Parameters as a Hugging Face checkpoint that transformers loads: the inverse of `huggingface.load_params`.

Tensors are fetched one by one, and a file is written when it is full, so a host holds one file's tensors at a time.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from safetensors.numpy import save_file

from rsipo_jax.models.huggingface import FAMILIES, INDEX, TOP_LEVEL, WEIGHTS, in_layer
from rsipo_jax.models.lora import merge
from rsipo_jax.models.transformer import ModelConfig, Params

ARCHITECTURES = {"qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM", "llama": "LlamaForCausalLM"}
FILE_BYTES = 4 * 10**9  # of one file of weights, at most


def save_checkpoint(
    folder: Path,
    params: Params,
    config: ModelConfig,
    dtype: str,  # "float32" or "bfloat16", of every tensor
    max_length: int,  # tokens the network is good for, which transformers asks every config for
    stop_ids: tuple[int, ...],
    pad_id: int,
    also: Callable[[Path], object],  # puts more files beside them: the tokenizer's
    file_bytes: int = FILE_BYTES,
) -> None:
    """Writes weights, config.json and generation_config.json to `folder`, which is empty or absent until it is complete.

    Adapters are merged into the weights. The current process must be able to address every shard.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    draft.chmod(0o755)  # a folder to hand on, not a private one
    try:
        _save_weights(draft, dict(_tensors(merge(params, config), config)), dtype, file_bytes)
        _write_json(draft / "config.json", _config(config, dtype, max_length, stop_ids, pad_id))
        _write_json(
            draft / "generation_config.json", {"eos_token_id": list(stop_ids), "pad_token_id": pad_id}
        )
        also(draft)
        draft.rename(folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


Tensor = tuple[jax.Array, int | None]  # a leaf and, where it is a stack, the layer


def _tensors(params: Params, config: ModelConfig) -> Iterator[tuple[str, Tensor]]:
    """Every tensor by its name in a checkpoint."""
    for leaf, name in TOP_LEVEL.items():
        if leaf in params:
            yield name, (params[leaf], None)
    for i in range(config.num_layers):
        for leaf, stack in params["layers"].items():
            yield in_layer(i, leaf), (stack, i)


def _save_weights(folder: Path, tensors: Mapping[str, Tensor], dtype: str, file_bytes: int) -> None:
    """`model.safetensors`, or numbered files and their index where one would be larger than `file_bytes`."""
    itemsize = jnp.dtype(dtype).itemsize
    files: list[list[str]] = [[]]
    total, room = 0, file_bytes
    for name, (leaf, layer) in tensors.items():
        size = itemsize * leaf.size // (1 if layer is None else len(leaf))
        if files[-1] and size > room:
            files.append([])
            room = file_bytes
        files[-1].append(name)
        total, room = total + size, room - size

    file_of: dict[str, str] = {}
    for n, names in enumerate(files, 1):
        file = WEIGHTS if len(files) == 1 else f"model-{n:05d}-of-{len(files):05d}.safetensors"
        fetched = {name: _fetch(*tensors[name], dtype) for name in names}
        save_file(fetched, folder / file, metadata={"format": "pt"})  # without this transformers refuses it
        (folder / file).chmod(0o644)  # it makes files for their owner only
        file_of |= dict.fromkeys(names, file)
    if len(files) > 1:
        _write_json(folder / INDEX, {"metadata": {"total_size": total}, "weight_map": file_of})


def _fetch(leaf: jax.Array, layer: int | None, dtype: str) -> np.ndarray:
    """A tensor on the host, as checkpoints have it: matrices of a layer [out, in]."""
    values = np.asarray(leaf if layer is None else leaf[layer].T)
    return np.ascontiguousarray(values, jnp.dtype(dtype))


def _config(
    config: ModelConfig, dtype: str, max_length: int, stop_ids: tuple[int, ...], pad_id: int
) -> dict[str, Any]:
    """config.json. The rotary settings have their older spelling, which every version of transformers reads."""
    c = config
    switches = {"qkv_bias": c.qkv_bias, "qk_norm": c.qk_norm}
    family = next(name for name, wanted in FAMILIES.items() if wanted == switches)
    scaling = None
    if (rope := c.rope_scaling) is not None:
        scaling = {"rope_type": "llama3", **dataclasses.asdict(rope)}
    return {
        "architectures": [ARCHITECTURES[family]],
        "model_type": family,
        "vocab_size": c.vocab_size,
        "hidden_size": c.hidden_size,
        "intermediate_size": c.intermediate_size,
        "num_hidden_layers": c.num_layers,
        "num_attention_heads": c.num_heads,
        "num_key_value_heads": c.num_kv_heads,
        "head_dim": c.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": max_length,
        "rms_norm_eps": c.rms_norm_eps,
        "rope_theta": c.rope_theta,
        "rope_scaling": scaling,
        "tie_word_embeddings": c.tie_embeddings,
        "torch_dtype": dtype,
        "bos_token_id": None,  # prompts come whole from the chat template
        "eos_token_id": stop_ids[0],
        "pad_token_id": pad_id,
    }


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
