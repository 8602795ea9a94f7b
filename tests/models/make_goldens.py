"""Makes the golden checkpoints: tiny random transformers models, and the logits torch computes with them.

    python tests/models/make_goldens.py FOLDER

needs torch and transformers (requirements-parity.txt). FOLDER/<name>/ gets config.json, the weights as transformers
saves them, and expected.safetensors: `tokens` and `logits` [sum of lengths, vocab] of rows of `lengths`, end to end.
Weights and tokens come from NumPy's generator, whose stream is the same everywhere.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch  # type: ignore[import-not-found]  # it has an environment of its own
from safetensors.numpy import save_file
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

VOCAB = 96
LENGTHS = (5, 17, 11)
SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}


def rope(theta: float) -> dict[str, Any]:
    return {"rope_type": "default", "rope_theta": theta}


QWEN2 = Qwen2Config(**SIZES, tie_word_embeddings=True, rope_parameters=rope(1e6))
UNTIED = Qwen2Config(**SIZES, tie_word_embeddings=False, rope_parameters=rope(1e4))
QWEN3 = Qwen3Config(**SIZES, head_dim=16, tie_word_embeddings=True, rope_parameters=rope(1e6))
SMOLLM2 = LlamaConfig(
    **(SIZES | {"hidden_size": 48, "num_attention_heads": 3, "num_key_value_heads": 1}),
    rms_norm_eps=1e-5,
    tie_word_embeddings=True,
    rope_parameters=rope(1e5),
)

# Name, model, its seed, the type its weights are stored in, the largest file.
GOLDENS: tuple[tuple[str, Any, Any, int, torch.dtype, str], ...] = (
    ("qwen2-tied", Qwen2ForCausalLM, QWEN2, 0, torch.float32, "1MB"),
    ("qwen2-untied", Qwen2ForCausalLM, UNTIED, 1, torch.bfloat16, "20KB"),
    ("qwen3", Qwen3ForCausalLM, QWEN3, 2, torch.float32, "1MB"),
    ("llama", LlamaForCausalLM, SMOLLM2, 3, torch.float32, "1MB"),
)


def randomise(model: Any, rng: np.random.Generator) -> None:
    """Weights far from a fresh network's near-zero ones, so that every tensor shows in the logits."""
    for name, weight in sorted(model.named_parameters()):
        noise = rng.normal(size=tuple(weight.shape))
        if name.endswith("norm.weight"):
            value = 1 + 0.2 * noise
        elif name.endswith("bias"):
            value = 0.5 * noise
        else:
            value = noise / weight.shape[1] ** 0.5
        weight.data = torch.from_numpy(value.astype(np.float32))
    model.tie_weights()


@torch.no_grad()
def make(folder: Path) -> None:
    """Writes every golden under `folder`."""
    for name, kind, config, seed, stored, largest_file in GOLDENS:
        rng = np.random.default_rng(seed)
        model = kind(config)
        randomise(model, rng)
        model.to(stored).save_pretrained(folder / name, max_shard_size=largest_file)
        (folder / name / "generation_config.json").unlink()

        # The values as stored, computed in float32.
        model = kind.from_pretrained(folder / name, dtype=torch.float32, attn_implementation="eager").eval()
        rows = [rng.integers(VOCAB, size=length) for length in LENGTHS]
        logits = [
            model(torch.from_numpy(row)[None]).logits[0].numpy() for row in rows
        ]  # row by row: no padding
        expected = {
            "tokens": np.concatenate(rows).astype(np.int32),
            "lengths": np.asarray(LENGTHS, np.int32),
            "logits": np.concatenate(logits),
        }
        save_file(expected, folder / name / "expected.safetensors")


if __name__ == "__main__":
    make(Path(sys.argv[1]))
