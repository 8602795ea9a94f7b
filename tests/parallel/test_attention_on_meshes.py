"""Attention on 8 forced devices, in a process of its own."""

from __future__ import annotations

from tests.launch.launching import python


def test_eight_devices_attend_as_one() -> None:
    done = python(
        "tests/parallel/attention_on_meshes.py",
        XLA_FLAGS="--xla_force_host_platform_device_count=8",
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
