import io
from typing import Any

from rich.console import RenderableType

from rsipo_jax.reports.console import make_console
from rsipo_jax.reports.tables import panel_table, phase_table, sample_skills, summary


def rendered(renderable: RenderableType) -> str:
    file = io.StringIO()
    make_console(file).print(renderable)
    return file.getvalue()


def row(text: str, label: str) -> list[str]:
    """The words of the one line of `text` that starts with `label`, without the label."""
    (line,) = [line for line in text.splitlines() if line.strip().startswith(label)]
    return line.strip().removeprefix(label).split()


def kind(episodes: int, success: float | None, low: float, high: float) -> dict[str, Any]:
    return {"episodes": episodes, "success": success, "interval": [low, high]}


def evaluation(
    stage: str, success: float, macro: float, errors: int, kinds: dict[str, Any]
) -> dict[str, Any]:
    score = {
        "success": success,
        "interval": [success - 0.07, success + 0.06],
        "success_macro": macro,
        "episodes": 210 - errors,
        "errors": errors,
        "optimal": None,
        "kinds": kinds,
    }
    return {
        "step": 0,
        "stage": stage,
        "panel": "valid_unseen",
        "hash": "0123456789abcdef" * 4,
        "drawn": "",
        "score": score,
    }


EVALUATIONS = [
    evaluation("sft", 0.412, 0.398, 0, {"heat": kind(35, 0.314, 0.186, 0.48), "cool": kind(0, None, 0, 1)}),
    evaluation("during", 0.999, 0.999, 0, {"heat": kind(35, 0.999, 0.9, 1), "cool": kind(35, 0.999, 0.9, 1)}),
    evaluation(
        "rl", 0.64, 0.622, 2, {"heat": kind(33, 0.5454, 0.38, 0.7015), "cool": kind(35, 0.6, 0.44, 0.74)}
    ),
]
DIFFERENCE = {
    "mean": 0.228,
    "low": 0.151,
    "high": 0.305,
    "episodes": 208,
    "gained": 70,
    "lost": 22,
    "excluded": 2,
}


def test_panel_table_shows_the_numbers_given() -> None:
    text = rendered(summary(EVALUATIONS, {"valid_unseen": DIFFERENCE}, [], [], {}))
    assert "valid_unseen" in text
    assert "0123456789ab" in text
    assert row(text, "task kind") == ["games", "SFT", "RL", "change"]
    assert row(text, "heat") == ["35/33", "31.4", "[18.6,", "48.0]", "54.5", "[38.0,", "70.2]", "+23.1"]
    assert row(text, "cool") == ["0/35", "-", "60.0", "[44.0,", "74.0]", "-"]
    mean = ["210/208", "41.2", "[34.2,", "47.2]", "64.0", "[57.0,", "70.0]", "+22.8"]
    assert row(text, "episode-weighted mean") == mean
    assert row(text, "macro average over kinds") == ["210/208", "39.8", "62.2", "+22.4"]
    assert "paired over 208 games: +22.8 points, 95% interval [+15.1, +30.5]" in " ".join(text.split())
    assert "0 (SFT), 2 (RL)" in text
    assert "99.9" not in text  # evaluations during RL have their own panel and curve


def test_fewest_turns_have_a_column_where_they_are_known() -> None:
    heat = kind(35, 0.5, 0.3, 0.7) | {"optimal": 6.25}
    record = evaluation("rl", 0.5, 0.5, 0, {"heat": heat})
    record["score"] |= {"optimal": 6.25, "won_turns": 8.04, "won_optimal": 6.0}
    record["drawn"] = "drawn by hand"
    text = rendered(panel_table([record], titles=["the policy"]))
    assert row(text, "task kind") == ["games", "the", "policy", "fewest", "turns"]
    assert row(text, "heat")[-1] == "6.2" and row(text, "macro average over kinds")[-1] == "-"
    assert "Mean turns of won games: 8.0 (the policy; fewest 6.0)." in text
    assert "; drawn by hand)" in " ".join(text.split())


def test_one_measurement_alone_has_no_change_column() -> None:
    text = rendered(summary(EVALUATIONS[:1], {}, [], [], {}))
    assert row(text, "task kind") == ["games", "SFT"]
    assert row(text, "macro average over kinds") == ["210", "39.8"]


def test_sample_skills_are_largest_median_smallest_of_the_last_step() -> None:
    skills: list[dict[str, Any]] = [{"step": 4, "text": "old", "gain": 9.0}]
    skills += [
        {"step": 5, "text": f"s{gain}", "gain": gain, "trust": 0.3} for gain in (0.1, -0.5, 0.7, 0.2, 0.0)
    ]
    skills += [{"step": 5, "text": "not replayed", "gain": None}, {"step": 5, "text": "invalid"}]
    assert [skill["gain"] for skill in sample_skills(skills)] == [0.7, 0.1, -0.5]
    assert [skill["gain"] for skill in sample_skills(skills[:2])] == [0.1]
    assert sample_skills([]) == []
    skills.append(
        {"step": 6, "text": "[bold]open[/bold] the\nfridge" + " and wait" * 90, "gain": 0.25, "trust": 0.5}
    )
    text = rendered(summary([], {}, [], skills, {}))
    assert row(text, "+25.0")[:5] == ["0.50", "[bold]open[/bold]", "the", "fridge", "and"]
    assert "..." in text


def test_phase_table_has_seconds_and_shares() -> None:
    log = [
        {"step": step, "seconds": {"replay": 1.0, "rollout": seconds}}
        for step, seconds in ((1, 20.0), (2, 2.0), (3, 4.0))
    ]
    text = rendered(phase_table(log))
    assert row(text, "rollout") == ["20", "s", "4.0", "s", "26", "s", "90%"]
    assert row(text, "replay") == ["1.0", "s", "1.0", "s", "3.0", "s", "10%"]
    assert row(text, "whole step") == ["21", "s", "5.0", "s", "29", "s", "100%"]
    assert text.index("rollout") < text.index("replay")


def test_paths_are_shown_whole() -> None:
    path = "/a/very" + "/deep" * 40
    text = rendered(summary([], {}, [], [], {"metrics": path}))
    assert path in "".join(text.split())
