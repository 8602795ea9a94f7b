"""The network against transformers: logits and greedy continuations, stored and (where torch is) made anew.

`goldens/` is what `make_goldens.py` writes, and says what is in it.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

from rsipo_jax.models.huggingface import load_params, read_config
from rsipo_jax.models.transformer import ModelConfig, Params, hidden_states, init_params, rope_frequencies
from rsipo_jax.models.vocabulary import logits
from rsipo_jax.parallel.sharding import sampling_mesh
from rsipo_jax.sampling.engine import Engine
from rsipo_jax.sampling.protocol import Request, Sampling, generate
from rsipo_jax.text.tokenizer import load_tokenizer

HERE = Path(__file__).parent
GOLDENS = HERE / "goldens"
NAMES = ("qwen2-tied", "qwen2-untied", "qwen3", "llama", "llama3")
TOLERANCE = 1e-4
PACKED_START = 116  # the packed rows cross the edge of an attention block at 128
NO_TORCH = "torch is not installed here; `make goldens` runs this where it is"

Golden = dict[str, np.ndarray]


def golden(name: str, folder: Path = GOLDENS) -> Golden:
    return load_file(folder / name / "expected.safetensors")


def rows_of(flat: np.ndarray, lengths: np.ndarray) -> list[np.ndarray]:
    return np.split(flat, np.cumsum(lengths)[:-1])


def padded(rows: list[np.ndarray]) -> tuple[np.ndarray, ...]:
    """Tokens, positions, segments and the rows' own places [rows, longest] of a batch padded on the right."""
    width = max(map(len, rows))
    own = np.arange(width)[None] < np.array([len(row) for row in rows])[:, None]
    tokens = np.stack([np.pad(row, (0, width - len(row))) for row in rows])
    return tokens, np.broadcast_to(np.arange(width), own.shape), own.astype(np.int32), own


def packed(rows: list[np.ndarray]) -> tuple[np.ndarray, ...]:
    """As `padded`, for one row [1, T] that holds every row after some padding."""
    before, after = np.zeros(PACKED_START, np.int32), np.zeros(7, np.int32)
    tokens = np.concatenate([before, *rows, after])
    positions = np.concatenate([before, *(np.arange(len(row)) for row in rows), after])
    segments = np.concatenate([before, *(np.full(len(row), i + 1) for i, row in enumerate(rows)), after])
    return tokens[None], positions[None], segments[None], segments[None] > 0


Batch = Callable[[list[np.ndarray]], tuple[np.ndarray, ...]]


def our_logits(params: Params, config: ModelConfig, expected: Golden, batch: Batch) -> np.ndarray:
    """Of the golden's tokens, end to end."""
    tokens, positions, segments, own = batch(rows_of(expected["tokens"], expected["lengths"]))

    @jax.jit
    def forward(params: Params, *inputs: jax.Array) -> jax.Array:
        return logits(params, config, hidden_states(params, config, *inputs))

    inputs = (jnp.asarray(x, jnp.int32) for x in (tokens, positions, segments))
    return np.asarray(forward(params, *inputs))[own]


def difference(folder: Path, expected: Golden, batch: Batch, scan_layers: bool) -> float:
    """The largest, of our logits of the checkpoint in `folder` from the expected ones."""
    config = read_config(folder, "float32", scan_layers)
    ours = our_logits(load_params(folder, config), config, expected, batch)
    return float(np.abs(ours - expected["logits"]).max())


def our_continuations(
    params: Params, config: ModelConfig, expected: Golden, stop_ids: tuple[int, ...]
) -> np.ndarray:
    """The sampler's, of all prompts together at temperature 0, with -1 after the last token."""
    prompts = rows_of(expected["prompts"], expected["prompt_lengths"])
    new = expected["continuations"].shape[1]
    longest = max(map(len, prompts)) + new
    engine = Engine(config, sampling_mesh(1), len(prompts), longest, stop_ids, seed=0)
    engine.load(params, 0)
    greedy = Sampling(temperature=0.0)
    requests = [Request(prompt, (0, 0, 0, i, 0), new, greedy) for i, prompt in enumerate(prompts)]
    out = [completion.tokens for completion in generate(engine, requests)]
    return np.stack([np.pad(tokens, (0, new - len(tokens)), constant_values=-1) for tokens in out])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("batch", "scan_layers"), [(padded, True), (packed, False)])
def test_logits_equal_torchs(name: str, batch: Batch, scan_layers: bool) -> None:
    assert difference(GOLDENS / name, golden(name), batch, scan_layers) < TOLERANCE


@pytest.mark.parametrize("name", NAMES)
def test_greedy_continuations_equal_transformers(name: str) -> None:
    config, expected = read_config(GOLDENS / name, "float32", scan_layers=True), golden(name)
    ours = our_continuations(load_params(GOLDENS / name, config), config, expected, stop_ids=())
    np.testing.assert_array_equal(ours, expected["continuations"])


@pytest.mark.parametrize("name", NAMES)
def test_parameters_have_the_tree_of_a_fresh_network(name: str) -> None:
    config = read_config(GOLDENS / name, "bfloat16", scan_layers=True)
    fresh = jax.eval_shape(partial(init_params, config), jax.random.key(0))
    loaded, wanted = (
        jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), tree)
        for tree in (load_params(GOLDENS / name, config), fresh)
    )
    assert loaded == wanted


def test_a_pretrained_network_computes_what_it_does_in_transformers(smollm2: Path) -> None:
    """SmolLM2-135M-Instruct: logits of texts, padded and packed, and its answers to chat prompts."""
    config, expected = read_config(smollm2, "float32", scan_layers=True), golden("smollm2")
    params = load_params(smollm2, config)
    for batch in (padded, packed):
        ours = our_logits(params, config, expected, batch)
        np.testing.assert_allclose(ours[:, expected["some"]], expected["logits"], rtol=0, atol=TOLERANCE)
        np.testing.assert_array_equal(ours.argmax(axis=1), expected["best"])
        every = np.logaddexp.reduce(ours, axis=1)
        np.testing.assert_allclose(every, expected["logsumexp"], rtol=0, atol=TOLERANCE)

    tokenizer = load_tokenizer(smollm2)
    answers = our_continuations(params, config, expected, tokenizer.stop_ids)
    np.testing.assert_array_equal(answers, expected["continuations"])
    assert tokenizer.decode(answers[0][answers[0] >= 0].tolist()) == "The capital of France is Paris."


def test_llama_3s_frequencies_equal_transformers(tmp_path: Path) -> None:
    """Those of Llama-3.1-8B."""
    pytest.importorskip("torch", reason=NO_TORCH)
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    rope = {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0}
    rope |= {"high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
    theirs = LlamaConfig(
        intermediate_size=14336, num_key_value_heads=8, rope_parameters=rope, max_position_embeddings=1 << 17
    )
    theirs.save_pretrained(tmp_path)
    ours = rope_frequencies(read_config(tmp_path, "float32", scan_layers=True))
    frequencies = LlamaRotaryEmbedding(theirs).inv_freq.numpy()
    np.testing.assert_allclose(ours, frequencies, rtol=1e-6)
    assert ours[0] == 1 and ours[-1] < 5e5 ** (-126 / 128) / 7


def equal_to_the_stored(new: Path, names: list[str]) -> None:
    """Golden checkpoints and what is expected of them, up to the rounding of another version of torch."""
    stored, made = (
        sorted(path.relative_to(root) for name in names for path in (root / name).glob("*.safetensors"))
        for root in (GOLDENS, new)
    )
    assert stored == made
    for path in stored:
        old, new_tensors = load_file(GOLDENS / path), load_file(new / path)
        assert old.keys() == new_tensors.keys()
        for tensor in old:
            within = TOLERANCE / 10 if tensor in ("logits", "logsumexp") else 0
            np.testing.assert_allclose(new_tensors[tensor], old[tensor], rtol=0, atol=within)


def test_goldens_made_anew_equal_the_stored_ones(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason=NO_TORCH)
    subprocess.run([sys.executable, str(HERE / "make_goldens.py"), str(tmp_path)], check=True)
    equal_to_the_stored(tmp_path, list(NAMES))
    for name in NAMES:
        assert difference(tmp_path / name, golden(name, tmp_path), packed, scan_layers=True) < TOLERANCE


def test_the_pretrained_golden_made_anew_equals_the_stored_one(tmp_path: Path, request: Any) -> None:
    pytest.importorskip("torch", reason=NO_TORCH)
    smollm2 = request.getfixturevalue("smollm2")
    program = [sys.executable, str(HERE / "make_goldens.py"), str(tmp_path), str(smollm2)]
    subprocess.run(program, check=True)
    equal_to_the_stored(tmp_path, ["smollm2"])
