"""Makes the goldens: checkpoints, and what torch and transformers compute with them.

    python tests/models/make_goldens.py FOLDER [SMOLLM2]

needs torch and transformers (requirements-parity.txt). FOLDER/<name>/ gets a tiny random checkpoint, as transformers
saves it, and expected.safetensors:

    tokens, lengths         rows end to end
    logits                  float32 [sum of lengths, vocab]
    prompts, prompt_lengths
    continuations           what greedy decoding adds to each prompt [prompts, NEW]

Weights and tokens come from NumPy's generator, whose stream is the same everywhere.

FOLDER/smollm2/expected.safetensors is about SMOLLM2, the folder that tests/models/real_weights.py writes. It has the rows
of real texts and, for a vocabulary too large to keep, `logits` of the ids `some` alone, beside `best` (the likeliest id)
and `logsumexp` of all. A continuation that ends early is padded with -1.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch  # type: ignore[import-not-found]  # it has an environment of its own
from safetensors.numpy import save_file
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
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
PROMPT_LENGTHS = (1, 4, 9, 14)
NEW = 24  # tokens of a continuation
QUESTIONS = (
    "What is the capital of France?",
    "You are in a kitchen and have to put a clean mug on the desk. The mug is in the sink. What do you do first?",
    "Write one sentence about the number 1729.",
)
TEXTS = (
    "You open the drawer 1. The drawer 1 is open. In it, you see a book 3, a cellphone 2, and a pencil 1.\n",
    "def add(a, b):\n    return a + b\n",
    "Hello",
)
CLEAR = 1e-3  # by how much each of them beats the next best: no rounding may decide


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

LLAMA3 = LlamaConfig(
    **SIZES,
    tie_word_embeddings=False,
    rope_parameters={  # of a head's four frequencies one stays as it is, one is blended, two are stretched
        "rope_type": "llama3",
        "rope_theta": 100.0,
        "factor": 4.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    },
)

# Name, model, its seed, the type its weights are stored in, the largest file.
GOLDENS: tuple[tuple[str, Any, Any, int, torch.dtype, str], ...] = (
    ("qwen2-tied", Qwen2ForCausalLM, QWEN2, 0, torch.float32, "1MB"),
    ("qwen2-untied", Qwen2ForCausalLM, UNTIED, 1, torch.bfloat16, "20KB"),
    ("qwen3", Qwen3ForCausalLM, QWEN3, 2, torch.float32, "1MB"),
    ("llama", LlamaForCausalLM, SMOLLM2, 3, torch.float32, "1MB"),
    ("llama3", LlamaForCausalLM, LLAMA3, 4, torch.float32, "1MB"),
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
        prompts = [rng.integers(VOCAB, size=length) for length in PROMPT_LENGTHS]
        expected = {
            **flat("tokens", "lengths", rows),
            "logits": np.concatenate([logits_of(model, row) for row in rows]),
            **flat("prompts", "prompt_lengths", prompts),
            "continuations": np.stack([continuation(model, prompt, stop=None) for prompt in prompts]),
        }
        save_file(expected, folder / name / "expected.safetensors")


@torch.no_grad()
def make_smollm2(folder: Path, checkpoint: Path) -> None:
    """Writes the golden of SmolLM2-135M-Instruct."""
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32, attn_implementation="eager")
    prompts = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": text}], add_generation_prompt=True, return_dict=False
        )
        for text in QUESTIONS
    ]
    rows = [np.asarray(ids) for ids in (*prompts, *(tokenizer.encode(text) for text in TEXTS))]
    logits = np.concatenate([logits_of(model.eval(), row) for row in rows])
    some = np.arange(0, logits.shape[1], 384)
    expected = {
        **flat("tokens", "lengths", rows),
        "some": some.astype(np.int32),
        "logits": np.ascontiguousarray(logits[:, some]),
        "best": logits.argmax(axis=1).astype(np.int32),
        "logsumexp": np.logaddexp.reduce(logits, axis=1),
        **flat("prompts", "prompt_lengths", [np.asarray(ids) for ids in prompts]),
        "continuations": np.stack([continuation(model, ids, tokenizer.eos_token_id) for ids in prompts]),
    }
    (folder / "smollm2").mkdir()
    save_file(expected, folder / "smollm2" / "expected.safetensors")


def flat(name: str, lengths: str, rows: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
    """Rows end to end under one name, and their lengths under the other."""
    return {
        name: np.concatenate(rows).astype(np.int32),
        lengths: np.asarray([len(row) for row in rows], np.int32),
    }


def logits_of(model: Any, row: Sequence[int]) -> np.ndarray:
    """Logits [len(row), vocab] of a row by itself, so without padding."""
    return model(torch.as_tensor(row)[None]).logits[0].numpy()


def continuation(model: Any, prompt: Sequence[int], stop: int | None) -> np.ndarray:
    """The NEW tokens that greedy decoding adds to a prompt, or those up to the stop token, then -1."""
    made = model.generate(
        torch.as_tensor(prompt)[None],
        generation_config=GenerationConfig(
            max_new_tokens=NEW,
            do_sample=False,
            eos_token_id=stop,
            pad_token_id=0,
            output_scores=True,
            return_dict_in_generate=True,
        ),
    )
    for scores in made.scores:
        best, second = scores[0].topk(2).values
        assert best - second > CLEAR, f"{best - second}: take another prompt or seed"
    new = made.sequences[0, len(prompt) :].numpy().astype(np.int32)
    return np.pad(new, (0, NEW - len(new)), constant_values=-1)


if __name__ == "__main__":
    make(Path(sys.argv[1]))
    if len(sys.argv) > 2:
        make_smollm2(Path(sys.argv[1]), Path(sys.argv[2]))
