"""Random orders on the host, addressed by what they order: no two purposes share a stream."""

from __future__ import annotations

import zlib

import numpy as np


def order_stream(seed: int, purpose: str, number: int = 0) -> np.random.Generator:
    """The generator of (seed, purpose, number), e.g. (0, "tasks", epoch 3); the same in every process."""
    return np.random.default_rng((seed, zlib.crc32(purpose.encode()), number))
