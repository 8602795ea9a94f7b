"""The tokenizer and chat format that a Hugging Face checkpoint brings.

The checkpoint's chat template is rendered once, around sentinels, and cut into what stands before, between and after
messages. Rendering it again and again would tokenise the policy's own responses anew, and some templates rewrite
earlier turns (Qwen3's drops their thoughts): here a response stays the ids that were sampled.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rsipo_jax.text.tokenizer import well_formed
from rsipo_jax.validation import ConfigError

_USER, _RESPONSE, _NEXT = "First-User-Message", "First-Response", "Second-User-Message"


class HFTokenizer:
    """Implements `Tokenizer` with a fast transformers tokenizer that has a chat template.

    `decode(encode(text)) == text` holds up to the checkpoint's own normalisation (Qwen's composes accents).
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.vocab_size: int = len(tokenizer)
        before, after = self._rendered([_USER])
        self._opening = self._template_ids(before), self._template_ids(after)
        _, _, between, after = self._rendered([_USER, _RESPONSE, _NEXT])
        end, *before_next = self._template_ids(between)
        if end not in tokenizer.all_special_ids:
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

    def opening(self, parts: Sequence[str]) -> list[list[int]]:
        """See `Tokenizer.opening`."""
        return self._message(self._opening, parts)

    def following(self, parts: Sequence[str]) -> list[list[int]]:
        """See `Tokenizer.following`."""
        return self._message(self._following, parts)

    def save(self, folder: str | Path) -> None:
        """See `Tokenizer.save`."""
        self._tokenizer.save_pretrained(str(folder))

    @classmethod
    def load(cls, source: str | Path) -> HFTokenizer:
        """The tokenizer of a folder or hub id. Raises ConfigError when there is none, or it has no chat template."""
        os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")  # it advises to install torch
        from transformers import AutoTokenizer  # takes seconds; runs without a checkpoint never need it

        try:
            tokenizer = AutoTokenizer.from_pretrained(str(source))
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
