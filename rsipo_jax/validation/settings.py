"""Settings in and out of `ml_collections.ConfigDict`s, by type; unknown and missing ones are refused in one sentence."""

from __future__ import annotations

import dataclasses
import difflib
import math
import typing
from collections.abc import Iterator, Mapping
from typing import Any

from ml_collections import ConfigDict

from rsipo_jax.config import Config


class ConfigError(ValueError):
    """The settings of a run are wrong; the message is one sentence with the key, the value and the fix."""


def to_config_dict(config: Config) -> ConfigDict:
    """The settings as a locked ConfigDict, which `--config.x.y=...` may override but not extend."""
    return ConfigDict(dataclasses.asdict(config)).lock()


def keys() -> tuple[str, ...]:
    """Every setting's dotted name without the leading `config.`, e.g. `rollout.group_size`."""
    return tuple(_keys(Config, ""))


def setting(config: Config, key: str) -> Any:
    """The value of a setting by its dotted name, without the leading `config.`."""
    value: Any = config
    for name in key.split("."):
        value = getattr(value, name)
    return value


def wrong_type(key: str, value: object) -> ConfigError:
    """The refusal of a value of the wrong type for a setting (`config.x.y`)."""
    kind = type(setting(Config(), key.removeprefix("config.")))
    wanted = {int: "a whole number", float: "a finite number", str: "text", bool: "true or false"}
    return ConfigError(f"{key}={value!r} has the wrong type: give {wanted.get(kind, 'a tuple of texts')}")


def unknown_key(key: str) -> ConfigError:
    """The refusal of a setting (`config.x.y`) that does not exist, with the nearest one that does."""
    name = key.removeprefix("config.")
    sections = {known.rpartition(".")[0] for known in keys()} - {""}
    if name in sections:
        fields = ", ".join(f"config.{known}" for known in keys() if known.startswith(name + "."))
        return ConfigError(f"{key} is a section, not a setting: set one of {fields}")
    near = difflib.get_close_matches(name, keys(), n=1)
    hint = f"did you mean config.{near[0]}?" if near else f"the sections are {', '.join(sorted(sections))}"
    return ConfigError(f"{key} is not a setting: {hint}")


def _keys(section: Any, prefix: str) -> Iterator[str]:
    types = typing.get_type_hints(section)
    for field in dataclasses.fields(section):
        if dataclasses.is_dataclass(types[field.name]):
            yield from _keys(types[field.name], f"{prefix}{field.name}.")
        else:
            yield prefix + field.name


def typed_section(kind: Any, values: Any, prefix: str) -> Any:
    """The dataclass `kind` made from a mapping, every value of exactly the declared type."""
    if not isinstance(values, Mapping):
        raise ConfigError(f"{prefix}={values!r} is not a section: give a mapping of its fields")
    types = typing.get_type_hints(kind)
    for name in values:
        if name not in types:
            raise unknown_key(f"{prefix}.{name}")
    made = {}
    for name, wanted in types.items():
        key = f"{prefix}.{name}"
        if name not in values:
            raise ConfigError(f"{key} is missing: start from configs/alfworld.py, which sets every field")
        made[name] = (
            typed_section(wanted, values[name], key)
            if dataclasses.is_dataclass(wanted)
            else _typed(wanted, values[name], key)
        )
    return kind(**made)


def _typed(wanted: Any, value: Any, key: str) -> Any:
    if wanted is float and type(value) in (int, float) and math.isfinite(value):
        return float(value)
    if wanted in (int, str, bool) and type(value) is wanted:
        return value
    if wanted == tuple[str, ...] and isinstance(value, list | tuple) and all(type(v) is str for v in value):
        return tuple(value)
    raise wrong_type(key, value)
