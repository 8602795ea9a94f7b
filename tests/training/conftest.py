"""One finished tiny run, shared by the tests that look at runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from rsipo_jax.training import loop
from tests.training.tiny_run import config


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The workdir; tests leave its records as they are."""
    workdir = tmp_path_factory.mktemp("run")
    loop.run(config(), workdir)
    return workdir
