"""Chips, and slices of them by name: `v5e:4x8`, `v5p:2x2x4`, `h100:8`.

Numbers are the vendors', links as in "How to Scale Your Model" (jax-ml.github.io/scaling-book, chapter 2): bytes a second
in one direction. `hbm` is what a program may use, as the compiler states it when it refuses one that is larger.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.experimental import topologies

from rsipo_jax.validation import ConfigError

GIB = 2**30
INSTALL = "pip install -r requirements-plan.txt"


@dataclass(frozen=True)
class Chip:
    """What JAX calls one device."""

    name: str  # as in the name of a slice
    title: str
    flops: float  # bfloat16 matrix operations a second
    hbm: float  # usable bytes
    bandwidth: float  # of HBM, bytes/s
    link: float  # bytes/s of one link, in one direction
    dims: int  # of the torus; 0: every chip reaches every other over a switch, with `link` bytes/s
    wraps: int = 0  # an axis whose length this divides is a ring, a shorter one a line
    devices: int = 1  # JAX devices of one place in the torus
    host: tuple[int, ...] = ()  # the slice that one process holds


CHIPS: Mapping[str, Chip] = {
    chip.name: chip
    for chip in (
        Chip("v4", "TPU v4", 275e12, 30.75 * GIB, 1.2e12, 4.5e10, 3, 4, host=(2, 2, 1)),
        Chip("v5e", "TPU v5e", 197e12, 15.75 * GIB, 0.81e12, 4.5e10, 2, 16, host=(2, 2)),
        Chip("v5p", "TPU v5p", 459e12, 95.73 * GIB, 2.8e12, 9e10, 3, 4, host=(2, 2, 1)),
        Chip("v6e", "TPU v6e", 918e12, 31.24 * GIB, 1.6e12, 9e10, 2, 16, host=(2, 2)),
        # Two devices a chip, which share its links.
        Chip("tpu7x", "TPU7x", 1153e12, 94.74 * GIB, 3.7e12, 9e10, 3, 4, devices=2, host=(2, 2, 1)),
        Chip("h100", "H100 SXM", 989e12, 79.1 * GIB, 3.35e12, 4.5e11, 0, host=(8,)),
        Chip("h200", "H200 SXM", 989e12, 139.8 * GIB, 4.8e12, 4.5e11, 0, host=(8,)),
    )
}
# Slices that Google Cloud sells by the number of chips.
FLAT: Mapping[int, tuple[int, int]] = {
    1: (1, 1), 4: (2, 2), 8: (2, 4), 16: (4, 4), 32: (4, 8), 64: (8, 8), 128: (8, 16), 256: (16, 16),
}  # fmt: skip


# Two processes may compile at once; nothing is asked of a cloud's metadata server, and nothing said about its silence.
LIBTPU = {
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_MIN_LOG_LEVEL": "3",
    "TF_CPP_MIN_LOG_LEVEL": "3",
}


@dataclass(frozen=True)
class Slice:
    """Chips that are rented together."""

    chip: Chip
    shape: tuple[int, ...]  # of the torus, in chips; of GPUs their number

    @property
    def name(self) -> str:
        return f"{self.chip.name}:{'x'.join(map(str, self.shape))}"

    @property
    def size(self) -> int:
        """JAX devices."""
        return math.prod(self.shape) * self.chip.devices

    @property
    def is_tpu(self) -> bool:
        return self.chip.dims > 0

    def host(self) -> Slice:
        """The part that one process holds, and samples on."""
        return Slice(self.chip, tuple(map(min, self.shape, self.chip.host)))


def parse_slice(name: str) -> Slice:
    """The slice of that name. Raises ConfigError with what to write instead."""
    kind, _, sizes = name.partition(":")
    chip = CHIPS.get(kind)
    if chip is None or not re.fullmatch(r"[1-9]\d*(x[1-9]\d*)*", sizes):
        raise ConfigError(f"--topology={name} is unknown: {_hint(name)}")
    shape = tuple(int(n) for n in sizes.split("x"))
    if chip.dims and len(shape) != chip.dims:
        example = "x".join("2" * chip.dims)
        raise ConfigError(
            f"--topology={name} has {len(shape)} sizes, but a {chip.title} slice has {chip.dims}: "
            f"write it as {chip.name}:{example}"
        )
    if not chip.dims and (len(shape) != 1 or shape[0] > chip.host[0]):
        raise ConfigError(
            f"--topology={name} is more than one machine: give {chip.name}:1 to {chip.name}:{chip.host[0]}"
        )
    return Slice(chip, shape)


def _hint(name: str) -> str:
    """What someone probably meant who wrote a cloud's name of a slice."""
    if found := re.fullmatch(r"(?:v5litepod|v5e|v6e)[-:](\d+)", name):
        chip, n = ("v6e" if name.startswith("v6e") else "v5e"), int(found[1])
        if n in FLAT:
            return f"write {chip}:{'x'.join(map(str, FLAT[n]))} for {name}"
    if found := re.fullmatch(r"(v4|v5p|tpu7x|v7x)[-:](\d+)", name):
        chip = "tpu7x" if found[1].endswith("7x") else found[1]
        cores = 1 if chip == "tpu7x" else 2  # a chip of v4 and v5p, which are named by them
        chips = int(found[2]) / cores
        if chips >= 4 and math.log2(chips).is_integer():
            return f"write {chip}:{'x'.join(map(str, _cube(chips)))} for {name}, which is {chips:g} chips"
    return f"write CHIP:AxB or CHIP:AxBxC, such as v5e:4x8, v5p:2x2x4 or h100:8; chips are {', '.join(CHIPS)}"


def _cube(chips: float) -> tuple[int, int, int]:
    """The most even 3-dimensional shape of a power of two: 16 is 2x2x4."""
    shape = [1, 1, 1]
    while math.prod(shape) < chips:
        shape[shape.index(min(shape))] *= 2
    a, b, c = sorted(shape)
    return (b, c, a) if a == 1 else (a, b, c)


def find_devices(slice_: Slice) -> Sequence[Any]:
    """The devices of a slice for JAX to compile for, on a machine that has none of them.

    Raises ConfigError when the compiler for them is not installed, or does not know the slice.
    """
    return _tpus(slice_) if slice_.is_tpu else _gpus(slice_)


def _tpus(slice_: Slice) -> Sequence[Any]:
    for name, value in LIBTPU.items():
        os.environ.setdefault(name, value)
    options: dict[str, Any] = {"chip_config_name": "megacore"} if slice_.chip.name == "v4" else {}
    try:
        found = topologies.get_topology_desc(platform="tpu", topology_name=slice_.name, **options)
    except Exception as error:  # libtpu raises whatever it likes
        if _missing("libtpu"):
            raise ConfigError(
                f"--topology={slice_.name} needs libtpu, the compiler for TPUs, which runs without one: {INSTALL}"
            ) from error
        raise ConfigError(
            f"--topology={slice_.name} is unknown to libtpu ({str(error).splitlines()[0][:120]}): "
            f"take a slice that exists, such as {'v5e:4x8' if slice_.chip.dims == 2 else slice_.chip.name + ':2x2x4'}"
        ) from error
    return found.devices


def _missing(module: str) -> bool:
    from importlib.util import find_spec

    return find_spec(module) is None


# What the compiler wants to know of a GPU that it cannot ask.
GPU = """gpu_device_info {{
  threads_per_block_limit: 1024 threads_per_warp: 32 shared_memory_per_block: 49152 shared_memory_per_core: 233472
  threads_per_core_limit: 2048 core_count: 132 fpus_per_core: 128 block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535 block_dim_limit_z: 65535 memory_bandwidth: {bandwidth} l2_cache_size: 52428800
  clock_rate_ghz: 1.98 device_memory_size: {memory} shared_memory_per_block_optin: 232448
  cuda_compute_capability {{ major: 9 minor: 0 }} registers_per_core_limit: 65536 registers_per_block_limit: 65536
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 8 }}
device_description_str: "{title}"
"""


def _gpus(slice_: Slice) -> Sequence[Any]:
    try:
        from jax._src import xla_bridge  # the public way to load plugins also starts them, which needs a GPU

        xla_bridge.discover_pjrt_plugins()
        chip = slice_.chip
        target = GPU.format(bandwidth=int(chip.bandwidth), memory=int(chip.hbm), title=chip.title)
        found = topologies.get_topology_desc(
            platform="cuda",
            topology_name=chip.name,
            topology=f"1x1x{slice_.size}",
            target_config=target,
        )
    except Exception as error:
        if _missing("jax_cuda13_plugin"):
            raise ConfigError(
                f"--topology={slice_.name} needs the CUDA compiler of jax {jax.__version__}, which runs without a GPU: "
                f"{INSTALL}"
            ) from error
        raise ConfigError(
            f"--topology={slice_.name} cannot be planned for, since the CUDA plugin of jax {jax.__version__} refuses its "
            f"description ({str(error).splitlines()[0][:120]}): install the plugin of this version, {INSTALL}"
        ) from error
    return found.devices
