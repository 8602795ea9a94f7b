"""A trained tokenizer in Hugging Face's format: transformers gives the ids that we give."""

from __future__ import annotations

import json
from itertools import chain
from pathlib import Path
from typing import Any

import jinja2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rsipo_jax.text.sentencepiece_tokenizer import SentencePieceTokenizer
from rsipo_jax.text.tags import TAGS
from rsipo_jax.text.tokenizer import load_tokenizer

SPECIAL = ("<pad>", "<unk>", "<|user|>", "<|assistant|>", "<|end|>")
ALPHABET = st.characters(codec="utf-8") | st.sampled_from(' \n\t{}":,\\▁<>|_\x00\x1f')
# Words of the training text whole and in pieces, so that many merges meet.
WORDS = st.lists(
    st.sampled_from(
        [*TAGS, *SPECIAL, "<0x41>", "go to", " drawer 1", " mug", "mmu", "er", "a", "e", "o", "  "]
    )
).map("".join)
TEXTS = st.text(ALPHABET) | WORDS | st.text("abdegmorstu 1.,")


@pytest.fixture(scope="module")
def folder(tokenizer: SentencePieceTokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exported")
    tokenizer.export(folder)
    return folder


@pytest.fixture(scope="module")
def exported(folder: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(str(folder))


@given(text=TEXTS)
@settings(max_examples=300)
def test_text_has_our_ids_and_comes_back(tokenizer: SentencePieceTokenizer, exported: Any, text: str) -> None:
    ids = exported.encode(text, split_special_tokens=True)
    assert ids == tokenizer.encode(text)
    assert exported.decode(ids) == text


@given(
    turns=st.lists(
        TEXTS.filter(lambda text: not any(token in text for token in SPECIAL)), min_size=3, max_size=3
    )
)
def test_the_chat_template_gives_our_ids(
    tokenizer: SentencePieceTokenizer, exported: Any, turns: list[str]
) -> None:
    first, response, second = turns
    ids = [
        *chain(*tokenizer.opening([first])),
        *tokenizer.encode(response),
        tokenizer.stop_ids[0],
        *chain(*tokenizer.following([second])),
    ]
    messages = [
        {"role": "user", "content": first},
        {"role": "assistant", "content": response},
        {"role": "user", "content": second},
    ]
    assert exported.apply_chat_template(messages, add_generation_prompt=True, return_dict=False) == ids
    shown = exported.apply_chat_template(messages[:2], tokenize=False)
    assert shown == f"<|user|>{first}<|assistant|>{response}<|end|>"


def test_the_special_ids_are_ours(tokenizer: SentencePieceTokenizer, exported: Any) -> None:
    assert len(exported) == tokenizer.vocab_size
    assert (exported.pad_token_id, exported.eos_token_id) == (tokenizer.pad_id, tokenizer.stop_ids[0])
    special = {i for i in range(tokenizer.vocab_size) if not tokenizer.token_bytes(i)}
    assert special == set(exported.all_special_ids) and len(special) == len(SPECIAL)


def test_a_role_that_our_format_lacks_is_refused(exported: Any) -> None:
    with pytest.raises(jinja2.TemplateError, match="of the user or the assistant"):
        exported.apply_chat_template([{"role": "system", "content": "Be brief."}])


def test_our_own_code_loads_the_folder_as_the_tokenizer_it_was(
    tokenizer: SentencePieceTokenizer, folder: Path
) -> None:
    copy = load_tokenizer(folder)
    assert isinstance(copy, SentencePieceTokenizer)
    assert copy.opening(["go to drawer 1"]) == tokenizer.opening(["go to drawer 1"])


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_transformers_reads_tokenizer_json_beside_a_model(
    tokenizer: SentencePieceTokenizer, tmp_path: Path, family: str
) -> None:
    from transformers import AutoTokenizer

    (tmp_path / "config.json").write_text(json.dumps({"model_type": family}))
    tokenizer.export(tmp_path)
    beside = AutoTokenizer.from_pretrained(str(tmp_path))
    assert beside.encode("go to  drawer 1▁é") == tokenizer.encode("go to  drawer 1▁é")
