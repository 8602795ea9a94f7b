"""A real (tiny) Hugging Face tokenizer with ChatML turns, saved and loaded through AutoTokenizer."""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from rsipo_jax.text.hf_tokenizer import HFTokenizer
from rsipo_jax.text.tokenizer import Tokenizer, load_tokenizer
from rsipo_jax.validation import ConfigError

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
# The shape of Qwen2.5's template: a default system text, then ChatML turns.
CHATML = (
    "{%- if messages[0].role != 'system' %}{{- '<|im_start|>system\\nBe helpful.<|im_end|>\\n' }}{%- endif %}"
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}"
    "{%- if think_aloud is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}"
    "{%- endif %}"
)
WORDS = st.text("abcdefghijklmnopqrstuvwxyz ,.", min_size=1).map(lambda text: "Go " + text.strip() + ".")
TEXTS = st.text(st.characters(codec="utf-8")) | st.lists(st.sampled_from([*SPECIAL, "<", "|", "a", " "])).map(
    "".join
)


def build(folder: Path, template: str) -> Path:
    """A byte-level BPE tokenizer with Qwen's normaliser and special tokens, in Hugging Face's format."""
    bpe = tokenizers.Tokenizer(tokenizers.models.BPE())
    bpe.normalizer = tokenizers.normalizers.NFC()
    bpe.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=SPECIAL,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(
        ["system user assistant You go to the cabinet and see a mug. Be helpful."] * 9, trainer
    )
    from transformers import PreTrainedTokenizerFast

    fast = PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=SPECIAL[1:2],
    )
    fast.chat_template = template
    fast.save_pretrained(str(folder))
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("chatml"), CHATML)


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return load_tokenizer(folder)


@pytest.fixture(scope="module")
def reference(folder: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(str(folder))


def flat(lists: list[list[int]]) -> list[int]:
    return [i for ids in lists for i in ids]


def test_names_of_special_ids(tokenizer: Tokenizer, reference: Any) -> None:
    end_of_text, _, end = reference.convert_tokens_to_ids(SPECIAL)
    assert tokenizer.stop_ids == (end, end_of_text)
    assert tokenizer.pad_id == end_of_text
    assert tokenizer.vocab_size == len(reference)


@given(messages=st.lists(WORDS, min_size=1, max_size=7).filter(lambda messages: len(messages) % 2))
def test_a_conversation_has_the_ids_of_the_chat_template(
    tokenizer: Tokenizer, reference: Any, messages: list[str]
) -> None:
    ids: list[int] = []
    for turn, text in enumerate(messages):
        if turn % 2:
            ids += [*tokenizer.encode(text), tokenizer.stop_ids[0]]
        else:
            ids += flat(tokenizer.following([text]) if turn else tokenizer.opening([text]))
    chat = [
        {"role": "assistant" if turn % 2 else "user", "content": text} for turn, text in enumerate(messages)
    ]
    expected = reference.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
    assert ids == expected


@given(text=TEXTS)
def test_text_never_yields_a_special_id_and_comes_back(
    tokenizer: Tokenizer, reference: Any, text: str
) -> None:
    ids = tokenizer.encode(text)
    assert not set(ids) & set(reference.all_special_ids)
    assert tokenizer.decode(ids) == unicodedata.normalize("NFC", text)
    assert tokenizer.decode([tokenizer.pad_id, *ids, *tokenizer.stop_ids]) == tokenizer.decode(ids)


def test_lone_surrogates_become_question_marks(tokenizer: Tokenizer) -> None:
    assert tokenizer.decode(tokenizer.encode("a\ud800b")) == "a?b"


@given(parts=st.lists(TEXTS, max_size=4), extra=TEXTS, place=st.integers(0, 4))
def test_inserting_a_part_inserts_its_tokens_and_changes_nothing_else(
    tokenizer: Tokenizer, parts: list[str], extra: str, place: int
) -> None:
    for turn in (tokenizer.opening, tokenizer.following):
        longer = turn([*parts[:place], extra, *parts[place:]])
        assert longer.pop(min(place, len(parts)) + 1) == tokenizer.encode(extra)
        assert longer == turn(parts)


def test_thinking_is_off_where_the_template_asks(tmp_path: Path) -> None:
    template = "{%- set think_aloud = true %}" + CHATML
    tokenizer = load_tokenizer(build(tmp_path, template))
    for turn in (tokenizer.opening, tokenizer.following):
        assert tokenizer.decode(turn(["hello"])[-1]).endswith("assistant\n<think>\n\n</think>\n\n")


def test_save_and_load_keep_every_id(tokenizer: Tokenizer, tmp_path: Path) -> None:
    tokenizer.save(tmp_path)
    copy = load_tokenizer(tmp_path)
    assert isinstance(copy, HFTokenizer)
    assert copy.opening(["You see a mug."]) == tokenizer.opening(["You see a mug."])
    assert copy.stop_ids == tokenizer.stop_ids


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("", "has no chat template"),
        (
            "{%- for m in messages %}{{- m.content | upper }}<|im_end|>{%- endfor %}",
            "does not show messages as they are",
        ),
        ("{%- for m in messages %}{{- m.content + ' ' }}{%- endfor %}", "ends a response with ' '"),
    ],
)
def test_a_template_that_cannot_be_used_is_one_sentence(tmp_path: Path, template: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as refusal:
        load_tokenizer(build(tmp_path, template))
    assert "config.model.checkpoint" in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_a_tokenizer_that_is_not_byte_level_is_one_sentence(tmp_path: Path) -> None:
    path = build(tmp_path, CHATML) / "tokenizer.json"
    settings = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(settings | {"decoder": {"type": "ByteFallback"}}), encoding="utf-8")
    with pytest.raises(ConfigError, match=r"is not byte-level.*config\.model\.checkpoint") as refusal:
        load_tokenizer(tmp_path)
    assert "\n" not in str(refusal.value)


def test_a_folder_without_a_tokenizer_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"no tokenizer can be loaded from .*config\.model\.checkpoint"
    ) as refusal:
        load_tokenizer(tmp_path)
    assert "\n" not in str(refusal.value)
