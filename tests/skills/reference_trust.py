"""Empirical-Bayes trust in plain float64 NumPy, unit by unit, written from the formulas."""

from __future__ import annotations

from collections.abc import Sequence
from math import erf, sqrt
from typing import Any

import numpy as np

Counts = tuple[float, float, float, float]  # s1, n1, s0, n0


def smoothed(s: float, n: float, c0: float = 0.5) -> float:
    q = (s + c0) / (n + 2 * c0)
    return q * (1 - q) / n


def unbiased(s: float, n: float, c0: float = 0.5) -> float:
    """Of one rate; a single trial has none."""
    return s / n * (1 - s / n) / (n - 1) if n >= 2 else smoothed(s, n, c0)


def gain(c: Counts) -> float:
    return c[0] / c[1] - c[2] / c[3]


def variance(c: Counts) -> float:
    return smoothed(c[0], c[1]) + smoothed(c[2], c[3])


def unbiased_variance(c: Counts) -> float:
    return unbiased(c[0], c[1]) + unbiased(c[2], c[3]) if min(c[1], c[3]) >= 2 else variance(c)


def moments(
    steps: Sequence[Sequence[Counts]], decay: float, floor: float, min_units: float, start: float
) -> tuple[float, float, float]:
    """(mu, tau2, var_mu) after these steps, the last one newest."""
    N = D1 = W = F = V = 0.0
    for units in steps:
        d, u = np.array([gain(c) for c in units]), [unbiased_variance(c) for c in units]
        N, D1 = decay * N + len(d), decay * D1 + d.sum()
        W = decay * W + (((d - d.mean()) ** 2).sum() if len(d) else 0)
        F, V = decay * F + max(len(d) - 1, 0), decay * V + sum(u)
    if min_units > N or F <= 0:
        return 0.0, start, 0.0
    return D1 / N, max(floor, W / F - V / N), W / F / N


def dersimonian_laird(
    steps: Sequence[Sequence[Counts]], decay: float, floor: float
) -> tuple[float, float, float]:
    A = A2 = AD = Q = F = C = 0.0
    for units in steps:
        d, a = np.array([gain(c) for c in units]), np.array([1 / variance(c) for c in units])
        A, A2, AD = decay * A + a.sum(), decay * A2 + (a**2).sum(), decay * AD + (a * d).sum()
        Q = decay * Q + (a * (d - (a * d).sum() / a.sum()) ** 2).sum()
        F, C = decay * F + len(d) - 1, decay * C + a.sum() - (a**2).sum() / a.sum()
    tau2 = max(floor, (Q - F) / C)
    return AD / A, tau2, sum([A, tau2 * A2]) / A**2


def posterior(c: Counts, mu: float, tau2: float, var_mu: float) -> dict[str, float]:
    d, v = gain(c), variance(c)
    B = v / (v + tau2)
    m = B * mu + (1 - B) * d
    V = (1 - B) * v + B**2 * var_mu
    return {"d": d, "v": v, "B": B, "m": m, "V": V, "P": 0.5 * (1 + erf(m / sqrt(2 * V)))}


def weights(x: dict[str, float], kappa: float) -> dict[str, float]:
    m, P, B = x["m"], x["P"], x["B"]
    return {
        "pos_mean": min(max(m / kappa, 0), 1),
        "prob": P,
        "prob_excess": max(0, 2 * P - 1),
        "reliability": (1 - B) if m > 0 else 0,
        "raw": min(max(x["d"], 0), 1),
        "one": 1,
        "zero": 0,
    }


def signed_weights(x: dict[str, float], kappa: float) -> dict[str, float]:
    m, P, B = x["m"], x["P"], x["B"]
    return {
        "pos_mean": min(max(m / kappa, -1), 1),
        "prob_excess": 2 * P - 1,
        "reliability": (1 - B) * ((m > 0) - (m < 0)),
        "raw": x["d"],
    }


def dense_task(
    d: np.ndarray, vs: np.ndarray, v0: float, mu: float, tau2: float, om2: float
) -> tuple[np.ndarray, np.ndarray, float]:
    """Posterior means and variances of a task's skills, and the task's own mean, by conditioning a Gaussian."""
    n = len(d)
    prior = om2 * np.eye(n) + tau2 * np.ones((n, n))
    seen = prior + np.diag(vs) + v0 * np.ones((n, n))
    pull = np.linalg.solve(seen, prior).T
    covariance = prior - pull @ prior
    task = mu + tau2 * np.ones(n) @ np.linalg.solve(seen, d - mu)
    return mu + pull @ (d - mu), np.diag(covariance), float(task)


def hier_moments(
    steps: Sequence[Sequence[Sequence[Counts]]], decay: float, floor: float
) -> tuple[float, float, float]:
    """(mu, tau2, om2) from steps of tasks of skills."""
    sums: dict[str, Any] = dict.fromkeys(("N", "D1", "W", "F", "V", "H", "Ww", "Fw", "Vw"), 0.0)
    for tasks in steps:
        sums = {k: decay * x for k, x in sums.items()}
        means = []
        for skills in tasks:
            d, n = np.array([gain(c) for c in skills]), len(skills)
            v1, v0 = np.mean([unbiased(c[0], c[1]) for c in skills]), unbiased(skills[0][2], skills[0][3])
            means.append(d.mean())
            sums["Ww"] += ((d - d.mean()) ** 2).sum()
            sums["Fw"] += n - 1
            sums["Vw"] += (n - 1) * v1
            sums["V"] += v1 / n + v0
            sums["H"] += 1 / n
        sums["N"] += len(means)
        sums["D1"] += sum(means)
        sums["W"] += ((np.array(means) - np.mean(means)) ** 2).sum()
        sums["F"] += len(means) - 1
    N = sums["N"]
    om2 = max(floor, (sums["Ww"] - sums["Vw"]) / sums["Fw"])
    return sums["D1"] / N, max(floor, sums["W"] / sums["F"] - sums["V"] / N - om2 * sums["H"] / N), om2
