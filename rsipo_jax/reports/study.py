"""The results of a study as tables in Markdown, pictures and JSON; equal results give equal bytes.

`results` is what `evaluation.study.summarize` made of the runs' records.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from rsipo_jax.reports.console import duration
from rsipo_jax.reports.curves import WINDOW, moving_average
from rsipo_jax.reports.records import plain

# Okabe and Ito: told apart with any colour vision. More variants repeat them with another dash.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#000000")
DASHES = ("-", "--", ":")
AVERAGES = (("success", "over games"), ("success_macro", "macro average over task kinds"))
Results = Mapping[str, Any]
Line = Mapping[int, tuple[float, float]]  # what is drawn of a run: by its RL step, x and y


def write(results: Results, out: Path) -> list[Path]:
    """Writes results.md, results.json and the curves (PNG and SVG) to `out` and returns the paths."""
    out.mkdir(parents=True, exist_ok=True)
    paths = [out / "results.md", out / "results.json"]
    figures = {name: figure for name, figure in _figures(results).items() if figure is not None}
    paths[0].write_text(markdown(results, list(figures)), encoding="utf-8")
    paths[1].write_text(json.dumps(plain(results, "study"), indent=1) + "\n", encoding="ascii")
    for name, figure in figures.items():
        for suffix, metadata in (("png", {"Software": None}), ("svg", {"Date": None, "Creator": None})):
            paths.append(out / f"{name}.{suffix}")
            with matplotlib.rc_context({"svg.hashsalt": name}):  # else its ids are random
                figure.savefig(paths[-1], dpi=150, metadata=metadata)
    return paths


def markdown(results: Results, figures: Sequence[str] = ()) -> str:
    """The tables: success, differences, what it took, and which runs are there."""
    variants, seeds = results["variants"], results["seeds"]
    parts = [f"# Study: {', '.join(results['studies'])}", _notes()]
    for panel, measured in results["panels"].items():
        for average, title in AVERAGES:
            references = [
                r for r in results["references"] if any(r in minus for minus in measured["minus"].values())
            ]
            rows = [["SFT policy", *_rate_cells(measured["sft"], average), *("" for _ in references)]]
            rows += [
                [
                    name,
                    *_rate_cells(measured["rl"][name], average),
                    *(
                        "" if r == name else _difference(measured["minus"][name].get(r), average)
                        for r in references
                    ),
                ]
                for name in variants
            ]
            titles = ["variant", "seeds", "success", *(f"minus {r}" for r in references)]
            parts += [f"## {panel}, {title}", _table(titles, rows)]
    titles = ["variant", "steps", "student episodes", "all episodes", "RL time", "median step"]
    titles += ["trust", "readable skills", "replay gain"]
    parts += [
        "## What it took, and the skills",
        _table(titles, [[name, *_use_cells(results["use"][name])] for name in variants]),
    ]
    for name in figures:
        parts.append(f"![{name}]({name}.svg)")
    parts += [
        "## Runs",
        _table(
            ["variant", "settings", *(f"seed {seed}" for seed in seeds)],
            [
                [
                    name,
                    ", ".join(f"`{key}={value}`" for key, value in changed.items()),
                    *(results["runs"][name][str(seed)] for seed in seeds),
                ]
                for name, changed in variants.items()
            ],
        ),
    ]
    return "\n\n".join(parts) + "\n"


def _notes() -> str:
    return (
        "Success in %, differences in percentage points, each the mean over the seeds that are there, with the 95% interval "
        "of a two-level bootstrap over seeds and games (`rsipo_jax/evaluation/seeds.py`); differences are paired by game "
        "within a seed. Episodes, times and skills are means over the finished runs; trust, readable skills and replay gain: "
        f'mean of all steps, then of the last {WINDOW}. "All episodes" counts replays.'
    )


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [titles, ["---"] * len(titles), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _rate_cells(measured: Mapping[str, Any] | None, average: str) -> list[str]:
    if measured is None:
        return ["0", "missing"]
    mean = measured[average]
    return [
        str(len(mean["per_seed"])),
        f"{100 * mean['mean']:.1f} [{100 * mean['low']:.1f}, {100 * mean['high']:.1f}]",
    ]


def _difference(measured: Mapping[str, Any] | None, average: str) -> str:
    if measured is None:
        return "missing"
    mean = measured[average]
    return f"{100 * mean['mean']:+.1f} [{100 * mean['low']:+.1f}, {100 * mean['high']:+.1f}]"


def _use_cells(use: Mapping[str, Any] | None) -> list[str]:
    if use is None:
        return ["missing", *[""] * 7]
    metrics = (("trust_mean", "{:.2f}", 1), ("valid_skills", "{:.0f}%", 100), ("gain_mean", "{:+.1f}", 100))
    return [
        str(use["steps"]),
        f"{use['student_episodes']:.0f}",
        f"{use['episodes']:.0f}",
        duration(use["seconds"]),
        duration(use["seconds_per_step"]),
        *(
            ", ".join(style.format(factor * use[name][part]) for part in ("mean", "last"))
            if use[name]
            else "-"
            for name, style, factor in metrics
        ),
    ]


def _figures(results: Results) -> dict[str, Figure | None]:
    return {"success": success_figure(results), "skills": skill_figure(results)}


def success_figure(results: Results) -> Figure | None:
    """Success against RL steps and against all episodes played; thin lines are seeds. None without a step."""
    curves = _drawn(results, "success")
    if not curves:
        return None
    measured = {
        name: {seed: curve["during"] for seed, curve in seeds.items() if curve["during"]}
        for name, seeds in curves.items()
    }
    rows = 1 + any(measured.values())
    figure = Figure(figsize=(12.0, 4.0 * rows), layout="constrained")
    axes = figure.subplots(rows, 2, squeeze=False, sharey="row")
    for column, (x, label) in enumerate((("step", "RL step"), ("episodes", "episodes played, with replays"))):
        for name, colour, dash in _styles(results, curves):
            lines = [_line(curve, x, "success", 100) for curve in curves[name].values()]
            _draw(axes[0, column], lines, name, colour, dash)
            points = [
                {p["step"]: (p[x], 100 * p["success"]) for p in seed} for seed in measured[name].values()
            ]
            if points:
                _draw(axes[1, column], points, name, colour, dash)
        axes[-1, column].set_xlabel(label)
    axes[0, 0].set_ylabel(f"success on training tasks (%)\nmean of {WINDOW} steps")
    if rows == 2:
        axes[1, 0].set_ylabel("success on the panel between steps (%)")
    axes[0, 0].legend(loc="best", frameon=False)
    return figure


def skill_figure(results: Results) -> Figure | None:
    """Mean trust and replay gain against RL steps, means of the last `WINDOW` steps. None without skills."""
    shown = (("trust_mean", "trust", 1.0), ("gain_mean", "replay gain (percentage points)", 100.0))
    if not any(_drawn(results, metric) for metric, _, _ in shown):
        return None
    figure = Figure(figsize=(12.0, 4.0), layout="constrained")
    for axis, (metric, label, factor) in zip(figure.subplots(1, 2), shown, strict=True):
        curves = _drawn(results, metric)
        for name, colour, dash in _styles(results, curves):
            lines = [_line(curve, "step", metric, factor) for curve in curves[name].values()]
            _draw(axis, lines, name, colour, dash)
        axis.set_xlabel("RL step")
        axis.set_ylabel(f"{label}\nmean of {WINDOW} steps")
        if curves:
            axis.legend(loc="best", frameon=False)
    return figure


def _drawn(results: Results, metric: str) -> dict[str, dict[str, Any]]:
    """The curves of each variant, by seed, that have the metric."""
    curves = {
        name: {seed: c for seed, c in seeds.items() if any(v is not None for v in c[metric])}
        for name, seeds in results["curves"].items()
    }
    return {name: seeds for name, seeds in curves.items() if seeds}


def _styles(results: Results, curves: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Name, colour and dash of the variants that are drawn; a variant looks the same in every picture."""
    return [
        (name, COLOURS[i % len(COLOURS)], DASHES[i // len(COLOURS) % len(DASHES)])
        for i, name in enumerate(results["variants"])
        if name in curves
    ]


def _line(curve: Mapping[str, Any], x: str, metric: str, factor: float) -> Line:
    """The moving average of a metric over the steps that have it."""
    rows = zip(curve["step"], curve[x], curve[metric], strict=True)
    known = [(step, at, factor * value) for step, at, value in rows if value is not None]
    means = moving_average(np.array([value for _, _, value in known]))
    return {step: (at, float(mean)) for (step, at, _), mean in zip(known, means, strict=True)}


def _draw(axis: Axes, lines: Sequence[Line], name: str, colour: str, dash: str) -> None:
    """A thin line for each seed, and a thick one of their means at the steps that all of them have."""
    for line in lines:
        axis.plot(*zip(*line.values(), strict=True), color=colour, linestyle=dash, linewidth=0.6, alpha=0.4)
    shared = [step for step in lines[0] if all(step in line for line in lines)]
    mean = np.array([np.mean([line[step] for line in lines], axis=0) for step in shared]).reshape(-1, 2)
    axis.plot(*mean.T, color=colour, linestyle=dash, linewidth=2.2, marker=".", label=name)
    axis.grid(alpha=0.3)
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
