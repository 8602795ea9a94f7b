"""The tokenizer and chat format that a Hugging Face checkpoint brings.

The checkpoint's chat template is rendered once, around sentinels, and cut into what stands before, between and after
messages. Rendering it again and again would tokenise the policy's own responses anew, and some templates rewrite
earlier turns (Qwen3's drops their thoughts): here a response stays the ids that were sampled.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rsipo_jax.text.tokenizer import well_formed
from rsipo_jax.validation import ConfigError

_USER, _RESPONSE, _NEXT = "First-User-Message", "First-Response", "Second-User-Message"


class HFTokenizer:
    """Implements `Tokenizer` with a byte-level transformers tokenizer that has a chat template.

    `decode(encode(text)) == text` holds up to the checkpoint's own normalisation (Qwen's composes accents).

    A conversation has the ids that transformers gives the rendered template, but for differences that are meant:
    * Each part is tokenised by itself, so it shares no token with the text beside it; where a message begins with white
      space, transformers may merge that with the template's newline.
    * Text never yields a special id, even where it spells one.
    * Messages stand as they are and responses as they were sampled: Llama 3's template trims them, Qwen3's drops the
      thoughts, empty ones too, before the last message.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.vocab_size: int = len(tokenizer)
        self._special = {i for i, token in tokenizer.added_tokens_decoder.items() if token.special}
        self._bytes = bytes_of_characters()
        before, after = self._rendered([_USER])
        self._opening = self._template_ids(before), self._template_ids(after)
        _, _, between, after = self._rendered([_USER, _RESPONSE, _NEXT])
        end, *before_next = self._template_ids(between)
        if end not in self._special:
            raise ConfigError(
                f"the chat template of {tokenizer.name_or_path!r} ends a response with {between!r}, which does not "
                "start with a special token: set config.model.checkpoint to an instruction-tuned checkpoint"
            )
        self._following = before_next, self._template_ids(after)
        # Qwen's models also stop at the end of a text, which is their pad token.
        stops = (end, tokenizer.eos_token_id, tokenizer.pad_token_id)
        self.stop_ids: tuple[int, ...] = tuple(dict.fromkeys(i for i in stops if i is not None))
        self.pad_id: int = end if tokenizer.pad_token_id is None else tokenizer.pad_token_id

    def encode(self, text: str) -> list[int]:
        """See `Tokenizer.encode`."""
        ids: list[int] = self._tokenizer.encode(
            well_formed(text), add_special_tokens=False, split_special_tokens=True
        )
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """See `Tokenizer.decode`."""
        text: str = self._tokenizer.decode(
            [int(i) for i in ids], skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return text

    def token_bytes(self, token_id: int) -> bytes:
        """See `Tokenizer.token_bytes`."""
        token = self._tokenizer.convert_ids_to_tokens(int(token_id))
        if token is None or token_id in self._special:
            return b""
        try:
            return bytes(self._bytes[character] for character in token)
        except KeyError:  # an added token is written as it is
            return token.encode("utf-8")

    def opening(self, parts: Sequence[str]) -> list[list[int]]:
        """See `Tokenizer.opening`."""
        return self._message(self._opening, parts)

    def following(self, parts: Sequence[str]) -> list[list[int]]:
        """See `Tokenizer.following`."""
        return self._message(self._following, parts)

    def save(self, folder: str | Path) -> None:
        """See `Tokenizer.save`."""
        save_transformers(self._tokenizer, folder)

    def export(self, folder: str | Path) -> None:
        """See `Tokenizer.export`."""
        self.save(folder)

    @classmethod
    def load(cls, source: str | Path) -> HFTokenizer:
        """The tokenizer of a folder or hub id, as its tokenizer.json says.

        AutoTokenizer of transformers 5 builds the class that tokenizer_config.json names instead, with that class's
        own word splits: SmolLM2's "GPT2Tokenizer" loses its rule that every digit is a word, and so do others
        (https://github.com/huggingface/transformers/issues/45920).

        Raises ConfigError when there is no tokenizer, or it has no chat template or is not byte-level.
        """
        os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")  # it advises to install torch
        from tokenizers.decoders import ByteLevel
        from transformers import (
            PreTrainedTokenizerFast,
        )  # takes seconds; runs without a checkpoint never need it

        try:
            tokenizer = PreTrainedTokenizerFast.from_pretrained(str(source))
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"no tokenizer can be loaded from {str(source)!r} ({str(error).splitlines()[0]}): "
                "set config.model.checkpoint to a folder or hub id that holds one"
            ) from error
        if not tokenizer.is_fast or not tokenizer.chat_template:
            raise ConfigError(
                f"the tokenizer of {str(source)!r} has no chat template or no tokenizer.json: "
                "set config.model.checkpoint to an instruction-tuned checkpoint"
            )
        if not isinstance(tokenizer.backend_tokenizer.decoder, ByteLevel):
            # Such tokenizers put a space before every text they are given, so parts do not add up to the message.
            raise ConfigError(
                f"the tokenizer of {str(source)!r} is not byte-level, as Qwen's, SmolLM2's and Llama 3's are: "
                "set config.model.checkpoint to a checkpoint of these families"
            )
        return cls(tokenizer)

    def _message(self, frame: tuple[list[int], list[int]], parts: Sequence[str]) -> list[list[int]]:
        before, after = frame
        return [list(before), *(self.encode(part) for part in parts), list(after)]

    def _rendered(self, contents: Sequence[str]) -> list[str]:
        """What the chat template puts before, between and after these contents of user, assistant, user messages."""
        messages = [
            {"role": "assistant" if turn % 2 else "user", "content": content}
            for turn, content in enumerate(contents)
        ]
        rest = self._tokenizer.apply_chat_template(
            messages,
            tokenize=False,
            add_generation_prompt=True,
            enable_thinking=False,  # Qwen3 opens the response with an empty thought; other templates ignore it
        )
        pieces = []
        for content in contents:
            piece, found, rest = rest.partition(content)
            if not found:
                raise ConfigError(
                    f"the chat template of {self._tokenizer.name_or_path!r} does not show messages as they are: "
                    "set config.model.checkpoint to an instruction-tuned checkpoint"
                )
            pieces.append(piece)
        return [*pieces, rest]

    def _template_ids(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False, split_special_tokens=False)
        return ids


def save_transformers(tokenizer: Any, folder: str | Path) -> None:
    """`save_pretrained` with the names that transformers 4 knows and 5 still reads: it then does what tokenizer.json says.

    Servers that hold a policy often have transformers 4, which knows no class TokenizersBackend and wants a dict where
    5 writes a list of special tokens.
    """
    tokenizer.save_pretrained(str(folder))
    path = Path(folder) / "tokenizer_config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    config["tokenizer_class"] = "PreTrainedTokenizerFast"
    config["additional_special_tokens"] = config.pop("extra_special_tokens", [])
    path.write_text(json.dumps(config, indent=2, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8")


def bytes_of_characters() -> dict[str, int]:
    """Byte-level BPE's alphabet: printable Latin-1 stands for itself, U+0100 and up for the other bytes in order."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    other = [byte for byte in range(0x100) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(other)}
