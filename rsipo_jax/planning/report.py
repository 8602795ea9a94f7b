"""A plan as tables for people and as JSON."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from rsipo_jax.planning.chips import GIB
from rsipo_jax.planning.estimate import matmul_params
from rsipo_jax.planning.hlo import Collective
from rsipo_jax.planning.plan import Phase, Plan, Planned
from rsipo_jax.planning.programs import ACCUMULATE, APPLY, DECODE, PREFILL, SCORE, WRITE
from rsipo_jax.planning.roofline import mesh_axes
from rsipo_jax.planning.search import Candidate, describe
from rsipo_jax.sampling.programs import STEPS

PHASES = {
    "prefill": (PREFILL, WRITE),
    "decode": (DECODE,),
    "score": (SCORE,),
    "update": (ACCUMULATE, APPLY),
    "step": (PREFILL, WRITE, DECODE, SCORE, ACCUMULATE, APPLY),
}


def report(plan: Plan) -> Group:
    """Everything there is to say about a plan."""
    setting, work = plan.setting, plan.setting.work
    shape = "  ".join(f"{name} {size}" for name, size in setting.mesh.shape.items())
    host = "  ".join(f"{name} {size}" for name, size in setting.host_mesh.shape.items())
    lines = [
        f"{setting.slice_.name}: {setting.slice_.size} x {setting.slice_.chip.title}; learner mesh: {shape}; "
        f"sampling mesh of each of {setting.hosts} processes: {host}, {setting.slots} slots",
        f"{matmul_params(setting.model) / 1e9:.3f} billion parameters multiply every token; attention by "
        f"{setting.model.attention}, remat {setting.model.remat}",
        f"a step: {work.trained_tokens / 1e6:.2f} M tokens trained in {work.rows} rows, {work.scored_tokens / 1e6:.2f} M "
        f"scored, {work.prefill_tokens / 1e6:.2f} M read and {work.decode_tokens / 1e6:.2f} M sampled",
    ]
    if setting.note:
        lines.append(setting.note)
    return Group(
        *(Text(line) for line in lines),
        _memory(plan),
        _compute(plan),
        _collectives(plan),
        _times(plan),
        Text(
            "Bounds, everything at full speed: an operation takes the longer of its arithmetic and its memory traffic, busy "
            "is their sum, and communication is all hidden behind it or not at all. The host and the environments are not "
            "in them. FLOPs are of matrix products; the compiler's count takes the body of each loop once (28 scanned "
            "layers as one) and sees no hand-written kernel. MFU counts real tokens, without padding and recomputation.",
            style="dim",
        ),
    )


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left")
    for k, name in enumerate(columns):
        table.add_column(name, justify="left" if k == 0 else "right")
    return table


def _memory(plan: Plan) -> Table:
    chip = plan.setting.slice_.chip
    table = _table(
        f"HBM of one chip, GiB of {chip.hbm / GIB:.2f}",
        "program", "compiled in", "arguments", "temporaries", "peak", "held beside", "total", "fits",
    )  # fmt: skip
    for p in plan.programs:
        c, m = p.compiled, p.memory
        fits = f"{-m.over / GIB:.1f} left" if m.over <= 0 else f"{m.over / GIB:.1f} over"
        numbers = (c.arguments, c.temporaries, c.peak, m.held, m.total)
        table.add_row(c.name, f"{c.seconds:.0f} s", *(f"{n / GIB:.2f}" for n in numbers), fits)
    return table


def _compute(plan: Plan) -> Table:
    table = _table(
        f"One run of each program on one chip; of decode, {STEPS} tokens of each slot",
        "program", "TFLOPs", "compiler's", "HBM GB", "compute ms", "HBM ms", "busy ms", "links ms", "binds",
    )  # fmt: skip
    for p in plan.programs:
        c, b = p.compiled, p.bounds
        table.add_row(
            c.name,
            f"{c.flops / c.devices / 1e12:.3g}",
            f"{c.compiler_flops / 1e12:.3g}" if c.compiler_flops else "unknown",
            f"{c.hbm_bytes / 1e9:.3g}",
            *(f"{1e3 * t:.3g}" for t in (b.compute, b.hbm, b.busy, b.interconnect)),
            b.binds,
        )
    return table


def _collectives(plan: Plan) -> Table:
    table = _table(
        "Collectives of one run, a chip's", "program", "where", "kind", "over", "type", "count", "received MB"
    )
    for p in plan.programs:
        name = p.compiled.name
        for row in grouped(p):
            table.add_row(
                name, row["where"], row["kind"], row["axes"], row["dtype"], f"{row['count']:g}",
                f"{row['bytes'] / 1e6:.4g}",
            )  # fmt: skip
            name = ""
    return table


def grouped(p: Planned) -> list[dict[str, Any]]:
    """Collectives that are alike, those that receive most first; `bytes` are of all of them, for one chip."""
    sums: dict[tuple[str, ...], list[float]] = defaultdict(lambda: [0.0, 0.0])
    for c in p.compiled.collectives:
        if len(c.group) < 2:
            continue
        axes = "+".join(mesh_axes(c, p.mesh))
        key = where(c), c.kind, axes, c.dtype
        sums[key][0] += c.count
        sums[key][1] += c.count * c.received
    names = "where", "kind", "axes", "dtype"
    rows = [dict(zip(names, k, strict=True)) | {"count": n, "bytes": b} for k, (n, b) in sums.items()]
    return sorted(rows, key=lambda row: -row["bytes"])


def where(c: Collective) -> str:
    """In which loops a collective runs."""
    return "loops of " + " x ".join(f"{trips:g}" for trips in c.loops) if c.loops else "once"


def _times(plan: Plan) -> Table:
    table = _table("One RL step, bounds", "phase", "runs", "binds", "seconds", "tokens/s", "MFU %")
    work = plan.setting.work
    tokens = {
        "prefill": work.prefill_tokens,
        "decode": work.decode_tokens,
        "score": work.scored_tokens,
        "update": work.trained_tokens,
        "step": work.decode_tokens,
    }
    for name, programs in PHASES.items():
        phase = plan.phase(*programs)
        first = next(p for p in plan.programs if p.compiled.name == programs[0])
        alone = name != "step"
        table.add_row(
            name if alone else "step (tokens sampled)",
            f"{first.runs:.0f}" if alone else "",
            first.bounds.binds if alone else "",
            _range(phase.hidden, phase.exposed, "{:.3g}"),
            _range(tokens[name] / phase.exposed, tokens[name] / phase.hidden, "{:,.0f}"),
            _range(100 * phase.worst_mfu, 100 * phase.best_mfu, "{:.1f}"),
        )
    return table


def _range(low: float, high: float, style: str) -> str:
    return f"{style.format(low)} to {style.format(high)}"


def candidates(found: Sequence[Candidate]) -> RenderableType:
    """What a search found, best first."""
    table = _table("Layouts, best first", "flags", "HBM GiB", "update s", "MFU %")
    for c in found:
        if c.update is None:
            table.add_row(describe(c.layout), f"{c.memory.total / GIB:.1f}", "does not fit", "")
        else:
            table.add_row(
                describe(c.layout),
                f"{c.memory.total / GIB:.1f}",
                _range(c.update.hidden, c.update.exposed, "{:.3g}"),
                _range(100 * c.update.worst_mfu, 100 * c.update.best_mfu, "{:.1f}"),
            )
    return table


def record(plan: Plan) -> dict[str, Any]:
    """The plan as plain data: bytes, seconds, FLOPs, those of programs for one run on one chip."""
    setting = plan.setting
    return {
        "topology": setting.slice_.name,
        "chips": setting.slice_.size,
        "mesh": dict(setting.mesh.shape),
        "sampling_mesh": dict(setting.host_mesh.shape),
        "processes": setting.hosts,
        "parameters": matmul_params(setting.model),
        "note": setting.note,
        "workload": vars(setting.work),
        "fits": plan.worst.memory.over <= 0,
        "programs": {p.compiled.name: _program(p) for p in plan.programs},
        "step": {name: _phase(plan.phase(*programs)) for name, programs in PHASES.items()},
    }


def _program(p: Planned) -> dict[str, Any]:
    c = p.compiled
    return {
        "compile_seconds": c.seconds,
        "runs_a_step": p.runs,
        "hbm": {
            "arguments": c.arguments, "outputs": c.outputs, "aliased": c.aliased, "temporaries": c.temporaries,
            "peak": c.peak, "held_beside": p.memory.held, "total": p.memory.total, "chip": p.memory.chip,
        },
        "flops": c.flops / c.devices,
        "compiler_flops": c.compiler_flops,
        "hbm_bytes_moved": c.hbm_bytes,
        "collectives": grouped(p),
        "seconds": vars(p.bounds),
        "binds": p.bounds.binds,
    }  # fmt: skip


def _phase(phase: Phase) -> dict[str, float]:
    return {
        "seconds_hidden": phase.hidden, "seconds_exposed": phase.exposed,
        "mfu_hidden": phase.best_mfu, "mfu_exposed": phase.worst_mfu,
    }  # fmt: skip


def record_candidates(found: Iterable[Candidate]) -> Iterator[dict[str, Any]]:
    """What a search found as plain data."""
    for c in found:
        yield {
            "flags": describe(c.layout),
            "hbm_total": c.memory.total,
            "fits": c.update is not None,
            "update": _phase(c.update) if c.update else None,
        }
