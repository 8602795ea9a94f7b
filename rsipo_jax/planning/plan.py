"""A plan: the programs of a config compiled for a slice, what they need of it, and how long a step takes at least."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from jax.sharding import Mesh

from rsipo_jax.config import Config
from rsipo_jax.models.transformer import ModelConfig
from rsipo_jax.parallel.sharding import make_mesh
from rsipo_jax.planning import estimate
from rsipo_jax.planning.chips import Slice, find_devices
from rsipo_jax.planning.estimate import Layout
from rsipo_jax.planning.networks import find_network
from rsipo_jax.planning.programs import (
    ACCUMULATE,
    APPLY,
    DECODE,
    PREFILL,
    SCORE,
    WRITE,
    Compiled,
    Traced,
    bytes_per_device,
    cache_of,
    compile_program,
    learner_programs,
    sampler_programs,
    usual_pieces,
)
from rsipo_jax.planning.roofline import Roofline, roofline
from rsipo_jax.planning.workload import Workload, step_workload
from rsipo_jax.sampling.programs import STEPS
from rsipo_jax.training.setup import check_layout
from rsipo_jax.validation import ConfigError


@dataclass(frozen=True)
class Setting:
    """What is planned: a config on a slice, with the meshes it makes there."""

    config: Config
    model: ModelConfig
    slice_: Slice
    mesh: Mesh
    host_mesh: Mesh  # on which a process samples
    hosts: int
    work: Workload
    note: str  # how this differs from what would run, "" if it does not

    @property
    def slots(self) -> int:
        """Sequences that a process decodes at once: its share, in equal parts for its devices."""
        shards = self.host_mesh.size // self.config.mesh.sampling_tensor
        return math.ceil(self.config.rollout.slots / self.hosts / shards) * shards

    @property
    def layout(self) -> Layout:
        shape = self.mesh.shape
        return Layout(shape["data"], shape["fsdp"], shape["tensor"], self.config.train.microbatch_tokens)


@dataclass(frozen=True)
class Memory:
    """Bytes of one chip while a program runs."""

    program: float  # the program's own peak: arguments, results and temporaries
    held: float  # what else the run keeps there
    chip: float

    @property
    def total(self) -> float:
        return self.program + self.held

    @property
    def over(self) -> float:
        """Bytes that are missing; negative when there is room."""
        return self.total - self.chip


@dataclass(frozen=True)
class Planned:
    """A program with what it means on the slice."""

    compiled: Compiled
    mesh: Mesh
    memory: Memory
    bounds: Roofline
    runs: float  # in one RL step
    useful: float  # FLOPs of one step that real tokens need, over all chips; 0 without matrix products


@dataclass(frozen=True)
class Plan:
    setting: Setting
    programs: tuple[Planned, ...]

    def phase(self, *names: str) -> Phase:
        """The programs of these names as one phase of a step."""
        chosen = [p for p in self.programs if p.compiled.name in names]
        peak = self.setting.slice_.chip.flops * self.setting.slice_.size
        useful = math.fsum(p.useful for p in chosen)
        hidden = math.fsum(p.runs * p.bounds.hidden for p in chosen)
        exposed = math.fsum(p.runs * p.bounds.exposed for p in chosen)
        return Phase(hidden, exposed, useful / (hidden * peak), useful / (exposed * peak))

    @property
    def worst(self) -> Planned:
        """The program that leaves the least memory."""
        return max(self.programs, key=lambda p: p.memory.over)


@dataclass(frozen=True)
class Phase:
    """Seconds of one step, and useful FLOPs over what the chips could do in them; with all communication hidden, or none."""

    hidden: float
    exposed: float
    best_mfu: float
    worst_mfu: float


def make_setting(config: Config, slice_: Slice) -> Setting:
    """Meshes and network of a config on a slice. Raises ConfigError when they do not go together."""
    devices = find_devices(slice_)
    mesh = make_mesh(config.mesh.data, config.mesh.fsdp, config.mesh.tensor, devices)
    model, note = with_attention(find_network(config), slice_)
    check_layout(model, mesh)
    host = slice_.host()
    tensor = config.mesh.sampling_tensor
    if host.size % tensor:
        raise ConfigError(
            f"config.mesh.sampling_tensor={tensor} does not divide the {host.size} chips of a process of "
            f"{slice_.name}: give a divisor"
        )
    host_mesh = make_mesh(host.size // tensor, 1, tensor, find_devices(host))
    return Setting(
        config, model, slice_, mesh, host_mesh, slice_.size // host.size, step_workload(config), note
    )


def with_attention(model: ModelConfig, slice_: Slice) -> tuple[ModelConfig, str]:
    """The network with the attention of the slice's platform, not of this machine's. Raises ConfigError."""
    own = "splash" if slice_.is_tpu else "cudnn"
    if model.attention not in ("auto", "xla", own):
        raise ConfigError(
            f"config.model.attention={model.attention!r} does not run on {slice_.chip.title}: set it to 'auto'"
        )
    if slice_.is_tpu:
        return replace(model, attention=own if model.attention == "auto" else model.attention), ""
    if model.attention == "xla":
        return model, ""
    return replace(model, attention="xla"), (
        "planned with attention='xla': cuDNN's, which a run on these GPUs uses, can only be traced where cuDNN is; "
        "of the blocks of keys that the one planned goes over, as many as the rows' segments need, one is counted"
    )


def make_plan(setting: Setting, progress: Callable[[str], None] = lambda _: None) -> Plan:
    """Compiles all programs; `progress` is told the name of each before it begins. Raises OutOfMemory."""
    learner = learner_programs(setting.config, setting.model, setting.mesh, setting.work)
    sampler = sampler_programs(setting.config, setting.model, setting.host_mesh, setting.work, setting.slots)
    planned = []
    for traced in (*learner, *sampler):
        progress(traced.name)
        planned.append(plan_program(setting, traced))
    return Plan(setting, tuple(planned))


def plan_program(setting: Setting, traced: Traced) -> Planned:
    """Compiles one program and puts it into its place in a step. Raises OutOfMemory."""
    compiled = compile_program(traced)
    host = traced.mesh is setting.host_mesh
    slice_ = setting.slice_.host() if host else setting.slice_
    memory = Memory(compiled.peak, held_bytes(setting)[compiled.name], setting.slice_.chip.hbm)
    return Planned(
        compiled,
        traced.mesh,
        memory,
        roofline(compiled, slice_, traced.mesh),
        _runs(setting)[compiled.name](compiled),
        _useful(setting)[compiled.name],
    )


def held_bytes(setting: Setting) -> Mapping[str, float]:
    """Bytes that a chip holds beside the arguments of each program."""
    config, model = setting.config, setting.model
    cut = setting.mesh.shape["fsdp"] * setting.mesh.shape["tensor"]
    held = estimate.sizes(model, config)
    moments, reference = (held.state - held.trained) / cut, held.reference / cut
    # The sampler's weights and cache stay where they are while the learner works.
    cache = bytes_per_device(cache_of(model, setting.host_mesh, setting.slots, config.context.max_length))
    serving = held.serving / config.mesh.sampling_tensor
    sampler = serving + cache
    learner = (held.state + held.frozen) / cut + reference
    return {
        SCORE: moments + reference + sampler,
        ACCUMULATE: moments + reference + sampler,
        APPLY: held.frozen / cut + reference + sampler,
        PREFILL: learner,
        WRITE: learner + serving,
        DECODE: learner,
    }


def _runs(setting: Setting) -> Mapping[str, Callable[[Compiled], float]]:
    """How often each program runs in one step, on one chip."""
    config, work = setting.config, setting.work
    shards, row = setting.layout.shards, work.row_tokens

    def prefills(compiled: Compiled) -> float:
        filled = work.new_tokens / sum(size for _, size in usual_pieces(work))
        return work.prefill_tokens / setting.hosts / (compiled.tokens * filled)

    return {
        SCORE: lambda _: estimate.calls(config, work.scored_tokens, row, shards),
        ACCUMULATE: lambda _: estimate.microbatches(config, work, shards),
        APPLY: lambda _: estimate.updates(config, work),
        PREFILL: prefills,
        WRITE: prefills,
        DECODE: lambda _: work.decode_steps / STEPS,
    }


def _useful(setting: Setting) -> Mapping[str, float]:
    """FLOPs of one step that its real tokens need, without recomputation, over all chips."""
    model, work = setting.model, setting.work

    def forward(tokens: float, row: float, sampled: float) -> float:
        return estimate.useful_flops(model, tokens, row, sampled)

    return {
        SCORE: forward(work.scored_tokens, work.row_tokens, work.sampled),
        ACCUMULATE: 3 * forward(work.trained_tokens, work.row_tokens, work.sampled),
        APPLY: 0.0,
        PREFILL: forward(work.prefill_tokens, work.prompt_tokens, 0.0),  # of a prompt the last token alone
        WRITE: 0.0,
        DECODE: forward(work.decode_tokens, 2 * work.prompt_tokens, 1.0),
    }
