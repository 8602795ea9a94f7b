"""The peak of a process's memory."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from tests.launch.launching import python

PEAK = "from rsipo_jax.reports.memory import peak_host_memory as peak"


def test_the_peak_stays_when_the_memory_is_given_back() -> None:
    program = f"{PEAK}; before = peak(); held = bytearray(b'1') * 10**8; del held; print(peak() - before)"
    assert 0.9e8 < int(python("-c", program).stdout) < 1.5e8


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a process starts with no more than it needs")
def test_the_peak_is_that_of_the_process_itself() -> None:
    held = np.ones(50_000_000)
    assert int(python("-c", f"{PEAK}; print(peak())").stdout) < held.nbytes / 4
