"""How much memory of its host this process has used."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

STATUS = Path("/proc/self/status")


def peak_host_memory() -> int:
    """The most bytes of the host's memory that this process has held at once, mapped files included.

    On the CPU backend the arrays of JAX are among them.
    """
    if STATUS.is_file():  # Linux, whose getrusage counts what the parent held when it started this process
        line = next(line for line in STATUS.read_text().splitlines() if line.startswith("VmHWM:"))
        return 1024 * int(line.split()[1])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
