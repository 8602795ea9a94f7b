"""Text shown while it is sampled: never half a character, and in the end exactly what `decode` gives."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rsipo_jax.text.incremental import IncrementalDecoder
from rsipo_jax.text.sentencepiece_tokenizer import SentencePieceTokenizer
from rsipo_jax.text.tokenizer import Tokenizer, load_tokenizer

TEXTS = st.text(st.characters(codec="utf-8") | st.sampled_from("aé中🎉▁ \N{REPLACEMENT CHARACTER}"))
KINDS = ("sentencepiece", "smollm2", "qwen3")


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest, tokenizer: SentencePieceTokenizer) -> Tokenizer:
    if request.param == "sentencepiece":
        return tokenizer
    folder: Path = request.getfixturevalue(request.param)
    return load_tokenizer(folder)


@given(data=st.data())
def test_any_ids_give_what_decode_gives(kind: Tokenizer, data: st.DataObject) -> None:
    ids = data.draw(st.lists(st.integers(0, kind.vocab_size + 9) | st.integers(0, 300)))
    decoder = IncrementalDecoder(kind)
    shown = "".join(map(decoder.push, ids)) + decoder.flush()
    assert shown == kind.decode(ids)


@given(text=TEXTS)
def test_every_moment_shows_a_beginning_of_the_text(kind: Tokenizer, text: str) -> None:
    whole = kind.decode(kind.encode(text))
    decoder = IncrementalDecoder(kind)
    shown = ""
    for i in kind.encode(text):
        shown += decoder.push(i)
        assert whole.startswith(shown)
    assert decoder.flush() == "" and shown == whole


def test_a_character_appears_when_it_is_complete(tokenizer: SentencePieceTokenizer) -> None:
    decoder = IncrementalDecoder(tokenizer)
    assert [decoder.push(i) for i in tokenizer.encode("🎉")] == ["", "", "", "🎉"]
    end = tokenizer.stop_ids[0]
    assert [decoder.push(i) for i in (*tokenizer.encode("🎉")[:2], end)] == ["", "", ""]
    assert decoder.flush() == "\N{REPLACEMENT CHARACTER}"
    assert decoder.push(tokenizer.encode("a")[0]) == "a"
