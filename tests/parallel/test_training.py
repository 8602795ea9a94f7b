"""Whole runs on several devices, and of adapters alone."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from rsipo_jax.reports.run_log import TIMINGS
from tests.launch.launching import python


def train(workdir: Path, devices: int, *changes: str) -> list[dict]:
    """The log of a run."""
    done = python("-m", "tests.parallel.train_on_devices", str(workdir), str(devices), *changes, timeout=1500)
    assert done.returncode == 0, done.stderr[-4000:]
    return [json.loads(line) for line in (workdir / "log.jsonl").read_text().splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize("adapters", [(), ("lora.rank=4",)])
def test_a_run_on_eight_devices_is_that_on_one(tmp_path: Path, adapters: tuple[str, ...]) -> None:
    """With four-way parameters, two-way heads, and sampling in four groups of two."""
    mesh = ("mesh.fsdp=4", "mesh.tensor=2", "mesh.sampling_tensor=2")
    one, eight = train(tmp_path / "1", 1, *adapters), train(tmp_path / "8", 8, *mesh, *adapters)
    for a, b in zip(one, eight, strict=True):
        assert a.keys() == b.keys()
        for name in a.keys() - set(TIMINGS):
            np.testing.assert_allclose(a[name], b[name], atol=1e-4, err_msg=name)
    for records in ("episodes.jsonl", "skills.jsonl"):
        assert (tmp_path / "1" / records).read_bytes() == (tmp_path / "8" / records).read_bytes()
