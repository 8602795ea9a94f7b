"""Weights from the learner's mesh, which spans all processes, to the sampling mesh of each process."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding

from rsipo_jax.models.decode import serving_params
from rsipo_jax.models.transformer import PARAM_AXES, ModelConfig, Params
from rsipo_jax.parallel.sharding import AXES, tree_shardings

HOST = "host"


def to_sampling_mesh(params: Params, config: ModelConfig, mesh: Mesh) -> Params:
    """The parameters as `serving_params` has them, on `mesh` (this process's devices), wherever they lie now.

    Every process calls this together: the weights are rounded and unstacked where they lie, move once, between devices,
    into a layout that repeats itself on every process, and each process takes its own part of that without a copy.
    """
    served = _served(params, config)
    shardings = tree_shardings(served, PARAM_AXES, _on_all_processes(mesh))
    return jax.tree.map(partial(_own_part, mesh=mesh), jax.device_put(served, shardings))


_served = jax.jit(serving_params, static_argnums=1)


def _on_all_processes(mesh: Mesh) -> Mesh:
    """The mesh with an axis for processes in front, each with its own devices in the same order."""
    local = sorted(jax.local_devices(), key=lambda d: d.id)
    order = np.asarray([local.index(d) for d in mesh.devices.flat])
    devices = sorted(jax.devices(), key=lambda d: (d.process_index, d.id))
    grid = np.asarray(devices).reshape(jax.process_count(), -1)[:, order]
    return Mesh(grid.reshape(-1, *mesh.devices.shape), (HOST, *AXES))


def _own_part(a: Any, mesh: Mesh) -> jax.Array:
    """A global array, the same on every process, as an array of this process's devices."""
    sharding = NamedSharding(mesh, a.sharding.spec)
    parts = {shard.device: shard.data for shard in a.addressable_shards}
    order = sharding.addressable_devices_indices_map(a.shape)
    return jax.make_array_from_single_device_arrays(a.shape, sharding, [parts[d] for d in order])
