"""The command line of launch/export.py: what it refuses, in one sentence (tests/training/test_export.py has it write)."""

from __future__ import annotations

import pytest

from tests.launch.launching import python


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--workdir=runs/none"], "--out is missing"),
        (["--out=new"], "--config is missing"),
        (["--workdir=no/run", "--out=new"], "there is no run in no/run"),
        (["--workdir=no/run", "--out=new", "--dtype=float16"], "dtype"),
        (["--workdir=no/run", "--out=new", "--step=-2"], "step"),
        (["--workdir=no/run", "--out=new", "again"], "'again' is not a flag"),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_2(arguments: list[str], named: str) -> None:
    result = python("launch/export.py", *arguments)
    assert result.returncode == 2, result.stderr
    assert named in result.stderr and result.stderr.count("\n") == 1
