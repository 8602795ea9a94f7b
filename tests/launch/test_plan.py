"""The command line of launch/plan.py: what it refuses, in one sentence."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from tests.launch.launching import python

CONFIG = "--config=configs/alfworld.py:tiny"


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ([CONFIG], "--topology is missing"),
        ([CONFIG, "--topology=v5litepod-16"], "write v5e:4x4 for v5litepod-16"),
        ([CONFIG, "--topology=v5e:2x2", "--json=nowhere/plan.json"], "there is no folder nowhere"),
        ([CONFIG, "--topology=v5e:2x2", "now"], "'now' is not a flag"),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_2(arguments: list[str], named: str) -> None:
    result = python("launch/plan.py", *arguments)
    assert result.returncode == 2 and result.stdout == ""
    assert named in result.stderr and result.stderr.count("\n") == 1


@pytest.mark.skipif(find_spec("libtpu") is not None, reason="libtpu is installed")
def test_without_the_compiler_the_command_that_installs_it_is_named() -> None:
    result = python("launch/plan.py", CONFIG, "--topology=v5e:2x2")
    assert result.returncode == 2
    assert "pip install -r requirements-plan.txt" in result.stderr and result.stderr.count("\n") == 1


@pytest.mark.skipif(find_spec("libtpu") is None, reason="needs libtpu (pip install -r requirements-plan.txt)")
def test_a_mesh_that_the_chips_do_not_make_up_is_one_sentence() -> None:
    result = python("launch/plan.py", CONFIG, "--topology=v5e:2x2", "--config.mesh.tensor=3")
    assert result.returncode == 2
    assert "config.mesh.tensor=3 ask for 3 devices, but there are 4" in result.stderr
