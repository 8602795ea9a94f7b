"""The table of ablations: every variant is a run that validation lets pass, and differs from the full method."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from rsipo_jax.validation import setting, validated

CONFIGS = Path(__file__).parents[1] / "configs"
ALFWORLD = runpy.run_path(str(CONFIGS / "alfworld.py"))
ABLATIONS = runpy.run_path(str(CONFIGS / "ablations.py"))["ABLATIONS"]


@pytest.mark.parametrize("name", ABLATIONS)
@pytest.mark.parametrize("preset", ["tiny", "qwen2.5-3b"])
def test_every_variant_validates_and_is_not_the_full_method(name: str, preset: str) -> None:
    method, overrides = ABLATIONS[name]
    plain = ALFWORLD["get_config"](preset)
    changed = ALFWORLD["get_config"](preset)
    changed.update_from_flattened_dict({"method": method, **overrides})
    config = validated(changed)
    assert config.method == method
    assert all(setting(config, key) == value for key, value in overrides.items())
    assert (config == validated(plain)) == (name == "full")


def test_no_two_variants_are_one_run() -> None:
    assert len({str(variant) for variant in ABLATIONS.values()}) == len(ABLATIONS)
