"""Tunix's sampler behind a turn barrier, as Tunix drives it.

Run by a Python that has google-tunix, and by launch/benchmarks/rollout.py only. A batch is padded to one prompt length
and generates until its longest response is done; lengths are rounded up a little, so that few programs are compiled.
It computes the logits of all prompt tokens at once, so the rows of a turn run in batches for which memory suffices,
sorted by their prompts. Compilation is not counted: JAX says how long it took, and that is subtracted.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import episodes  # type: ignore[import-not-found]  # beside this script
import jax
import jax.numpy as jnp
import numpy as np
from serving import serve  # type: ignore[import-not-found]
from tunix.generate import sampler as tunix  # type: ignore[import-not-found]
from tunix.models.llama3 import model as llama  # type: ignore[import-not-found]
from tunix.models.llama3 import params as weights

DTYPES = ("float32", "bfloat16")
TRIAL_ROWS, TRIAL_PROMPT, TRIAL_NEW = 16, 128, 16  # what the faster dtype is chosen by
PROMPT_STEP, NEW_STEP = 128, 16  # lengths are rounded up to multiples
LOGITS_BYTES = 5 << 30  # of the float32 logits of one batch, which are there more than once
PAD = 0  # in no prompt and never sampled: the sampler takes it for padding wherever it stands


class Ids:
    """The tokenizer it asks for; texts are ids with spaces between them."""

    def encode(self, text: str, **_: Any) -> list[int]:
        return [int(word) for word in text.split()]

    def decode(self, ids: Sequence[int], **_: Any) -> str:
        return " ".join(map(str, ids))

    def bos_id(self) -> int | None:
        return None

    def eos_id(self) -> int:
        return PAD

    def pad_id(self) -> int:
        return PAD


class Compilation:
    """Seconds that JAX has spent on tracing, lowering and compiling."""

    def __init__(self) -> None:
        self.seconds = 0.0
        jax.monitoring.register_event_duration_secs_listener(self._listen)

    def _listen(self, event: str, duration_secs: float, **_: Any) -> None:
        if event.startswith("/jax/core/compile/"):
            self.seconds += duration_secs


class Generator:
    def __init__(self, folder: str, dtype: str, max_length: int, max_new: int) -> None:
        raw = json.loads((Path(folder) / "config.json").read_text(encoding="utf-8"))
        head_dim = raw.get("head_dim") or raw["hidden_size"] // raw["num_attention_heads"]
        config = llama.ModelConfig(
            num_layers=raw["num_hidden_layers"],
            vocab_size=raw["vocab_size"],
            embed_dim=raw["hidden_size"],
            hidden_dim=raw["intermediate_size"],
            num_heads=raw["num_attention_heads"],
            head_dim=head_dim,
            num_kv_heads=raw["num_key_value_heads"],
            rope_theta=int(raw["rope_theta"]),
            norm_eps=raw["rms_norm_eps"],
            weight_tying=raw["tie_word_embeddings"],
        )
        axes = (jax.sharding.AxisType.Auto,) * 2
        mesh = jax.make_mesh((1, 1), ("fsdp", "tp"), axis_types=axes)
        with jax.set_mesh(mesh):
            model = weights.create_model_from_safe_tensors(folder, config, mesh, dtype=getattr(jnp, dtype))
        cache = tunix.CacheConfig(
            _up(max_length, PROMPT_STEP) + _up(max_new, NEW_STEP),
            config.num_layers,
            config.num_kv_heads,
            head_dim,
        )
        self._sampler = tunix.Sampler(model, Ids(), cache)
        self._vocabulary = raw["vocab_size"]
        self._calls = 0

    def generate(self, prompts: list[list[int]], lengths: list[int], greedy: bool = False) -> list[list[int]]:
        """Continuations in the order of the prompts."""
        padded = _up(max(map(len, prompts)), PROMPT_STEP)
        rows = max(1, LOGITS_BYTES // (4 * self._vocabulary * padded))
        batches = -(-len(prompts) // rows)
        rows = -(-len(prompts) // batches)  # as even as they can be
        order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
        done: dict[int, list[int]] = {}
        for first in range(0, len(order), rows):
            batch = order[first : first + rows]
            made = self._batch([prompts[i] for i in batch], [lengths[i] for i in batch], greedy)
            done |= dict(zip(batch, made, strict=True))
        return [done[i] for i in range(len(prompts))]

    def _batch(self, prompts: list[list[int]], lengths: list[int], greedy: bool) -> list[list[int]]:
        self._calls += 1
        texts = [" ".join(map(str, prompt)) for prompt in prompts]
        out = self._sampler(
            texts,
            max_generation_steps=_up(max(lengths), NEW_STEP),
            max_prompt_length=_up(max(map(len, prompts)), PROMPT_STEP),
            eos_tokens=[PAD],
            forbidden_tokens=[PAD],
            temperature=1.0,
            top_p=None if greedy else 1.0,
            seed=self._calls,
        )
        return [np.asarray(tokens)[:n].tolist() for tokens, n in zip(out.tokens, lengths, strict=True)]


def _up(n: int, step: int) -> int:
    return -(-n // step) * step


def main() -> None:
    compilation, generators = Compilation(), dict[tuple[int, int], Generator]()  # by what their cache holds
    loaded: dict[str, str] = {}

    def versions(_: Mapping[str, Any]) -> dict[str, Any]:
        return {"google-tunix": importlib.metadata.version("google-tunix"), "jax": jax.__version__}

    def greedy(request: Mapping[str, Any]) -> dict[str, Any]:
        prompts, new = request["prompts"], request["new"]
        exact = Generator(request["folder"], "float32", max(map(len, prompts)) + new, new)
        return {"tokens": exact.generate(prompts, [new] * len(prompts), greedy=True)}

    def load(request: Mapping[str, Any]) -> dict[str, Any]:
        """Chooses the faster dtype."""
        prompts = np.random.default_rng(0).integers(1, 256, (TRIAL_ROWS, TRIAL_PROMPT)).tolist()
        trials: dict[str, float] = {}
        for dtype in DTYPES:
            trial = Generator(request["folder"], dtype, TRIAL_PROMPT + TRIAL_NEW, TRIAL_NEW)
            for _ in range(2):  # the first compiles
                start = time.perf_counter()
                trial.generate(prompts, [TRIAL_NEW] * TRIAL_ROWS)
                trials[dtype] = time.perf_counter() - start
        loaded["dtype"] = min(DTYPES, key=trials.__getitem__)
        loaded["folder"] = request["folder"]
        return {"dtype": loaded["dtype"]} | {f"trial_{dtype}_s": s for dtype, s in trials.items()}

    def play(request: Mapping[str, Any]) -> dict[str, Any]:
        """The cache is as long as the recording needs, since every step attends to all of it."""
        recording = episodes.read(Path(request["recording"]))
        holds = recording.max_length, recording.max_response
        if holds not in generators:
            generators.clear()
            generators[holds] = Generator(**loaded, max_length=holds[0], max_new=holds[1])
        generate = generators[holds].generate
        before = compilation.seconds
        played = episodes.behind_barrier(recording, generate)
        compiling = compilation.seconds - before
        # Of the processor's time the most that compiling can have taken is subtracted.
        cores = len(os.sched_getaffinity(0))
        counted = replace(
            played, seconds=played.seconds - compiling, cpu_seconds=played.cpu_seconds - compiling * cores
        )
        return asdict(counted) | {"compile_s": compiling}

    serve({"versions": versions, "greedy": greedy, "load": load, "play": play})


if __name__ == "__main__":
    main()
