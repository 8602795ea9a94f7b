"""Parameters as a Hugging Face checkpoint that transformers loads: the inverse of `huggingface.load_params`.

Tensors are fetched one by one, and a file is written when it is full, so a host holds one file's tensors at a time.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from safetensors.numpy import save_file

from rsipo_jax.models.huggingface import FAMILIES, INDEX, TOP_LEVEL, WEIGHTS, in_layer
from rsipo_jax.models.lora import is_adapter, merged
from rsipo_jax.models.transformer import LORA_A, LORA_B, ModelConfig, Params

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

    Adapters are merged into the weights, in float32 before they are rounded to `dtype`. The current process must be able
    to address every shard.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    draft.chmod(0o755)  # a folder to hand on, not a private one
    try:
        _save_weights(draft, dict(_tensors(params, config)), dtype, file_bytes)
        _write_json(draft / "config.json", _config(config, dtype, max_length, stop_ids, pad_id))
        _write_json(
            draft / "generation_config.json", {"eos_token_id": list(stop_ids), "pad_token_id": pad_id}
        )
        also(draft)
        draft.rename(folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


@dataclass(frozen=True)
class Tensor:
    """One tensor of a checkpoint, not fetched yet."""

    size: int
    fetch: Callable[[], jax.Array]  # a vector, or a matrix as checkpoints have it: [out, in]


def _tensors(params: Params, config: ModelConfig) -> Iterator[tuple[str, Tensor]]:
    """Every tensor by its name in a checkpoint."""
    for leaf, name in TOP_LEVEL.items():
        if leaf in params:
            yield name, Tensor(params[leaf].size, partial(params.__getitem__, leaf))
    for i in range(config.num_layers):
        for leaf, stack in params["layers"].items():
            if not is_adapter(leaf):
                size = stack.size // config.num_layers
                yield in_layer(i, leaf), Tensor(size, partial(_of_layer, params["layers"], i, leaf, config))


def _of_layer(layers: Params, i: int, leaf: str, config: ModelConfig) -> jax.Array:
    layer = {name: layers[name][i] for name in (leaf, leaf + LORA_A, leaf + LORA_B) if name in layers}
    return merged(layer, leaf, config).T


def _save_weights(folder: Path, tensors: Mapping[str, Tensor], dtype: str, file_bytes: int) -> None:
    """`model.safetensors`, or numbered files and their index where one would be larger than `file_bytes`."""
    itemsize = jnp.dtype(dtype).itemsize
    files: list[list[str]] = [[]]
    total, room = 0, file_bytes
    for name, tensor in tensors.items():
        size = itemsize * tensor.size
        if files[-1] and size > room:
            files.append([])
            room = file_bytes
        files[-1].append(name)
        total, room = total + size, room - size

    file_of: dict[str, str] = {}
    for n, names in enumerate(files, 1):
        file = WEIGHTS if len(files) == 1 else f"model-{n:05d}-of-{len(files):05d}.safetensors"
        fetched = {
            name: np.ascontiguousarray(np.asarray(tensors[name].fetch()), jnp.dtype(dtype)) for name in names
        }
        save_file(fetched, folder / file, metadata={"format": "pt"})  # without this transformers refuses it
        (folder / file).chmod(0o644)  # it makes files for their owner only
        file_of |= dict.fromkeys(names, file)
    if len(files) > 1:
        _write_json(folder / INDEX, {"metadata": {"total_size": total}, "weight_map": file_of})


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
