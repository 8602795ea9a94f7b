"""The programs of a run, traced and compiled for devices that are not there.

Nothing is imitated: these are the jitted functions that `training/step.py` and `sampling/engine.py` call, with
arguments that have a shape, a type and a layout, and no content.
"""

from __future__ import annotations

import math
import re
import time
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from rsipo_jax.config import Config
from rsipo_jax.models.cache import CACHED, HEADS, KVCache, column_width, init_cache
from rsipo_jax.models.decode import serving_params
from rsipo_jax.models.lora import split
from rsipo_jax.models.transformer import PARAM_AXES, ModelConfig
from rsipo_jax.models.vocabulary import CHUNK
from rsipo_jax.parallel import sharding
from rsipo_jax.parallel.sharding import batch_shards
from rsipo_jax.planning import hlo
from rsipo_jax.planning.flops import count_flops
from rsipo_jax.planning.networks import abstract_params
from rsipo_jax.planning.workload import Workload
from rsipo_jax.sampling import engine, programs
from rsipo_jax.training import update
from rsipo_jax.training.packing import microbatch_bins
from rsipo_jax.training.state import TrainState, make_optimizer

SCORE, ACCUMULATE, APPLY, PREFILL, WRITE, DECODE = (
    "score", "accumulate", "apply_gradients", "prefill", "write", "decode",
)  # fmt: skip


@dataclass(frozen=True)
class Traced:
    """A program with its arguments, ready to compile."""

    name: str
    mesh: Mesh
    tokens: int  # positions of one run, padding included; 0 where it has none
    flops: float  # of one run, over all devices
    # The share of what is passed over under conditions that a usual run does not pass over: of the learner's head the
    # chunks that hold a sampled token, of the sampler's cache the columns that a sequence reaches.
    taken: float
    turns: float  # of a loop that ends on data
    trace: Any


@dataclass(frozen=True)
class Compiled:
    """What is known of a program once it is compiled. Bytes and FLOPs of the compiler are those of one device."""

    name: str
    devices: int
    tokens: int
    seconds: float  # of compilation
    arguments: int
    outputs: int
    aliased: int  # of the outputs, in place of arguments
    temporaries: int
    peak: int
    flops: float  # our count, over all devices
    compiler_flops: float  # its own, with each loop body once
    operations: tuple[hlo.Operation, ...]  # of one device, in the order they run
    collectives: tuple[hlo.Collective, ...]

    @property
    def hbm_bytes(self) -> float:
        """Moved by one device."""
        return math.fsum(o.bytes * o.count for o in self.operations)

    @property
    def seen_flops(self) -> float:
        """Of one device, as the compiled program has them, without hand-written kernels."""
        return math.fsum(o.flops * o.count for o in self.operations)


class OutOfMemory(Exception):
    """The compiler found no room for a program on one device."""

    def __init__(self, program: str, wanted: float, message: str) -> None:
        super().__init__(message)
        self.program, self.wanted = program, wanted  # wanted: bytes, 0 when the compiler does not say


def learner_programs(config: Config, model: ModelConfig, mesh: Mesh, work: Workload) -> list[Traced]:
    """score, accumulate and apply_gradients on the learner's mesh, for one micro-batch."""
    cfg, length = config.train, config.context.max_length
    optimizer = make_optimizer("adamw", cfg.weight_decay, cfg.grad_clip, cfg.momentum_dtype)
    with jax.set_mesh(mesh):
        params = _laid_out(abstract_params(model, config.lora), mesh)
        trained, frozen = split(params)
        shape = (microbatch_bins(cfg.microbatch_tokens, length, batch_shards()), length)

        def rows(dtype: Any) -> Any:
            return jax.ShapeDtypeStruct(
                shape, dtype, sharding=sharding.sharding(mesh, ("batch", None), shape)
            )

        ids, value = rows(jnp.int32), rows(jnp.float32)
        batch = update.Batch(ids, ids, ids, rows(jnp.int8), *[value] * 5)
        if config.loss.importance_cap:
            batch = replace(batch, importance=value)
        scalar = _whole(jax.ShapeDtypeStruct((), jnp.float32), mesh)
        state = jax.eval_shape(lambda p: TrainState(p, optimizer.init(p), jnp.zeros((), jnp.int32)), trained)
        state, tokens = _laid_out(state, mesh), shape[0] * shape[1]
        temperature, kinds = config.rollout.temperature, rows(jnp.int8)
        chunks = math.ceil(tokens / batch_shards() / CHUNK)
        taken = math.ceil(chunks * work.sampled) / chunks
        return [
            _traced(
                SCORE, mesh, tokens, taken,
                update.score_tokens.trace(params, model, ids, ids, ids, kinds, temperature),
            ),
            _traced(
                ACCUMULATE, mesh, tokens, taken,
                update.accumulate.trace(
                    trained, frozen, model, batch, (scalar, scalar), config.loss, (scalar, scalar), temperature, trained
                ),
            ),
            _traced(APPLY, mesh, 0, 1.0, update.apply_gradients.trace(state, trained, scalar, optimizer)),
        ]  # fmt: skip


def sampler_programs(
    config: Config, model: ModelConfig, mesh: Mesh, work: Workload, slots: int
) -> list[Traced]:
    """prefill and write (a call's worth of the usual piece of a prompt) and decode, on a process's sampling mesh."""
    length, pieces = config.context.max_length, usual_pieces(work)
    size = max(size for _, size in pieces)
    rows = dict(engine.PIECES)[size][-1]
    with jax.set_mesh(mesh):
        params = _laid_out(
            jax.eval_shape(lambda p: serving_params(p, model), abstract_params(model, config.lora)), mesh
        )
        cache, n = cache_of(model, mesh, slots, length), rows * batch_shards()

        def whole(*shape: int) -> jax.ShapeDtypeStruct:
            return _whole(jax.ShapeDtypeStruct(shape, jnp.int32), mesh)

        piece = programs._piece.trace(params, model, cache, whole(n), whole(n, size), whole(n))
        fresh = jax.tree.map(
            lambda a: jax.ShapeDtypeStruct(
                a.shape, a.dtype, sharding=sharding.sharding(mesh, HEADS, a.shape)
            ),
            piece.out_info,
        )
        rows_of = jax.tree.map(lambda a: _whole(a, mesh), engine._no_rows(slots))
        read = sum(_columns(start, length) for start, _ in pieces) / len(pieces)
        return [
            _traced(PREFILL, mesh, n * size, read, piece),
            _traced(WRITE, mesh, n * size, 1.0, programs._put.trace(cache, fresh, whole(n), whole(n), whole(n))),
            _traced(
                DECODE, mesh, slots * programs.STEPS, _columns(work.longest_tokens, length),
                programs.decode.trace(params, model, cache, None, rows_of, whole(), whole()),
                programs.STEPS,
            ),
        ]  # fmt: skip


def usual_pieces(work: Workload) -> list[tuple[int, int]]:
    """Pieces in which the tokens of a usual prompt that no slot holds run beside others: (where it begins, size with padding)."""
    at, pieces = work.prompt_tokens - work.new_tokens, []
    while at < work.prompt_tokens:
        pieces.append((at, engine.piece_size(work.prompt_tokens - at, engine.SIDE_BY_SIDE)))
        at += pieces[-1][1]
    return pieces


def _columns(length: int, capacity: int) -> float:
    """The share of a cache's columns that sequences of that length reach."""
    width = column_width(capacity)
    return min(1.0, math.ceil(length / width) / math.ceil(capacity / width))


def cache_of(model: ModelConfig, mesh: Mesh, slots: int, capacity: int) -> KVCache:
    """The shapes and layout of a cache."""
    with jax.set_mesh(mesh):
        cache = jax.eval_shape(lambda: init_cache(model, slots, capacity))
        return jax.tree.map(
            lambda a: jax.ShapeDtypeStruct(
                a.shape, a.dtype, sharding=sharding.sharding(mesh, CACHED, a.shape)
            ),
            cache,
        )


def compile_program(traced: Traced) -> Compiled:
    """Compiles a program. Raises OutOfMemory when it does not fit on its devices."""
    start = time.perf_counter()
    try:
        with jax.set_mesh(traced.mesh):
            compiled = traced.trace.lower().compile()
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        raise OutOfMemory(traced.name, _wanted(str(error)), str(error).splitlines()[0]) from error
    seconds = time.perf_counter() - start
    memory, cost = compiled.memory_analysis(), compiled.cost_analysis() or {}
    module = hlo.parse(compiled.as_text())
    held = memory.argument_size_in_bytes + memory.output_size_in_bytes - memory.alias_size_in_bytes
    return Compiled(
        name=traced.name,
        devices=traced.mesh.size,
        tokens=traced.tokens,
        seconds=seconds,
        arguments=memory.argument_size_in_bytes,
        outputs=memory.output_size_in_bytes,
        aliased=memory.alias_size_in_bytes,
        temporaries=memory.temp_size_in_bytes,
        peak=getattr(memory, "peak_memory_in_bytes", 0) or held + memory.temp_size_in_bytes,
        flops=traced.flops,
        compiler_flops=float(cost.get("flops", 0.0)),
        operations=tuple(module.operations(traced.taken, traced.turns)),
        collectives=tuple(module.collectives(traced.turns)),
    )


def bytes_per_device(tree: Any) -> int:
    """Bytes that one device holds of a tree of laid-out shapes."""
    return sum(math.prod(a.sharding.shard_shape(a.shape)) * a.dtype.itemsize for a in jax.tree.leaves(tree))


def _traced(name: str, mesh: Mesh, tokens: int, taken: float, trace: Any, turns: float = 1.0) -> Traced:
    return Traced(name, mesh, tokens, count_flops(trace.jaxpr, taken, turns), taken, turns, trace)


def _laid_out(tree: Any, mesh: Mesh) -> Any:
    """Shapes with the layout that the table of logical axes gives them."""
    layouts = sharding.tree_shardings(tree, PARAM_AXES, mesh)
    return jax.tree.map(lambda a, s: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=s), tree, layouts)


def _whole(a: Any, mesh: Mesh) -> jax.ShapeDtypeStruct:
    """A shape that every device holds all of."""
    return jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=NamedSharding(mesh, PartitionSpec()))


_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def _wanted(message: str) -> float:
    """Bytes that the compiler wanted, from what it says; 0 if it does not."""
    for pattern in (r"Used ([\d.]+)([KMGT]?) of", r"required for[^(]*\(([\d.]+)([KMGT]?)\)"):
        if found := re.search(pattern, message):
            return float(found[1]) * _UNITS[found[2]]
    return 0.0
