"""The train suite: rows like a real step's, the loss of training, torch's step in agreement; never how fast they are."""

from __future__ import annotations

import importlib.util
import runpy
import sys
from dataclasses import replace
from io import StringIO
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from benchmarks import train
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from rsipo_jax.config import LossConfig
from rsipo_jax.models.huggingface import read_config
from rsipo_jax.models.transformer import ModelConfig, init_params
from rsipo_jax.training.packing import pack
from rsipo_jax.training.rows import ACTION, CONTEXT, SKILL
from rsipo_jax.training.update import count_kinds, make_batch, rl_loss
from tests.launch.launching import ROOT, python

SMALL = train.Shape(
    train.TINY.network | {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2},
    lambda rng: [(CONTEXT, int(rng.integers(4, 50))), (int(rng.choice([ACTION, SKILL])), 5), (CONTEXT, 3), (ACTION, 4)],
    bins=4, length=100, micro_bins=2, micro_rows=3, loss=LossConfig(kl=0.05, entropy=0.02, distill=0.4),
)  # fmt: skip
QWEN2 = replace(SMALL, network=SMALL.network | {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]})
BOTH_SIDES = ("tokens_per_s", "s", "padded_tokens", "padding", "loss", "grad_norm")


def quiet() -> Console:
    return Console(file=StringIO())


def torch_python() -> Path:
    """A Python with torch: the environment of `make goldens`, or this very one."""
    if train.TORCH_PYTHON.exists():
        return train.TORCH_PYTHON
    if importlib.util.find_spec("torch") and importlib.util.find_spec("transformers"):
        return Path(sys.executable)
    pytest.skip("no environment with torch: make goldens")


@given(st.integers(0, 10**6))
@settings(max_examples=50)
def test_rows_are_those_of_an_episode_or_of_a_turn(seed: int) -> None:
    rng = np.random.default_rng(seed)
    conversation, window = train.conversation_row(rng), train.window_row(rng)
    assert 200 < sum(n for _, n in conversation) <= 896
    (_, prompt), (_, response) = window
    assert 300 <= prompt <= 700 and 20 <= response <= 150
    for row in (conversation, window):
        kinds = [kind for kind, _ in row]
        assert kinds[0::2] == [CONTEXT] * len(kinds[0::2]) and set(kinds[1:-1:2]) <= {ACTION}
        assert kinds[-1] in (ACTION, SKILL) and all(n > 0 for _, n in row)


@pytest.mark.parametrize("shape", [*train.ON_CPU.values(), *train.ON_ACCELERATOR.values(), SMALL])
def test_rows_are_drawn_until_the_bins_are_full(shape: train.Shape) -> None:
    work = train.draw_work(shape)
    rows, sampled = work.rows, work.rows.kind != CONTEXT
    bins = pack(rows.starts, range(len(rows)), shape.length, 1)
    assert len(bins) == shape.bins
    assert rows.lengths.sum() > 0.8 * shape.bins * shape.length
    assert set(rows.kind.tolist()) == {CONTEXT, ACTION, SKILL}  # both terms of the loss count
    assert rows.tokens.max() < shape.network["vocab_size"]
    for values in (work.scores.old, work.scores.ref, work.scores.teacher, work.credit.advantages):
        assert values.dtype == np.float32 and not values[~sampled].any() and values[sampled].all()
    np.testing.assert_array_equal(work.credit.trust > 0, rows.kind == ACTION)
    np.testing.assert_array_equal(train.draw_work(shape).rows.tokens, rows.tokens)


def test_the_tiny_shape_is_that_of_the_preset() -> None:
    preset = runpy.run_path(str(ROOT / "configs" / "alfworld.py"))["TINY"]
    sizes = {
        field: train.TINY.network[theirs]
        for field, theirs in {
            "hidden_size": "hidden_size",
            "intermediate_size": "intermediate_size",
            "num_layers": "num_hidden_layers",
            "num_heads": "num_attention_heads",
            "num_kv_heads": "num_key_value_heads",
            "rope_theta": "rope_theta",
        }.items()
    }
    assert sizes == {field: getattr(preset.model, field) for field in sizes}
    assert train.TINY.network["vocab_size"] == preset.tokenizer.vocab_size
    assert train.TINY.length == preset.context.max_length
    assert train.TINY.micro_bins * train.TINY.length == preset.train.microbatch_tokens
    assert (train.TINY.scan_layers, train.TINY.remat) == (preset.model.scan_layers, preset.model.remat)


@pytest.mark.parametrize(
    ("shape", "parameters"),
    [
        (train.TINY, 721_792),
        (train.SMOLLM2, 134_515_008),
        (train.QWEN, 1_543_714_304),
    ],  # the last two as published
)
def test_the_shapes_have_the_parameters_of_their_names(
    shape: train.Shape, parameters: int, tmp_path: Path
) -> None:
    train.write_inputs(tmp_path, shape, train.draw_work(shape), None)
    config = read_config(tmp_path, "bfloat16", shape.scan_layers)
    params = jax.eval_shape(lambda: init_params(config, jax.random.key(0)))
    assert sum(a.size for a in jax.tree.leaves(params)) == parameters


def test_ours_is_measured_alone_without_torch() -> None:
    sections = train.measure_shapes({"small": replace(SMALL, dtypes=("bfloat16",))}, None, quiet())
    assert sections.keys() == {"small bfloat16", "software"}
    rows, section = train.draw_work(SMALL).rows, sections["small bfloat16"]
    assert section["tokens"] == len(rows.tokens) and section["rows"] == len(rows)
    assert section["trained_tokens"] == (rows.kind != CONTEXT).sum()
    assert section["ours_padding"] == pytest.approx(1 - len(rows.tokens) / (4 * 100))
    assert section["ours_tokens_per_s"] == pytest.approx(section["tokens"] / section["ours_s"])
    assert section["ours_grad_norm"] > 0
    assert not any(name.startswith("torch") for name in section)
    assert sections["software"]["jax"] == jax.__version__


def test_the_reported_loss_is_the_one_that_is_trained(tmp_path: Path) -> None:
    work = train.draw_work(SMALL)
    train.write_inputs(tmp_path, SMALL, work, None)
    config = read_config(tmp_path, "float32", scan_layers=True)
    params = init_params(config, jax.random.key(0))
    totals = count_kinds(work.rows, np.arange(len(work.rows)))
    wanted = 0.0
    for micro in pack(work.rows.starts, range(len(work.rows)), SMALL.length, 2):
        batch = make_batch(micro, work.rows, work.scores, work.credit)
        wanted += float(
            rl_loss(
                params, config, batch, totals, SMALL.loss, (SMALL.loss.distill, train.ETA), train.TEMPERATURE
            )[0]
        )
    update = train.our_update(params, config, SMALL, work)
    losses = [update().loss for _ in range(3)]
    assert losses[0] == pytest.approx(wanted, rel=1e-5)
    assert losses[2] < losses[1] < losses[0]  # every call is one more update


@pytest.mark.slow
@pytest.mark.parametrize("shape", [SMALL, QWEN2])
def test_torch_makes_the_same_updates_whatever_its_micro_batches(shape: train.Shape) -> None:
    with train.torch_worker(torch_python()) as ask:
        sections = train.measure_shapes({"small": shape}, ask, quiet())
        one_by_one = train.measure_shapes(
            {"small": replace(shape, micro_rows=1, dtypes=("float32",))}, ask, quiet()
        )
    exact, rounded = sections["small float32"], sections["small bfloat16"]
    # The worst of four updates, each from the parameters that the one before it left: optimizers agree too.
    for section, most in ((exact, 1e-5), (one_by_one["small float32"], 1e-5), (rounded, 0.05)):
        assert max(section["worst_loss_difference"], section["worst_grad_norm_difference"]) < most
        assert section.keys() >= {f"{side}_{what}" for side in ("ours", "torch") for what in BOTH_SIDES}
        assert section["ours_to_torch"] == pytest.approx(
            section["ours_tokens_per_s"] / section["torch_tokens_per_s"]
        )
    assert (
        one_by_one["small float32"]["torch_padded_tokens"] == exact["tokens"] < exact["torch_padded_tokens"]
    )
    assert rounded["worst_loss_difference"] > exact["worst_loss_difference"]  # it does compute in bfloat16
    assert sections["ours_to_torch"].keys() == {"small float32", "small bfloat16"}
    assert sections["software"].keys() >= {"jax", "torch", "transformers", "torch_threads"}


def test_the_worst_of_all_updates_is_what_they_are_judged_by() -> None:
    ours = [train.Updated(1.0, loss, norm, 9) for loss, norm in ((0.5, 2.0), (-0.4, 3.0), (0.2, 1.0))]
    theirs = [replace(ours[0], loss=0.4), replace(ours[1], loss=-0.2), replace(ours[2], grad_norm=0.8)]
    assert train.worst_differences(ours, theirs) == pytest.approx({"loss": 1.0, "grad_norm": 0.25})
    assert train.worst_differences(ours, ours) == {"loss": 0.0, "grad_norm": 0.0}


def test_flops_and_utilization_are_counted_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    config = ModelConfig(
        vocab_size=64, hidden_size=8, intermediate_size=16, num_layers=3,
        num_heads=2, num_kv_heads=1, head_dim=5,
    )  # fmt: skip
    lengths = np.asarray([4, 6])
    # attention: each of 3 layers, forward and twice backward, n^2 / 2 pairs, 2 products of 2 * 10 FLOPs
    attention = 3 * 3 * (16 + 36) / 2 * 2 * 2 * 10
    # a tied table of 64 * 8 parameters works as the head of 5 trained tokens, and not as the embedding
    assert train.update_flops(1000, config, lengths, 5) == 6 * (1000 - 512) * 10 + 6 * 512 * 5 + attention
    untied = replace(config, tie_embeddings=False)
    assert train.update_flops(1512, untied, lengths, 5) == 6 * (1512 - 1024) * 10 + 6 * 512 * 5 + attention
    for kind, peak in {"NVIDIA H200": 989e12, "TPU v5 lite": 197e12, "TPU v5": 459e12}.items():
        monkeypatch.setattr(jax, "devices", lambda kind=kind: [SimpleNamespace(device_kind=kind)])
        assert train.utilization(0.4 * peak)["mfu"] == pytest.approx(0.4)
    monkeypatch.setattr(jax, "devices", lambda: [SimpleNamespace(device_kind="Abacus")])
    assert train.utilization(1e12) == {"device": "Abacus", "model_tflop_per_s": 1.0}


@pytest.mark.parametrize("given", ["nowhere/python", "a Python without torch"])
def test_a_python_that_cannot_do_it_is_named_in_one_sentence(given: str, tmp_path: Path) -> None:
    if given != "nowhere/python":
        bare = tmp_path / "python"  # -S: no site-packages, so no torch
        bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n', encoding="utf-8")
        bare.chmod(0o755)
        given = str(bare)
    result = python("launch/benchmark.py", "--suite=train", f"--torch={given}")
    assert result.returncode == 2 and result.stdout == ""
    assert f"--torch={given}" in result.stderr and result.stderr.count("\n") == 1
