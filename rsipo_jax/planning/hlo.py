"""What a compiled program moves: its collectives and its memory traffic, read from the text of its HLO.

Loop bodies count as often as they run: the trip count of a while loop is what its condition compares with, less what
the counter starts at, over the step the body takes. A loop that ends on data (decoding) has none; whoever asks says how
often its body runs.

On TPU, XLA takes an asynchronous collective apart into a chain of fusions, each with a copy of the instruction: these
are one collective. It also turns a gathered (or scattered) matrix product into a loop of smaller
products and `collective-permute`s around the ring.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

KINDS = ("all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute")
BITS = {"pred": 8, "s4": 4, "u4": 4, "bf16": 16, "c64": 64, "c128": 128}  # others have theirs in their names
# Opcodes that move nothing: they name, bundle or reinterpret what is there.
FREE = {
    "parameter", "constant", "tuple", "get-tuple-element", "bitcast", "while", "call", "conditional", "iota",
    "after-all", "partition-id", "replica-id", "copy-done", "async-done", "async-update", "opt-barrier", "domain",
}  # fmt: skip
UPDATES = {
    "dynamic-update-slice": 1,
    "scatter": 2,
}  # opcodes that change a part: the operand with what is written
ON_CHIP = re.compile(r"S\([1-9]\d*\)")  # memory space of a layout: 0, which is not written, is HBM

_INSTRUCTION = re.compile(r"^\s+(ROOT )?%?([\w.-]+) = (.*?) ([a-z][\w-]*)\((.*)$")
_HEADER = re.compile(r"^(ENTRY )?%?([\w.-]+) \(.*\{\s*$")
_ARRAY = re.compile(r"\b([a-z]\w*)\[([\d,<=]*)\](\{[^}]*\})?")
_NAME = re.compile(r"%([\w.-]+)")


@dataclass(frozen=True)
class Instruction:
    name: str
    shape: str  # as written: "bf16[8,128]{1,0}", or a tuple of such
    opcode: str
    rest: str  # everything after the opening bracket: operands, then attributes
    root: bool

    @cached_property
    def operands(self) -> list[str]:
        """Names of the operands (of a constant or parameter: none)."""
        return _NAME.findall(self.rest[: _closing(self.rest)])

    @cached_property
    def attributes(self) -> str:
        return self.rest[_closing(self.rest) :]

    def attribute(self, name: str) -> str:
        """The computation that an attribute names, "" without it."""
        found = re.search(rf"\b{name}=%?([\w.-]+)", self.attributes)
        return found[1] if found else ""


@dataclass
class Computation:
    instructions: dict[str, Instruction] = field(default_factory=dict)

    @property
    def root(self) -> Instruction:
        return next(i for i in self.instructions.values() if i.root)

    def parameter(self, index: int) -> Instruction:
        return next(
            i
            for i in self.instructions.values()
            if i.opcode == "parameter" and i.rest.startswith(f"{index})")
        )


@dataclass(frozen=True)
class Collective:
    """One collective instruction, or several that are alike."""

    kind: str
    dtype: str
    bytes: float  # of the whole array, per chip: gathered, reduced, before it is scattered, or passed on
    group: tuple[int, ...]  # chips that take part, as positions in the mesh: those of the first group
    count: float  # executions in one run of the program
    loops: tuple[float, ...]  # trip counts of the loops around it, outermost first
    op: str = ""  # the JAX operation it comes from, as far as the compiler remembers

    @property
    def received(self) -> float:
        """Bytes that one chip has to receive for one execution (over a ring; an all-reduce goes round twice)."""
        n = len(self.group)
        share = {"collective-permute": 1.0, "all-reduce": 2 * (n - 1) / n}.get(self.kind, (n - 1) / n)
        return self.bytes * share


@dataclass(frozen=True)
class Operation:
    """An instruction, with all that is fused into it, on one chip."""

    flops: float  # of matrix products; none of hand-written kernels, whose inside is not seen
    bytes: float  # read from and written to HBM
    count: float  # executions in one run of the program


@dataclass(frozen=True)
class Module:
    computations: Mapping[str, Computation]
    entry: str

    def collectives(self, turns: float = 1.0) -> list[Collective]:
        """Every collective of one run, with the loops around it multiplied out; one that ends on data has `turns`."""
        return list(self._collect(self.entry, 1.0, (), set(), turns))

    def operations(self, taken: float = 1.0, turns: float = 1.0) -> list[Operation]:
        """What runs one after the other in one run: every instruction that moves or multiplies anything.

        Of the branches of a condition the dearest counts, in the share `taken` of all cases; if none multiplies (special
        ways of drawing tokens), the cheapest. A loop that ends on data has `turns`.
        """
        return list(self._operate(self.entry, 1.0, taken, turns))

    def trip_count(self, loop: Instruction) -> float | None:
        """How often the body of a while loop runs; None when that depends on data."""
        if written := re.search(r'"known_trip_count":\{"n":"(\d+)"', loop.attributes):  # as on GPU
            return float(written[1])
        condition = self.computations[loop.attribute("condition")]
        test = condition.root
        if test.opcode == "fusion":  # on CPU
            fused = self.computations[test.attribute("calls")]
            test, condition = fused.root, fused
        direction = re.search(r"direction=(\w+)", test.attributes)
        if test.opcode != "compare" or not direction or direction[1] not in ("LT", "GT", "NE", "LE", "GE"):
            return None
        sides = [condition.instructions[name] for name in test.operands]
        bounds = [_constant(s) for s in sides]
        if bounds[0] is None and bounds[1] is None:  # the fusion has the bound as an argument
            outer = self.computations[loop.attribute("condition")]
            given = [outer.instructions[n] for n in outer.root.operands]
            sides = [given[int(s.rest.split(")")[0])] if s.opcode == "parameter" else s for s in sides]
            bounds = [_constant(s) for s in sides]
        known = [b for b in bounds if b is not None]
        if len(known) != 1:
            return None
        counter = sides[0] if bounds[0] is None else sides[1]
        position = re.search(r"index=(\d+)", counter.attributes)
        if counter.opcode != "get-tuple-element" or not position:
            return None
        index = int(position[1])
        start = self._start(loop, index)
        step = self._step(self.computations[loop.attribute("body")], index)
        if start is None or not step:
            return None
        inclusive = direction[1] in ("LE", "GE")
        return max(0.0, math.ceil((known[0] - start + (math.copysign(1, step) if inclusive else 0)) / step))

    def _start(self, loop: Instruction, index: int) -> float | None:
        inside = next(c for c in self.computations.values() if loop.name in c.instructions)
        bundle = inside.instructions.get(loop.operands[0])
        if bundle is None or bundle.opcode != "tuple":
            return None
        first = inside.instructions[bundle.operands[index]]
        while first.opcode in ("copy", "bitcast", "convert") and first.operands:
            first = inside.instructions[first.operands[0]]
        return _constant(first)

    def _step(self, body: Computation, index: int) -> float | None:
        """What the body adds to element `index` of its argument."""
        result = body.root
        if result.opcode != "tuple":
            return None
        element, step = self._sum(body, result.operands[index], {}) or (None, 0.0)
        same = element is not None and re.search(rf"\bindex={index}\b", element.attributes)
        return step if same else None

    def _sum(
        self, inside: Computation, name: str, arguments: Mapping[int, tuple[Instruction | None, float]]
    ) -> tuple[Instruction | None, float] | None:
        """An instruction as (tuple element, constant): one plus the other; None if it is anything else."""
        found = inside.instructions[name]
        if (value := _constant(found)) is not None:
            return None, value
        if found.opcode == "get-tuple-element":
            return found, 0.0
        if found.opcode == "parameter":
            return arguments.get(int(found.rest.split(")")[0]))
        if found.opcode in ("copy", "bitcast"):
            return self._sum(inside, found.operands[0], arguments)
        if found.opcode == "fusion":
            given = [self._sum(inside, operand, arguments) for operand in found.operands]
            known = {i: g for i, g in enumerate(given) if g is not None}
            fused = self.computations[found.attribute("calls")]
            return self._sum(fused, fused.root.name, known)
        if found.opcode == "add":
            parts = [self._sum(inside, operand, arguments) for operand in found.operands]
            if None not in parts:
                elements = [p[0] for p in parts if p and p[0] is not None]
                if len(elements) == 1:
                    return elements[0], sum(p[1] for p in parts if p)
        return None

    def _collect(
        self, name: str, times: float, loops: tuple[float, ...], seen: set[str], turns: float
    ) -> Iterator[Collective]:
        """The collectives of a computation; chains in `seen` go on from outside of it, or were met already."""
        inner: list[Instruction] = []
        for i, inside in self._instructions(name):
            kind = i.opcode.removesuffix("-start")
            if kind in KINDS:
                chain = re.search(r'chain_id="(\d+)"', i.attributes)
                if chain is None or chain[1] not in seen:
                    seen |= {chain[1]} if chain else set()
                    yield _collective(i, _scattered(i, kind, inside), inside, times, loops)
            elif i.opcode == "while":
                inner.append(i)
        for loop in inner:
            trips = self.trip_count(loop)
            deeper = (*loops, turns if trips is None else trips)
            yield from self._collect(loop.attribute("body"), times * deeper[-1], deeper, set(seen), turns)

    def _instructions(self, name: str) -> Iterator[tuple[Instruction, Computation]]:
        """Those of a computation and of the fusions, calls and branches in it, each with its computation."""
        computation = self.computations[name]
        for i in computation.instructions.values():
            yield i, computation
            called = [i.attribute("calls")] if i.attribute("calls") else []
            if i.opcode == "call":
                called = [i.attribute("to_apply")]
            elif i.opcode == "conditional":
                called = _branches(i)
            for other in called:
                yield from self._instructions(other)

    def _operate(self, name: str, times: float, taken: float, turns: float) -> Iterator[Operation]:
        for i in self.computations[name].instructions.values():
            if i.opcode == "while":
                trips = self.trip_count(i)
                repeated = times * (turns if trips is None else trips)
                yield from self._operate(i.attribute("body"), repeated, taken, turns)
            elif i.opcode in ("call", "async-start"):
                yield from self._operate(i.attribute("to_apply") or i.attribute("calls"), times, taken, turns)
            elif i.opcode == "conditional":
                yield from self._branch(i, times, taken, turns)
            elif i.opcode not in FREE and not i.opcode.endswith("-done"):
                inside = self.computations[name]
                products = self._instructions(i.attribute("calls")) if i.opcode == "fusion" else [(i, inside)]
                flops = sum(_product(x, c) for x, c in products)
                if (moved := self._moved(i, inside)) or flops:
                    yield Operation(flops, moved, times)

    def _branch(self, i: Instruction, times: float, taken: float, turns: float) -> list[Operation]:
        """What counts of a condition."""

        def moved(operations: list[Operation]) -> float:
            return sum(o.bytes * o.count for o in operations)

        branches = [list(self._operate(branch, times, taken, turns)) for branch in _branches(i)]
        if not any(o.flops for operations in branches for o in operations):
            return min(branches, key=moved)
        return [replace(o, count=o.count * taken) for o in max(branches, key=moved)]

    def _moved(self, i: Instruction, inside: Computation) -> float:
        """Bytes read from and written to HBM: operands and results that are not on chip, of slices what they take."""
        shapes = [inside.instructions[name].shape for name in i.operands if name in inside.instructions]
        result = hbm_size(i.shape)
        if i.opcode in ("dynamic-slice", "slice", "gather"):
            return result + min(size(i.shape), hbm_size(shapes[0]))
        if i.opcode in UPDATES:  # written in place
            update = shapes[UPDATES[i.opcode]]
            return hbm_size(update) + min(size(update), result)
        if i.opcode == "copy-start":  # its result bundles destination and source
            return result
        if i.opcode == "slice-start":  # ((source), destination, flag)
            dtype, dims, layout = _ARRAY.findall(i.shape)[-2]
            taken = _array_size(dtype, dims)
            return taken if ON_CHIP.search(layout) else 2 * taken
        called = i.attribute("calls") if i.opcode == "fusion" else ""
        if not called:
            return result + sum(hbm_size(shape) for shape in shapes)
        fused = self.computations[called]
        total = 0.0
        for index, shape in enumerate(shapes):
            total += min(hbm_size(shape), self._read(fused, index, shape))
        if fused.root.opcode in UPDATES:  # written in place
            update = fused.root.operands[UPDATES[fused.root.opcode]]
            return total + min(result, size(fused.instructions[update].shape))
        return total + result

    def _read(self, fused: Computation, index: int, shape: str) -> float:
        """Bytes that a fusion reads of its argument `index`, of which it may use slices only."""
        if not hbm_size(shape):
            return 0.0
        name = fused.parameter(index).name
        users = [i for i in fused.instructions.values() if name in i.operands]
        sliced = 0.0
        for user in users:
            if user.opcode in ("dynamic-slice", "slice", "gather") and user.operands[0] == name:
                sliced += size(user.shape)
            elif user.opcode in UPDATES and user.operands[0] == name:
                continue
            elif user.opcode == "fusion":  # a part of this one
                part = self.computations[user.attribute("calls")]
                for operand, given in enumerate(user.operands):
                    sliced += self._read(part, operand, shape) if given == name else 0.0
            else:
                return size(shape)
        return sliced


def parse(text: str) -> Module:
    """The computations of an HLO module as `compiled.as_text()` prints it."""
    computations: dict[str, Computation] = {}
    entry, current = "", Computation()
    for line in text.splitlines():
        # The bracket that ends a computation is no landmark: attributes of kernels hold lines that begin with one.
        if header := _HEADER.match(line):
            current = computations.setdefault(header[2], Computation())
            entry = header[2] if header[1] else entry
        elif found := _INSTRUCTION.match(line):
            root, name, shape, opcode, rest = found.groups()
            current.instructions[name] = Instruction(name, shape, opcode, rest, bool(root))
    if not entry:
        raise ValueError("the text holds no HLO module with an ENTRY computation")
    return Module(computations, entry)


def size(shape: str) -> float:
    """Bytes of the arrays in a shape as HLO writes it."""
    return sum(_array_size(dtype, dims) for dtype, dims, _ in _ARRAY.findall(shape))


def hbm_size(shape: str) -> float:
    """Bytes of those arrays in a shape that lie in HBM."""
    arrays = _ARRAY.findall(shape)
    return sum(_array_size(dtype, dims) for dtype, dims, layout in arrays if not ON_CHIP.search(layout))


def _array_size(dtype: str, dims: str) -> float:
    if dtype not in BITS and not (digits := re.search(r"\d+", dtype)):
        return 0.0  # a token
    bits = BITS[dtype] if dtype in BITS else int(digits[0]) if (digits := re.search(r"\d+", dtype)) else 0
    return math.prod(int(d.lstrip("<=")) for d in dims.split(",") if d) * bits / 8


def _product(i: Instruction, inside: Computation) -> float:
    """FLOPs of a matrix product; TPUs write theirs as convolutions."""
    if i.opcode not in ("dot", "convolution"):
        return 0.0
    sides = [_dims(inside.instructions[name].shape) for name in i.operands[:2]]
    if i.opcode == "dot":
        found = re.search(r"lhs_contracting_dims=\{([\d,]*)\}", i.attributes)
        contracted = math.prod(sides[0][int(n)] for n in found[1].split(",") if n) if found else 1
    else:
        labels = re.search(r"dim_labels=\w+_(\w+)->", i.attributes)
        contracted = sides[1][labels[1].index("i")] if labels else 1
        window = re.search(r"window=\{([^}]*)\}", i.attributes)
        # A window that is padded or dilated pairs each element with one other: that is a batch dimension.
        if window and not re.search(r"pad|dilate", window[1]):
            contracted *= math.prod(int(n) for n in re.findall(r"size=([\dx]+)", window[1])[0].split("x"))
    return 2.0 * math.prod(_dims(i.shape)) * contracted


def _dims(shape: str) -> list[int]:
    return [int(d.lstrip("<=")) for d in _ARRAY.findall(shape)[0][1].split(",") if d]


def _constant(i: Instruction) -> float | None:
    if i.opcode != "constant":
        return None
    try:
        return float(i.rest.split(")")[0])
    except ValueError:
        return None


def _closing(rest: str) -> int:
    """Where the bracket closes that stands open before `rest`."""
    depth = 1
    for at, c in enumerate(rest):
        depth += (c == "(") - (c == ")")
        if not depth:
            return at
    return len(rest)


def _branches(i: Instruction) -> list[str]:
    found = re.search(r"branch_computations=\{([^}]*)\}", i.attributes)
    if found:
        return _NAME.findall(found[1])
    return [i.attribute("true_computation"), i.attribute("false_computation")]


def _collective(
    i: Instruction, kind: str, inside: Computation, times: float, loops: tuple[float, ...]
) -> Collective:
    arrays = _ARRAY.findall(i.shape)
    given = [a for name in i.operands for a in _ARRAY.findall(inside.instructions[name].shape)]
    # A `-start` bundles operands, results and flags; the larger of what goes in and what comes out is the whole array.
    came = arrays[len(given) :] if i.opcode.endswith("-start") and kind != "all-reduce" else arrays
    sizes = [sum(_array_size(dtype, dims) for dtype, dims, _ in side) for side in (given, came)]
    if kind == "collective-permute":
        sizes = sizes[:1]
    op = re.search(r'op_name="([^"]*)"', i.attributes)
    dtype = (given or arrays)[0][0]
    group = _group(i, kind)
    return Collective(kind, dtype, max(sizes), group, times, loops, op[1] if op else "")


def _scattered(i: Instruction, kind: str, inside: Computation) -> str:
    """The kind of a collective; TPUs write a reduce-scatter as a fusion of an all-reduce and the slice taken of it."""
    root = inside.root
    sliced = root.opcode == "dynamic-slice" and root.operands[:1] == [i.name]
    return "reduce-scatter" if kind == "all-reduce" and sliced else kind


def _group(i: Instruction, kind: str) -> tuple[int, ...]:
    if kind == "collective-permute":
        pairs = re.search(r"source_target_pairs=\{\{(\d+),(\d+)\}", i.attributes)
        return (int(pairs[1]), int(pairs[2])) if pairs else (0,)
    return replica_group(i.attributes)


def replica_group(attributes: str) -> tuple[int, ...]:
    """The first of the groups in `replica_groups=`: {{0,1},{2,3}}, [2,4]<=[8], [2,4]<=[4,2]T(1,0) or mesh['a'=2] {'a'}."""
    if found := re.search(r"replica_groups=\{\{([\d,]*)\}", attributes):
        return tuple(int(n) for n in found[1].split(","))
    if found := re.search(r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?", attributes):
        (*_, per_group), dims = ([int(n) for n in found[k].split(",")] for k in (1, 2))
        order = [int(n) for n in found[3].split(",")] if found[3] else list(range(len(dims)))
        return tuple(_transposed(dims, order)[:per_group])
    if found := re.search(r"replica_groups=mesh\[([^\]]*)\][^{]*\{([^}]*)\}", attributes):
        sizes = {name: int(n) for name, n in re.findall(r"'([^']+)'=(\d+)", found[1])}
        axes = [name for name in re.findall(r"'([^']+)'", found[2]) if sizes.get(name, 1) > 1]
        strides = {name: math.prod(list(sizes.values())[k + 1 :]) for k, name in enumerate(sizes)}
        members = [0]
        for axis in axes:
            members = [m + strides[axis] * k for m in members for k in range(sizes[axis])]
        return tuple(members)
    return (0,)


def _transposed(dims: Sequence[int], order: Sequence[int]) -> list[int]:
    """range(prod(dims)) shaped as `dims`, its axes reordered, flat again."""
    strides = [math.prod(dims[k + 1 :]) for k in range(len(dims))]
    flat = [0]
    for axis in order:
        flat = [f + strides[axis] * k for f in flat for k in range(dims[axis])]
    return flat
