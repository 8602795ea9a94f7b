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
from typing import Any

import sentencepiece
from sentencepiece import sentencepiece_model_pb2

from rsipo_jax.text.tags import TAGS
from rsipo_jax.text.tokenizer import well_formed

PAD, UNK, USER, ASSISTANT, END = "<pad>", "<unk>", "<|user|>", "<|assistant|>", "<|end|>"
MODEL = "tokenizer.model"
MARKER = "rsipo_tokenizer.json"

SPACE = "\N{LOWER ONE EIGHTH BLOCK}"  # how sentencepiece writes a space
_BOUNDARY = "\N{INFORMATION SEPARATOR ONE}"  # pieces learned in training never cross it
# A word, a number or a run of signs, each with the space before it: "cabinet 1." must not teach the piece "
# 1.", or the number would have one id before a full stop and another before a comma.
_UNIT = re.compile(r" ?[^\W\d_]+| ?\d+| ?(?:[^\w\s]|_)+|\s")
# Every piece comes back as it was: white space, signs that Unicode composes, characters no vocabulary has, no text.
_PROBE = "  two  spaces\n\t \N{FULLWIDTH LATIN CAPITAL LETTER A}e\N{COMBINING ACUTE ACCENT} \U000103a0 "


class SentencePieceTokenizer:
    """Implements `Tokenizer`; a turn is `<|user|>` message `<|assistant|>` response `<|end|>`.

    The model must be what `train_sentencepiece` trains: BPE with bytes for unseen characters, lossless, with the five
    special pieces. Raises ValueError, in one sentence, for another: Llama 2's borders `<s>` and `</s>` do not tell a
    message from a response, and its text comes back with a space before it.
    """

    def __init__(self, model: bytes) -> None:
        self._model = model
        self._pieces = sentencepiece.SentencePieceProcessor(model_proto=model)
        self._proto = sentencepiece_model_pb2.ModelProto.FromString(model)  # type: ignore[attr-defined]
        kinds = self._proto.SentencePiece
        wanted = {PAD: kinds.CONTROL, UNK: kinds.UNKNOWN} | dict.fromkeys(
            (USER, ASSISTANT, END), kinds.CONTROL
        )
        special = {
            piece.piece: i
            for i, piece in enumerate(self._proto.pieces)
            if wanted.get(piece.piece) == piece.type
        }
        if missing := [name for name in wanted if name not in special]:
            raise ValueError(
                f"it lacks the special pieces {' '.join(missing)}, which open and close the turns of a conversation"
            )
        if self._proto.trainer_spec.model_type != self._proto.trainer_spec.BPE:
            raise ValueError("it is not a BPE model")
        self._bytes = [
            b"" if i in special.values() else _piece_bytes(piece)
            for i, piece in enumerate(self._proto.pieces)
        ]
        self._space_bytes = [self._pieces.piece_to_id(f"<0x{byte:02X}>") for byte in SPACE.encode()]
        self.vocab_size: int = len(self._bytes)
        self.pad_id: int = special[PAD]
        self.stop_ids: tuple[int, ...] = (special[END],)
        self._user, self._assistant = special[USER], special[ASSISTANT]
        if (shown := self.decode(self.encode(_PROBE))) != _PROBE:
            raise ValueError(f"it is not lossless: {_PROBE!r} comes back as {shown!r}")

    def encode(self, text: str) -> list[int]:
        """See `Tokenizer.encode`."""
        # Sentencepiece reads its own sign for a space as a space; as bytes it comes back as itself.
        first, *rest = well_formed(text).split(SPACE)
        ids: list[int] = self._pieces.encode(first)
        for segment in rest:
            ids += self._space_bytes + self._pieces.encode(segment)
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """See `Tokenizer.decode`."""
        return b"".join(self.token_bytes(i) for i in ids).decode("utf-8", "replace")

    def token_bytes(self, token_id: int) -> bytes:
        """See `Tokenizer.token_bytes`."""
        return self._bytes[token_id] if 0 <= token_id < self.vocab_size else b""

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
        self._write(draft)
        if folder.exists():
            shutil.rmtree(folder)
        draft.rename(folder)  # complete or absent, whenever the run is killed

    def export(self, folder: str | Path) -> None:
        """See `Tokenizer.export`: tokenizer.json and its kin, beside this model, which `load_tokenizer` prefers.

        `AutoTokenizer` then gives the ids of `encode` with `split_special_tokens=True` (without it, text that spells a
        special token is one, as ever in transformers), and `apply_chat_template` those of `opening` and `following`
        for a message of one part. Where one piece can be made in two overlapping ways, sentencepiece takes the left
        one and tokenizers the one that comes first in its list; text has not shown a case.

        Not beside a config.json of model_type qwen2, where transformers 5 takes Qwen's word splits whatever the folder
        says: there `PreTrainedTokenizerFast` must load it.
        """
        from rsipo_jax.text.sentencepiece_export import export_sentencepiece  # imports transformers

        export_sentencepiece(self._proto.pieces, folder)
        self._write(Path(folder))

    @classmethod
    def load(cls, source: str | Path) -> SentencePieceTokenizer:
        """The tokenizer of a `.model` file, or of a folder that `save` or `export` wrote.

        Raises ValueError when its model file is missing or broken, or a model of another kind.
        """
        path = Path(source)
        path = path if path.suffix == ".model" else path / MODEL
        try:
            return cls(path.read_bytes())
        except (OSError, RuntimeError) as error:
            raise ValueError(
                f"cannot read {path} ({error}); delete it and train the tokenizer again"
            ) from error
        except ValueError as error:
            raise ValueError(
                f"cannot use the sentencepiece model {path}, because {error}: take one that train_sentencepiece "
                "trained, or a Hugging Face folder"
            ) from error

    def _write(self, folder: Path) -> None:
        (folder / MODEL).write_bytes(self._model)
        marker = {"kind": "sentencepiece", "vocab_size": self.vocab_size}
        (folder / MARKER).write_text(json.dumps(marker) + "\n", encoding="utf-8")


def train_sentencepiece(
    texts: Iterable[str], folder: str | Path, vocab_size: int, tags: Sequence[str] = TAGS
) -> SentencePieceTokenizer:
    """Trains a tokenizer, saves it in `folder` and returns it.

    Deterministic: one thread, every text used, so the same texts in the same order give the same bytes. The
    vocabulary holds 256 bytes, five special ids, the newline and the `tags`, and learned pieces;
    it has fewer than `vocab_size` ids when the texts do not support more. Raises ValueError for no text or
    too few ids.
    """
    given = ["\n", *tags]  # pieces given, not learned
    sentences = list(_sentences(texts, re.compile("|".join(map(re.escape, given)))))
    if not sentences:
        raise ValueError("there is no text to train a sentencepiece tokenizer on: give a non-empty text")
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter([" ", *sentences]),  # a space is a piece even if no text has one
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
            user_defined_symbols=given,
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


def _piece_bytes(piece: Any) -> bytes:
    if piece.type == piece.BYTE:
        return bytes([int(piece.piece[1:-1], 16)])  # written <0x41>
    return piece.piece.replace(SPACE, " ").encode()


def _sentences(texts: Iterable[str], given: re.Pattern[str]) -> Iterator[str]:
    """The stretches of text between given pieces, with a boundary between units."""
    for text in texts:
        for stretch in given.split(text):
            if units := _UNIT.findall(stretch.replace(_BOUNDARY, "")):
                yield _BOUNDARY.join(units)
