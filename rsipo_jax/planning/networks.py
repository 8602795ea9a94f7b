"""The network of a config, as far as its shapes go: no weights, no tokenizer, no download.

`PUBLISHED` holds what the `config.json` of the presets' checkpoints says. It serves planning and nothing else: a run
reads the file of the checkpoint that it loads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import jax

from rsipo_jax.config import Config, LoraConfig
from rsipo_jax.models import huggingface
from rsipo_jax.models.lora import add_adapters
from rsipo_jax.models.transformer import ModelConfig, Params, cast_params, init_params
from rsipo_jax.training.setup import fresh_model
from rsipo_jax.validation import ConfigError


def _network(
    vocab: int, hidden: int, mlp: int, layers: int, heads: int, kv: int, head: int, theta: float, eps: float,
    tied: bool, bias: bool = False, norm: bool = False,
) -> ModelConfig:  # fmt: skip
    return ModelConfig(
        vocab, hidden, mlp, layers, heads, kv, head, theta, rms_norm_eps=eps,
        tie_embeddings=tied, qkv_bias=bias, qk_norm=norm,
    )  # fmt: skip


PUBLISHED: Mapping[str, ModelConfig] = {
    "HuggingFaceTB/SmolLM2-135M-Instruct": _network(49152, 576, 1536, 30, 9, 3, 64, 1e5, 1e-5, True),
    "HuggingFaceTB/SmolLM2-360M-Instruct": _network(49152, 960, 2560, 32, 15, 5, 64, 1e5, 1e-5, True),
    "HuggingFaceTB/SmolLM2-1.7B-Instruct": _network(49152, 2048, 8192, 24, 32, 32, 64, 130000, 1e-5, True),
    "Qwen/Qwen2.5-0.5B-Instruct": _network(151936, 896, 4864, 24, 14, 2, 64, 1e6, 1e-6, True, bias=True),
    "Qwen/Qwen2.5-1.5B-Instruct": _network(151936, 1536, 8960, 28, 12, 2, 128, 1e6, 1e-6, True, bias=True),
    "Qwen/Qwen2.5-3B-Instruct": _network(151936, 2048, 11008, 36, 16, 2, 128, 1e6, 1e-6, True, bias=True),
    "Qwen/Qwen2.5-7B-Instruct": _network(152064, 3584, 18944, 28, 28, 4, 128, 1e6, 1e-6, False, bias=True),
    "Qwen/Qwen3-0.6B": _network(151936, 1024, 3072, 28, 16, 8, 128, 1e6, 1e-6, True, norm=True),
    "Qwen/Qwen3-1.7B": _network(151936, 2048, 6144, 28, 16, 8, 128, 1e6, 1e-6, True, norm=True),
    "Qwen/Qwen3-4B": _network(151936, 2560, 9728, 36, 32, 8, 128, 1e6, 1e-6, True, norm=True),
    "Qwen/Qwen3-8B": _network(151936, 4096, 12288, 36, 32, 8, 128, 1e6, 1e-6, False, norm=True),
}


def find_network(config: Config) -> ModelConfig:
    """The network of a config, with the run's settings. Raises ConfigError for a checkpoint that is not known here."""
    cfg = config.model
    if not cfg.checkpoint:
        model = fresh_model(config, config.tokenizer.vocab_size)
    elif Path(cfg.checkpoint).expanduser().is_dir():
        try:
            folder = Path(cfg.checkpoint).expanduser()
            model = huggingface.read_config(folder, cfg.dtype, cfg.scan_layers)
        except ValueError as error:  # each is one sentence
            raise ConfigError(str(error)) from error
    elif cfg.checkpoint in PUBLISHED:
        model = PUBLISHED[cfg.checkpoint]
    else:
        raise ConfigError(
            f"config.model.checkpoint={cfg.checkpoint!r} is no local folder, and its sizes are not known without a "
            f"download: name a folder with its config.json, or one of {', '.join(PUBLISHED)}"
        )
    return replace(
        model,
        dtype=cfg.dtype,
        scan_layers=cfg.scan_layers,
        remat=cfg.remat,
        attention=cfg.attention,
        lora_alpha=config.lora.alpha,
    )


def abstract_params(model: ModelConfig, lora: LoraConfig) -> Params:
    """The shapes and types of the parameters a run holds, adapters included."""

    def make() -> Params:
        params = init_params(model, jax.random.key(0))
        if not lora.rank:
            return params
        frozen = cast_params(params, model.dtype)
        return add_adapters(frozen, lora.rank, lora.targets, jax.random.key(0))

    return jax.eval_shape(make)


def matmul_params(model: ModelConfig) -> int:
    """Parameters that every token is multiplied with: all matrices but the embedding, the output table included."""
    heads = model.num_heads * model.head_dim
    kv = model.num_kv_heads * model.head_dim
    layer = model.hidden_size * (2 * heads + 2 * kv + 3 * model.intermediate_size)
    return model.num_layers * layer + model.vocab_size * model.hidden_size
