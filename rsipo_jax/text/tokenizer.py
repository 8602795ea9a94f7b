"""The one interface through which text becomes token ids and back."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol


class Tokenizer(Protocol):
    """What the rest of the code may ask of a tokenizer.

    A conversation is `opening`, response, `following`, response, `following`, ... concatenated. A response
    is what the policy sampled and ends with `stop_ids[0]`: the sampler emitted it, or the caller appends it
    to a response that was cut or that ended with another stop id.
    """

    @property
    def vocab_size(self) -> int:
        """Every id is in [0, vocab_size); an embedding may have more rows."""

    @property
    def pad_id(self) -> int:
        """Filler behind a sequence; says nothing about lengths, masks never come from it."""

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Ids that end a response; the first is the canonical end of turn."""

    def encode(self, text: str) -> list[int]:
        """Ids of plain text; no text yields a special id. Lone surrogates, which UTF-8 lacks, become `?`."""

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids, special ids left out; bytes that are not UTF-8 become U+FFFD.

        `decode(encode(text)) == text` for every text without lone surrogates, up to a normalisation that a
        Hugging Face checkpoint brings.
        """

    def token_bytes(self, token_id: int) -> bytes:
        """The UTF-8 bytes of one id, maybe a part of a character; none for a special id or one outside the vocabulary.

        `decode(ids)` is these bytes, joined and decoded with U+FFFD for what is not UTF-8.
        """

    def opening(self, parts: Sequence[str]) -> list[list[int]]:
        """Ids of a conversation's first user message, ready for the policy to respond.

        Returns `len(parts) + 2` lists: what the chat format puts before the message (with its own default
        system text), each part tokenised by itself, and what comes after, up to where the response begins.
        Inserting a part inserts its ids and changes no others.
        """

    def following(self, parts: Sequence[str]) -> list[list[int]]:
        """As `opening`, for a user message that follows a response (which has ended with `stop_ids[0]`)."""

    def save(self, folder: str | Path) -> None:
        """Writes what `load_tokenizer(folder)` needs."""

    def export(self, folder: str | Path) -> None:
        """Adds to `folder` what `transformers.AutoTokenizer` and `load_tokenizer` need, the chat template included."""


def well_formed(text: str) -> str:
    """`text` with lone surrogates replaced by `?`: `json.loads` of what a policy wrote can yield them."""
    return text.encode("utf-8", "replace").decode("utf-8")


def load_tokenizer(source: str | Path) -> Tokenizer:
    """The tokenizer in a folder, in a sentencepiece `.model` file, or of a Hugging Face hub id.

    A `.model` file, and a folder that `SentencePieceTokenizer` wrote, give that kind; anything else is a Hugging Face
    tokenizer. Raises ValueError, or its subclass ConfigError, when there is none that can be used.
    """
    from rsipo_jax.text.sentencepiece_tokenizer import MARKER, SentencePieceTokenizer

    if Path(source).suffix == ".model" or (Path(source) / MARKER).is_file():
        return SentencePieceTokenizer.load(source)
    from rsipo_jax.text.hf_tokenizer import HFTokenizer  # transformers takes seconds to import

    return HFTokenizer.load(source)
