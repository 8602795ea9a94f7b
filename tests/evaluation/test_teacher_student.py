"""Fig. 2b: the chance level against counting and the published values, and who is compared with whom."""

from __future__ import annotations

import json
from itertools import product
from math import comb

import pytest

from rsipo_jax.agents.rollout import EVALUATE, EVALUATE_WRITE, Agent
from rsipo_jax.evaluation.panels import make_panel
from rsipo_jax.evaluation.teacher_student import (
    BINNING,
    TaskComparison,
    chance_better,
    compare_with_teacher,
    comparison_record,
    shares,
)
from rsipo_jax.reports.teacher_student import shares_figure
from rsipo_jax.sampling.protocol import Address
from rsipo_jax.text.sentencepiece_tokenizer import SentencePieceTokenizer
from tests.agents.episodes import ScriptedSampler, act, make_agent, make_config, task

N = 3


def respond(address: Address) -> str:
    if address[0] != EVALUATE_WRITE:
        return act(address)
    return json.dumps({"episode_skill": f"skill {address[2]}"}) if address[2] != 1 else "nothing"


def make_comparison(number: int, student: int, teacher: int, **other: object) -> TaskComparison:
    fields = {"skill": "s", "status": "strict", "source_won": True, "void": False} | other
    return TaskComparison("id", "kind", number, student, teacher, 4, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_chance_counts_all_divisions_of_the_wins(n: int) -> None:
    outcomes = list(product([0, 1], repeat=2 * n))
    for wins in range(2 * n + 1):
        drawn = [o for o in outcomes if sum(o) == wins]
        better = sum(sum(o[:n]) > sum(o[n:]) for o in drawn) / len(drawn)
        assert chance_better(wins, n) == pytest.approx(better)


@pytest.mark.parametrize(
    ("p", "n", "expected"), [(0.5, 4, 0.3633), (0.25, 4, 0.3376), (0.9, 4, 0.2411), (0.5, 8, 0.4018)]
)
def test_on_average_chance_is_that_of_equal_success_rates(p: float, n: int, expected: float) -> None:
    total = sum(
        comb(2 * n, s) * p**s * (1 - p) ** (2 * n - s) * chance_better(s, n) for s in range(2 * n + 1)
    )
    assert total == pytest.approx(expected, abs=5e-5)


def test_shares_of_each_bin() -> None:
    compared = [
        make_comparison(0, 0, 2),
        make_comparison(0, 1, 1),
        make_comparison(0, 3, 0),
        make_comparison(0, 2, 3),
        make_comparison(4, 4, 4),
        make_comparison(2, 0, 4, void=True),
        make_comparison(2, 0, 4, skill=""),
    ]
    rows = shares(compared)
    assert [row["tasks"] for row in rows] == [4, 0, 0, 0, 1]
    assert (rows[0]["better"], rows[0]["equal"], rows[0]["worse"]) == (0.5, 0.25, 0.25)
    assert rows[2]["better"] is None and rows[4]["equal"] == 1.0 and rows[4]["chance"] == 0.0
    figure = shares_figure({"bins": rows, "binning": BINNING, "panel": "train_probe", "step": 0})
    assert len(figure.axes[0].patches) == 6  # three shares of the two bins that have tasks


def played(tokenizer: SentencePieceTokenizer, fates: list[str]) -> tuple[list[TaskComparison], Agent]:
    agent = make_agent(tokenizer, make_config(), respond)
    panel = make_panel("train", [task(fate, i) for i, fate in enumerate(fates)])
    return compare_with_teacher(agent, panel, 3, N), agent


def test_everything_compared_is_drawn_apart_and_teachers_alone_read_the_skill(
    tokenizer: SentencePieceTokenizer,
) -> None:
    compared, agent = played(tokenizer, ["never", "never", "win:2"])
    assert isinstance(agent.sampler, ScriptedSampler)
    assert [(c.bin, c.student, c.teacher) for c in compared] == [(0, 0, 0), (0, 0, 0), (BINNING, N, N)]
    assert [(c.skill, c.compared) for c in compared] == [("skill 0", True), ("", False), ("skill 2", True)]
    first_teacher = BINNING + 1 + N
    for request in agent.sampler.requests:
        purpose, _, group, number, _ = request.address
        reads = f"consult it before you act: skill {group}" in tokenizer.decode(request.prompt.tolist())
        assert reads == (purpose == EVALUATE and number >= first_teacher)
        if purpose == EVALUATE_WRITE:
            assert number == BINNING  # from an episode that nothing else counts
    numbers = {r.address[2:4] for r in agent.sampler.requests if r.address[0] == EVALUATE}
    assert numbers == {(g, n) for g in (0, 1, 2) for n in range(first_teacher + N * (g != 1))}


def test_the_record_holds_every_task(tokenizer: SentencePieceTokenizer) -> None:
    compared, _ = played(tokenizer, ["fail:1", "never"])
    panel = make_panel("train", [task("never", 0)])
    told = comparison_record(panel, 3, compared)
    assert told["left_out"] == 2 and len(told["tasks"]) == 2 and told["tasks"][0]["void"]
    assert json.loads(json.dumps(told)) == told
