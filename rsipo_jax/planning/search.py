"""What fits, and what is fastest of it: meshes and micro-batches ranked by estimate, the best of them compiled."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from rsipo_jax.config import Config
from rsipo_jax.parallel.sharding import make_mesh
from rsipo_jax.planning import estimate
from rsipo_jax.planning.chips import GIB, Slice
from rsipo_jax.planning.estimate import Layout
from rsipo_jax.planning.plan import Memory, Phase, Plan, Setting, plan_program
from rsipo_jax.planning.programs import ACCUMULATE, APPLY, SCORE, OutOfMemory, learner_programs

TRIED = 3  # layouts that a search compiles


@dataclass(frozen=True)
class Candidate:
    """A layout that a search compiled, or tried to."""

    layout: Layout
    update: Phase | None  # None: it does not fit
    memory: Memory
    seconds: float  # of compilation


def search(setting: Setting, progress: Callable[[str], None] = lambda _: None) -> list[Candidate]:
    """The layouts that are best by estimate, compiled, those that fit first and of these the shortest update."""
    config, model, slice_ = setting.config, setting.model, setting.slice_
    found = []
    devices = list(setting.mesh.devices.flat)
    for layout in estimate.ranked(model, config, slice_, setting.work, _sampler_bytes(setting, config))[
        :TRIED
    ]:
        progress(describe(layout))
        mesh = make_mesh(layout.data, layout.fsdp, layout.tensor, devices)
        there = replace(setting, config=layout.applied(config), mesh=mesh)
        try:
            learner = learner_programs(there.config, model, mesh, setting.work)
            plan = Plan(there, tuple(plan_program(there, t) for t in learner if t.name != SCORE))
        except OutOfMemory as error:
            memory = Memory(error.wanted, 0.0, slice_.chip.hbm)
            found.append(Candidate(layout, None, memory, 0.0))
            continue
        worst = plan.worst.memory
        seconds = math.fsum(p.compiled.seconds for p in plan.programs)
        update = plan.phase(ACCUMULATE, APPLY) if worst.over <= 0 else None
        found.append(Candidate(layout, update, worst, seconds))
    return sorted(found, key=lambda c: (c.update is None, c.update.exposed if c.update else 0.0))


def describe(layout: Layout) -> str:
    """As flags of the command line."""
    return (
        f"--config.mesh.data={layout.data} --config.mesh.fsdp={layout.fsdp} --config.mesh.tensor={layout.tensor} "
        f"--config.train.microbatch_tokens={layout.microbatch_tokens}"
    )


def too_large(setting: Setting, program: str, over: float) -> str:
    """The sentence for a config that does not fit: by how much, and what should by estimate."""
    first = f"{program} does not fit on {setting.slice_.name}"
    if over > 0:
        first += f": it is {over / GIB:.1f} GiB over the {setting.slice_.chip.hbm / GIB:.2f} GiB of a chip"
    ways = remedies(setting)
    if not ways:
        return f"{first}; by estimate no change of mesh, micro-batch, remat or adapters makes it fit: take a larger chip"
    return f"{first}; by estimate these fit: {'; '.join(ways)}"


def remedies(setting: Setting) -> list[str]:
    """Changes that should make a config fit, each by itself, as flags; the mildest first."""
    config, model, slice_ = setting.config, setting.model, setting.slice_
    length, layout = config.context.max_length, setting.layout

    def fits(config: Config, layout: Layout, slice_: Slice = slice_, **network: Any) -> bool:
        changed = replace(model, **network)
        sampler = _sampler_bytes(replace(setting, hosts=slice_.size // slice_.host().size), config)
        return estimate.update_bytes(config, changed, layout) + sampler <= slice_.chip.hbm and (
            estimate.sizes(changed, config).state / (layout.fsdp * layout.tensor) + sampler <= slice_.chip.hbm
        )

    def with_tensor(tensor: int) -> Config:
        return replace(config, mesh=replace(config.mesh, sampling_tensor=tensor))

    def with_lora() -> Config:
        return replace(config, lora=replace(config.lora, rank=16))

    ways = []
    if layout.microbatch_tokens > length and fits(config, replace(layout, microbatch_tokens=length)):
        ways.append(f"--config.train.microbatch_tokens={length}")
    if model.remat != "full" and fits(config, layout, remat="full"):
        ways.append("--config.model.remat=full")
    if config.train.momentum_dtype != "bfloat16":
        halved = replace(config, train=replace(config.train, momentum_dtype="bfloat16"))
        if fits(halved, layout):
            ways.append("--config.train.momentum_dtype=bfloat16")
    host = slice_.host().size
    if config.mesh.sampling_tensor < host and fits(with_tensor(host), layout):
        ways.append(f"--config.mesh.sampling_tensor={host}")
    others = estimate.ranked(
        model, with_tensor(host), slice_, setting.work, _sampler_bytes(setting, with_tensor(host))
    )
    if others:
        ways.append(f"{describe(others[0])} --config.mesh.sampling_tensor={host}")
    if not config.lora.rank and fits(with_lora(), layout):
        ways.append("--config.lora.rank=16")
    grown = slice_
    for _ in range(6):
        if not slice_.is_tpu:
            break
        grown = _doubled(grown)
        wider = replace(layout, fsdp=layout.fsdp * grown.size // slice_.size)
        if model.hidden_size % wider.fsdp:
            break
        small = replace(wider, microbatch_tokens=length)
        for candidate in (wider, small):
            if fits(with_tensor(host), candidate, grown):
                ways.append(
                    f"--topology={grown.name} --config.train.microbatch_tokens={candidate.microbatch_tokens} "
                    f"--config.mesh.sampling_tensor={host}"
                )
                return ways
    return ways


def _sampler_bytes(setting: Setting, config: Config) -> float:
    there = replace(setting, config=config)
    tensor = config.mesh.sampling_tensor
    model = setting.model
    kv = 2 * model.num_layers * model.num_kv_heads * model.head_dim * estimate.WIDTH[model.dtype]
    cache = kv * config.context.max_length * there.slots / there.host_mesh.size
    return estimate.sizes(model, config).serving / tensor + cache


def _doubled(slice_: Slice) -> Slice:
    """The slice with its smallest side doubled."""
    shape = list(slice_.shape)
    smallest = shape.index(min(shape))
    shape[smallest] *= 2
    return Slice(slice_.chip, tuple(sorted(shape)))
