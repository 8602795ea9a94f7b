import io

import pytest
from rich.console import Console

from rsipo_jax.reports.console import LINE_EVERY, duration, make_console, progress, stage, step_line


class Clock:
    """Time that passes only when told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def run(seconds_each: float, total: int) -> list[str]:
    """The plain progress lines of `total` pieces of work of `seconds_each` seconds."""
    file, clock = io.StringIO(), Clock()
    with progress(make_console(file), "games", total, clock) as advance:
        for _ in range(total):
            clock.now += seconds_each
            advance(1)
    return file.getvalue().splitlines()


@pytest.mark.parametrize(("seconds_each", "total"), [(0.001, 10_000), (0.01, 10_000), (4.0, 30)])
def test_plain_progress_prints_at_most_every_few_seconds(seconds_each: float, total: int) -> None:
    lines = run(seconds_each, total)
    assert len(lines) <= seconds_each * total / LINE_EVERY + 1
    assert lines[-1] == f"games: {total}/{total} in {duration(seconds_each * total)}"


def test_plain_progress_says_how_long_is_left() -> None:
    assert run(5.0, 4) == [
        "games: 2/4 (50%), 10 s gone, about 10 s left",
        "games: 4/4 in 20 s",
    ]


def test_plain_progress_does_not_claim_an_end_it_did_not_reach() -> None:
    file = io.StringIO()

    def interrupted() -> None:
        with progress(make_console(file), "games", 4, Clock()) as advance:
            advance(1)
            raise RuntimeError("interrupted")

    with pytest.raises(RuntimeError, match="interrupted"):
        interrupted()
    assert file.getvalue() == ""


def test_progress_on_a_terminal_is_a_bar_below_other_output() -> None:
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=100)
    with progress(console, "games", 4) as advance:
        console.print("a line of its own")
        advance(4)
    assert "a line of its own" in file.getvalue()
    assert "4/4" in file.getvalue()
    assert "\x1b[" in file.getvalue()


def test_stage_banner() -> None:
    file = io.StringIO()
    stage(make_console(file), 2, 6, "Games", "800 train, [bold] is not markup")
    text = file.getvalue()
    assert "2/6  Games" in text
    assert "[bold] is not markup" in text
    assert "\x1b" not in text


def test_step_line_shows_what_the_method_has_in_one_line() -> None:
    record = {
        "step": 7,
        "success": 0.414,
        "length": 17.25,
        "gain_mean": 0.0625,
        "trust_mean": 0.5,
        "valid_skills": 0.96,
        "valid_actions": 0.994,
        "kl": 0.0123,
        "seconds": {"rollout": 30.0, "update": 11.0},
    }
    file = io.StringIO()
    step_line(Console(file=file, width=40), record, 150)
    assert file.getvalue() == (
        "step   7/150  success 41%  length 17.2  gain +6.2  trust 0.50  "
        "skills 96%  actions 99%  kl 0.012  41 s\n"
    )
    for name in ("gain_mean", "trust_mean", "valid_skills"):
        del record[name]
    file = io.StringIO()
    step_line(Console(file=file), record, 150)
    assert file.getvalue() == "step   7/150  success 41%  length 17.2  actions 99%  kl 0.012  41 s\n"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.04, "0.0 s"),
        (9.94, "9.9 s"),
        (9.96, "10 s"),
        (59.6, "1 min 00 s"),
        (185, "3 min 05 s"),
        (3720, "1 h 02 min"),
    ],
)
def test_duration(seconds: float, text: str) -> None:
    assert duration(seconds) == text
