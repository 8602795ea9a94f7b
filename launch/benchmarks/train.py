"""One optimizer update of the RL loss, ours beside the plainest torch + transformers step, on the same rows and weights.

On a CPU both run, in turns, on all cores: the tiny network of configs/alfworld.py and one of SmolLM2-135M's shape, in
float32 and in bfloat16. With an accelerator a network of Qwen2.5-1.5B's shape is measured, ours alone, against the peak
of the device. Tokens per second count real tokens, never padding. Their step is launch/benchmarks/torch_step.py.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import jax
import jax.numpy as jnp
import jaxlib
import numpy as np
from rich.console import Console

from benchmarks.pipes import Ask, answering
from rsipo_jax.config import LossConfig
from rsipo_jax.methods.method import Credit
from rsipo_jax.models.huggingface import load_params, read_config
from rsipo_jax.models.transformer import ModelConfig, Params, init_params
from rsipo_jax.reports.console import progress
from rsipo_jax.training.packing import pack
from rsipo_jax.training.rows import ACTION, CONTEXT, SKILL, Rows
from rsipo_jax.training.state import create_state, make_optimizer
from rsipo_jax.training.update import (
    Sums,
    TokenScores,
    accumulate,
    apply_gradients,
    count_kinds,
    make_batch,
    no_gradients,
)
from rsipo_jax.validation import ConfigError

TORCH_STEP = Path(__file__).with_name("torch_step.py")
TORCH_PYTHON = Path(__file__).parents[2] / ".venv-torch" / "bin" / "python"  # `make goldens` makes it
REPETITIONS = 3  # updates timed, after one that is not
ETA, TEMPERATURE, LEARNING_RATE, WEIGHT_DECAY, GRAD_CLIP = 0.3, 1.0, 1e-4, 0.01, 1.0
AGREEMENT = 1e-4  # relative, of the first float32 loss and gradient norm
# Dense bfloat16 FLOP/s of one device, by a part of its name; the vendors' data sheets.
PEAKS: Mapping[str, float] = {
    "H100": 989e12,
    "H200": 989e12,
    "A100": 312e12,
    "v5 lite": 197e12,  # v5e
    "v5": 459e12,  # v5p
    "v6": 918e12,  # v6e
}

Segments = list[tuple[int, int]]  # a row: (kind, tokens) from its beginning


@dataclass(frozen=True)
class Shape:
    """A network and the rows of its update."""

    network: Mapping[str, Any]  # as a Hugging Face config.json
    draw: Callable[[np.random.Generator], Segments]  # one row
    bins: int  # rows are drawn until the next one does not fit into so many bins
    length: int  # tokens of a bin
    micro_bins: int  # bins of one of our micro-batches
    micro_rows: int  # rows of one of torch's
    loss: LossConfig
    scan_layers: bool = True
    remat: str = "dots"  # torch keeps everything
    dtypes: tuple[str, ...] = ("float32", "bfloat16")


def window_row(rng: np.random.Generator) -> Segments:
    """A turn of the `window` context: a prompt of 300 to 700 tokens and a response of 20 to 150, log-normal both.

    One response in eight is a skill.
    """
    prompt = int(np.clip(rng.lognormal(np.log(480), 0.25), 300, 700))
    response = int(np.clip(rng.lognormal(np.log(60), 0.6), 20, 150))
    return [(CONTEXT, prompt), (SKILL if rng.random() < 1 / 8 else ACTION, response)]


def conversation_row(rng: np.random.Generator) -> Segments:
    """An episode of the `conversation` context in 200 to 896 tokens: a task, answers of 6 to 12, observations of 20 to 60.

    Every second one ends with a skill of 40 to 96 tokens.
    """
    room = int(rng.integers(272, 897))
    ending = (
        (SKILL, int(rng.integers(40, 97))) if rng.random() < 1 / 2 else (ACTION, int(rng.integers(6, 13)))
    )
    row = [(CONTEXT, 90)]
    while sum(n for _, n in row) + 12 + 60 + ending[1] <= room:
        row += [(ACTION, int(rng.integers(6, 13))), (CONTEXT, int(rng.integers(20, 61)))]
    return [*row, ending]


def _network(model_type: str, **sizes: Any) -> dict[str, Any]:
    return {
        "model_type": model_type,
        "architectures": [f"{model_type.capitalize()}ForCausalLM"],
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "max_position_embeddings": 8192,
        **sizes,
    }


# Few rows cannot fill the bins of a real step as its hundreds of rows do, so the bins are as many and as long as leave the
# padding of many such rows. Share of padding, ours and torch's: tiny 10% and 32% (8% and 26% over 622 rows), smollm2-135m
# 3% and 20% (5% and 19% over 226 rows in bins of 3,712). The tiny network has its preset's bins and micro-batches.
TINY = Shape(
    _network(
        "llama", vocab_size=1024, hidden_size=128, intermediate_size=384, num_hidden_layers=3,
        num_attention_heads=4, num_key_value_heads=2, rope_theta=1e6, rms_norm_eps=1e-6,
    ),
    conversation_row, bins=24, length=896, micro_bins=4, micro_rows=4,
    loss=LossConfig(kl=0.002), scan_layers=False, remat="none",
)  # fmt: skip
SMOLLM2 = Shape(
    _network(
        "llama", vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30,
        num_attention_heads=9, num_key_value_heads=3, rope_theta=1e5, rms_norm_eps=1e-5,
    ),
    window_row, bins=2, length=1920, micro_bins=1, micro_rows=4,
    loss=LossConfig(kl=0.01, entropy=0.001),
)  # fmt: skip
QWEN = Shape(
    _network(
        "qwen2", vocab_size=151936, hidden_size=1536, intermediate_size=8960, num_hidden_layers=28,
        num_attention_heads=12, num_key_value_heads=2, rope_theta=1e6, rms_norm_eps=1e-6,
    ),
    window_row, bins=16, length=4096, micro_bins=2, micro_rows=0,
    loss=LossConfig(kl=0.01, entropy=0.001), dtypes=("bfloat16",),
)  # fmt: skip
ON_CPU: Mapping[str, Shape] = {"tiny": TINY, "smollm2-135m": SMOLLM2}
ON_ACCELERATOR: Mapping[str, Shape] = {"qwen2.5-1.5b": QWEN}


@dataclass(frozen=True)
class Updated:
    """One update. Loss and norm are of the parameters before it."""

    seconds: float
    loss: float
    grad_norm: float  # before clipping
    padded_tokens: int  # tokens computed, padding included


@dataclass(frozen=True)
class Work:
    """The rows of one update with what their losses need."""

    rows: Rows
    scores: TokenScores
    credit: Credit


def measure(torch: str, console: Console) -> dict[str, dict[str, Any]]:
    """Everything for this machine; `torch` names the Python that has it, "" the one of `make goldens`, if it is there.

    Raises ConfigError if that Python cannot do it.
    """
    if jax.default_backend() != "cpu":
        return measure_shapes(ON_ACCELERATOR, None, console)
    python = Path(torch) if torch else TORCH_PYTHON
    if not torch and not python.exists():
        console.print("Ours alone is measured: `make goldens` makes the environment that torch's step needs.")
        return measure_shapes(ON_CPU, None, console)
    with torch_worker(python) as ask:
        return measure_shapes(ON_CPU, ask, console)


def measure_shapes(
    shapes: Mapping[str, Shape], ask: Ask | None, console: Console
) -> dict[str, dict[str, Any]]:
    """A section for each shape and dtype, the ratios of all, and what was measured with."""
    sections: dict[str, dict[str, Any]] = {}
    for name, shape in shapes.items():
        with tempfile.TemporaryDirectory() as made:
            folder, work = Path(made), draw_work(shape)
            write_inputs(folder, shape, work, ask)
            for dtype in shape.dtypes:
                sections[f"{name} {dtype}"] = compare(name, shape, dtype, folder, work, ask, console)
    versions = {"jax": jax.__version__, "jaxlib": jaxlib.__version__, "numpy": np.__version__}
    software = versions | {"backend": jax.default_backend(), "cores_usable": len(os.sched_getaffinity(0))}
    if ask is None:
        return sections | {"software": software}
    ratios = {title: section["ours_to_torch"] for title, section in sections.items()}
    return sections | {
        "ours_to_torch": ratios,
        "software": software | ask({"do": "versions"}),
    }


def compare(
    name: str, shape: Shape, dtype: str, folder: Path, work: Work, ask: Ask | None, console: Console
) -> dict[str, Any]:
    """Updates in turns, ours and torch's; the first of each, which compiles, is not timed. Medians of the others."""
    config = replace(read_config(folder, dtype, shape.scan_layers), remat=shape.remat)
    params = init_params(config, jax.random.key(0)) if ask is None else load_params(folder, config)
    count = sum(a.size for a in jax.tree.leaves(params))
    update = our_update(params, config, shape, work)
    del params  # the update has a copy
    if ask:
        ask({"do": "load", "folder": str(folder), "settings": torch_settings(shape, dtype)})
    ours, theirs = list[Updated](), list[Updated]()
    with progress(console, f"updates of {name} in {dtype}", REPETITIONS + 1) as advance:
        for _ in range(REPETITIONS + 1):
            ours.append(update())
            if ask:
                theirs.append(Updated(**ask({"do": "update"})))
            advance(1)

    lengths = work.rows.lengths.astype(np.int64)
    tokens = int(lengths.sum())
    seconds = median(u.seconds for u in ours[1:])
    section: dict[str, Any] = {
        "parameters": count,
        "rows": len(lengths),
        "tokens": tokens,
        "trained_tokens": int((work.rows.kind != CONTEXT).sum()),
        "ours_tokens_per_s": tokens / seconds,
        "ours_s": seconds,
        "ours_first_s": ours[0].seconds,
        "ours_padded_tokens": ours[0].padded_tokens,
        "ours_padding": 1 - tokens / ours[0].padded_tokens,
        "ours_loss": ours[0].loss,
        "ours_grad_norm": ours[0].grad_norm,
    }
    if jax.default_backend() != "cpu":
        section |= utilization(update_flops(count, config, lengths, section["trained_tokens"]) / seconds)
    if not ask:
        return section
    slow = median(u.seconds for u in theirs[1:])
    first = worst_differences(ours[:1], theirs[:1])
    if dtype == "float32" and max(first.values()) >= AGREEMENT:
        raise ConfigError(
            f"{name}: ours and torch's gradients differ ({first}): run tests/launch/test_train_benchmark.py"
        )
    return section | {
        "torch_tokens_per_s": tokens / slow,
        "torch_s": slow,
        "torch_padded_tokens": theirs[0].padded_tokens,
        "torch_padding": 1 - tokens / theirs[0].padded_tokens,
        "torch_loss": theirs[0].loss,
        "torch_grad_norm": theirs[0].grad_norm,
        **{f"{field}_difference": value for field, value in first.items()},
        **{f"worst_{field}_difference": value for field, value in worst_differences(ours, theirs).items()},
        "ours_to_torch": slow / seconds,
    }


def worst_differences(ours: Sequence[Updated], theirs: Sequence[Updated]) -> dict[str, float]:
    """The largest difference in loss and in gradient norm over these updates, relative to theirs.

    An update starts from the parameters that the one before it left, so later ones compare the optimizers too; Adam's
    step is nearly the gradient's sign, which makes much of roundings where gradients are small.
    """
    return {
        field: max(abs(getattr(a, field) / getattr(b, field) - 1) for a, b in zip(ours, theirs, strict=True))
        for field in ("loss", "grad_norm")
    }


def our_update(params: Params, config: ModelConfig, shape: Shape, work: Work) -> Callable[[], Updated]:
    """A function that makes one update after another. Everything that `_update` of training/step.py does is in its time."""
    optimizer = make_optimizer("adamw", WEIGHT_DECAY, GRAD_CLIP)
    state = create_state(params, optimizer)
    members = np.arange(len(work.rows))

    def update() -> Updated:
        nonlocal state
        start = time.perf_counter()
        totals = count_kinds(work.rows, members)
        grads, sums = no_gradients(state.params), []
        micros = pack(work.rows.starts, members.tolist(), shape.length, shape.micro_bins)
        for micro in micros:
            batch = make_batch(micro, work.rows, work.scores, work.credit)
            grads, new = accumulate(
                state.params,
                {},
                config,
                batch,
                totals,
                shape.loss,
                (shape.loss.distill, ETA),
                TEMPERATURE,
                grads,
            )
            sums.append(new)
        state, norm = apply_gradients(state, grads, jnp.float32(LEARNING_RATE), optimizer)
        jax.block_until_ready(state)
        seconds = time.perf_counter() - start
        loss = sum(_loss(s, totals, shape.loss) for s in sums)
        return Updated(seconds, loss, float(norm), sum(micro.source.size for micro in micros))

    return update


def _loss(sums: Sums, totals: Sequence[np.float32], cfg: LossConfig) -> float:
    """The loss of `rl_loss` from its sums."""
    acted = sums.policy + cfg.kl * sums.kl - cfg.entropy * sums.entropy
    wrote = sums.skill_policy + cfg.kl * sums.skill_kl
    return float(acted / totals[0] + ETA * wrote / totals[1])


def draw_work(shape: Shape) -> Work:
    """As many rows as the bins of the shape hold, of random tokens, with scores and credit like those of a real step."""
    rng = np.random.default_rng(0)
    drawn: list[Segments] = []
    while True:
        drawn.append(shape.draw(rng))
        starts = np.cumsum([0] + [sum(n for _, n in row) for row in drawn])
        if len(pack(starts, range(len(drawn)), shape.length, 1)) > shape.bins:
            drawn.pop()
            break
    return _work(drawn, int(shape.network["vocab_size"]), rng)


def _work(drawn: Sequence[Segments], vocabulary: int, rng: np.random.Generator) -> Work:
    kind = np.concatenate([np.full(n, kind, np.int8) for row in drawn for kind, n in row])
    lengths = np.asarray([sum(n for _, n in row) for row in drawn], np.int64)
    of_row = np.repeat(np.arange(len(drawn)), lengths)

    def noise(mean: float, deviation: float) -> np.ndarray:
        return np.where(kind == CONTEXT, 0, rng.normal(mean, deviation, len(kind))).astype(np.float32)

    # A fresh network gives every token about 1 / vocabulary: ratios lie around 1, some of them outside of the clip.
    old = noise(-np.log(vocabulary), 0.1)
    advantages = np.where(kind == CONTEXT, 0, rng.normal(size=len(drawn))[of_row]).astype(np.float32)
    trust = np.where(kind == ACTION, rng.uniform(size=len(drawn))[of_row], 0).astype(np.float32)
    rows = Rows(
        tokens=rng.integers(vocabulary, size=len(kind), dtype=np.int32),
        kind=kind,
        logprobs=old,
        starts=np.concatenate([[0], np.cumsum(lengths)]),
        episode=np.arange(len(drawn), dtype=np.int32),
        skill_at=np.zeros(len(drawn), np.int64),
    )
    return Work(rows, TokenScores(old, old + noise(0, 0.1), old + noise(0, 0.1)), Credit(advantages, trust))


def write_inputs(folder: Path, shape: Shape, work: Work, ask: Ask | None) -> None:
    """config.json, and for torch rows.npz and weights that it draws itself: both then read the same file."""
    (folder / "config.json").write_text(json.dumps(shape.network), encoding="utf-8")
    if ask:
        arrays: dict[str, Any] = {
            "tokens": work.rows.tokens,
            "kind": work.rows.kind,
            "starts": work.rows.starts,
        }
        np.savez(folder / "rows.npz", **(arrays | vars(work.scores) | vars(work.credit)))
        ask({"do": "make_weights", "folder": str(folder)})


def torch_settings(shape: Shape, dtype: str) -> dict[str, Any]:
    return {
        "dtype": dtype,
        "micro_rows": shape.micro_rows,
        "temperature": TEMPERATURE,
        "eta": ETA,
        "learning_rate": LEARNING_RATE,
        "weight_decay": WEIGHT_DECAY,
        "grad_clip": GRAD_CLIP,
        "loss": asdict(shape.loss),
    }


def update_flops(parameters: int, config: ModelConfig, lengths: np.ndarray, trained: int) -> float:
    """FLOPs an update needs at least: 6 a parameter and real token, and attention's products over all earlier tokens.

    A parameter is multiplied and added once in the forward pass and twice in the backward pass, those of the head for
    trained tokens only and those of the embedding never. Scores and their use: 2 * 2 * n^2 / 2 * width a layer and row,
    three times. Recomputation and padding are not counted.
    """
    width, head = config.num_heads * config.head_dim, config.vocab_size * config.hidden_size
    body = parameters - head * (1 if config.tie_embeddings else 2)
    return float(
        6 * body * lengths.sum() + 6 * head * trained + 6 * config.num_layers * width * (lengths**2).sum()
    )


def utilization(flops_per_s: float) -> dict[str, Any]:
    """Model FLOP/s, and their part of the device's dense bfloat16 peak where that is known (MFU)."""
    kind = jax.devices()[0].device_kind
    peaks = [peak for name, peak in PEAKS.items() if name.lower() in kind.lower()]
    mfu = {"peak_tflop_per_s": peaks[0] / 1e12, "mfu": flops_per_s / peaks[0]} if peaks else {}
    return {"device": kind, "model_tflop_per_s": flops_per_s / 1e12, **mfu}


def torch_worker(python: Path) -> AbstractContextManager[Ask]:
    """torch_step.py as a process of `python`. Raises ConfigError when it ends early, with its last words."""
    return answering(
        [str(python), "-P", str(TORCH_STEP)],  # -P: its folder holds a module named as one it may import
        lambda reason: (
            f"--torch={python} cannot be run ({reason}): name a Python with torch and transformers"
        ),
        lambda last: (
            f"torch's step ended early ({last}): --torch={python} must be a Python with torch and "
            "transformers, and memory for the network"
        ),
    )
