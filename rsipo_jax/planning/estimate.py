"""Memory and time of an update without compiling it: good enough to leave out what cannot fit and to rank the rest.

What is exact (parameters, optimizer state, caches, collectives of the weights) is computed from shapes; what the
compiler decides (temporaries) is a sum of the large arrays that the code makes, as comments say.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache

import jax
import jax.numpy as jnp

from rsipo_jax.config import Config, LoraConfig
from rsipo_jax.models.lora import split
from rsipo_jax.models.transformer import ModelConfig
from rsipo_jax.models.vocabulary import CHUNK
from rsipo_jax.planning.chips import Slice
from rsipo_jax.planning.networks import abstract_params, matmul_params
from rsipo_jax.planning.roofline import Roofline
from rsipo_jax.planning.workload import Workload

WIDTH = {"float32": 4, "bfloat16": 2}


@dataclass(frozen=True)
class Layout:
    """A mesh and a micro-batch."""

    data: int
    fsdp: int
    tensor: int
    microbatch_tokens: int  # of one batch shard

    @property
    def shards(self) -> int:
        """Parts into which the rows of a batch are cut."""
        return self.data * self.fsdp

    def applied(self, config: Config) -> Config:
        """The config with this layout."""
        mesh = replace(config.mesh, data=self.data, fsdp=self.fsdp, tensor=self.tensor)
        return replace(
            config, mesh=mesh, train=replace(config.train, microbatch_tokens=self.microbatch_tokens)
        )


@dataclass(frozen=True)
class Sizes:
    """Bytes of the whole parameter tree: exact, before the mesh cuts them."""

    trained: int  # float32
    frozen: int  # in the compute dtype
    state: int  # trained parameters and the optimizer's moments
    reference: int  # in the compute dtype; with adapters, of these alone: the rest is shared
    serving: int  # in the compute dtype


@cache
def _counts(model: ModelConfig, lora: LoraConfig) -> tuple[int, int, int]:
    """Trained parameters, frozen ones, and the bytes of these."""
    trained, frozen = split(abstract_params(model, lora))
    return _count(trained), _count(frozen), _bytes(frozen)


def sizes(model: ModelConfig, config: Config) -> Sizes:
    """The bytes of a run's parameters."""
    trained, frozen, frozen_bytes = _counts(model, config.lora)
    width, moments = WIDTH[model.dtype], WIDTH[config.train.momentum_dtype] + 4
    return Sizes(
        trained=4 * trained,
        frozen=frozen_bytes,
        state=(4 + moments) * trained,
        reference=width * trained,
        serving=width * (trained + frozen),
    )


def update_bytes(config: Config, model: ModelConfig, layout: Layout) -> float:
    """Bytes of one chip while it computes the gradient of a micro-batch, all that a run holds then included."""
    held, cut = sizes(model, config), layout.fsdp * layout.tensor
    # Parameters, moments, reference, the sum of the gradients, and the gradient that is being made.
    fixed = (held.state + held.frozen + held.reference + 2 * held.trained) / cut
    width, t = WIDTH[model.dtype], layout.tensor
    tokens = max(1, layout.microbatch_tokens // config.context.max_length) * config.context.max_length
    heads, kv = model.num_heads * model.head_dim, model.num_kv_heads * model.head_dim
    projections = (heads + 2 * kv + 2 * model.intermediate_size) / t  # channels of a layer that are cut
    kept = {  # channels of a layer that wait for the backward pass, beside its input
        "full": 0,
        "dots": projections + heads / t + model.hidden_size,
        "none": 2 * projections + model.intermediate_size / t + 6 * model.hidden_size,
    }[model.remat]
    activations = tokens * width * model.num_layers * (model.hidden_size + kept)
    # One layer at work: its activations and their gradients, some of them in float32, and its weights whole, twice.
    working = tokens * (6 * width * projections + 8 * width * model.hidden_size)
    layer = (matmul_params(model) - model.vocab_size * model.hidden_size) / model.num_layers
    weights = 2 * width * layer / t
    # The output table, gathered, with its gradient; later the embedding's gradient, twice, takes no more.
    table = model.vocab_size * model.hidden_size / t
    tables, logits = (width + 4) * table, 3 * 4 * CHUNK * model.vocab_size / t
    return fixed + activations + max(working + weights, tables + logits)


def update_roofline(
    config: Config, model: ModelConfig, slice_: Slice, layout: Layout, work: Workload
) -> Roofline:
    """The bounds of all updates of one step, with communication over one link a mesh axis more than a line has."""
    chip, runs = slice_.chip, microbatches(config, work, layout.shards)
    length = config.context.max_length
    tokens = max(1, layout.microbatch_tokens // length) * length  # a chip's, padding included
    n, width, t = matmul_params(model), WIDTH[model.dtype], layout.tensor
    layers = n - model.vocab_size * model.hidden_size
    again = {"full": 2, "dots": 0, "none": 0}[model.remat]
    flops = tokens * ((6 + again) * layers + 8 * work.sampled * model.vocab_size * model.hidden_size) / t
    flops += (3 + again / 2) * attention_flops(model, tokens, length) / t
    # Weights are gathered forward and, unless nothing is kept, backward; gradients are summed in float32.
    gathers = (1 if model.remat == "none" else 2) * width
    links = chip.link * (2 if chip.dims else 1)
    share = (layout.fsdp - 1) / layout.fsdp
    sent = (gathers + (4 if not config.lora.rank else 0)) * n / t * share
    sent += 2 * 4 * n / (t * layout.fsdp) * (layout.data - 1) / layout.data
    # A layer sums its output over `tensor` twice a pass, in float32 as its products come.
    passes = {"full": 3, "dots": 2, "none": 2}[model.remat]
    sent += 2 * (t - 1) / t * 2 * passes * model.num_layers * tokens * model.hidden_size * 4
    moved = 3 * width * n / t + 12 * tokens * model.num_layers * model.hidden_size * width
    apply = 2 * sizes(model, config).state / (layout.fsdp * t) / chip.bandwidth * updates(config, work)
    compute, hbm = runs * flops / chip.flops, runs * moved / chip.bandwidth
    return Roofline(compute, hbm + apply, runs * sent / links, max(compute, hbm) + apply)


def attention_flops(model: ModelConfig, tokens: float, row: float) -> float:
    """FLOPs of one forward pass of causal attention, over rows of that mean length: scores and values, half of each."""
    return 2 * tokens * row * model.num_heads * model.head_dim * model.num_layers


def useful_flops(model: ModelConfig, tokens: float, row: float, sampled: float) -> float:
    """What one forward pass over real tokens needs: 2 N a token and attention within rows. Training needs three times that.

    Of N, the output table counts for the share `sampled` of the tokens, those whose log-probabilities are asked for.
    """
    table = model.vocab_size * model.hidden_size
    return 2 * (matmul_params(model) - (1 - sampled) * table) * tokens + attention_flops(model, tokens, row)


def updates(config: Config, work: Workload) -> int:
    """Optimizer updates of one step."""
    return math.ceil(work.rows / (config.train.minibatch_rows or work.rows))


def microbatches(config: Config, work: Workload, shards: int) -> int:
    """Gradient computations of one step."""
    rows = math.ceil(work.rows / updates(config, work))
    return updates(config, work) * calls(config, rows * work.row_tokens, work.row_tokens, shards)


def calls(config: Config, tokens: float, row: float, shards: int) -> int:
    """Micro-batches that hold so many tokens in rows of that length, packed into bins."""
    length = config.context.max_length
    fill = max(1, math.floor(length / row)) * row / length if row < length else 1.0
    per_call = max(1, config.train.microbatch_tokens // length) * shards
    return math.ceil(tokens / (length * fill) / per_call)


def layouts(model: ModelConfig, config: Config, slice_: Slice) -> Iterator[Layout]:
    """Every mesh of the slice that cuts the network evenly, with micro-batches of 1, 2, 4 and 8 bins a shard."""
    for tensor in _divisors(slice_.size):
        if any(size % tensor for size in (model.num_heads, model.intermediate_size, model.vocab_size)):
            continue
        for data in _divisors(slice_.size // tensor):
            fsdp = slice_.size // tensor // data
            if model.hidden_size % fsdp:
                continue
            for bins in (1, 2, 4, 8):
                yield Layout(data, fsdp, tensor, bins * config.context.max_length)


def ranked(model: ModelConfig, config: Config, slice_: Slice, work: Workload, held: float) -> list[Layout]:
    """The layouts that should fit beside `held` bytes a chip, shortest estimated update first."""
    fitting = [
        layout
        for layout in layouts(model, config, slice_)
        if update_bytes(layout.applied(config), model, layout) + held <= slice_.chip.hbm
    ]

    def seconds(layout: Layout) -> float:
        return update_roofline(layout.applied(config), model, slice_, layout, work).exposed

    return sorted(fitting, key=seconds)


def _divisors(n: int) -> list[int]:
    return [d for d in range(1, n + 1) if n % d == 0]


def _count(tree: object) -> int:
    return sum(math.prod(a.shape) for a in jax.tree.leaves(tree))


def _bytes(tree: object) -> int:
    return sum(math.prod(a.shape) * jnp.dtype(a.dtype).itemsize for a in jax.tree.leaves(tree))
