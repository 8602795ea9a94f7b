"""The figure of `launch/evaluate.py --teacher-vs-student`: where the policy with a skill wins more often than without."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from matplotlib.figure import Figure

# Share, colour (Okabe and Ito).
SHARES = (("better", "#009E73"), ("equal", "#BBBBBB"), ("worse", "#D55E00"))


def shares_figure(measured: Mapping[str, Any]) -> Figure:
    """Stacked shares of the tasks in each bin of student successes, with the chance level of better and of worse.

    `measured` is the record of the comparison. Bins without tasks stay empty. Drawn without pyplot.
    """
    bins = [row for row in measured["bins"] if row["tasks"]]
    figure = Figure(figsize=(7.0, 4.0), layout="constrained")
    axis = figure.subplots()
    bottom = [0.0] * len(bins)
    places = [row["bin"] for row in bins]
    for name, colour in SHARES:
        heights = [100 * row[name] for row in bins]
        axis.bar(places, heights, bottom=bottom, color=colour, label=f"with a skill {name}")
        bottom = [low + height for low, height in zip(bottom, heights, strict=True)]
    for row in bins:
        for level in (100 * row["chance"], 100 - 100 * row["chance"]):
            axis.plot([row["bin"] - 0.4, row["bin"] + 0.4], [level, level], color="black", linewidth=1.2)
    axis.plot([], [], color="black", linewidth=1.2, label="chance: a skill without effect")
    axis.set_xticks(range(measured["binning"] + 1))
    counts = {row["bin"]: row["tasks"] for row in measured["bins"]}
    axis.set_xticklabels([f"{n}\n({counts[n]} tasks)" for n in range(measured["binning"] + 1)])
    axis.set_xlabel(f"successes of the student in {measured['binning']} separate episodes")
    axis.set_ylabel("tasks (%)")
    axis.set_ylim(0, 100)
    axis.set_title(f"{measured['panel']}, RL step {measured['step']}")
    figure.legend(loc="outside right upper", frameon=False)
    return figure
