"""Every implementation of attention against the plain formula, which one is taken, and what the backward pass keeps."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, partial
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rsipo_jax.models import attention, blocks, splash
from rsipo_jax.models.attention import ATTENTION_RESIDUALS, attend_packed
from rsipo_jax.models.transformer import ModelConfig, hidden_states, init_params
from rsipo_jax.parallel.sharding import make_mesh, sharding
from rsipo_jax.validation import ConfigError
from tests.launch.launching import python
from tests.models.reference import SMALL

HEAD_DIM = 16
# What can run on a CPU: the TPU's kernel interpreted, and JAX's own attention in the place of cuDNN's.
KERNELS = {
    "xla": attention.KERNELS["xla"],
    "splash": partial(splash.attend, residuals=ATTENTION_RESIDUALS, interpret=True),
    "cudnn": partial(attention._flash, implementation="xla"),
}
# Query and key/value heads, length: 2 and 3 blocks of 128, neither full, and one row that is full.
SHAPES = [(2, 2, 200), (6, 2, 300), (7, 1, 256)]


def plain(q: jax.Array, k: jax.Array, v: jax.Array, segments: jax.Array) -> jax.Array:
    """softmax(q k / sqrt(h)) v with the mask written out, in float32."""
    copies = q.shape[2] // k.shape[2]
    q, k, v = (x.astype(jnp.float32) for x in (q, jnp.repeat(k, copies, 2), jnp.repeat(v, copies, 2)))
    at = jnp.arange(q.shape[1])
    seen = (at[:, None] >= at) & (segments[:, :, None] == segments[:, None, :])
    scores = jnp.einsum("bthd,bshd->bhts", q, k) * q.shape[-1] ** -0.5
    probs = jax.nn.softmax(jnp.where(seen[:, None], scores, -jnp.inf))
    return jnp.einsum("bhts,bshd->bthd", probs, v).reshape(*q.shape[:2], -1)


def arrays(heads: int, kv_heads: int, length: int, dtype: str = "float32") -> tuple[jax.Array, ...]:
    """q, k, v of two rows, and a gradient of the output."""
    rng = np.random.default_rng(0)
    shapes = [(2, length, n, HEAD_DIM) for n in (heads, kv_heads, kv_heads)] + [(2, length, heads * HEAD_DIM)]
    return tuple(jnp.asarray(rng.normal(size=shape), dtype) for shape in shapes)


@cache
def with_gradients(kernel: Callable[..., jax.Array], *shape: int) -> Callable[..., tuple[jax.Array, ...]]:
    """q, k, v, gradient, segments -> output and gradients of q, k, v; rows are cut into several blocks of splash."""

    def run(
        q: jax.Array, k: jax.Array, v: jax.Array, g: jax.Array, segments: jax.Array
    ) -> tuple[jax.Array, ...]:
        out, backward = jax.vjp(lambda *x: kernel(*x, segments), q, k, v)
        return out, *backward(g.astype(out.dtype))

    segments = jax.ShapeDtypeStruct((2, shape[-1]), jnp.int32)
    with mock.patch.object(splash, "LARGEST_BLOCK", 128):
        return jax.jit(run).lower(*arrays(*shape), segments).compile()


@st.composite
def rows_of_segments(draw: st.DrawFn, length: int, packed: bool) -> np.ndarray:
    """Segment ids [2, length]: stretches of any lengths, then padding (segment 0).

    Packed rows number their segments in ascending order; without that, any stretch may have any id.
    """
    segments = np.zeros((2, length), np.int32)
    for row in segments:
        ends = sorted(draw(st.lists(st.integers(1, length), max_size=5)))
        for number, (start, end) in enumerate(zip([0, *ends], ends, strict=False), 1):
            row[start:end] = number if packed else draw(st.integers(0, 3))
    return segments


@pytest.mark.parametrize(("heads", "kv_heads", "length"), SHAPES)
@pytest.mark.parametrize("name", KERNELS)
@settings(max_examples=6)
@given(data=st.data())
def test_every_kernel_is_plain_attention(
    name: str, heads: int, kv_heads: int, length: int, data: st.DataObject
) -> None:
    shape = heads, kv_heads, length
    segments = data.draw(rows_of_segments(length, packed=data.draw(st.booleans())))
    found = with_gradients(KERNELS[name], *shape)(*arrays(*shape), segments)
    wanted = with_gradients(plain, *shape)(*arrays(*shape), segments)
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a, b, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("name", KERNELS)
def test_bfloat16_comes_back_with_the_accuracy_of_its_inputs(name: str) -> None:
    q, k, v, _ = arrays(3, 1, 130, "bfloat16")
    segments = np.repeat([[1, 2]], [70, 60], axis=1).repeat(2, axis=0).astype(np.int32)
    out = KERNELS[name](q, k, v, segments)
    assert out.dtype == jnp.bfloat16
    np.testing.assert_allclose(out.astype(jnp.float32), plain(q, k, v, segments), atol=0.02, rtol=0.02)


@given(
    length=st.integers(1, 10_000),
    largest_and_multiple=st.sampled_from(
        [(blocks.LARGEST_BLOCK, blocks.MULTIPLE), (splash.LARGEST_BLOCK, splash.LANES)]
    ),
)
def test_blocks_are_few_and_pad_little(length: int, largest_and_multiple: tuple[int, int]) -> None:
    largest, multiple = largest_and_multiple
    block = blocks.block_size(length, largest, multiple)
    n = math.ceil(length / block)
    assert block % multiple == 0 and block <= largest
    assert n == math.ceil(length / largest)
    assert n * (block - multiple) < length


@given(rows=rows_of_segments(96, packed=True))
def test_blocks_of_keys_before_a_packed_segment_are_skipped(rows: np.ndarray) -> None:
    for row in rows.reshape(2, 6, 16):
        shared = [[np.isin(queries, keys).any() for keys in row] for queries in row]
        np.testing.assert_array_equal(blocks._first_keys(row), np.argmax(shared, axis=1))


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The names of the implementations that are called."""
    names: list[str] = []

    def recorder(name: str) -> Callable[..., jax.Array]:
        return lambda q, *_: names.append(name) or q

    monkeypatch.setattr(attention, "KERNELS", {name: recorder(name) for name in KERNELS})
    return names


@pytest.mark.parametrize(
    ("backend", "cuda", "dtype", "head_dim", "wanted"),
    [
        ("tpu", False, "bfloat16", 64, "splash"),
        ("tpu", False, "float32", 128, "splash"),
        ("gpu", True, "bfloat16", 128, "cudnn"),
        ("gpu", True, "float32", 128, "xla"),
        ("gpu", True, "bfloat16", 256, "xla"),
        ("gpu", True, "bfloat16", 60, "xla"),
        ("gpu", False, "bfloat16", 64, "xla"),
        ("cpu", False, "bfloat16", 64, "xla"),
    ],
)
def test_auto_takes_the_platforms_kernel(
    taken: list[str],
    monkeypatch: pytest.MonkeyPatch,
    backend: str,
    cuda: bool,
    dtype: str,
    head_dim: int,
    wanted: str,
) -> None:
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    device = mock.Mock(client=mock.Mock(platform_version="cuda 13000" if cuda else "rocm 7"))
    monkeypatch.setattr(jax, "devices", lambda: [device])
    q = jnp.zeros((1, 4, 2, head_dim), dtype)
    attend_packed(q, q, q, jnp.ones((1, 4), jnp.int32), "auto")
    assert taken == [wanted]


@pytest.mark.parametrize("name", KERNELS)
def test_a_named_kernel_is_taken_on_any_platform(taken: list[str], name: str) -> None:
    q = jnp.zeros((1, 4, 2, 64), jnp.bfloat16)
    attend_packed(q, q, q, jnp.ones((1, 4), jnp.int32), name)
    assert taken == [name]


@pytest.mark.parametrize(
    ("name", "dtype", "head_dim", "message"),
    [
        ("flash", "bfloat16", 64, r"'flash' is not one of auto, xla, splash, cudnn"),
        ("cudnn", "float32", 64, r"not in float32 with heads of 64: set model.dtype='bfloat16'"),
        ("cudnn", "bfloat16", 60, r"not in bfloat16 with heads of 60"),
    ],
)
def test_what_no_kernel_takes_is_refused(name: str, dtype: str, head_dim: int, message: str) -> None:
    q = jnp.zeros((1, 4, 2, head_dim), dtype)
    with pytest.raises(ConfigError, match=message):
        attend_packed(q, q, q, jnp.ones((1, 4), jnp.int32), name)


def count(jaxpr: jax.extend.core.Jaxpr, primitive: str) -> int:
    """How often a primitive stands in a program, the bodies of its loops and calls counted once each."""
    inner = [getattr(x, "jaxpr", x) for eqn in jaxpr.eqns for x in jax.tree.leaves(list(eqn.params.values()))]
    here = sum(eqn.primitive.name == primitive for eqn in jaxpr.eqns)
    return here + sum(count(x, primitive) for x in inner if hasattr(x, "eqns"))


def gradient(config: ModelConfig) -> Callable[..., jax.Array]:
    return jax.grad(
        lambda params, ids: hidden_states(params, config, ids, ids, ids).astype(jnp.float32).sum()
    )


@pytest.mark.parametrize("scanned", [True, False])
def test_the_backward_pass_attends_again_where_a_layer_keeps_its_input_only(scanned: bool) -> None:
    def exponentials(remat: str) -> int:
        config = replace(SMALL, scan_layers=scanned, remat=remat, attention="xla")
        params = jax.eval_shape(partial(init_params, config), jax.random.key(0))
        ids = jax.ShapeDtypeStruct((2, 8), jnp.int32)
        layers = 1 if scanned else config.num_layers
        return count(jax.make_jaxpr(gradient(config))(params, ids).jaxpr, "exp") // layers

    forward, backward = 2, 1
    assert exponentials("none") == exponentials("dots") == forward + backward
    assert exponentials("full") == 2 * forward + backward


TPU = pytest.mark.skipif(not importlib.util.find_spec("libtpu"), reason="compiling for a TPU takes libtpu")


@pytest.mark.slow
@TPU
@pytest.mark.parametrize("mesh_shape", [(1, 1, 1), (2, 1, 2)])
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(14, 2, 128), (6, 2, 64)])
def test_splash_compiles_for_a_tpu(
    monkeypatch: pytest.MonkeyPatch,
    mesh_shape: tuple[int, int, int],
    heads: int,
    kv_heads: int,
    head_dim: int,
) -> None:
    """Forward and backward, ahead of time: no scores in memory and nothing sent between chips."""
    monkeypatch.setenv("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")  # another test may compile at the same time
    monkeypatch.setenv("TPU_SKIP_MDS_QUERY", "1")
    from jax.experimental import topologies

    chips = topologies.get_topology_desc(platform="tpu", topology_name="v5e:2x2").devices
    mesh = make_mesh(*mesh_shape, chips[: np.prod(mesh_shape)])
    rows, length = 4, 4000

    def array(shape: tuple[int, ...], *names: str | None, dtype: str = "bfloat16") -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding(mesh, names, shape))

    q = array((rows, length, heads, head_dim), "batch", None, "heads", None)
    k = array((rows, length, kv_heads, head_dim), "batch", None, "kv_heads", None)
    segments = array((rows, length), "batch", None, dtype="int32")

    def run(q: jax.Array, k: jax.Array, v: jax.Array, segments: jax.Array) -> tuple[jax.Array, ...]:
        out, backward = jax.vjp(lambda *x: attend_packed(*x, segments, "splash"), q, k, v)
        return out, *backward(out)

    with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
        program = jax.jit(run).lower(q, k, k, segments).compile()
    text = program.as_text()
    kernels = [line for line in text.splitlines() if 'custom_call_target="tpu_custom_call"' in line]
    assert sum("splash_mqa_fwd" in line for line in kernels) == 1
    assert sum("splash_mqa_dkv" in line for line in kernels) == 1
    assert not any(word in text for word in ("all-gather", "all-reduce", "all-to-all", "collective-permute"))
    scores = 4 * rows * heads * length**2 // np.prod(mesh_shape)
    assert program.memory_analysis().temp_size_in_bytes < scores / 4


GPU = pytest.mark.skipif(
    not importlib.util.find_spec("jax_cuda12_plugin") and not importlib.util.find_spec("jax_cuda13_plugin"),
    reason="cuDNN's attention runs on CUDA GPUs",
)


@GPU
def test_cudnn_attends_on_a_gpu() -> None:
    done = python("tests/models/cudnn_attention.py", JAX_PLATFORMS="cuda", timeout=600)
    assert done.returncode == 0, done.stderr
