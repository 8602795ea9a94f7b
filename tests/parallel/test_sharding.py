"""The table of logical axes, read on meshes that need no devices."""

from __future__ import annotations

import re

import jax
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import AbstractDevice, AbstractMesh
from jax.sharding import PartitionSpec as P

from rsipo_jax.models.transformer import PARAM_AXES, ModelConfig, init_params
from rsipo_jax.parallel.sharding import RULES, axis_sizes, batch_shards, make_mesh, platform, spec
from rsipo_jax.training.setup import check_layout
from rsipo_jax.validation import ConfigError
from tests.models.reference import SMALL

QWEN_7B = ModelConfig(152064, 3584, 18944, 28, 28, 4, 128, tie_embeddings=False)
SIZES = {"data": 2, "fsdp": 4, "tensor": 2}


def test_the_layout_of_a_seven_billion_network() -> None:
    shapes = jax.eval_shape(lambda: init_params(QWEN_7B, jax.random.key(0)))
    found = {
        path[-1].key: spec(PARAM_AXES[path[-1].key], a.shape, SIZES)
        for path, a in jax.tree_util.tree_flatten_with_path(shapes)[0]
    }
    assert found == {
        "embed": P("tensor", "fsdp"),
        "lm_head": P("tensor", "fsdp"),
        "final_norm": P(None),
        **dict.fromkeys(("input_norm", "post_norm"), P(None, None)),
        **dict.fromkeys(("wq", "wk", "wv", "w_gate", "w_up"), P(None, "fsdp", "tensor")),
        **dict.fromkeys(("wo", "w_down"), P(None, "tensor", "fsdp")),
        **dict.fromkeys(("bq", "bk", "bv"), P(None, "tensor")),
    }


def test_rows_are_cut_by_both_axes_that_hold_copies_or_parts_of_parameters() -> None:
    assert spec(("batch", None), (16, 100), SIZES) == P(("data", "fsdp"), None)
    assert spec(("batch", None), (12, 100), SIZES) == P(None, None)  # 8 do not divide 12
    assert spec(("batch", None), (12, 100), {"data": 1, "fsdp": 4, "tensor": 1}) == P("fsdp", None)


@given(
    size=st.integers(1, 64),
    name=st.sampled_from([*RULES, "layers", None]),
    sizes=st.fixed_dictionaries(dict.fromkeys(SIZES, st.integers(1, 8))),
)
def test_a_dimension_is_cut_evenly_or_not_at_all(size: int, name: str | None, sizes: dict[str, int]) -> None:
    (cut,) = spec((name,), (size,), sizes)
    axes = (cut,) if isinstance(cut, str) else cut or ()
    parts = 1
    for axis in axes:
        assert axis in RULES[name or ""] and sizes[axis] > 1
        parts *= sizes[axis]
    assert size % parts == 0
    if not axes:
        wanted = 1
        for axis in RULES.get(name or "", ()):
            wanted *= sizes[axis]
        assert wanted == 1 or size % wanted


def test_without_a_mesh_nothing_is_cut() -> None:
    assert axis_sizes() == {} and batch_shards() == 1


def test_the_platform_is_that_of_the_mesh() -> None:
    chip = AbstractDevice(device_kind="TPU v5e", num_cores=1, platform="tpu")
    with jax.sharding.use_abstract_mesh(AbstractMesh((2,), ("tensor",), abstract_device=chip)):
        assert platform() == "tpu"
    with jax.set_mesh(make_mesh(1, 1, 1, jax.devices()[:1])):
        assert platform() == jax.default_backend()
    assert platform() == jax.default_backend()


def test_a_mesh_takes_the_devices_that_are_left() -> None:
    devices = jax.devices() * 8
    assert dict(make_mesh(2, 0, 2, devices[:1] * 8).shape) == SIZES | {"fsdp": 2}


@pytest.mark.parametrize("sizes", [(3, 0, 1), (2, 2, 1), (1, 0, 16)])
def test_devices_that_do_not_make_up_the_mesh_are_one_sentence(sizes: tuple[int, int, int]) -> None:
    with pytest.raises(
        ConfigError, match=r"config\.mesh\.data=.* ask for \d+ devices, but there are 8: change"
    ):
        make_mesh(*sizes, jax.devices() * 8)


@pytest.mark.parametrize(
    ("fsdp", "tensor", "said"),
    [
        (5, 1, "config.mesh.fsdp=5 does not divide the network's 32 channels"),
        (1, 3, "config.mesh.tensor=3 does not divide the network's 4 heads"),
    ],
)
def test_a_network_that_the_mesh_cannot_cut_is_one_sentence(fsdp: int, tensor: int, said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        check_layout(SMALL, make_mesh(1, fsdp, tensor, jax.devices() * (fsdp * tensor)))
