"""Lines of plain and packed files are the same, and what is damaged is named."""

from __future__ import annotations

import gzip
import lzma
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rsipo_jax.envs.search.packed import digest, ending, lines, unpacked
from rsipo_jax.validation import ConfigError

PACK: dict[str, Callable[[bytes], bytes]] = {"": bytes, ".xz": lzma.compress, ".gz": gzip.compress}


@given(st.lists(st.binary().filter(lambda line: b"\n" not in line)), st.sampled_from(sorted(PACK)))
def test_lines_are_those_that_were_packed(
    tmp_path_factory: pytest.TempPathFactory, written: list[bytes], packing: str
) -> None:
    folder = tmp_path_factory.mktemp("packed")
    path = folder / f"a.b.jsonl{packing}"
    path.write_bytes(PACK[packing](b"\n".join(written)))
    assert ending(path) == ".jsonl"
    numbered = [(number, line) for number, line in enumerate(written, 1) if line.strip()]
    assert [(number, line.rstrip(b"\n")) for number, line in lines(path)] == numbered
    plain = unpacked(path, folder / "out")
    assert plain.read_bytes() == b"\n".join(written) and (plain == path) == (packing == "")


@pytest.mark.parametrize("packing", [".xz", ".gz"])
def test_a_file_is_unpacked_once_and_another_one_apart(
    tmp_path: Path, packing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / f"corpus.jsonl{packing}"
    path.write_bytes(PACK[packing](b"one\n"))
    first = unpacked(path, tmp_path / "out")
    with monkeypatch.context() as patched:
        patched.setattr("shutil.copyfileobj", lambda *_: pytest.fail("unpacked again"))
        assert unpacked(path, tmp_path / "out") == first
    path.write_bytes(PACK[packing](b"two\n"))
    assert unpacked(path, tmp_path / "out").read_text() == "two\n" and first.read_text() == "one\n"


@pytest.mark.parametrize("packing", [".xz", ".gz"])
@pytest.mark.parametrize("damage", [lambda whole: whole[:-9], lambda whole: b"\0" + whole[1:]])
def test_a_damaged_file_is_named_and_leaves_nothing(
    tmp_path: Path, packing: str, damage: Callable[[bytes], bytes]
) -> None:
    path = tmp_path / f"corpus.jsonl{packing}"
    path.write_bytes(damage(PACK[packing](b"one\ntwo\n")))
    with pytest.raises(ConfigError, match=rf"corpus\.jsonl\{packing} cannot be read after line"):
        list(lines(path))
    with pytest.raises(ConfigError, match=rf"corpus\.jsonl\{packing} cannot be unpacked"):
        unpacked(path, tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_a_digest_tells_files_apart(tmp_path: Path) -> None:
    one, two, both = (tmp_path / name for name in ("one", "two", "both"))
    one.write_bytes(b"one")
    two.write_bytes(b"two")
    both.write_bytes(b"onetwo")
    assert digest(one, two) == digest(one, two)
    assert len({digest(one, two), digest(two, one), digest(both), digest(one)}) == 4
    with pytest.raises(ConfigError, match="cannot be read"):
        digest(tmp_path / "none")
