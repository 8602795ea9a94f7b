"""A run's policy as a folder that transformers, and whatever reads its format, can load."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import jax

from rsipo_jax.config import Config, MeshConfig
from rsipo_jax.models.hf_export import save_checkpoint
from rsipo_jax.models.huggingface import max_position_embeddings, resolve_checkpoint
from rsipo_jax.reports.console import make_console
from rsipo_jax.training import setup
from rsipo_jax.training.policies import kept_step, load_policy
from rsipo_jax.validation import ConfigError


def export(config: Config, workdir: Path, step: int, out: Path, dtype: str) -> None:
    """Writes weights, configs, tokenizer and chat template of a policy of the run in `workdir`, and prints their sizes.

    `step` -1 is the newest checkpoint, 0 the SFT policy. Raises ConfigError when there is no such policy, or something in
    `out` already.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"--out={out} is there already: name a new folder, or empty this one")
    step = kept_step(workdir, step)
    config = replace(config, mesh=MeshConfig())  # of this machine, whatever the run had
    console = make_console()
    with jax.set_mesh(setup.learner_mesh(config)):
        network = setup.load_network(config, workdir)
        tokenizer = network.tokenizer
        save_checkpoint(
            out,
            load_policy(workdir, network, step),
            network.model,
            dtype=dtype,
            max_length=_max_length(config),
            stop_ids=tokenizer.stop_ids,
            pad_id=tokenizer.pad_id,
            also=tokenizer.export,
        )
    policy = f"step {step}" if step else "the SFT policy"
    console.print(f"{policy} of {workdir}, in {dtype}, is in {out}:", soft_wrap=True)
    for path in sorted(out.iterdir()):
        console.print(f"  {path.name:<36} {path.stat().st_size:>16,} bytes", soft_wrap=True)


def _max_length(config: Config) -> int:
    """Tokens the policy is good for: as many as the checkpoint it comes from says, or as a fresh one was trained on."""
    if not config.model.checkpoint:
        return config.context.max_length
    try:
        return max_position_embeddings(resolve_checkpoint(config.model.checkpoint))
    except ValueError as error:  # one sentence
        raise ConfigError(str(error)) from error
