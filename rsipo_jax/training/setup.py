"""Everything before RL: tasks, demonstrations, tokenizer, network, and the SFT policy.

What is made is kept in the workdir and found again: games/ or questions/, demonstrations/, tokenizer/, sft/.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import jax
import numpy as np
from jax.sharding import Mesh

from rsipo_jax.agents import prompts
from rsipo_jax.agents.context import make_context
from rsipo_jax.agents.parsers import parser_of
from rsipo_jax.agents.rollout import Agent
from rsipo_jax.agents.words import Words, words_of
from rsipo_jax.config import Config
from rsipo_jax.evaluation.panels import SPLIT_OF, Panel, build_panel, make_panel
from rsipo_jax.models import huggingface
from rsipo_jax.models.lora import add_adapters, join, split
from rsipo_jax.models.transformer import PARAM_AXES, ModelConfig, Params, cast_params, init_params
from rsipo_jax.parallel.sharding import FSDP, TENSOR, constrain_tree, make_mesh, sampling_mesh
from rsipo_jax.sampling.engine import Engine
from rsipo_jax.text.sentencepiece_tokenizer import train_sentencepiece
from rsipo_jax.text.tokenizer import Tokenizer, load_tokenizer
from rsipo_jax.training.checkpoint import load_params, save_params
from rsipo_jax.training.demonstrations.demonstration import READING, Demonstration
from rsipo_jax.training.sft import sft_batches, sft_rows, train_sft
from rsipo_jax.training.worlds.alfworld import GAMES
from rsipo_jax.training.worlds.search import QUESTIONS
from rsipo_jax.training.worlds.world import World
from rsipo_jax.validation import ConfigError

DEMONSTRATIONS, TOKENIZER, SFT = "demonstrations", "tokenizer", "sft"  # folders of the workdir
MADE = (GAMES, QUESTIONS, DEMONSTRATIONS, TOKENIZER, SFT)


@dataclass(frozen=True)
class Network:
    tokenizer: Tokenizer
    model: ModelConfig
    params: Params  # before SFT; with adapters if they are what is trained


def check_checkpoint(config: Config) -> None:
    """Fetches the checkpoint that a run names, if any, and reads its settings: before hours are spent on anything else.

    Raises ConfigError, also when the devices cannot share the network as `config.mesh` says.
    """
    check_platform(config)
    mesh = sampling_mesh(config.mesh.sampling_tensor)
    if not config.model.checkpoint:
        return
    try:
        folder = huggingface.resolve_checkpoint(config.model.checkpoint)
        model = huggingface.read_config(folder, config.model.dtype, config.model.scan_layers)
    except ValueError as error:  # each is one sentence
        raise ConfigError(str(error)) from error
    check_layout(model, learner_mesh(config))
    check_layout(model, mesh, "sampling_tensor")


def check_platform(config: Config) -> None:
    """Raises ConfigError when the attention that is asked for does not run on this machine."""
    attention, backend = config.model.attention, jax.default_backend()
    wanted = {"splash": "tpu", "cudnn": "gpu"}.get(attention, backend)
    if wanted != backend:
        raise ConfigError(
            f"config.model.attention={attention!r} runs on a {wanted.upper()}, and JAX has found a {backend.upper()}: "
            "set it to 'auto'"
        )


def learner_mesh(config: Config) -> Mesh:
    """All devices, as `config.mesh` arranges them for training. Raises ConfigError when they cannot be arranged so."""
    return make_mesh(config.mesh.data, config.mesh.fsdp, config.mesh.tensor)


def check_layout(model: ModelConfig, mesh: Mesh, tensor: str = TENSOR) -> None:
    """Raises ConfigError when a mesh axis does not divide what it would cut; `tensor` is its name in the settings."""
    for axis, what, size in (
        (FSDP, "channels", model.hidden_size),
        (TENSOR, "heads", model.num_heads),
        (TENSOR, "feed-forward channels", model.intermediate_size),
    ):
        if size % mesh.shape[axis]:
            key = tensor if axis == TENSOR else axis
            raise ConfigError(
                f"config.mesh.{key}={mesh.shape[axis]} does not divide the network's {size} {what}: give a divisor"
            )


def prepare_demonstrations(config: Config, workdir: Path, world: World) -> list[Demonstration]:
    """The expert episodes of the SFT stage; none when `sft.games` is 0."""
    return world.demonstrations(workdir / DEMONSTRATIONS) if config.sft.games else []


def prepare_network(config: Config, workdir: Path, world: World, demos: list[Demonstration]) -> Network:
    """The network before SFT. A fresh one has its tokenizer trained on the demonstrations, unless that is done."""
    folder = workdir / TOKENIZER
    if not config.model.checkpoint and not folder.exists():
        if (workdir / SFT).exists():
            raise ConfigError(f"{workdir} holds a policy in {SFT}/ without its {TOKENIZER}/: copy both")
        if not demos:
            raise ConfigError(
                "config.sft.games=0 leaves a fresh network without text for its tokenizer: demonstrate some games, or name "
                "config.model.checkpoint"
            )
        texts = _texts(demos, words_of(config))
        train_sentencepiece(texts, folder, config.tokenizer.vocab_size, world.tags)
    return load_network(config, workdir)


def load_network(config: Config, workdir: Path) -> Network:
    """Tokenizer and initial parameters: a checkpoint's, or a fresh network with the tokenizer kept in the workdir.

    The parameters lie on the current mesh. What adapters leave frozen is held in the compute dtype.
    """
    cfg, rank = config.model, config.lora.rank
    held = cfg.dtype if rank else "float32"
    if cfg.checkpoint:
        try:
            folder = huggingface.resolve_checkpoint(cfg.checkpoint)
            model = huggingface.read_config(folder, cfg.dtype, cfg.scan_layers)
            tokenizer, params = load_tokenizer(folder), huggingface.load_params(folder, model, held)
        except ValueError as error:  # each is one sentence
            raise ConfigError(str(error)) from error
    else:
        tokenizer = load_tokenizer(workdir / TOKENIZER)
        model = fresh_model(config, tokenizer.vocab_size)
        check_layout(model, learner_mesh(config))
        check_layout(model, sampling_mesh(config.mesh.sampling_tensor), "sampling_tensor")
        params = _fresh_params(model, held, config.seed)
    if rank:
        params = _adapted(params, rank, config.lora.targets, config.seed)
    return Network(tokenizer, _with_settings(model, config), params)


def _with_settings(model: ModelConfig, config: Config) -> ModelConfig:
    """What the run, not the checkpoint, says about the network."""
    cfg = config.model
    return replace(model, lora_alpha=config.lora.alpha, remat=cfg.remat, attention=cfg.attention)


def fresh_model(config: Config, vocab_size: int) -> ModelConfig:
    """The network of the sizes in `config.model`."""
    cfg = config.model
    return ModelConfig(
        vocab_size=vocab_size,
        hidden_size=cfg.hidden_size,
        intermediate_size=cfg.intermediate_size,
        num_layers=cfg.num_layers,
        num_heads=cfg.num_heads,
        num_kv_heads=cfg.num_kv_heads,
        head_dim=cfg.hidden_size // cfg.num_heads,
        rope_theta=cfg.rope_theta,
        qkv_bias=False,  # Llama's: its exports keep their own tokenizer, where transformers has one for all of Qwen2
        dtype=cfg.dtype,
        scan_layers=cfg.scan_layers,
    )


@partial(jax.jit, static_argnums=(0, 1, 2))
def _fresh_params(model: ModelConfig, dtype: str, seed: int) -> Params:
    return constrain_tree(cast_params(init_params(model, jax.random.key(seed)), dtype), PARAM_AXES)


@partial(jax.jit, static_argnums=(1, 2, 3))
def _adapted(params: Params, rank: int, targets: tuple[str, ...], seed: int) -> Params:
    return constrain_tree(add_adapters(params, rank, targets, jax.random.key(seed)), PARAM_AXES)


def sft_policy(
    config: Config,
    workdir: Path,
    network: Network,
    demos: list[Demonstration],
    progress: Callable[[int], AbstractContextManager[Callable[[int], None]]],
) -> Params:
    """The SFT policy: from `workdir/sft` when it is there, else trained and kept there.

    `progress(updates)` shows the training; without demonstrations the policy is the network as it is.
    """
    if (workdir / SFT).exists():
        return load_sft(workdir, network)
    params = network.params
    if demos:
        rows = sft_rows(demos, make_context(network.tokenizer, config), network.tokenizer, parser_of(config))
        reading = np.asarray([demo.kind == READING for demo in demos])[rows.episode]
        batches = sft_batches(rows, reading, config)
        with progress(len(batches)) as advance:
            params = train_sft(params, network.model, rows, batches, config, lambda _: advance(1))
    save_params(workdir / SFT, split(params)[0])
    return params


def load_sft(workdir: Path, network: Network) -> Params:
    """The SFT policy that the run in `workdir` has kept."""
    trained, frozen = split(network.params)
    try:
        return join(load_params(workdir / SFT, trained), frozen)
    except ValueError as error:  # a page about trees
        raise ConfigError(
            f"{workdir / SFT} holds other parameters than these settings train: was it made with another "
            "config.lora.rank, config.lora.targets or config.model? Choose another --workdir"
        ) from error


def make_agent(config: Config, world: World, network: Network) -> Agent:
    """Sampler, environments and context, ready to play. The caller closes `agent.pool`."""
    engine = Engine(
        network.model,
        sampling_mesh(config.mesh.sampling_tensor),
        config.rollout.slots,
        config.context.max_length,
        network.tokenizer.stop_ids,
        config.seed,
        config.rollout.reuse_prefixes,
    )
    context = make_context(network.tokenizer, config)
    return Agent(engine, world.pool(), context, network.tokenizer, config)


def make_panels(config: Config, world: World, step: int) -> list[Panel]:
    """The panels a run measures at RL step `step`: those of `eval.panels` whose split there is.

    Raises ConfigError when there is none of them.
    """
    present = [name for name in config.eval.panels if world.has(SPLIT_OF[name])]
    if config.eval.panels and not present:
        raise ConfigError(
            f"config.eval.panels={config.eval.panels}, but {world} has none of these splits: add one, or name another"
        )
    return [build_panel(name, world.tasks, config.seed, step) for name in present]


def during_panels(config: Config, world: World) -> list[Panel]:
    """The panel measured between RL steps, if there is one: some of the validation tasks."""
    if not config.eval.every or not world.has(world.validation):
        return []
    return [make_panel(f"{world.validation}_during", world.tasks(world.validation), config.eval.during)]


def _texts(demos: list[Demonstration], words: Words) -> Iterator[str]:
    """Everything the network will read or write, about as often as it will."""
    for demo in demos:
        yield words.form
        yield from demo.observations
        yield from demo.responses
        if demo.skill:
            yield prompts.skill_block(demo.skill)
        if demo.analysis:
            yield prompts.analysis_request(demo.won, words)
            yield demo.analysis
