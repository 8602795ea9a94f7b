"""The reader of HLO: snippets as XLA writes them for TPU, and a live program on 8 devices whose collectives are known."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rsipo_jax.planning import hlo

LOOP = """\
HloModule jit_f, is_scheduled=true

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[]{:T(128)} parameter(0)
  %b = f32[]{:T(128)} parameter(1)
  ROOT %sum = f32[]{:T(128)} add(%a, %b)
}, execution_thread="other"

%condition (c.1: (s32[], bf16[8,16])) -> pred[] {
  %c.1 = (s32[]{:T(128)}, bf16[8,16]{1,0:T(8,128)(2,1)}) parameter(0)
  %bound = s32[]{:T(128)} constant(28)
  %i.1 = s32[]{:T(128)} get-tuple-element(%c.1), index=0
  ROOT %less = pred[]{:T(512)} compare(%i.1, %bound), direction=LT
}

%body (b.1: (s32[], bf16[8,16])) -> (s32[], bf16[8,16]) {
  %b.1 = (s32[]{:T(128)}, bf16[8,16]{1,0:T(8,128)(2,1)}) parameter(0)
  %one = s32[]{:T(128)} constant(STEP)
  %i.2 = s32[]{:T(128)} get-tuple-element(%b.1), index=0
  %next = s32[]{:T(128)} add(%i.2, %one)
  %x.2 = bf16[8,16]{1,0:T(8,128)(2,1)} get-tuple-element(%b.1), index=1
  %part = bf16[2,16]{1,0:T(8,128)(2,1)S(1)} slice(%x.2), slice={[0:2], [0:16]}
  %whole = bf16[8,16]{1,0:T(8,128)(2,1)} all-gather(%part), channel_id=1, GROUPS, metadata={op_name="jit(f)/while/body/gather"}
  ROOT %out = (s32[]{:T(128)}, bf16[8,16]{1,0:T(8,128)(2,1)}) tuple(%next, %whole)
}

ENTRY %main (p: bf16[8,16]) -> bf16[8,16] {
  %p = bf16[8,16]{1,0:T(8,128)(2,1)} parameter(0)
  %start = s32[]{:T(128)} constant(0)
  %bundle = (s32[]{:T(128)}, bf16[8,16]{1,0:T(8,128)(2,1)}) tuple(%start, %p)
  %loop = (s32[]{:T(128)}, bf16[8,16]{1,0:T(8,128)(2,1)}) while(%bundle), condition=%condition, body=%body
  %note = f32[4]{0:T(128)} custom-call(%p), custom_call_target="x", frontend_attributes={text="{
"inside": 1
}
}"}, metadata={op_name="jit(f)/note"}
  ROOT %last = bf16[8,16]{1,0:T(8,128)(2,1)} get-tuple-element(%loop), index=1
}
"""


def loop(step: int) -> str:
    groups = "replica_groups=mesh['data'=2,'fsdp'=4] {'fsdp'}, dimensions={0}"
    return LOOP.replace("STEP", str(step)).replace("GROUPS", groups)


def moved(text: str) -> float:
    return sum(o.bytes * o.count for o in hlo.parse(text).operations())


@pytest.mark.parametrize(("step", "trips"), [(1, 28), (2, 14), (3, 10)])
def test_a_loop_multiplies_what_is_in_its_body(step: int, trips: int) -> None:
    (found,) = hlo.parse(loop(step)).collectives()
    assert (found.kind, found.dtype, found.count, found.loops) == ("all-gather", "bf16", trips, (trips,))
    assert found.bytes == 8 * 16 * 2 and found.received == 8 * 16 * 2 * 3 / 4
    assert found.group == (0, 1, 2, 3) and found.op == "jit(f)/while/body/gather"


def test_a_trip_count_that_the_compiler_writes_down_is_taken() -> None:
    text = loop(1).replace("body=%body", 'body=%body, backend_config={"known_trip_count":{"n":"5"}}')
    assert [c.count for c in hlo.parse(text).collectives()] == [5.0]


def test_a_loop_that_ends_on_data_counts_as_often_as_one_says() -> None:
    text = loop(1).replace("%bound = s32[]{:T(128)} constant(28)", "%bound = s32[]{:T(128)} negate(%i.1)")
    module = hlo.parse(text)
    assert [(c.count, c.loops) for c in module.collectives()] == [(1.0, (1.0,))]
    assert [(c.count, c.loops) for c in module.collectives(turns=16)] == [(16.0, (16,))]
    assert {o.count for o in module.operations(turns=16)} == {1.0, 16.0}
    assert {o.count for o in hlo.parse(loop(1)).operations(turns=16)} == {1.0, 28.0}


CONDITION = """\
HloModule jit_f

%less (a.0: f32[4,4]) -> f32[4,4] {
  %a.0 = f32[4,4]{1,0} parameter(0)
  ROOT %same = f32[4,4]{1,0} copy(%a.0)
}

%more (a.1: f32[4,4]) -> f32[4,4] {
  %a.1 = f32[4,4]{1,0} parameter(0)
  %first = f32[4,4]{1,0} copy(%a.1)
  ROOT %second = f32[4,4]{1,0} WORK
}

ENTRY %main (which: pred[], a: f32[4,4]) -> f32[4,4] {
  %which = pred[] parameter(0)
  %a = f32[4,4]{1,0} parameter(1)
  ROOT %out = f32[4,4]{1,0} conditional(%which, %a, %a), BRANCHES
}
"""


@pytest.mark.parametrize(
    "branches",
    ["true_computation=%more, false_computation=%less", "branch_computations={%less, %more}"],
)
def test_a_condition_around_a_product_counts_in_its_share_and_any_other_as_if_it_did_not_hold(
    branches: str,
) -> None:
    product = "dot(%first, %a.1), lhs_contracting_dims={1}, rhs_contracting_dims={0}"
    text = CONDITION.replace("BRANCHES", branches)
    counted = hlo.parse(text.replace("WORK", product)).operations(taken=0.25)
    copied, multiplied = 2 * 64, 3 * 64
    assert sum(o.bytes * o.count for o in counted) == 0.25 * (copied + multiplied)
    assert sum(o.flops * o.count for o in counted) == 0.25 * 2 * 4**3
    other = hlo.parse(text.replace("WORK", "copy(%first)")).operations(taken=0.25)
    assert sum(o.bytes * o.count for o in other) == copied


def test_traffic_counts_what_is_in_hbm() -> None:
    # In each turn: the counter, what the slice reads (its result stays on chip), what the gather writes. Once: what the
    # custom call reads and writes.
    assert moved(loop(1)) == 28 * (12 + 64 + 256) + (256 + 16)


def test_the_copies_of_one_asynchronous_collective_are_one() -> None:
    text = """\
HloModule jit_f

%begin (p.0: bf16[2]) -> bf16[8] {
  %p.0 = bf16[2]{0} parameter(0)
  ROOT %ag.0 = bf16[8]{0} all-gather(%p.0), channel_id=7, replica_groups={{0,1,2,3}}, frontend_attributes={chain_id="3"}
}

%middle (p.1: bf16[2]) -> bf16[8] {
  %p.1 = bf16[2]{0} parameter(0)
  ROOT %ag.1 = bf16[8]{0} all-gather(%p.1), channel_id=7, replica_groups={{0,1,2,3}}, frontend_attributes={chain_id="3"}
}

ENTRY %main (p: bf16[2]) -> bf16[8] {
  %p = bf16[2]{0} parameter(0)
  %one = bf16[8]{0} fusion(%p), kind=kCustom, calls=%begin
  ROOT %two = bf16[8]{0} fusion(%p), kind=kCustom, calls=%middle
}
"""
    assert [c.count for c in hlo.parse(text).collectives()] == [1.0]


def test_an_all_reduce_with_its_slice_is_a_reduce_scatter() -> None:
    text = """\
HloModule jit_f

%all-reduce-scatter (p.0: f32[8]) -> f32[2] {
  %p.0 = f32[8]{0} parameter(0)
  %sum = f32[8]{0} all-reduce(%p.0), channel_id=7, replica_groups={{0,1,2,3}}, to_apply=%add
  %at = u32[] constant(0)
  ROOT %part = f32[2]{0} dynamic-slice(%sum, %at), dynamic_slice_sizes={2}
}

ENTRY %main (p: f32[8]) -> f32[2] {
  %p = f32[8]{0} parameter(0)
  ROOT %out = f32[2]{0} fusion(%p), kind=kCustom, calls=%all-reduce-scatter
}
"""
    (found,) = hlo.parse(text).collectives()
    assert found.kind == "reduce-scatter" and found.received == 32 * 3 / 4


def test_a_fusion_reads_the_slice_it_takes_and_writes_in_place() -> None:
    text = """\
HloModule jit_f

%take (p.0: f32[28,100], i.0: s32[]) -> f32[1,100] {
  %p.0 = f32[28,100]{1,0} parameter(0)
  %i.0 = s32[] parameter(1)
  ROOT %row = f32[1,100]{1,0} dynamic-slice(%p.0, %i.0, %i.0), dynamic_slice_sizes={1,100}
}

%put (p.1: f32[28,100], row.1: f32[1,100], i.1: s32[]) -> f32[28,100] {
  %p.1 = f32[28,100]{1,0} parameter(0)
  %row.1 = f32[1,100]{1,0} parameter(1)
  %i.1 = s32[] parameter(2)
  ROOT %new = f32[28,100]{1,0} dynamic-update-slice(%p.1, %row.1, %i.1, %i.1)
}

ENTRY %main (p: f32[28,100], i: s32[]) -> f32[28,100] {
  %p = f32[28,100]{1,0} parameter(0)
  %i = s32[] parameter(1)
  %row = f32[1,100]{1,0} fusion(%p, %i), kind=kLoop, calls=%take
  ROOT %out = f32[28,100]{1,0} fusion(%p, %row, %i), kind=kLoop, calls=%put
}
"""
    read, written, index = 400, 400, 4
    assert moved(text) == (read + index + written) + (read + index + written)


def test_a_scatter_writes_in_place_and_a_product_reads_the_slice_that_is_fused_into_it() -> None:
    text = """\
HloModule jit_f

%second (p.0: f32[8,16,16]) -> f32[16,16] {
  %p.0 = f32[8,16,16]{2,1,0} parameter(0)
  %part = f32[1,16,16]{2,1,0} slice(%p.0), slice={[1:2], [0:16], [0:16]}
  ROOT %square = f32[16,16]{1,0} bitcast(%part)
}

%times (p.1: f32[8,16,16], x.1: f32[4,16]) -> f32[4,16] {
  %p.1 = f32[8,16,16]{2,1,0} parameter(0)
  %x.1 = f32[4,16]{1,0} parameter(1)
  %fused = f32[16,16]{1,0} fusion(%p.1), kind=kLoop, calls=%second
  ROOT %y = f32[4,16]{1,0} convolution(%x.1, %fused), dim_labels=bf_io->bf
}

%put (p.2: f32[8,16,16], i.2: s32[4,2], y.2: f32[4,16]) -> f32[8,16,16] {
  %p.2 = f32[8,16,16]{2,1,0} parameter(0)
  %i.2 = s32[4,2]{1,0} parameter(1)
  %y.2 = f32[4,16]{1,0} parameter(2)
  ROOT %new = f32[8,16,16]{2,1,0} scatter(%p.2, %i.2, %y.2), update_window_dims={1}, to_apply=%set
}

ENTRY %main (p: f32[8,16,16], i: s32[4,2], x: f32[4,16]) -> f32[8,16,16] {
  %p = f32[8,16,16]{2,1,0} parameter(0)
  %i = s32[4,2]{1,0} parameter(1)
  %x = f32[4,16]{1,0} parameter(2)
  %y = f32[4,16]{1,0} fusion(%p, %x), kind=kOutput, calls=%times
  ROOT %out = f32[8,16,16]{2,1,0} fusion(%p, %i, %y), kind=kCustom, calls=%put
}
"""
    square, index, rows = 16 * 16 * 4, 4 * 2 * 4, 4 * 16 * 4
    assert moved(text) == (square + rows + rows) + (index + rows + rows)


@pytest.mark.parametrize(
    ("written", "group"),
    [
        ("replica_groups={{0,2},{1,3}}, x", (0, 2)),
        ("replica_groups=[2,4]<=[8], x", (0, 1, 2, 3)),
        ("replica_groups=[4,2]<=[2,4]T(1,0), x", (0, 4)),
        ("replica_groups=mesh['data'=2,'fsdp'=4,'tensor'=2] {'data'}, x", (0, 8)),
        ("replica_groups=mesh['data'=2,'fsdp'=4,'tensor'=2] {'fsdp','tensor'}, x", tuple(range(8))),
    ],
)
def test_groups_in_every_spelling(written: str, group: tuple[int, ...]) -> None:
    assert hlo.replica_group(written) == group


@given(
    st.lists(st.integers(1, 5), min_size=1, max_size=3), st.sampled_from(["f32", "bf16", "s8", "pred", "u4"])
)
def test_sizes_of_shapes(dims: list[int], dtype: str) -> None:
    bits = {"f32": 32, "bf16": 16, "s8": 8, "pred": 8, "u4": 4}[dtype]
    n = 1
    for d in dims:
        n *= d
    shape = f"{dtype}[{','.join(map(str, dims))}]"
    assert hlo.size(shape) == n * bits / 8
    assert hlo.size(f"({shape}{{0:T(8)S(1)}}, /*index=1*/f32[])") == n * bits / 8 + 4
    assert hlo.hbm_size(f"({shape}{{0:T(8)S(1)}}, /*index=1*/f32[])") == 4


@pytest.mark.parametrize(
    ("written", "flops"),
    [
        ("f32[6,5] convolution(%a, %b), dim_labels=bf_io->bf", 2 * 6 * 5 * 4),
        ("f32[6,5] convolution(%a, %c), dim_labels=bf_oi->bf", 2 * 6 * 5 * 4),
        ("f32[6,5] dot(%a, %b), lhs_contracting_dims={1}, rhs_contracting_dims={0}", 2 * 6 * 5 * 4),
        (
            "f32[6,5,7] convolution(%a, %d), window={size=6 stride=5 lhs_dilate=6}, dim_labels=0f_0io->0bf",
            2 * 6 * 5 * 7 * 4,
        ),
        ("f32[6,5] add(%a, %b)", 0),
    ],
)
def test_products_count_what_they_contract(written: str, flops: int) -> None:
    text = f"""\
HloModule jit_f

ENTRY %main (a: f32[6,4], b: f32[4,5], c: f32[5,4], d: f32[6,4,7]) -> f32[6,5] {{
  %a = f32[6,4]{{1,0}} parameter(0)
  %b = f32[4,5]{{1,0}} parameter(1)
  %c = f32[5,4]{{1,0}} parameter(2)
  %d = f32[6,4,7]{{2,1,0}} parameter(3)
  ROOT %out = {written}
}}
"""
    assert sum(o.flops * o.count for o in hlo.parse(text).operations()) == flops


def test_text_that_is_no_module_is_refused() -> None:
    with pytest.raises(ValueError, match="no HLO module"):
        hlo.parse("nothing")


LIVE = """
import jax, jax.numpy as jnp
from jax import lax
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
from rsipo_jax.planning import hlo

jax.config.update("jax_num_cpu_devices", 8)
mesh = jax.make_mesh((4, 2), ("fsdp", "tensor"), axis_types=(AxisType.Auto,) * 2)

def local(w, x):
    def layer(x, w):
        w = lax.all_gather(w, "fsdp", axis=0, tiled=True)
        return lax.psum(x @ w, "tensor"), None
    x, _ = lax.scan(layer, x, w)
    x = lax.psum_scatter(x, "fsdp", scatter_dimension=0, tiled=True)
    return lax.ppermute(x, "fsdp", [(i, (i + 1) % 4) for i in range(4)])

f = jax.shard_map(local, mesh=mesh, in_specs=(P(None, "fsdp"), P()), out_specs=P("fsdp"), check_vma=False)
w = jax.ShapeDtypeStruct((5, 16, 16), jnp.float32, sharding=NamedSharding(mesh, P(None, "fsdp")))
x = jax.ShapeDtypeStruct((8, 16), jnp.float32, sharding=NamedSharding(mesh, P()))
module = hlo.parse(jax.jit(f).lower(w, x).compile().as_text())
for c in module.collectives():
    print(c.kind, c.dtype, c.bytes, len(c.group), c.count, c.received)
print("flops", sum(o.flops * o.count for o in module.operations()))
"""


def test_a_live_program_on_eight_devices() -> None:
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(LIVE)], capture_output=True, text=True, timeout=120, check=True
    )
    lines = [line for line in result.stdout.splitlines() if line]
    assert sorted(lines) == [
        "all-gather f32 1024.0 4 5.0 768.0",
        "all-reduce f32 512.0 2 5.0 512.0",
        "collective-permute f32 128.0 2 1.0 128.0",
        f"flops {5 * 2 * 8 * 16 * 16:.1f}",
        "reduce-scatter f32 512.0 4 1.0 384.0",
    ]
