"""The demonstrations as a TFDS data set (array_record files; no TensorFlow needed to write or read them)."""

from __future__ import annotations

import contextlib
import io
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import tensorflow_datasets as tfds

from rsipo_jax.config import SFTConfig
from rsipo_jax.envs.alfworld.data import Source, find_tasks, load_game
from rsipo_jax.envs.protocol import Task
from rsipo_jax.training.demonstrations.play import Demonstration, demonstrations, reading_questions


class AlfworldDemonstrations(tfds.core.GeneratorBasedBuilder):
    """Expert episodes on training games. `root` holds the games; `games` of them are demonstrated, chosen by `seed`."""

    VERSION = tfds.core.Version("1.0.0")
    RELEASE_NOTES: ClassVar[dict[str, str]] = {"1.0.0": "First version."}

    def __init__(
        self, *, root: Source, games: int, questions: int, seed: int, max_turns: int, **kwargs: Any
    ) -> None:
        self._root, self._games, self._questions = root, games, questions
        self._seed, self._max_turns = seed, max_turns
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
        for task in chosen(find_tasks(self._root, "train"), self._games, self._seed):
            game = load_game(self._root, task)
            for i, demo in enumerate(demonstrations(game, task, self._seed, self._max_turns)):
                yield f"{task.id}/{i}", _encode(demo)
            for i, demo in enumerate(reading_questions(game, task, self._seed, self._questions)):
                yield f"{task.id}/reading/{i}", _encode(demo)


def chosen(tasks: Sequence[Task], count: int, seed: int) -> list[Task]:
    """`count` of the tasks (all, if there are fewer), by seed."""
    return random.Random(f"{seed}/demonstrated").sample(list(tasks), min(count, len(tasks)))


def load_demonstrations(
    folder: Path, root: Source, sft: SFTConfig, seed: int, max_turns: int
) -> list[Demonstration]:
    """Builds the data set in `folder` unless it is there, and reads it, in a fixed order."""
    builder = AlfworldDemonstrations(
        root=root,
        games=sft.games,
        questions=sft.reading_questions,
        seed=seed,
        max_turns=max_turns,
        data_dir=folder,
        file_format="array_record",
    )
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
