"""The rules a run's settings must keep.

`validated` is the gate: past it, code holds a `Config` whose every field has the right type, a possible value, sits well
with the others and has an effect. Each refusal is one sentence with the full key, the value and the fix.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict

from rsipo_jax.config import Config
from rsipo_jax.validation.choices import CHOICES, RANGES
from rsipo_jax.validation.idle import check_idle, relevant
from rsipo_jax.validation.rules import RULES
from rsipo_jax.validation.settings import (
    ConfigError,
    keys,
    setting,
    to_config_dict,
    typed_section,
    unknown_key,
    wrong_type,
)

__all__ = [
    "ConfigError",
    "keys",
    "relevant",
    "setting",
    "to_config_dict",
    "unknown_key",
    "validated",
    "wrong_type",
]


def validated(settings: ConfigDict | Mapping[str, Any]) -> Config:
    """The settings as a `Config`. Raises ConfigError for the first rule they break.

    Takes what `to_config_dict` returned, or a `config.json` read back (whose lists stand for tuples).
    """
    plain = settings.to_dict() if isinstance(settings, ConfigDict) else settings
    config = typed_section(Config, plain, "config")
    values = {key: setting(config, key) for key in keys()}
    for key, known in CHOICES.items():
        if values[key] not in known:
            raise ConfigError(f"config.{key}={values[key]!r} is unknown: choose one of {', '.join(known)}")
    for key, (holds, wanted) in RANGES.items():
        if not holds(values[key]):
            raise ConfigError(f"config.{key}={values[key]} is out of range: give a value {wanted}")
    for check in (*RULES, check_idle):
        check(config)
    return config
