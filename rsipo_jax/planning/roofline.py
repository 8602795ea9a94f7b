"""How long a program takes at least: its arithmetic, its memory traffic and its communication, each at full speed.

Two bounds are given. If the three overlap perfectly, a run takes as long as the longest of them, which is the one that
binds; if nothing overlaps, as long as their sum. Elementwise work, the host and the environments are left out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jax.sharding import Mesh

from rsipo_jax.planning.chips import Slice
from rsipo_jax.planning.hlo import Collective
from rsipo_jax.planning.programs import Compiled

COMPUTE, HBM, INTERCONNECT = "compute", "HBM", "interconnect"


@dataclass(frozen=True)
class Roofline:
    """Seconds of one run of a program."""

    compute: float
    hbm: float
    interconnect: float

    @property
    def overlapped(self) -> float:
        return max(self.compute, self.hbm, self.interconnect)

    @property
    def serial(self) -> float:
        return self.compute + self.hbm + self.interconnect

    @property
    def binds(self) -> str:
        times = {COMPUTE: self.compute, HBM: self.hbm, INTERCONNECT: self.interconnect}
        return max(times, key=lambda name: times[name])


def roofline(compiled: Compiled, slice_: Slice, mesh: Mesh) -> Roofline:
    """The bounds of a compiled program on the chips of a slice.

    Our count of FLOPs is divided evenly; where the compiler counts more for one chip, it has them all do the same.
    """
    chip = slice_.chip
    return Roofline(
        max(compiled.flops / compiled.devices, compiled.compiler_flops) / chip.flops,
        compiled.hbm_bytes / chip.bandwidth,
        sum(collective_seconds(c, slice_, mesh) for c in compiled.collectives),
    )


def collective_seconds(c: Collective, slice_: Slice, mesh: Mesh) -> float:
    """Seconds of a collective: what a chip has to receive over the links that lead to it from the others."""
    if len(c.group) < 2 or not c.count:
        return 0.0
    return c.count * c.received / bandwidth(mesh_axes(c, mesh), slice_, mesh)


def mesh_axes(c: Collective, mesh: Mesh) -> tuple[str, ...]:
    """The mesh axes along which the chips of a collective lie."""
    shape = tuple(mesh.shape.values())
    places = np.array(np.unravel_index([g % mesh.size for g in c.group], shape))
    varies = places.min(axis=1) != places.max(axis=1)
    return tuple(name for name, v in zip(mesh.axis_names, varies, strict=True) if v)


def bandwidth(axes: Sequence[str], slice_: Slice, mesh: Mesh) -> float:
    """Bytes a second that a chip can receive from the chips along these mesh axes, while all of them do the same.

    In a torus a chip has two links for each physical dimension that its group extends over if that is a ring, one if it
    is a line whose end it may be.
    """
    chip = slice_.chip
    if not chip.dims:
        return chip.link
    at = tuple(slice(None) if name in axes else 0 for name in mesh.axis_names)
    group = np.atleast_1d(mesh.devices[at]).ravel()
    coords = np.array([d.coords[: chip.dims] for d in group])
    extents = [len(set(coords[:, k].tolist())) for k in range(chip.dims)]
    links = 0
    for extent, whole in zip(extents, slice_.shape, strict=True):
        ring = extent == whole and extent % chip.wraps == 0
        links += 0 if extent == 1 else 2 if ring else 1
    return chip.link * max(links, 1)


def total_seconds(parts: Sequence[tuple[float, Roofline]]) -> tuple[float, float]:
    """(overlapped, serial) seconds of programs that run one after the other, each (times, bounds)."""
    return (
        math.fsum(n * r.overlapped for n, r in parts),
        math.fsum(n * r.serial for n, r in parts),
    )
