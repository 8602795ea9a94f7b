"""One table of logical axes, and the meshes it is read on.

A mesh has three axes. `data` holds whole copies of the parameters, each with its own rows; `fsdp` cuts rows *and*
parameters; `tensor` cuts heads, feed-forward channels and vocabulary. Code names the dimensions of an array by logical
axes ("batch", "heads", ...); `RULES` says which mesh axes cut them. What is computed under `jax.set_mesh(mesh)` is laid
out by the table; without a mesh, or on one device, the same code runs unchanged.

Invariant: the layout changes no number but for the order of floating-point sums.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from rsipo_jax.validation import ConfigError

DATA, FSDP, TENSOR = AXES = ("data", "fsdp", "tensor")

# Which mesh axes cut a logical axis. An axis that is not here is never cut.
RULES: Mapping[str, tuple[str, ...]] = {
    "batch": (DATA, FSDP),
    # of parameters, gradients and optimizer state
    "embed": (FSDP,),
    "vocab": (TENSOR,),
    "heads": (TENSOR,),
    "kv_heads": (TENSOR,),
    "mlp": (TENSOR,),
}
Names = Sequence[str | None]  # logical axes of an array's dimensions, None for one that is never cut


def make_mesh(data: int, fsdp: int, tensor: int, devices: Sequence[Any] | None = None) -> Mesh:
    """The mesh data x fsdp x tensor over `devices` (all of JAX's by default); fsdp 0 takes those that are left.

    Raises ConfigError when the devices do not make up that mesh.
    """
    devices = jax.devices() if devices is None else devices
    n = len(devices)
    shape = data, fsdp or max(1, n // (data * tensor)), tensor
    if np.prod(shape) != n:
        raise ConfigError(
            f"config.mesh.data={data}, config.mesh.fsdp={fsdp} and config.mesh.tensor={tensor} ask for "
            f"{np.prod(shape)} devices, but there are {n}: change one of them (fsdp=0 takes what the others leave)"
        )
    if n == 1 or devices[0].platform == "cpu":
        grid = np.asarray(devices).reshape(shape)
    else:
        grid = mesh_utils.create_device_mesh(shape, devices, allow_split_physical_axes=True)
    return Mesh(grid, AXES, axis_types=(AxisType.Auto,) * len(AXES))


def sampling_mesh(tensor: int) -> Mesh:
    """This process's devices, `tensor` of them to each group of slots. Raises ConfigError when they do not divide."""
    n = jax.local_device_count()
    if n % tensor:
        raise ConfigError(
            f"config.mesh.sampling_tensor={tensor} does not divide the {n} devices of a process: give a divisor"
        )
    return make_mesh(n // tensor, 1, tensor, jax.local_devices())


def axis_sizes() -> dict[str, int]:
    """Sizes of the axes of the current mesh; empty without one."""
    return dict(jax.sharding.get_abstract_mesh().shape)


def platform() -> str:
    """Of the current mesh's devices, which may be those of another machine; without a mesh, JAX's."""
    device = jax.sharding.get_abstract_mesh().abstract_device
    return jax.default_backend() if device is None else device.platform


def spec(names: Names, shape: Sequence[int], sizes: Mapping[str, int]) -> PartitionSpec:
    """How the table cuts an array of that shape on a mesh of those axis sizes.

    A dimension that its mesh axes do not divide stays whole: two key/value heads on a `tensor` axis of 4, say.
    """
    cuts = []
    for name, size in zip(names, shape, strict=True):
        axes = tuple(axis for axis in RULES.get(name or "", ()) if sizes.get(axis, 1) > 1)
        fits = size % int(np.prod([sizes[axis] for axis in axes])) == 0
        cuts.append((axes if len(axes) > 1 else axes[0]) if axes and fits else None)
    return PartitionSpec(*cuts)


def constrain(x: jax.Array, *names: str | None) -> jax.Array:
    """Lays an array of a jitted function out by the logical axes of its dimensions."""
    sizes = axis_sizes()
    if max(sizes.values(), default=1) == 1:
        return x
    return jax.lax.with_sharding_constraint(x, spec(names, x.shape, sizes))


@partial(jax.custom_vjp, nondiff_argnums=(1,))
def gather(w: jax.Array, names: Names) -> jax.Array:
    """A weight that every device uses whole along `fsdp`, where it holds a part only.

    Written out, since the compiler may otherwise cut activations by channels to spare itself the gathering; and with a
    backward pass of its own, in which the gradient is summed straight into the parts (a reduce-scatter).
    """
    return constrain(w, *(None if RULES.get(name or "") == (FSDP,) else name for name in names))


def _gather_forward(w: jax.Array, names: Names) -> tuple[jax.Array, None]:
    return gather(w, names), None


def _gather_backward(names: Names, _: None, gradient: jax.Array) -> tuple[jax.Array]:
    return (constrain(gradient, *names),)


gather.defvjp(_gather_forward, _gather_backward)


def sharding(mesh: Mesh, names: Names, shape: Sequence[int]) -> NamedSharding:
    """The layout of an array on a mesh."""
    return NamedSharding(mesh, spec(names, shape, dict(mesh.shape)))


def tree_shardings(tree: Any, names_of: Mapping[str, Names], mesh: Mesh) -> Any:
    """The layout of every array in a tree (of parameters, gradients, optimizer state), by the name of its leaf.

    A leaf is called by the last key of its path that is in `names_of`; one with fewer dimensions than names (a layer
    taken out of its stack) has the last of them; one without a name (a counter) is whole on every device.
    """
    return jax.tree_util.tree_map_with_path(
        lambda path, a: sharding(mesh, _names(path, a, names_of), a.shape), tree
    )


def constrain_tree(tree: Any, names_of: Mapping[str, Names]) -> Any:
    """As `constrain`, for a tree whose leaves are named as in `tree_shardings`."""
    return jax.tree_util.tree_map_with_path(lambda path, a: constrain(a, *_names(path, a, names_of)), tree)


def _names(path: Sequence[Any], a: Any, names_of: Mapping[str, Names]) -> Names:
    named = [names_of[key] for entry in path if (key := getattr(entry, "key", "")) in names_of]
    names = list(named[-1]) if named else []
    return [None] * (a.ndim - len(names)) + names[max(0, len(names) - a.ndim) :]


def place(array: np.ndarray, *names: str | None) -> jax.Array:
    """A host array that every process holds whole, laid out on the current mesh."""
    mesh = jax.sharding.get_mesh()
    if mesh.empty:
        return jnp.asarray(array)
    return jax.make_array_from_callback(array.shape, sharding(mesh, names, array.shape), lambda at: array[at])


def batch_shards() -> int:
    """Into how many parts the current mesh cuts the rows of a batch."""
    sizes = axis_sizes()
    return int(np.prod([sizes.get(axis, 1) for axis in RULES["batch"]]))
