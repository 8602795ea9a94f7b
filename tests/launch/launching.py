"""Running a launcher as a user does, away from this process and from the real games it may know of."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def python(*arguments: str, timeout: int = 120, **environment: str) -> subprocess.CompletedProcess[str]:
    """`python ARGUMENTS` in the repository's root; `environment` is added to what is inherited."""
    inherited = {key: value for key, value in os.environ.items() if key != "ALFWORLD_DATA"}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=inherited | {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"} | environment,
        capture_output=True,
        text=True,
        timeout=timeout,
    )
