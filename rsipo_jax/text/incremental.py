"""Text of a response while it is sampled, for stop sequences and live display."""

from __future__ import annotations

import codecs

from rsipo_jax.text.tokenizer import Tokenizer


class IncrementalDecoder:
    """Takes ids one by one and gives the text that no later id can change; its work per id does not grow.

    A character whose bytes come in several ids appears when it is complete. What `push` and `flush` returned, joined,
    is `Tokenizer.decode` of all the ids.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        """The text that `token_id` makes final: none while a character is in the making."""
        return self._utf8.decode(self._tokenizer.token_bytes(token_id))

    def flush(self) -> str:
        """U+FFFD if the ids ended within a character, else nothing; then it begins anew."""
        return self._utf8.decode(b"", final=True)
