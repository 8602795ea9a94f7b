"""The demonstrations as a TFDS data set (array_record files; no TensorFlow needed to write or read them)."""

from __future__ import annotations

import contextlib
import io
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import tensorflow_datasets as tfds

from rsipo_jax.envs.protocol import Task
from rsipo_jax.training.demonstrations.demonstration import Demonstration

Played = Callable[[], Iterable[tuple[str, Demonstration]]]  # demonstrations, each with a key of its own


class _Demonstrations(tfds.core.GeneratorBasedBuilder, skip_registration=True):  # type: ignore[call-arg]
    """Expert episodes on training tasks, as `played` plays them when the data set is made."""

    VERSION = tfds.core.Version("1.0.0")
    RELEASE_NOTES: ClassVar[dict[str, str]] = {"1.0.0": "First version."}

    def __init__(self, *, played: Played, **kwargs: Any) -> None:
        self._played = played
        super().__init__(**kwargs)

    def _info(self) -> tfds.core.DatasetInfo:
        text = tfds.features.Text()
        return self.dataset_info_from_configs(
            features=tfds.features.FeaturesDict(
                {
                    "task_id": text,
                    "kind": text,
                    "skill": text,
                    "observations": tfds.features.Sequence(text),
                    "admissible": tfds.features.Sequence(text),  # one action a line
                    "responses": tfds.features.Sequence(text),
                    "imitate": tfds.features.Sequence(np.bool_),
                    "won": np.bool_,
                    "analysis": text,
                }
            ),
        )

    def _split_generators(self, dl_manager: Any) -> dict[str, Iterator[tuple[str, dict[str, Any]]]]:
        return {"train": self._generate_examples()}

    def _generate_examples(self) -> Iterator[tuple[str, dict[str, Any]]]:
        for key, demo in self._played():
            yield key, _encode(demo)


class AlfworldDemonstrations(_Demonstrations):
    """On ALFWorld games."""


class SearchDemonstrations(_Demonstrations):
    """On questions of the fictional encyclopaedia."""


def chosen(tasks: Sequence[Task], count: int, seed: int) -> list[Task]:
    """`count` of the tasks (all, if there are fewer), by seed."""
    return random.Random(f"{seed}/demonstrated").sample(list(tasks), min(count, len(tasks)))


def load_demonstrations(
    builder_class: type[_Demonstrations], folder: Path, played: Played
) -> list[Demonstration]:
    """Builds the data set in `folder` unless it is there, and reads it, in a fixed order."""
    builder = builder_class(played=played, data_dir=folder, file_format="array_record")
    tfds.disable_progress_bar()
    with contextlib.redirect_stdout(io.StringIO()):  # TFDS talks of downloads; there are none
        builder.download_and_prepare()
    demos = [_decode(record) for record in builder.as_data_source("train")]
    return sorted(demos, key=lambda d: (d.task_id, d.skill, d.responses))


def _encode(demo: Demonstration) -> dict[str, Any]:
    return {
        **vars(demo),
        "observations": list(demo.observations),
        "admissible": ["\n".join(actions) for actions in demo.admissible],
        "responses": list(demo.responses),
        "imitate": list(demo.imitate),
    }


def _decode(record: dict[str, Any]) -> Demonstration:
    def text(value: bytes) -> str:
        return value.decode("utf-8")

    return Demonstration(
        text(record["task_id"]),
        text(record["kind"]),
        text(record["skill"]),
        tuple(map(text, record["observations"])),
        tuple(tuple(text(actions).splitlines()) for actions in record["admissible"]),
        tuple(map(text, record["responses"])),
        tuple(map(bool, record["imitate"])),
        bool(record["won"]),
        text(record["analysis"]),
    )
