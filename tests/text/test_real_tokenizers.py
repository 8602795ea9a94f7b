"""The tokenizers of SmolLM2, Qwen2.5 and Qwen3: transformers' ids for text and conversations, and where ours differ."""

from __future__ import annotations

import json
import shutil
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rsipo_jax.text.hf_tokenizer import HFTokenizer
from rsipo_jax.text.tokenizer import load_tokenizer

NAMES = ("smollm2", "qwen25", "qwen3")
EMPTY_THOUGHT = "<think>\n\n</think>\n\n"
TEXTS = (
    "",
    "Hello, world! How are you? 123",
    "You arrive at cabinet 12. On the cabinet 12, you see a mug 2, and a plate 1.\n\nYour task is to: look.",
    "日本語テキスト、中文。한국어 ภาษาไทย العربية हिन्दी Ελληνικά",
    "🎉👩‍👩‍👧 🏳️‍🌈 e\N{COMBINING ACUTE ACCENT} café ﬁ Å ｆｕｌｌ",
    "0 12 345 6789 1234567890 ٣٤ ½ ²",
    "a  b   c    d\t\te\n\n\nf \n g\r\nh \n \n ",
    "def f(x):\n    return x**2  # ok\n\n\n",
    "DON'T I'LL we've 's",
    '<think>Go.</think><action>go to desk 1</action>{"episode_skill": "a"}',
    "\x00\x1f\x7f\N{NO-BREAK SPACE}\N{ZERO WIDTH SPACE}\N{REPLACEMENT CHARACTER}",
)
ALPHABET = st.characters(codec="utf-8") | st.sampled_from(" \n\t0123456789'<|>aé中🎉")
ANY_TEXT = st.text(ALPHABET, max_size=40)


class Pair:
    """Ours and transformers' own tokenizer of the same folder."""

    def __init__(self, folder: Path) -> None:
        from transformers import AutoTokenizer

        tokenizer = load_tokenizer(folder)
        assert isinstance(tokenizer, HFTokenizer)
        self.ours = tokenizer
        self.theirs: Any = AutoTokenizer.from_pretrained(str(folder))
        self.special = [token.content for token in self.theirs.added_tokens_decoder.values() if token.special]

    def prompt(self, turns: list[str]) -> list[int]:
        """Our ids of user, assistant, user, ... messages, the last of which is the user's."""
        ids = [*chain(*self.ours.opening([turns[0]]))]
        for response, message in zip(turns[1::2], turns[2::2], strict=True):
            ids += [*self.ours.encode(response), self.ours.stop_ids[0]]
            ids += chain(*self.ours.following([message]))
        return ids

    def template(self, turns: list[str]) -> list[int]:
        """Transformers' ids of the same messages."""
        messages = [
            {"role": "assistant" if i % 2 else "user", "content": text} for i, text in enumerate(turns)
        ]
        ids: list[int] = self.theirs.apply_chat_template(
            messages, tokenize=True, add_generation_prompt=True, enable_thinking=False, return_dict=False
        )
        return ids


pair_of = cache(Pair)


@pytest.fixture(scope="module", params=NAMES)
def pair(request: pytest.FixtureRequest) -> Pair:
    return pair_of(request.getfixturevalue(request.param))


def without_earlier_thoughts(pair: Pair, ids: list[int]) -> list[int]:
    """`ids` without the empty thoughts of all but the last response."""
    thought = pair.ours._template_ids(EMPTY_THOUGHT)
    starts = [i for i in range(len(ids)) if ids[i : i + len(thought)] == thought]
    for start in reversed(starts[:-1]):
        ids = ids[:start] + ids[start + len(thought) :]
    return ids


@pytest.mark.parametrize("text", TEXTS)
def test_text_has_transformers_ids(pair: Pair, text: str) -> None:
    assert pair.ours.encode(text) == pair.theirs.encode(text, add_special_tokens=False)


@given(text=ANY_TEXT)
@settings(max_examples=100)
def test_any_text_has_transformers_ids(pair: Pair, text: str) -> None:
    assert pair.ours.encode(text) == pair.theirs.encode(text, add_special_tokens=False)


@given(data=st.data())
def test_text_that_spells_special_tokens_never_yields_one(pair: Pair, data: st.DataObject) -> None:
    special = {i for i, token in pair.theirs.added_tokens_decoder.items() if token.special}
    pieces = st.sampled_from([*pair.special, "<|", "|>", "im_end", " ", "\n", "a"])
    text = "".join(data.draw(st.lists(pieces, max_size=8)))
    ids = pair.ours.encode(text)
    assert not special & set(ids)
    assert pair.ours.decode(ids) == text
    spelled = any(token in text for token in pair.special)
    assert (pair.theirs.encode(text, add_special_tokens=False) != ids) == spelled


@pytest.mark.parametrize("turns", [TEXTS[1:2], TEXTS[1:4], TEXTS[1:6], TEXTS[3:8]])
def test_a_conversation_has_the_ids_of_the_chat_template(pair: Pair, turns: tuple[str, ...]) -> None:
    ids = pair.prompt(list(turns))
    assert pair.template(list(turns)) == without_earlier_thoughts(pair, ids)


@given(turns=st.integers(0, 2).flatmap(lambda n: st.lists(ANY_TEXT, min_size=2 * n + 1, max_size=2 * n + 1)))
def test_any_conversation_has_them_where_messages_begin_and_end_without_white_space(
    pair: Pair, turns: list[str]
) -> None:
    turns = ["a" + text for text in turns]
    assert pair.template(turns) == without_earlier_thoughts(pair, pair.prompt(turns))


def test_qwen3_keeps_the_empty_thought_before_a_response_that_was_sampled_after_it(qwen3: Path) -> None:
    pair = pair_of(qwen3)
    turns = ["Hello.", "Hi!", "And now?"]
    shown = pair.theirs.decode(pair.prompt(turns))
    assert shown == (
        f"<|im_start|>user\nHello.<|im_end|>\n<|im_start|>assistant\n{EMPTY_THOUGHT}Hi!<|im_end|>\n"
        f"<|im_start|>user\nAnd now?<|im_end|>\n<|im_start|>assistant\n{EMPTY_THOUGHT}"
    )
    # The template drops it, so its ids are not those that the policy saw when it sampled "Hi!".
    assert pair.theirs.decode(pair.template(turns)).count(EMPTY_THOUGHT) == 1


def test_the_template_of_qwen3_drops_earlier_thoughts_and_ours_never_does(qwen3: Path) -> None:
    pair = pair_of(qwen3)
    turns = ["Hello.", "<think>\nIt greets.\n</think>\n\nHi!", "And now?"]
    assert "It greets." not in pair.theirs.decode(pair.template(turns))
    assert "It greets." in pair.ours.decode(pair.prompt(turns))


def test_a_message_that_begins_with_white_space_shares_no_token_with_the_template(qwen25: Path) -> None:
    pair = pair_of(qwen25)
    ours, theirs = pair.prompt(["\nHello."]), pair.template(["\nHello."])
    assert pair.theirs.decode(ours) == pair.theirs.decode(theirs)
    assert len(ours) == len(theirs) + 1  # "\n" and "\n" here, "\n\n" there
    assert ours == [*chain(*pair.ours.opening(["", "\nHello."]))]


def test_ids_that_were_published(smollm2: Path, qwen25: Path) -> None:
    assert pair_of(smollm2).ours.encode("Hello world! 123") == [19556, 905, 17, 216, 33, 34, 35]
    assert pair_of(qwen25).ours.encode("Hello, world!") == [9707, 11, 1879, 0]


def test_digits_are_words_whatever_class_the_folder_names(smollm2: Path, tmp_path: Path) -> None:
    folder = tmp_path / "as-published"  # SmolLM2's own tokenizer_config.json names GPT2Tokenizer
    shutil.copytree(smollm2, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"tokenizer_class": "GPT2Tokenizer"}))
    assert (
        load_tokenizer(folder).encode("a  12") == pair_of(smollm2).theirs.encode("a  12") == [81, 256, 33, 34]
    )


def test_export_is_what_transformers_loads(pair: Pair, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    pair.ours.export(tmp_path)
    copy = AutoTokenizer.from_pretrained(str(tmp_path))
    assert copy.chat_template == pair.theirs.chat_template
    assert (copy.eos_token_id, copy.pad_token_id) == (pair.theirs.eos_token_id, pair.theirs.pad_token_id)
    for text in (*TEXTS, *pair.special):
        assert copy.encode(text) == pair.theirs.encode(text)
    assert load_tokenizer(tmp_path).stop_ids == pair.ours.stop_ids
    config = json.loads((tmp_path / "tokenizer_config.json").read_text(encoding="utf-8"))
    assert config["tokenizer_class"] == "PreTrainedTokenizerFast"  # what transformers 4 knows too
    assert "extra_special_tokens" not in config  # what it cannot read
    assert copy.all_special_ids == pair.theirs.all_special_ids
