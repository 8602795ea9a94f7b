"""Names of slices, and the one sentence for what is none."""

from __future__ import annotations

import pytest

from rsipo_jax.planning.chips import CHIPS, parse_slice
from rsipo_jax.validation import ConfigError


@pytest.mark.parametrize(
    ("name", "devices", "host"),
    [
        ("v5e:4x8", 32, "v5e:2x2"),
        ("v5e:1x1", 1, "v5e:1x1"),
        ("v5p:2x2x4", 16, "v5p:2x2x1"),
        ("tpu7x:2x2x1", 8, "tpu7x:2x2x1"),
        ("h100:8", 8, "h100:8"),
        ("h200:4", 4, "h200:4"),
    ],
)
def test_a_slice_has_its_devices_and_its_hosts(name: str, devices: int, host: str) -> None:
    slice_ = parse_slice(name)
    assert (slice_.name, slice_.size, slice_.host().name) == (name, devices, host)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("v5litepod-16", "write v5e:4x4"),
        ("v5litepod-32", "write v5e:4x8"),
        ("v6e-8", "write v6e:2x4"),
        ("v5p-16", "write v5p:2x2x2 for v5p-16, which is 8 chips"),
        ("v4-32", "write v4:2x2x4"),
        ("v5p-8", "write v5p:2x2x1"),
        ("v7x-16", "write tpu7x:2x2x4"),
        ("v5p-17", "write CHIP:AxB or CHIP:AxBxC"),
        ("v9:2x2", "write CHIP:AxB or CHIP:AxBxC"),
        ("v5e:4x0", "write CHIP:AxB"),
        ("v5e:4x4x4", "a TPU v5e slice has 2: write it as v5e:2x2"),
        ("v5p:4x4", "a TPU v5p slice has 3: write it as v5p:2x2x2"),
        ("h100:16", "give h100:1 to h100:8"),
        ("", "write CHIP:AxB"),
    ],
)
def test_what_is_no_slice_is_told_what_to_write(name: str, hint: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse_slice(name)
    assert hint in str(error.value) and f"--topology={name}" in str(error.value)


def test_chips_are_named_as_they_are_asked_for() -> None:
    assert all(parse_slice(f"{n}:{'x'.join('2' * (c.dims or 1))}").chip is c for n, c in CHIPS.items())
