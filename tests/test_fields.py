"""Every setting is read somewhere: a field that nothing reads would be an option that does nothing."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import rsipo_jax
from rsipo_jax.envs.alfworld.data import SPLITS
from rsipo_jax.validation import keys

PACKAGE = Path(rsipo_jax.__file__).parent


def attributes_read() -> set[str]:
    """Names read as attributes anywhere in the package but in the settings and their validation."""
    read = set(SPLITS)  # the generator reads games.<split> with getattr
    for path in PACKAGE.rglob("*.py"):
        if path.name != "config.py" and "validation" not in path.parts:
            tree = ast.parse(path.read_text(encoding="utf-8"))
            read |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    return read


READ = attributes_read()


@pytest.mark.parametrize("key", keys())
def test_every_field_is_read(key: str) -> None:
    assert key.rpartition(".")[2] in READ, f"config.{key} is read nowhere"
