"""Estimates, bounds and the search, on a mesh of stand-in chips; and one real compilation where libtpu is installed."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from configs.alfworld import PRESETS
from rsipo_jax.config import Config
from rsipo_jax.models.cache import column_width
from rsipo_jax.parallel.sharding import make_mesh
from rsipo_jax.planning import estimate
from rsipo_jax.planning.chips import parse_slice
from rsipo_jax.planning.estimate import Layout
from rsipo_jax.planning.hlo import Collective
from rsipo_jax.planning.networks import find_network, matmul_params
from rsipo_jax.planning.plan import Memory, Setting, make_setting, with_attention
from rsipo_jax.planning.programs import (
    WRITE,
    bytes_per_device,
    cache_of,
    compile_program,
    sampler_programs,
    usual_pieces,
)
from rsipo_jax.planning.roofline import Roofline, bandwidth, collective_seconds, mesh_axes
from rsipo_jax.planning.search import remedies, too_large
from rsipo_jax.planning.workload import SKILL, STATIC, TURNS, Workload, step_workload
from rsipo_jax.sampling.engine import PIECES
from rsipo_jax.sampling.programs import STEPS
from rsipo_jax.validation import ConfigError
from tests.launch.launching import python

SEVEN_B = PRESETS["qwen2.5-7b"]


@dataclass(frozen=True)
class Chip:
    coords: tuple[int, int, int]


def fake_mesh(shape: tuple[int, int, int], torus: tuple[int, ...]) -> SimpleNamespace:
    """A mesh of chips in the order of their places."""
    torus = (*torus, 1)[:3]
    devices = np.array([Chip(tuple(int(i) for i in place)) for place in np.ndindex(torus)], object)
    names = "data", "fsdp", "tensor"
    return SimpleNamespace(
        devices=devices.reshape(shape),
        axis_names=names,
        shape=dict(zip(names, shape, strict=True)),
        size=devices.size,
    )


def test_links_of_lines_and_rings() -> None:
    v5e, mesh = parse_slice("v5e:4x8"), fake_mesh((1, 8, 4), (4, 8))
    # 32 chips in the order of their places: tensor is half a column, fsdp the rest.
    assert bandwidth(("tensor",), v5e, mesh) == v5e.chip.link
    assert bandwidth(("fsdp", "tensor"), v5e, mesh) == 2 * v5e.chip.link
    ring = parse_slice("v5e:16x16")
    assert bandwidth(("fsdp",), ring, fake_mesh((1, 16, 16), (16, 16))) == 2 * ring.chip.link
    cube = parse_slice("v5p:4x4x4")
    assert bandwidth(("fsdp",), cube, fake_mesh((1, 64, 1), (4, 4, 4))) == 6 * cube.chip.link


def test_a_collective_takes_what_a_chip_receives() -> None:
    v5e, mesh = parse_slice("v5e:4x8"), fake_mesh((1, 32, 1), (4, 8))
    gather = Collective("all-gather", "bf16", 32e9, tuple(range(32)), 2.0, ())
    assert mesh_axes(gather, mesh) == ("fsdp",)
    assert collective_seconds(gather, v5e, mesh) == pytest.approx(2 * 31e9 / 9e10)
    passed = Collective("collective-permute", "bf16", 1e9, (0, 1), 8.0, (28, 8))
    assert collective_seconds(passed, v5e, mesh) == pytest.approx(8e9 / 9e10)
    alone = replace(gather, group=(0,))
    assert collective_seconds(alone, v5e, mesh) == 0.0


def test_the_longest_of_the_three_binds() -> None:
    bounds = Roofline(3.0, 1.0, 2.0, 3.5)
    assert (bounds.hidden, bounds.exposed, bounds.binds) == (3.5, 5.5, "compute")
    assert replace(bounds, interconnect=4.0).hidden == 4.0


def test_the_papers_step_has_the_tokens_of_the_survey() -> None:
    work = step_workload(replace(SEVEN_B, method="grpo"))
    assert work.rows == pytest.approx(6000, rel=0.05)
    assert work.rows * work.row_tokens == pytest.approx(3.83e6, rel=0.06)
    assert work.decode_tokens == pytest.approx(0.64e6, rel=0.06)
    with_skills = step_workload(SEVEN_B)
    assert with_skills.decode_tokens > 2 * work.decode_tokens  # every episode is played once more
    assert with_skills.scored_tokens > 1.5 * work.scored_tokens  # the teacher


def rolled(config: Config, **changes: Any) -> Workload:
    return step_workload(replace(config, rollout=replace(config.rollout, **changes)))


def test_what_the_sampler_keeps_is_not_read_again() -> None:
    for preset in ("tiny", "qwen2.5-7b"):
        kept, again = (rolled(PRESETS[preset], reuse_prefixes=kept) for kept in (True, False))
        assert kept.prefill_tokens < again.prefill_tokens and kept.new_tokens <= again.new_tokens
        assert replace(kept, prefill_tokens=0, new_tokens=0) == replace(again, prefill_tokens=0, new_tokens=0)
    # In the paper's prompts that is the opening of a group; with the static part first also the skill of a replay.
    paper = step_workload(SEVEN_B)
    spared = rolled(SEVEN_B, reuse_prefixes=False).prefill_tokens - paper.prefill_tokens
    assert spared == (128 - 16) * paper.prompt_tokens
    ordered = replace(SEVEN_B, context=replace(SEVEN_B.context, order="static_first"))
    later = round(TURNS * SEVEN_B.env.max_turns) - 1
    spared = paper.prefill_tokens - step_workload(ordered).prefill_tokens
    assert spared == later * (2 * 128 * STATIC + 128 * SKILL)
    # Conversations that have lost their slots by the time that skills are written are read again.
    tiny = PRESETS["tiny"]
    assert rolled(tiny, slots=8).prefill_tokens > rolled(tiny, slots=64).prefill_tokens


def test_rows_are_scored_again_where_the_sampler_s_numbers_are_not_the_learner_s() -> None:
    tiny = PRESETS["tiny"]
    once, trained = step_workload(tiny).scored_tokens, step_workload(tiny).trained_tokens
    coarse = replace(tiny, model=replace(tiny.model, dtype="bfloat16"))
    assert step_workload(coarse).scored_tokens == pytest.approx(once + trained)
    assert rolled(coarse, reuse_drift=0.1).scored_tokens == once
    assert rolled(tiny, reuse_drift=0.0).scored_tokens == pytest.approx(once + trained)
    for name, value in (("top_k", 5), ("top_p", 0.9), ("min_p", 0.1)):
        assert rolled(tiny, **{name: value}).scored_tokens == pytest.approx(once + trained)


@given(tokens=st.integers(1, 3000), held=st.integers(0, 3000))
def test_the_pieces_of_a_prompt_are_what_the_sampler_runs(tokens: int, held: int) -> None:
    work = replace(step_workload(SEVEN_B), prompt_tokens=held + tokens, new_tokens=tokens)
    pieces = usual_pieces(work)
    assert pieces[0][0] == held
    for (at, size), (following, _) in pairwise(pieces):
        assert following == at + size
    at, size = pieces[-1]
    assert at < held + tokens <= at + size and {size for _, size in pieces} <= {size for size, _ in PIECES}


def test_the_sampler_s_programs_count_every_token_of_every_slot_and_the_columns_in_use() -> None:
    config, mesh = PRESETS["tiny"], make_mesh(1, 1, 1, jax.devices()[:1])
    model, slots, length = find_network(config), config.rollout.slots, config.context.max_length
    work = replace(step_workload(config), new_tokens=60, longest_tokens=length // 2)
    traced = {t.name: t for t in sampler_programs(config, model, mesh, work, slots)}
    width = column_width(length)
    reached = width * math.ceil(length / 2 / width)
    assert reached < length
    pair = 4 * model.num_heads * model.head_dim * model.num_layers  # FLOPs of a query and a key
    decode = traced["decode"]
    assert decode.tokens == slots * STEPS and decode.turns == STEPS
    assert decode.flops == decode.tokens * (2 * matmul_params(model) + pair * (reached + STEPS))
    prefill = traced["prefill"]
    ((at, size),) = usual_pieces(work)
    layers = matmul_params(model) - model.vocab_size * model.hidden_size  # no token is drawn
    assert prefill.tokens == dict(PIECES)[size][-1] * size
    reached = width * math.ceil(at / width)
    assert prefill.flops == prefill.tokens * (2 * layers + pair * (reached + size))
    assert traced["write"].flops == 0


def test_the_cache_holds_every_slot_at_full_length() -> None:
    config = PRESETS["tiny"]
    model = find_network(config)
    cache = cache_of(model, make_mesh(1, 1, 1, jax.devices()[:1]), 64, config.context.max_length)
    keys_and_values = 2 * model.num_layers * model.num_kv_heads * model.head_dim * 4
    assert cache.capacity >= config.context.max_length
    assert bytes_per_device(cache) == keys_and_values * 64 * cache.capacity


@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_every_preset_has_a_network_and_a_workload_that_fits_it(preset: str) -> None:
    config = PRESETS[preset]
    model, work = find_network(config), step_workload(config)
    assert estimate.matmul_params(model) > 0
    assert 0 < work.row_tokens <= config.context.max_length
    assert 0 < work.new_tokens <= work.prompt_tokens < config.context.max_length
    assert work.prompt_tokens < work.longest_tokens <= config.context.max_length


def test_an_unknown_checkpoint_is_one_sentence() -> None:
    config = replace(SEVEN_B, model=replace(SEVEN_B.model, checkpoint="who/knows"))
    with pytest.raises(ConfigError, match="no local folder, and its sizes are not known"):
        find_network(config)


@settings(max_examples=20, deadline=None)
@given(
    st.sampled_from(["v5e:4x4", "v5e:4x8", "v5p:2x2x4", "h200:8"]),
    st.sampled_from(["qwen2.5-3b", "qwen2.5-7b"]),
)
def test_the_search_keeps_what_fits_and_puts_the_fastest_first(topology: str, preset: str) -> None:
    config, slice_ = PRESETS[preset], parse_slice(topology)
    model, work = find_network(config), step_workload(config)
    every = list(estimate.layouts(model, config, slice_))
    assert len(set(every)) == len(every)
    assert all(x.data * x.fsdp * x.tensor == slice_.size for x in every)
    assert all(model.num_heads % x.tensor == 0 and model.hidden_size % x.fsdp == 0 for x in every)
    held = 1e9
    ranked = estimate.ranked(model, config, slice_, work, held)
    fits = [x for x in every if estimate.update_bytes(x.applied(config), model, x) + held <= slice_.chip.hbm]
    assert set(ranked) == set(fits)
    seconds = [estimate.update_roofline(x.applied(config), model, slice_, x, work).exposed for x in ranked]
    assert seconds == sorted(seconds)


def test_estimates_shrink_with_what_shrinks_them() -> None:
    model, layout = find_network(SEVEN_B), Layout(1, 32, 1, 2 * SEVEN_B.context.max_length)
    base = estimate.update_bytes(SEVEN_B, model, layout)
    lighter = replace(SEVEN_B, train=replace(SEVEN_B.train, momentum_dtype="bfloat16"))
    adapters = replace(SEVEN_B, lora=replace(SEVEN_B.lora, rank=16))
    dots = replace(model, remat="dots")
    assert estimate.update_bytes(SEVEN_B, model, replace(layout, fsdp=64)) < base
    assert estimate.update_bytes(SEVEN_B, model, replace(layout, microbatch_tokens=1)) < base
    assert estimate.update_bytes(lighter, model, layout) < base
    assert estimate.update_bytes(adapters, model, layout) < base
    assert estimate.update_bytes(SEVEN_B, dots, layout) > base
    sizes = estimate.sizes(model, SEVEN_B)
    assert sizes.state == 3 * sizes.trained == 12 * 7_615_616_512


def setting_on(topology: str) -> Setting:
    slice_ = parse_slice(topology)
    host = slice_.host()
    mesh = fake_mesh((1, slice_.size, 1), slice_.shape)
    return Setting(
        SEVEN_B, find_network(SEVEN_B), slice_, mesh, fake_mesh((host.size, 1, 1), host.shape),
        slice_.size // host.size, step_workload(SEVEN_B), "",
    )  # fmt: skip


def test_what_does_not_fit_says_by_how_much_and_what_would() -> None:
    sentence = too_large(setting_on("v5e:2x2"), "accumulate", 3 * 2**30)
    assert sentence.startswith(
        "accumulate does not fit on v5e:2x2: it is 3.0 GiB over the 15.75 GiB of a chip"
    )
    assert "--topology=v5e:" in sentence and "\n" not in sentence
    larger = [way for way in remedies(setting_on("v5e:2x2")) if way.startswith("--topology")]
    slice_ = parse_slice(larger[0].split("=")[1].split()[0])
    assert slice_.size > 4


@pytest.mark.parametrize(
    ("topology", "asked", "planned"),
    [
        ("v5e:2x2", "auto", "splash"),
        ("v5e:2x2", "xla", "xla"),
        ("h200:8", "auto", "xla"),
        ("h200:8", "cudnn", "xla"),
    ],
)
def test_attention_is_that_of_the_chips(topology: str, asked: str, planned: str) -> None:
    model = replace(find_network(SEVEN_B), attention=asked)
    found, note = with_attention(model, parse_slice(topology))
    assert found.attention == planned
    assert ("cuDNN" in note) == (topology == "h200:8" and asked != "xla")


def test_attention_of_other_chips_is_refused() -> None:
    model = replace(find_network(SEVEN_B), attention="cudnn")
    with pytest.raises(ConfigError, match="does not run on TPU v5e"):
        with_attention(model, parse_slice("v5e:2x2"))


def test_memory_that_is_short_is_positive() -> None:
    assert Memory(10.0, 7.0, 16.0).over == 1.0


@pytest.mark.slow
@pytest.mark.skipif(find_spec("libtpu") is None, reason="needs libtpu (pip install -r requirements-plan.txt)")
def test_what_is_written_into_a_cache_on_tpus_is_all_that_moves() -> None:
    setting = make_setting(SEVEN_B, parse_slice("v5e:4x8"))
    shallow = replace(setting.model, num_layers=2)
    traced = sampler_programs(SEVEN_B, shallow, setting.host_mesh, setting.work, setting.slots)
    (write,) = (compile_program(t) for t in traced if t.name == WRITE)
    cache = cache_of(shallow, setting.host_mesh, setting.slots, SEVEN_B.context.max_length)
    (keys,) = cache.keys[0]  # an array a layer
    column = bytes_per_device(keys) / keys.shape[0]
    assert keys.shape[0] > 1 and all(o.bytes < column / 2 for o in write.operations)
    assert write.hbm_bytes < column and write.aliased == bytes_per_device(cache)


@pytest.mark.slow
@pytest.mark.skipif(find_spec("libtpu") is None, reason="needs libtpu (pip install -r requirements-plan.txt)")
def test_a_small_preset_compiles_for_real_tpus(tmp_path: Path) -> None:
    out = tmp_path / "plan.json"
    result = python(
        "launch/plan.py",
        "--config=configs/alfworld.py:tiny",
        "--topology=v5e:2x2",
        f"--json={out}",
        timeout=900,
    )
    assert result.returncode == 0, result.stderr
    plan = json.loads(out.read_text())
    assert plan["fits"] and plan["mesh"] == {"data": 1, "fsdp": 4, "tensor": 1}
    assert plan["programs"].keys() == {
        "score",
        "accumulate",
        "apply_gradients",
        "prefill",
        "write",
        "decode",
    }
    update = plan["programs"]["accumulate"]
    assert update["flops"] > 3 * plan["programs"]["score"]["flops"] * 0.99
    assert 0 < plan["step"]["update"]["mfu_exposed"] < plan["step"]["update"]["mfu_hidden"] < 1
    assert any(c["axes"] == "fsdp" for c in update["collectives"])
