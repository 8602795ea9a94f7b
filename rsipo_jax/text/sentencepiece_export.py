"""A trained sentencepiece tokenizer in Hugging Face's format."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tokenizers
from transformers import PreTrainedTokenizerFast

from rsipo_jax.text.hf_tokenizer import save_transformers
from rsipo_jax.text.sentencepiece_tokenizer import ASSISTANT, END, PAD, SPACE, UNK, USER

# The chat format of `opening` and `following`, for transformers.
CHAT_TEMPLATE = (
    "{%- for message in messages %}"
    f"{{%- if message.role == 'user' %}}{{{{- '{USER}' + message.content }}}}"
    f"{{%- elif message.role == 'assistant' %}}{{{{- '{ASSISTANT}' + message.content + '{END}' }}}}"
    "{%- else %}{{- raise_exception('messages are of the user or the assistant') }}"
    "{%- endif %}"
    "{%- endfor %}"
    f"{{%- if add_generation_prompt %}}{{{{- '{ASSISTANT}' }}}}{{%- endif %}}"
)


def export_sentencepiece(pieces: Sequence[Any], folder: str | Path) -> None:
    """Writes tokenizer.json, tokenizer_config.json and the chat template of a model with these `pieces`."""
    fast = PreTrainedTokenizerFast(
        tokenizer_object=_transcribed(pieces),
        pad_token=PAD,
        unk_token=UNK,
        eos_token=END,
        additional_special_tokens=[USER, ASSISTANT],
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = CHAT_TEMPLATE
    save_transformers(fast, folder)


def _transcribed(pieces: Sequence[Any]) -> Any:
    """The same BPE for the `tokenizers` library, from the `pieces` of a sentencepiece model.

    Pieces have their spaces as spaces, so text needs no normaliser and the sign for a space remains a sign. One
    vocabulary and one list of merges, best first: sentencepiece joins the neighbours whose piece has the best score.
    """
    names = [p.piece if p.type == p.BYTE else p.piece.replace(SPACE, " ") for p in pieces]
    learned = {name: p.score for name, p in zip(names, pieces, strict=True) if p.type == p.NORMAL}
    merges = [
        (name[:cut], name[cut:])
        for name in sorted(learned, key=learned.__getitem__, reverse=True)
        for cut in range(1, len(name))
        if name[:cut] in learned and name[cut:] in learned
    ]
    bpe = tokenizers.Tokenizer(
        tokenizers.models.BPE(
            vocab={name: i for i, name in enumerate(names)}, merges=merges, unk_token=UNK, byte_fallback=True
        )
    )
    bpe.decoder = tokenizers.decoders.Sequence(
        [tokenizers.decoders.ByteFallback(), tokenizers.decoders.Fuse()]
    )
    for name, p in zip(names, pieces, strict=True):
        token = tokenizers.AddedToken(name, normalized=False, special=p.type != p.USER_DEFINED)
        if p.type in (p.CONTROL, p.UNKNOWN):
            bpe.add_special_tokens([token])
        elif p.type == p.USER_DEFINED:
            bpe.add_tokens([token])
    return bpe
