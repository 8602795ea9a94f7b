"""Floating-point operations of a traced program: those of its matrix products, counted in its jaxpr.

The compiler's own count takes the body of a loop once, however often it runs, and sees nothing of hand-written kernels.
This one multiplies by the length of every scan, so a network of 28 scanned layers counts 28 layers. Elementwise work is
left out: it runs on other units and is bound by memory, which `planning/hlo.py` counts.
"""

from __future__ import annotations

import math
from typing import Any

from jax.extend import core

SPLASH = "splash"  # Pallas kernels of this name skip the blocks that causality empties


def count_flops(jaxpr: core.ClosedJaxpr, taken: float = 1.0, turns: float = 1.0) -> float:
    """2 x multiplications of all matrix products, over all devices, recomputation included.

    The body of a `while`, which ends on data, counts `turns` times, the dearest branch of a `cond` alone, in the share
    `taken` of all cases.
    """
    return _count(jaxpr.jaxpr, taken, turns)


def _count(jaxpr: Any, taken: float, turns: float) -> float:
    return sum(_equation(equation, taken, turns) for equation in jaxpr.eqns)


def _equation(equation: Any, taken: float, turns: float) -> float:
    name, params = equation.primitive.name, equation.params
    if name == "dot_general":
        return _dot(equation)
    if name == "scan":
        return params["length"] * _count(params["jaxpr"].jaxpr, taken, turns)
    if name == "while":
        return turns * _count(params["body_jaxpr"].jaxpr, taken, turns)
    if name == "cond":
        return taken * max(_count(branch.jaxpr, taken, turns) for branch in params["branches"])
    if name == "shard_map":  # its equations are those of one device
        return params["mesh"].size * _count(params["jaxpr"], taken, turns)
    if name == "pallas_call":
        return _kernel(params)
    return sum(_count(inner, taken, turns) for inner in _inner(params))


def _inner(params: dict[str, Any]) -> list[Any]:
    """The jaxprs that an equation calls: of jit, remat, custom derivatives."""
    found = []
    for value in params.values():
        if isinstance(value, core.ClosedJaxpr):
            found.append(value.jaxpr)
        elif isinstance(value, core.Jaxpr):
            found.append(value)
    return found


def _dot(equation: Any) -> float:
    (contracted, _), _ = equation.params["dimension_numbers"]
    left = equation.invars[0].aval.shape
    return 2.0 * math.prod(equation.outvars[0].aval.shape) * math.prod(left[i] for i in contracted)


def _kernel(params: dict[str, Any]) -> float:
    grid, name = params["grid_mapping"].grid, str(params["name"])
    per_block = _count(params["jaxpr"], 1.0, 1.0)  # kernels pass over blocks by conditions of their own
    if SPLASH not in name or not per_block:
        return math.prod(grid) * per_block
    # The forward kernel goes over (..., query blocks, key blocks), the backward one over (..., key blocks, heads, query
    # blocks).
    queries, keys = (grid[-1], grid[-3]) if "dkv" in name else (grid[-2], grid[-1])
    return math.prod(grid) * causal_share(queries, keys) * per_block


def causal_share(queries: int, keys: int) -> float:
    """Of queries x keys equal blocks of a square of scores, the share that holds a score on or under the diagonal."""
    used = sum(-(-(i + 1) * keys // queries) for i in range(queries))
    return used / (queries * keys)
