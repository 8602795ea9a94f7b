"""A corpus reads back what was written, by row, and names the line it cannot read."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rsipo_jax.envs.search.passages import Corpus, Passage, unquoted, write_corpus
from rsipo_jax.validation import ConfigError

lines = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n"))
titles = lines.filter(lambda t: t == t.strip() and not (len(t) > 1 and t[0] == t[-1] == '"'))


@settings(max_examples=30)
@given(
    st.lists(
        st.builds(Passage, lines, titles, st.text(st.characters(exclude_categories=["Cs"]))),
        min_size=1,
        max_size=5,
    )
)
def test_what_is_written_is_read(tmp_path_factory: pytest.TempPathFactory, passages: list[Passage]) -> None:
    path = tmp_path_factory.mktemp("corpus") / "corpus.jsonl"
    write_corpus(path, passages)
    with Corpus(path) as corpus:
        assert len(corpus) == len(passages) and list(corpus) == passages
        assert corpus[len(passages) - 1] == passages[-1]
        with pytest.raises(IndexError):
            corpus[-1]  # which a search that found nothing would ask for


def test_the_last_line_may_lack_its_end(tmp_path: Path) -> None:
    (tmp_path / "c.jsonl").write_text(
        '{"id": 7, "contents": "\\"Two Words\\"\\nText"}\n{"id": "8", "contents": "One"}'
    )
    with Corpus(tmp_path / "c.jsonl") as corpus:
        assert list(corpus) == [Passage("7", "Two Words", "Text"), Passage("8", "One", "")]


@pytest.mark.parametrize(
    "line", ["{", "[" * 100_000, "[]", '{"id": 1}', '{"contents": "x"}', '{"id": 1, "contents": 2}', ""]
)
def test_a_corrupt_line_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "corpus.jsonl"
    path.write_text(f'{{"id": "0", "contents": "fine"}}\n{line}\n{{"id": "2", "contents": "fine"}}\n')
    with (
        Corpus(path) as corpus,
        pytest.raises(ConfigError, match=r"corpus\.jsonl, line 2: .*JSON object with 'id' and"),
    ):
        list(corpus)


def test_no_corpus(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not a file: name a corpus"):
        Corpus(tmp_path / "none.jsonl")
    (tmp_path / "empty.jsonl").touch()
    with pytest.raises(ConfigError, match="holds no passage"):
        Corpus(tmp_path / "empty.jsonl")


@pytest.mark.parametrize(
    ("title", "read"),
    [
        ('"Evan Morris"', "Evan Morris"),
        ("Citibank", "Citibank"),
        ('"A ""b"" c"', 'A "b" c'),
        ('"', '"'),
        ("", ""),
    ],
)
def test_titles_come_without_their_quotes(title: str, read: str) -> None:
    assert unquoted(title) == read
