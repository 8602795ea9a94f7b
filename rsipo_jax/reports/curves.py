"""Learning curves of a run: success on training tasks and replay gain over RL steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from rsipo_jax.reports.records import read_records

WINDOW = 10  # steps of the moving average

# Name in log.jsonl, y label with its unit, colour (Okabe and Ito: told apart with any colour vision).
CURVES = (
    ("success", "success on training tasks (%)", "#0072B2"),
    ("gain_mean", "replay gain (percentage points)", "#D55E00"),
)


def curves(log: Sequence[Mapping[str, Any]]) -> Figure:
    """The figure from log.jsonl records: thin lines are steps, thick ones means of the last `WINDOW` steps.

    A method without skills has no replay gain and gets one panel. Drawn without pyplot, so no display or
    global state is needed. Raises ValueError when there is nothing to draw.
    """
    shown = [curve for curve in CURVES if any(curve[0] in record for record in log)]
    if not shown:
        raise ValueError("no success or replay gain in the log records: curves need a completed RL step")
    figure = Figure(figsize=(8.0, 3.0 * len(shown)), layout="constrained")
    axes = figure.subplots(len(shown), sharex=True, squeeze=False)[:, 0]
    for axis, (name, label, colour) in zip(axes, shown, strict=True):
        points = np.array([(record["step"], 100 * record[name]) for record in log if name in record])
        axis.plot(*points.T, color=colour, linewidth=0.8, alpha=0.5, label="single step")
        means = moving_average(points[:, 1])
        axis.plot(points[:, 0], means, color=colour, linewidth=2.5, label=f"mean of {WINDOW} steps")
        axis.set_ylabel(label)
        axis.grid(alpha=0.3)
        axis.legend(loc="best", frameon=False)
        axis.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
        if name == "success":
            axis.set_ylim(0, 100)
        else:
            axis.axhline(0, color="black", linewidth=0.8)
    axes[-1].set_xlabel("RL step")
    return figure


def moving_average(values: NDArray[np.float64], window: int = WINDOW) -> NDArray[np.float64]:
    """Mean of the last `window` values, of all so far where there are fewer; [n] -> [n], float64."""
    total = np.concatenate([[0.0], np.cumsum(values, dtype=np.float64)])
    end = np.arange(1, len(values) + 1)
    start = np.maximum(end - window, 0)
    means: NDArray[np.float64] = (total[end] - total[start]) / (end - start)
    return means


def save_curves(workdir: str | PathLike[str]) -> Path:
    """Draws the curves of the run in `workdir` to its curves.png and returns the path."""
    path = Path(workdir) / "curves.png"
    curves(read_records(Path(workdir) / "log.jsonl")).savefig(path, dpi=150)
    return path
