"""How long a program takes at least: its arithmetic, its memory traffic and its communication, each at full speed.

A chip runs one operation after the other and moves data while it multiplies, so an operation takes the longer of its
two times. Communication runs beside them or does not, which gives two bounds: all of it hidden, or none. What is not in
them: elementwise work that its memory traffic does not cover, the host, the environments.
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

COMPUTE, HBM, LINKS = "compute", "HBM", "links"


@dataclass(frozen=True)
class Roofline:
    """Seconds of one run of a program on one chip."""

    compute: float  # all of its arithmetic
    hbm: float  # all of its memory traffic
    interconnect: float  # all of its communication
    busy: float  # its operations one after the other, each for the longer of its arithmetic and its traffic

    @property
    def hidden(self) -> float:
        """With all communication beside the operations."""
        return max(self.busy, self.interconnect)

    @property
    def exposed(self) -> float:
        """With all communication between them."""
        return self.busy + self.interconnect

    @property
    def binds(self) -> str:
        times = {COMPUTE: self.compute, HBM: self.hbm, LINKS: self.interconnect}
        return max(times, key=lambda name: times[name])


def roofline(compiled: Compiled, slice_: Slice, mesh: Mesh) -> Roofline:
    """The bounds of a compiled program on the chips of a slice.

    Our count of FLOPs is divided evenly; where the compiled program has more for one chip, all do the same work. What
    it has not is in hand-written kernels, which run by themselves.
    """
    chip = slice_.chip
    flops = max(compiled.flops / compiled.devices, compiled.seen_flops)
    busy = math.fsum(
        o.count * max(o.flops / chip.flops, o.bytes / chip.bandwidth) for o in compiled.operations
    )
    return Roofline(
        flops / chip.flops,
        compiled.hbm_bytes / chip.bandwidth,
        sum(collective_seconds(c, slice_, mesh) for c in compiled.collectives),
        busy + (flops - compiled.seen_flops) / chip.flops,
    )


def collective_seconds(c: Collective, slice_: Slice, mesh: Mesh) -> float:
    """Seconds of a collective: what a chip has to receive over the links that lead to it from the others.

    `collective-permute`s go around a ring, half of them in each direction: over two links however many there are.
    """
    if len(c.group) < 2 or not c.count:
        return 0.0
    speed = bandwidth(mesh_axes(c, mesh), slice_, mesh)
    if c.kind == "collective-permute" and slice_.is_tpu:
        speed = min(speed, 2 * slice_.chip.link)
    return c.count * c.received / speed


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
