"""What shrinkage is worth: trust by the project's own functions in a simulation whose true gains are known.

Every phase draws, for each of 600 steps with 16 tasks, the rate p0 without a skill and true gains (cut off so that
p0 + gain is a rate), then 8 plain episodes a task and the replays; each row is the mean of 16 such runs. It is the table
of the project's specification: the mean squared error of the raw gain and of its estimates, and what the weights of each
trust function pick. Skills of a task have gains of their own.

The beta-binomial estimate has priors of its own for the two rates, from the moments of each step, and takes the
difference of their posterior means.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.table import Table

from rsipo_jax.config import TrustConfig
from rsipo_jax.skills.prior import PriorState
from rsipo_jax.skills.trust import trust, update_prior

RUNS, STEPS, TASKS, GROUP = 16, 600, 16, 8
FUNCTIONS = ("one", "raw", "pos_mean", "prob", "prob_excess")  # whose weights are compared
# title -> key of a row: heading
TABLES = {
    "Mean squared error of the gain": {
        "mse_raw": "raw", "mse_one_step": "EB, one step", "mse_decayed": "EB, decayed",
        "mse_beta_binomial": "beta-binomial",
    },
    "True gain, weighted": {f"gain_{name}": name for name in FUNCTIONS},
    "Mean weight": {f"weight_{name}": name for name in ("pos_mean", "prob", "prob_excess")},
}  # fmt: skip
LARGEST_ERROR = 0.5  # of the decayed estimate, as a share of the raw gain's
SMALLEST_GAIN = -0.01  # true gain that the default weights may pick where teachers harm


@dataclass(frozen=True)
class Phase:
    """How tasks are at some time of training: p0 ~ Beta(a, b), gains ~ N(mean, sd^2)."""

    name: str
    a: float
    b: float
    mean: float
    sd: float


@dataclass(frozen=True)
class Unit:
    """What is judged: a task by one replay of each of its skills, or a skill by some of its own."""

    name: str
    per_task: int
    replays: int


@dataclass(frozen=True)
class Draws:
    """[RUNS, STEPS, units] counts s1 of n1 replays won and s0 of GROUP plain episodes, and the true gains."""

    s1: np.ndarray
    n1: int
    s0: np.ndarray
    gain: np.ndarray


EARLY = Phase("early", 0.5, 2.0, 0.10, 0.15)
MID = Phase("mid", 1.0, 1.0, 0.05, 0.15)
LATE = Phase("late", 4.0, 0.5, 0.0, 0.10)
NULL = Phase("null", 1.0, 1.0, 0.0, 0.0)
HARMFUL = Phase("harmful", 1.0, 1.0, -0.10, 0.10)
TASK, SKILL, ONE_REPLAY = (
    Unit("task n1=8", 1, GROUP),
    Unit("skill K=4", GROUP, 4),
    Unit("skill K=1", GROUP, 1),
)
ROWS = (
    (EARLY, TASK), (EARLY, SKILL), (EARLY, ONE_REPLAY), (MID, TASK), (MID, SKILL), (LATE, TASK), (LATE, SKILL),
    (NULL, TASK), (HARMFUL, TASK), (HARMFUL, SKILL),
)  # fmt: skip


def measure(rows: Sequence[tuple[Phase, Unit]] = ROWS) -> dict[str, dict[str, Any]]:
    """A section for each row of the table, and whether the targets hold."""
    results = {f"{phase.name}, {unit.name}": simulate(phase, unit, i) for i, (phase, unit) in enumerate(rows)}
    worst = max(row["mse_decayed"] / row["mse_raw"] for row in results.values())
    targets: dict[str, Any] = {
        "largest_decayed_to_raw_mse": worst,
        "decayed_mse_at_most_half_of_raw": worst <= LARGEST_ERROR,
    }
    for name, row in results.items():
        if name.startswith(HARMFUL.name):
            targets[f"gain_{name}"] = row["gain_pos_mean"]
            targets[f"standard_error_{name}"] = row["standard_error"]
            targets[f"gain_at_least_{SMALLEST_GAIN}_{name}"] = row["gain_pos_mean"] >= SMALLEST_GAIN
    return {**results, "targets": targets}


def simulate(phase: Phase, unit: Unit, seed: int) -> dict[str, float]:
    """One row: errors of the estimates, weighted gains and mean weights of the trust functions.

    `standard_error` is that of `gain_pos_mean`, a ratio of sums over few units where teachers harm.
    """
    drawn = draw(phase, unit, seed)
    config = TrustConfig(unit="skill" if unit.per_task > 1 else "task")
    once, _ = estimates(drawn, replace(config, decay=0.0))
    decayed, weights = estimates(drawn, config)
    raw = drawn.s1 / drawn.n1 - drawn.s0 / GROUP
    errors = {"raw": raw, "one_step": once, "decayed": decayed, "beta_binomial": beta_binomial(drawn)}
    row = {f"mse_{name}": float(np.mean((found - drawn.gain) ** 2)) for name, found in errors.items()}
    for name in FUNCTIONS:
        row[f"gain_{name}"] = weighted_gain(weights[name], drawn.gain)
        row[f"weight_{name}"] = float(weights[name].mean())
    of_runs = [weighted_gain(w, gain) for w, gain in zip(weights["pos_mean"], drawn.gain, strict=True)]
    return {**row, "standard_error": float(np.std(of_runs, ddof=1) / RUNS**0.5)}


def weighted_gain(weights: np.ndarray, gain: np.ndarray) -> float:
    """Sum of w times true gain over sum of w; 0 where nothing is trusted."""
    total = weights.sum(dtype=float)
    return float((weights * gain).sum() / total) if total > 0 else 0.0


def draw(phase: Phase, unit: Unit, seed: int) -> Draws:
    """Each unit has a gain of its own; the skills of a task share its plain episodes."""
    rng = np.random.default_rng(seed)
    p0 = rng.beta(phase.a, phase.b, (RUNS, STEPS, TASKS, 1))
    true = rng.normal(phase.mean, phase.sd, (RUNS, STEPS, TASKS, unit.per_task))
    p1 = np.clip(p0 + true, 0.0, 1.0)
    s0 = np.broadcast_to(rng.binomial(GROUP, p0), p1.shape)
    shape = RUNS, STEPS, TASKS * unit.per_task
    won = rng.binomial(unit.replays, p1)
    return Draws(won.reshape(shape), unit.replays, s0.reshape(shape), (p1 - p0).reshape(shape))


def estimates(drawn: Draws, config: TrustConfig) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Posterior means [RUNS, STEPS, units] and weights by function, each step after its own units were merged."""
    means, weights = _run(drawn.s1, float(drawn.n1), drawn.s0, config)
    return np.asarray(means), {name: np.asarray(w) for name, w in weights.items()}


@partial(jax.jit, static_argnames="config")
@partial(jax.vmap, in_axes=(0, None, 0, None))
def _run(
    s1: jax.Array, n1: float, s0: jax.Array, config: TrustConfig
) -> tuple[jax.Array, dict[str, jax.Array]]:
    units = s1.shape[1]

    def step(
        state: PriorState, counts: tuple[jax.Array, jax.Array]
    ) -> tuple[PriorState, tuple[jax.Array, dict[str, jax.Array]]]:
        evidence = counts[0], jnp.full(units, n1), counts[1], jnp.full(units, GROUP), jnp.ones(units, bool)
        state = update_prior(state, *evidence, config)
        beliefs = {name: trust(state, *evidence, replace(config, function=name)) for name in FUNCTIONS}
        weights = {name: belief.weight for name, belief in beliefs.items()}
        return state, (beliefs["one"].posterior_mean, weights)

    return jax.lax.scan(step, PriorState.zero(), (s1, s0))[1]


def beta_binomial(drawn: Draws) -> np.ndarray:
    """Difference of the posterior means of the two rates, [RUNS, STEPS, units]."""
    return _beta_mean(drawn.s1, drawn.n1) - _beta_mean(drawn.s0, GROUP)


def _beta_mean(s: np.ndarray, n: int) -> np.ndarray:
    """Posterior mean of a rate under a beta prior by Kleinman's moments (JASA, 1973) of each step: mean m, correlation rho.

    Var(s/n) = m (1 - m)(1 + (n - 1) rho)/n, and a + b = 1/rho - 1. One trial says nothing about rho: all rates are m.
    """
    rate = s / n
    m = np.clip(rate.mean(-1, keepdims=True), 1e-3, 1 - 1e-3)
    rho = np.zeros_like(m)
    if n > 1:
        rho = (n * rate.var(-1, ddof=1, keepdims=True) / (m * (1 - m)) - 1) / (n - 1)
    strength = 1 / np.clip(rho, 1e-3, 1 - 1e-3) - 1
    return (s + strength * m) / (n + strength)


def show(results: Mapping[str, Mapping[str, Any]], console: Console) -> None:
    """The tables, and the targets below them."""
    for title, columns in TABLES.items():
        table = Table(title=title, title_justify="left")
        table.add_column("phase, unit", no_wrap=True)
        for heading in columns.values():
            table.add_column(heading, justify="right")
        for name, row in results.items():
            if name != "targets":
                table.add_row(name, *(f"{row[key]:.4f}" for key in columns))
        console.print(table)
    for name, value in results["targets"].items():
        shown = ("yes" if value else "NO") if isinstance(value, bool) else f"{value:.4f}"
        console.print(f"{name.replace('_', ' ')}: {shown}", soft_wrap=True)
