"""The records of a run: JSON lines are the truth, TensorBoard is a view of them.

    config.json       the configuration
    log.jsonl         one line a completed RL step: step, metrics by name, "seconds", "tokens_per_second"
    episodes.jsonl    one line an episode
    skills.jsonl      one line a skill
    evaluation.jsonl  one line a measured panel: step, stage, panel, drawn, hash, score, the per-game episodes
    tensorboard/      the same: train/<metric>, eval/<panel>/<metric>, seconds/<phase>, tokens_per_second

Invariants: a line is a pure function of what was recorded (fixed key order, floats as Python's shortest
repr), so two equal runs leave equal bytes except under `TIMINGS`; and after `RunLog.open(..., resume_step=n)`
the files are those of a run that stopped right after step n. Step 0 is before RL, the first RL step is 1.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, SupportsFloat

from tensorboardX import SummaryWriter

from rsipo_jax.reports.records import encode_line, leaves, plain, read_lines, read_records, replace_file

TIMINGS = ("seconds", "tokens_per_second")  # the keys of a log.jsonl line that two equal runs do not share
# When a panel was measured: before RL, so but with skills in the prompts, between RL steps, after the last.
STAGES = ("sft", "sft*", "during", "rl")
RECORDS = ("log.jsonl", "episodes.jsonl", "skills.jsonl", "evaluation.jsonl")


class RunLog:
    """Writes the records of one run. Made by `RunLog.open`; one process of a run writes.

    Every call first turns everything it was given into lines, then writes, then flushes: bad input leaves no
    trace.
    """

    def __init__(self, workdir: Path, last_step: int, writer: SummaryWriter) -> None:
        self.workdir = workdir
        self.last_step = last_step  # RL steps recorded so far
        self.evaluations = read_records(workdir / "evaluation.jsonl")
        self._writer = writer

    @classmethod
    def open(
        cls,
        workdir: str | os.PathLike[str],
        config: Mapping[str, Any],
        resume_step: int | None = None,
        changeable: Collection[str] = (),
    ) -> RunLog:
        """Opens the records of a run in `workdir` (created when absent).

        `resume_step` None starts a run: ValueError if the folder already holds records. `resume_step` n
        continues one from its checkpoint of step n: records of later steps are dropped; ValueError if the log
        does not reach step n or `config` differs from config.json, but for the `changeable` keys (as "a.b").
        """
        folder = Path(workdir)
        folder.mkdir(parents=True, exist_ok=True)
        config = plain(config, "config")
        board = str(folder / "tensorboard")
        if resume_step is None:
            _refuse_records(folder)
            _write_config(folder, config)
            return cls(folder, 0, SummaryWriter(board))
        check_config(folder / "config.json", config, changeable)
        _check_reaches(folder / "log.jsonl", resume_step)
        truncate(folder, resume_step)
        _write_config(folder, config)
        # purge_step makes TensorBoard hide what the interrupted run wrote beyond the checkpoint.
        return cls(folder, resume_step, SummaryWriter(board, purge_step=resume_step + 1))

    def step(
        self,
        step: int,
        metrics: Mapping[str, SupportsFloat],
        seconds: Mapping[str, SupportsFloat],
        tokens_per_second: SupportsFloat,
        episodes: Iterable[Mapping[str, Any]] = (),
        skills: Iterable[Mapping[str, Any]] = (),
    ) -> dict[str, Any]:
        """Records the completed RL step `step` and returns its log.jsonl record.

        `metrics` are named numbers of the method's choice; leave a metric out of steps where it is not
        defined. `seconds` maps the phases of the step, which do not overlap, to wall-clock seconds. The
        log.jsonl line is written last: where it is, the step's episodes and skills are too. Raises ValueError
        if the step is not the next one, a name is taken, or a number is NaN or infinite.
        """
        if step != self.last_step + 1:
            raise ValueError(
                f"step {step} cannot be recorded after step {self.last_step}: "
                "steps are recorded once, in order"
            )
        taken = sorted(set(metrics) & {"step", *TIMINGS})
        if taken:
            raise ValueError(f"metric {taken[0]!r} uses a name the log keeps for itself: rename the metric")
        where = f"step {step}"
        record = {
            "step": step,
            **plain({name: float(value) for name, value in metrics.items()}, where),
            "seconds": plain({name: float(value) for name, value in seconds.items()}, f"{where}: seconds"),
            "tokens_per_second": plain(float(tokens_per_second), f"{where}: tokens_per_second"),
        }
        line = encode_line(record)
        episode_lines = [encode_line(_at(step, row, f"{where}: episode")) for row in episodes]
        skill_lines = [encode_line(_at(step, row, f"{where}: skill")) for row in skills]
        self._append("episodes.jsonl", episode_lines)
        self._append("skills.jsonl", skill_lines)
        self._append("log.jsonl", [line])
        self.last_step = step
        scalars = {f"train/{name}": value for name, value in record.items() if name not in ("step", *TIMINGS)}
        scalars |= {f"seconds/{name}": value for name, value in record["seconds"].items()}
        self._scalars(step, scalars | {"tokens_per_second": record["tokens_per_second"]})
        return record

    def evaluation(
        self,
        step: int,
        stage: str,
        panel: str,
        panel_hash: str,
        score: Mapping[str, Any],
        episodes: Sequence[Mapping[str, Any]],
        drawn: str = "",
    ) -> dict[str, Any]:
        """Records one measured panel with its per-game episodes in one line, and returns the record.

        TensorBoard gets every number of `score` as eval/<panel>/<name>, nested names joined by "/". A panel
        name belongs to one set of games, unless they are drawn anew each time (`drawn` says how): ValueError
        if it was recorded with another hash, so that no curve mixes two panels, or if this measurement is
        already there (a resumed run asks `measured` first).
        """
        if stage not in STAGES:
            raise ValueError(f"evaluation stage is {stage!r}; use one of {', '.join(STAGES)}")
        if self.measured(step, stage, panel):
            raise ValueError(
                f"panel {panel!r} is already recorded at step {step}, stage {stage!r}: it is measured once"
            )
        for earlier in self.evaluations:
            if earlier["panel"] == panel and earlier["hash"] != panel_hash and not drawn:
                raise ValueError(
                    f"panel {panel!r} has hash {panel_hash[:12]} here and {earlier['hash'][:12]} earlier "
                    "in this run: its games changed, so give the new panel its own name"
                )
        where = f"step {step}: panel {panel!r}"
        record = {
            "step": step,
            "stage": stage,
            "panel": panel,
            "hash": panel_hash,
            "drawn": drawn,
            "score": plain(score, where),
            "episodes": plain(episodes, f"{where}: episodes"),
        }
        self._append("evaluation.jsonl", [encode_line(record)])
        self.evaluations.append(record)
        numbers = {
            name: value for name, value in leaves(record["score"], "/") if isinstance(value, int | float)
        }
        self._scalars(step, {f"eval/{panel}/{name}": value for name, value in numbers.items()})
        return record

    def measured(self, step: int, stage: str, panel: str) -> dict[str, Any] | None:
        """The recorded evaluation, None when there is none: a resumed run need not play it again."""
        for record in self.evaluations:
            if (record["step"], record["stage"], record["panel"]) == (step, stage, panel):
                return record
        return None

    def files(self) -> dict[str, Path]:
        """What the run wrote so far, by what it is."""
        written = {
            "configuration": "config.json",
            "metrics of every step": "log.jsonl",
            "episodes": "episodes.jsonl",
            "skills": "skills.jsonl",
            "evaluations": "evaluation.jsonl",
            "TensorBoard": "tensorboard",
        }
        return {what: self.workdir / name for what, name in written.items() if (self.workdir / name).exists()}

    def close(self) -> None:
        self._writer.close()

    def _append(self, name: str, lines: Sequence[bytes]) -> None:
        if lines:
            with (self.workdir / name).open("ab") as file:
                file.writelines(lines)

    def _scalars(self, step: int, scalars: Mapping[str, float]) -> None:
        for name, value in scalars.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()


def truncate(workdir: str | os.PathLike[str], step: int) -> None:
    """Drops the records of steps after `step` from every JSON-lines file; what is kept keeps its bytes."""
    for name in RECORDS:
        path = Path(workdir) / name
        if path.exists():
            replace_file(path, (line for line, record in read_lines(path) if record["step"] <= step))


def _refuse_records(folder: Path) -> None:
    found = [name for name in RECORDS if (folder / name).exists() and (folder / name).stat().st_size]
    if found:
        raise ValueError(
            f"{folder} already holds the records of a run ({', '.join(found)}): "
            "resume that run, choose another workdir, or delete these files"
        )


def _write_config(folder: Path, config: Mapping[str, Any]) -> None:
    replace_file(folder / "config.json", [(json.dumps(config, indent=2) + "\n").encode("ascii")])


def check_config(path: Path, config: Mapping[str, Any], changeable: Collection[str] = ()) -> None:
    if not path.exists():
        raise ValueError(f"{path} does not exist: there is no run to resume there, so start one")
    try:
        recorded = dict(leaves(json.loads(path.read_text(encoding="utf-8"))))
    except (AttributeError, ValueError) as error:
        raise ValueError(
            f"{path} holds no settings of a run ({error}): restore it, or choose another workdir"
        ) from error
    given = dict(leaves(config))
    for key in sorted((recorded.keys() | given.keys()) - set(changeable)):
        if recorded.get(key) != given.get(key):
            raise ValueError(
                f"{key} is {given.get(key)!r}, but the run in {path.parent} was started with "
                f"{recorded.get(key)!r}: resume with the recorded value, or choose another workdir"
            )


def _check_reaches(path: Path, step: int) -> None:
    last = max((record["step"] for record in read_records(path) if record["step"] <= step), default=0)
    if last != step:
        raise ValueError(
            f"{path} has no record of step {step}, the checkpoint's step (the last before it is {last}): "
            "restore the log, or resume from an earlier checkpoint"
        )


def _at(step: int, record: Mapping[str, Any], where: str) -> dict[str, Any]:
    if "step" in record:
        raise ValueError(f"{where}: the record has a step of its own; leave it out, the log adds it")
    return {"step": step, **plain(record, where)}
