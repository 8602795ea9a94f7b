"""A small BPE tokenizer trained on environment text, for networks that start fresh.

Lossless: no normalisation, no dummy prefix, and bytes for characters never seen in training. A word with
the space before it is one piece and so is a small number (" cabinet 12" is two pieces), which keeps
episodes short and lets a small network copy names exactly.
"""

from __future__ import annotations

import io
import json
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import sentencepiece

from rsipo_jax.text.tags import TAGS
from rsipo_jax.text.tokenizer import well_formed

PAD, UNK, USER, ASSISTANT, END = "<pad>", "<unk>", "<|user|>", "<|assistant|>", "<|end|>"
MODEL = "tokenizer.model"
MARKER = "rsipo_tokenizer.json"

_SPACE = "\N{LOWER ONE EIGHTH BLOCK}"  # how sentencepiece writes a space
_BOUNDARY = "\N{INFORMATION SEPARATOR ONE}"  # pieces learned in training never cross it
# A word, a number or a run of signs, each with the space before it: "cabinet 1." must not teach the piece "
# 1.", or the number would have one id before a full stop and another before a comma.
_UNIT = re.compile(r" ?[^\W\d_]+| ?\d+| ?(?:[^\w\s]|_)+|\s")
_LITERAL = re.compile("|".join(map(re.escape, ("\n", *TAGS))))  # pieces given, not learned


class SentencePieceTokenizer:
    """Implements `Tokenizer`; a turn is `<|user|>` message `<|assistant|>` response `<|end|>`."""

    def __init__(self, model: bytes) -> None:
        self._model = model
        self._pieces = sentencepiece.SentencePieceProcessor(model_proto=model)
        special = {name: self._pieces.piece_to_id(name) for name in (PAD, UNK, USER, ASSISTANT, END)}
        self._special = frozenset(special.values())
        if len(self._special) < len(special):
            raise ValueError(f"the sentencepiece model lacks one of {', '.join(special)}: train it again")
        self._space_bytes = [self._pieces.piece_to_id(f"<0x{byte:02X}>") for byte in _SPACE.encode()]
        self.vocab_size: int = self._pieces.vocab_size()
        self.pad_id: int = special[PAD]
        self.stop_ids: tuple[int, ...] = (special[END],)
        self._user, self._assistant = special[USER], special[ASSISTANT]

    def encode(self, text: str) -> list[int]:
        """See `Tokenizer.encode`."""
        # Sentencepiece reads its own sign for a space as a space; as bytes it comes back as itself.
        first, *rest = well_formed(text).split(_SPACE)
        ids: list[int] = self._pieces.encode(first)
        for segment in rest:
            ids += self._space_bytes + self._pieces.encode(segment)
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """See `Tokenizer.decode`."""
        text: str = self._pieces.decode([int(i) for i in ids if int(i) not in self._special])
        return text

    def opening(self, parts: Sequence[str]) -> list[list[int]]:
        """See `Tokenizer.opening`."""
        return [[self._user], *(self.encode(part) for part in parts), [self._assistant]]

    def following(self, parts: Sequence[str]) -> list[list[int]]:
        """See `Tokenizer.following`."""
        return self.opening(parts)

    def save(self, folder: str | Path) -> None:
        """See `Tokenizer.save`."""
        folder = Path(folder)
        folder.parent.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
        (draft / MODEL).write_bytes(self._model)
        marker = {"kind": "sentencepiece", "vocab_size": self.vocab_size}
        (draft / MARKER).write_text(json.dumps(marker) + "\n", encoding="utf-8")
        if folder.exists():
            shutil.rmtree(folder)
        draft.rename(folder)  # complete or absent, whenever the run is killed

    @classmethod
    def load(cls, folder: str | Path) -> SentencePieceTokenizer:
        """The tokenizer that `save` wrote. Raises ValueError when its model file is missing or broken."""
        path = Path(folder) / MODEL
        try:
            return cls(path.read_bytes())
        except (OSError, RuntimeError) as error:
            raise ValueError(f"cannot read {path} ({error}); delete the folder and train it again") from error


def train_sentencepiece(texts: Iterable[str], folder: str | Path, vocab_size: int) -> SentencePieceTokenizer:
    """Trains a tokenizer, saves it in `folder` and returns it.

    Deterministic: one thread, every text used, so the same texts in the same order give the same bytes. The
    vocabulary holds 256 bytes, five special ids, the newline and the tags of `tags.py`, and learned pieces;
    it has fewer than `vocab_size` ids when the texts do not support more. Raises ValueError for no text or
    too few ids.
    """
    sentences = list(_sentences(texts))
    if not sentences:
        raise ValueError("there is no text to train a sentencepiece tokenizer on: give a non-empty text")
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(sentences),
            model_writer=model,
            model_type="bpe",
            vocab_size=vocab_size,
            hard_vocab_limit=False,
            character_coverage=1.0,
            byte_fallback=True,
            normalization_rule_name="identity",
            add_dummy_prefix=False,
            remove_extra_whitespaces=False,
            pretokenization_delimiter=_BOUNDARY,
            max_sentencepiece_length=24,  # " toiletpaperhanger" and room to spare
            max_sentence_length=1 << 20,  # bytes; longer lines would be dropped
            pad_id=0,
            unk_id=1,
            bos_id=-1,
            eos_id=-1,
            pad_piece=PAD,
            unk_piece=UNK,
            control_symbols=[USER, ASSISTANT, END],  # control symbols never come out of encode
            user_defined_symbols=["\n", *TAGS],
            num_threads=1,
            minloglevel=2,
        )
    except RuntimeError as error:
        raise ValueError(
            f"a sentencepiece model of vocab_size={vocab_size} does not fit these texts: it must hold "
            "256 bytes and every character, so set config.tokenizer.vocab_size to 512 or more"
        ) from error
    tokenizer = SentencePieceTokenizer(model.getvalue())
    tokenizer.save(folder)
    return tokenizer


def _sentences(texts: Iterable[str]) -> Iterator[str]:
    """The stretches of text between newlines and tags, with a boundary between units."""
    for text in texts:
        for stretch in _LITERAL.split(text):
            if units := _UNIT.findall(stretch.replace(_BOUNDARY, "")):
                yield _BOUNDARY.join(units)
