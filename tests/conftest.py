"""Settings of the whole suite: the CPU backend, and repeatable hypothesis runs."""

from __future__ import annotations

import os

os.environ["JAX_PLATFORMS"] = "cpu"  # before anything imports jax

from hypothesis import settings

settings.register_profile("default", deadline=None, max_examples=50)
settings.register_profile("ci", deadline=None, max_examples=50, derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "default")
