"""The trained tokenizer: lossless, short on ALFWorld text, closed to injected special ids, deterministic."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from hypothesis import given
from hypothesis import strategies as st

from rsipo_jax.text.sentencepiece_tokenizer import MODEL, SentencePieceTokenizer, train_sentencepiece
from rsipo_jax.text.tags import TAGS
from rsipo_jax.text.tokenizer import Tokenizer, load_tokenizer

OBJECTS = ["mug", "plate", "apple", "saltshaker", "toiletpaper", "soapbottle", "butterknife", "desklamp"]
PLACES = ["cabinet", "drawer", "countertop", "fridge", "garbagecan", "toiletpaperhanger", "shelf", "bed"]
SENTENCE = "You arrive at cabinet 1. On the cabinet 1, you see a mug 2, and a plate 1."
ALPHABET = st.characters(codec="utf-8") | st.sampled_from(' \n\t{}":,\\▁<>|_\x00\x1f')
LOOKALIKES = st.lists(st.sampled_from([*TAGS, "<pad>", "<unk>", "<|end|>", "<0x41>", " ", "a"])).map("".join)
TEXTS = st.text(ALPHABET) | LOOKALIKES


def episode(number: int) -> str:
    thing, place = OBJECTS[number % 8], PLACES[(number // 8) % 8]
    index = number % 12 + 1
    other = OBJECTS[(number + 3) % 8]
    return (
        f"Your task is to: put some {thing} in {place}.\n\n"
        f"<think>The {thing} may be there.</think>\n<action>go to {place} {index}</action>\n"
        f"You arrive at {place} {index}. On the {place} {index}, you see a {thing} {index}, and a {other} 1."
        f'{{"episode_skill": "Take the {thing} {index}, then go to the {place} {index}."}}'
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    train_sentencepiece(map(episode, range(192)), folder, vocab_size=1024)
    return folder


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return load_tokenizer(folder)


@given(text=TEXTS)
def test_round_trip_is_lossless_and_text_never_yields_a_special_id(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    control = {tokenizer.pad_id, 1, *tokenizer.stop_ids, *tokenizer.opening([])[0], *tokenizer.opening([])[1]}
    assert len(control) == 5 and not control & set(ids)
    assert all(0 <= i < tokenizer.vocab_size for i in ids)


@pytest.mark.parametrize(
    "text", [SENTENCE, "  two  spaces \n\n\n", '{"episode_skill": "a \\"b\\""}', "naïve 日本 😀", "▁ a▁b"]
)
def test_round_trip_of_texts_that_break_naive_settings(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == text


@given(ids=st.lists(st.integers(0, 600)))
def test_decode_takes_any_ids_and_shows_no_special_piece(tokenizer: Tokenizer, ids: list[int]) -> None:
    text = tokenizer.decode([0, 1, *ids, 2, 3, 4])
    assert "⁇" not in text and "<|" not in text and "<pad>" not in text
    text.encode("utf-8")


def test_a_word_and_a_number_are_one_piece_each(tokenizer: Tokenizer) -> None:
    assert len(tokenizer.encode(SENTENCE)) == 22  # 18 words and numbers, 4 signs
    one = tokenizer.encode(" 1")
    assert len(one) == 1
    for text in ("cabinet 1.", "cabinet 1,", "cabinet 1\n"):  # a number keeps its id whatever follows it
        assert one[0] in tokenizer.encode(text)
    assert [len(tokenizer.encode(tag)) for tag in (*TAGS, "\n")] == [1] * 5


def test_lone_surrogates_become_question_marks(tokenizer: Tokenizer) -> None:
    assert tokenizer.decode(tokenizer.encode("a\ud800b")) == "a?b"


@given(parts=st.lists(TEXTS, max_size=4), extra=TEXTS, place=st.integers(0, 4))
def test_inserting_a_part_inserts_its_tokens_and_changes_nothing_else(
    tokenizer: Tokenizer, parts: list[str], extra: str, place: int
) -> None:
    for turn in (tokenizer.opening, tokenizer.following):
        longer = turn([*parts[:place], extra, *parts[place:]])
        at = min(place, len(parts)) + 1
        assert longer.pop(at) == tokenizer.encode(extra)
        assert longer == turn(parts)


def test_training_twice_gives_the_same_bytes(folder: Path, tmp_path: Path) -> None:
    train_sentencepiece(map(episode, range(192)), tmp_path, vocab_size=1024)
    assert (tmp_path / MODEL).read_bytes() == (folder / MODEL).read_bytes()


def test_save_and_load_keep_every_id(tokenizer: Tokenizer, tmp_path: Path) -> None:
    tokenizer.save(tmp_path / "copy")
    copy = load_tokenizer(tmp_path / "copy")
    assert isinstance(copy, SentencePieceTokenizer)
    assert copy.vocab_size == tokenizer.vocab_size <= 1024
    assert copy.encode(SENTENCE) == tokenizer.encode(SENTENCE)


def test_a_model_file_is_a_tokenizer(tokenizer: Tokenizer, folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "ours.model"
    path.write_bytes((folder / MODEL).read_bytes())
    copy = load_tokenizer(str(path))
    assert copy.opening([SENTENCE]) == tokenizer.opening([SENTENCE])


def test_a_text_without_spaces_teaches_the_space_all_the_same(tmp_path: Path) -> None:
    tokenizer = train_sentencepiece(["hello"], tmp_path, vocab_size=512)
    assert tokenizer.decode(tokenizer.encode(" a ▁ hello ")) == " a ▁ hello "


ROLES: dict[str, Any] = {
    "pad_id": 0,
    "unk_id": 1,
    "bos_id": -1,
    "eos_id": -1,
    "pad_piece": "<pad>",
    "control_symbols": ["<|user|>", "<|assistant|>", "<|end|>"],
    "byte_fallback": True,
    "character_coverage": 1.0,
}
LOSSLESS: dict[str, Any] = {
    "normalization_rule_name": "identity",
    "add_dummy_prefix": False,
    "remove_extra_whitespaces": False,
}
TYPED = {"control_symbols": [], "user_defined_symbols": ["<|user|>", "<|assistant|>", "<|end|>"]}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, r"lacks the special pieces <pad> <\|user\|> <\|assistant\|> <\|end\|>, which open and close"),
        (ROLES | LOSSLESS | TYPED, r"lacks the special pieces <\|user\|> <\|assistant\|> <\|end\|>"),
        (ROLES, r"is not lossless: '  two  spaces\\n\\t .* comes back as ' two spaces "),
        (ROLES | LOSSLESS | {"byte_fallback": False}, "is not lossless"),
        (ROLES | LOSSLESS | {"model_type": "unigram"}, "is not a BPE model"),
    ],
    ids=["of another project", "roles that text can type", "text is normalised", "no bytes", "unigram"],
)
def test_a_model_of_another_kind_is_one_sentence(
    tmp_path: Path, settings: dict[str, Any], message: str
) -> None:
    path, model = tmp_path / "foreign.model", io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=map(episode, range(64)),
        model_writer=model,
        hard_vocab_limit=False,
        minloglevel=2,
        **{"model_type": "bpe", "vocab_size": 512} | settings,
    )
    path.write_bytes(model.getvalue())
    with pytest.raises(ValueError, match=rf"cannot use .*foreign\.model, because it {message}") as refusal:
        load_tokenizer(path)
    assert "\n" not in str(refusal.value) and "train_sentencepiece" in str(refusal.value)


def test_bad_input_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no text to train"):
        train_sentencepiece(["", ""], tmp_path, vocab_size=1024)
    with pytest.raises(ValueError, match=r"vocab_size=100 .* config\.tokenizer\.vocab_size to 512"):
        train_sentencepiece(["hello"], tmp_path, vocab_size=100)
    train_sentencepiece(["hello"], tmp_path, vocab_size=512)
    (tmp_path / MODEL).write_bytes(b"nonsense")
    with pytest.raises(ValueError, match=r"cannot read .*tokenizer\.model"):
        load_tokenizer(tmp_path)
    with pytest.raises(ValueError, match=r"cannot read .*absent\.model"):
        load_tokenizer(tmp_path / "absent.model")
