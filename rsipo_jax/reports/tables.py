"""The tables at the end of a run, as pure functions from records to `rich` renderables.

Records are those of the run log (`read_records`), so a finished run can be printed again by
launch/evaluate.py or in a notebook. Rates are shown in percent, differences of rates in percentage points;
every interval is 95%, every average named.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any

import numpy as np
from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from rsipo_jax.reports.console import duration

STAGE_TITLES = {"sft": "SFT", "sft*": "SFT, skills at test*", "during": "during RL", "rl": "RL"}
SKILL_CHARS = 240  # of a sample skill's text


def summary(
    evaluations: Sequence[Mapping[str, Any]],
    differences: Mapping[str, Mapping[str, Any]],
    log: Sequence[Mapping[str, Any]],
    skills: Sequence[Mapping[str, Any]],
    written: Mapping[str, str | PathLike[str]],
) -> RenderableType:
    """Everything a run shows when it ends.

    `evaluations`, `log`, `skills`: records of evaluation.jsonl, log.jsonl, skills.jsonl. `differences`: per
    panel name the record of the paired comparison of SFT and RL. `written`: what was written where. A part
    without records is left out.
    """
    parts: list[RenderableType] = []
    for panel in dict.fromkeys(record["panel"] for record in evaluations):
        measured = {record["stage"]: record for record in evaluations if record["panel"] == panel}
        shown = [measured[stage] for stage in ("sft", "sft*", "rl") if stage in measured]
        if shown:
            parts += [panel_table(shown, differences.get(panel)), Text()]
    if chosen := sample_skills(skills):
        parts += [skill_table(chosen), Text()]
    if log:
        parts += [phase_table(log), Text()]
    if written:
        parts.append(written_table(written))
    return Group(*parts)


def panel_table(
    measured: Sequence[Mapping[str, Any]],
    difference: Mapping[str, Any] | None = None,
    titles: Sequence[str] = (),
) -> RenderableType:
    """Success per task kind, a column for each measurement of one panel (records of evaluation.jsonl).

    `titles` name the columns; without them they are named after the stages. With the paired `difference` of two
    measurements there is a column of changes.
    """
    first = measured[0]
    drawn = "".join(f"; {how}" for how in dict.fromkeys(r["drawn"] for r in measured) if how)
    table = _table(f"Success on {first['panel']} in %, [95% interval]   (panel {first['hash'][:12]}{drawn})")
    table.add_column("task kind")
    table.add_column("games", justify="right", no_wrap=True)
    titles = list(titles) or [STAGE_TITLES[record["stage"]] for record in measured]
    for title in titles:
        table.add_column(title, justify="right", no_wrap=True)
    compare = difference is not None
    if compare:
        table.add_column("change", justify="right", no_wrap=True)
    scores = [record["score"] for record in measured]
    known = all(score["optimal"] is not None for score in scores)
    if known:
        table.add_column("fewest turns", justify="right", no_wrap=True)
    for kind in scores[0]["kinds"]:
        rows = [score["kinds"][kind] for score in scores]
        changes = [_change([row["success"] for row in rows])] if compare else []
        name = kind.replace("_", " ")  # lets a narrow terminal break the line between words
        cells = [_rate(row["success"], row["interval"]) for row in rows]
        table.add_row(name, _games(rows), *cells, *changes, *([_turns(rows[0]["optimal"])] if known else []))
    table.add_section()
    for label, name in (("episode-weighted mean", "success"), ("macro average over kinds", "success_macro")):
        intervals = [score["interval"] if name == "success" else None for score in scores]
        cells = [_rate(score[name], interval) for score, interval in zip(scores, intervals, strict=True)]
        changes = [_change([score[name] for score in scores])] if compare else []
        optimal = [_turns(scores[0]["optimal"] if name == "success" else None)] if known else []
        table.add_row(label, _games(scores), *cells, *changes, *optimal, style="bold")
    lines = []
    if known:
        turns = ", ".join(
            f"{_turns(score['won_turns'])} ({title}; fewest {_turns(score['won_optimal'])})"
            for score, title in zip(scores, titles, strict=True)
        )
        lines.append(f"Mean turns of won games: {turns}.")
    if any(score["errors"] for score in scores):
        void = ", ".join(f"{score['errors']} ({title})" for score, title in zip(scores, titles, strict=True))
        lines.append(f"Episodes left out as void (their `error` says why): {void}.")
    if difference:
        lines.append(
            f"{titles[-1]} minus {titles[0]}, episode-weighted, paired over {difference['episodes']} games: "
            f"{100 * difference['mean']:+.1f} points, 95% interval "
            f"[{100 * difference['low']:+.1f}, {100 * difference['high']:+.1f}] "
            f"({difference['gained']} gained, {difference['lost']} lost, {difference['excluded']} left out)."
        )
    return Group(table, *(Text(line) for line in lines))


def panel_line(record: Mapping[str, Any]) -> str:
    """One measurement of a panel as a sentence."""
    measured = record["score"]
    low, high = measured["interval"]
    return (
        f"{record['panel']}: success {100 * measured['success']:.1f}% [{100 * low:.1f}, {100 * high:.1f}] over episodes, "
        f"{100 * measured['success_macro']:.1f}% over task kinds; {measured['episodes']} games, "
        f"{measured['turns']:.1f} turns (panel {record['hash'][:12]})"
    )


def sample_skills(skills: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Up to three skills of the last step that measured any: largest, median and smallest gain."""
    measured = [skill for skill in skills if skill.get("gain") is not None]
    last = [skill for skill in measured if skill["step"] == measured[-1]["step"]]
    last.sort(key=lambda skill: (-skill["gain"], skill["text"]))
    return [last[index] for index in sorted({0, len(last) // 2, len(last) - 1})] if last else []


def skill_table(skills: Sequence[Mapping[str, Any]]) -> Table:
    """Skills with their gain in percentage points and, where recorded, the trust they were given."""
    table = _table(f"Skills of RL step {skills[0]['step']}: largest, median and smallest replay gain")
    table.add_column("gain", justify="right", no_wrap=True)
    table.add_column("trust", justify="right", no_wrap=True)
    table.add_column("skill")
    for skill in skills:
        text = " ".join(skill["text"].split())
        text = text if len(text) <= SKILL_CHARS else text[: SKILL_CHARS - 3] + "..."
        trust = skill.get("trust")
        # Text, not str: a skill may contain what rich would take for markup.
        table.add_row(f"{100 * skill['gain']:+.1f}", "" if trust is None else f"{trust:.2f}", Text(text))
    return table


def phase_table(log: Sequence[Mapping[str, Any]]) -> Table:
    """Where the time of the RL steps went, from log.jsonl records: wall-clock time and share by phase."""
    phases = list(dict.fromkeys(phase for record in log for phase in record["seconds"]))
    phases.sort(key=lambda phase: -sum(record["seconds"].get(phase, 0.0) for record in log))
    # [steps, phases]
    seconds = np.array([[record["seconds"].get(phase, 0.0) for phase in phases] for record in log])
    table = _table(f"Time of {len(log)} RL steps by phase (the first step compiles)")
    table.add_column("phase")
    for title in ("first step", "median step", "total", "share"):
        table.add_column(title, justify="right", no_wrap=True)
    columns = np.concatenate([seconds, seconds.sum(1, keepdims=True)], 1)
    whole = max(float(seconds.sum()), 1e-9)
    for index, phase in enumerate([*phases, "whole step"]):
        column = columns[:, index]
        if phase == "whole step":
            table.add_section()
        times = (duration(float(value)) for value in (column[0], np.median(column), column.sum()))
        table.add_row(phase, *times, f"{column.sum() / whole:.0%}")
    return table


def written_table(written: Mapping[str, str | PathLike[str]]) -> Table:
    """What was written where; paths are never shortened."""
    table = _table("Written to")
    table.add_column("what", no_wrap=True)
    table.add_column("where", overflow="fold")
    for what, path in written.items():
        table.add_row(what, Text(str(path)))
    return table


def _table(title: str) -> Table:
    return Table(
        title=Text(title, style="bold"),
        title_justify="left",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
    )


def _rate(success: float | None, interval: Sequence[float] | None) -> str:
    if success is None:
        return "-"
    bounds = "" if interval is None else f" [{100 * interval[0]:.1f}, {100 * interval[1]:.1f}]"
    return f"{100 * success:.1f}{bounds}"


def _turns(mean: float | None) -> str:
    return "-" if mean is None else f"{mean:.1f}"


def _change(rates: Sequence[float | None]) -> str:
    first, second = rates
    return "-" if first is None or second is None else f"{100 * (second - first):+.1f}"


def _games(rows: Sequence[Mapping[str, Any]]) -> str:
    """The number of valid games, or one number a column where void episodes make them differ."""
    return "/".join(dict.fromkeys(str(row["episodes"]) for row in rows))
