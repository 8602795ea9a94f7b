"""What a run says while it works: stage banners, progress with the time left, one line a step.

On a terminal progress is a live bar. Anywhere else (a file, CI, a notebook cell) it is a plain line at most
every `LINE_EVERY` seconds, so that a log of a long run stays readable.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import IO, Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

LINE_EVERY = 10.0  # seconds between two plain progress lines
PLAIN_WIDTH = 110  # columns where there is no terminal to ask; the final tables fit

# The metrics of the step line: name in log.jsonl, label, format, factor. Metrics a method lacks are left out.
STEP_LINE = (
    ("success", "success", "{:.0f}%", 100),
    ("length", "length", "{:.1f}", 1),
    ("gain_mean", "gain", "{:+.1f}", 100),  # percentage points
    ("trust_mean", "trust", "{:.2f}", 1),
    ("valid_skills", "skills", "{:.0f}%", 100),
    ("valid_actions", "actions", "{:.0f}%", 100),
    ("kl", "kl", "{:.3f}", 1),
)


def make_console(file: IO[str] | None = None) -> Console:
    """The console of a run, writing to `file` (default: standard output)."""
    file = file or sys.stdout
    console = Console(file=file, highlight=False, force_jupyter=False)
    return (
        console
        if console.is_terminal
        else Console(file=file, highlight=False, width=PLAIN_WIDTH, force_jupyter=False)
    )


def stage(console: Console, number: int, stages: int, title: str, detail: str = "") -> None:
    """Prints the banner of stage `number` of `stages`."""
    console.print()
    console.rule(Text(f"{number}/{stages}  {title}", style="bold"), align="left")
    if detail:
        console.print(Text(detail, style="dim"))


@contextmanager
def progress(
    console: Console,
    label: str,
    total: int,
    clock: Callable[[], float] = time.monotonic,
    transient: bool = False,
) -> Iterator[Callable[[int], None]]:
    """Shows the progress of `total` pieces of work; yields the function that is told how many more are done.

    `with progress(console, "games", 800) as advance: ... advance(1)`. Other output goes through the same
    console, which keeps it above the bar. A `transient` one leaves nothing behind when it is done.
    """
    if console.is_terminal:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(
            *columns, TextColumn("left"), TimeRemainingColumn(), console=console, transient=transient
        ) as bar:
            task = bar.add_task(label, total=total)
            yield lambda amount: bar.advance(task, amount)
        return
    start = last = clock()
    done = 0

    def advance(amount: int) -> None:
        nonlocal done, last
        done += amount
        now = clock()
        if now - last >= LINE_EVERY and 0 < done < total:
            last = now
            left = (now - start) / done * (total - done)
            share = f"{done}/{total} ({done / total:.0%})"
            console.print(
                Text(f"{label}: {share}, {duration(now - start)} gone, about {duration(left)} left")
            )

    yield advance
    if not transient:
        console.print(Text(f"{label}: {done}/{total} in {duration(clock() - start)}"))


def step_line(console: Console, record: Mapping[str, Any], steps: int) -> None:
    """Prints one RL step of `steps` as one line, from its log.jsonl record.

    Success and the shares of valid skills and valid actions in percent, the replay gain in percentage points.
    """
    parts = [f"step {record['step']:>{len(str(steps))}}/{steps}"]
    parts += [
        f"{label} {style.format(factor * record[name])}"
        for name, label, style, factor in STEP_LINE
        if name in record
    ]
    parts.append(duration(sum(record["seconds"].values())))
    console.print(Text("  ".join(parts)), soft_wrap=True)


def duration(seconds: float) -> str:
    """Seconds as people read them: "4.2 s", "45 s", "3 min 05 s", "1 h 02 min"."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02} min"
