"""The sentence encoder against a NumPy network written from the papers, on random weights of a BertModel's names."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file
from scipy.special import erf

from rsipo_jax.models.encoder import encode, load_encoder
from rsipo_jax.validation import ConfigError

SIZES = {
    "model_type": "bert", "hidden_act": "gelu", "num_hidden_layers": 2, "num_attention_heads": 3, "hidden_size": 12,
    "intermediate_size": 20, "max_position_embeddings": 40, "layer_norm_eps": 1e-12, "vocab_size": 30,
}  # fmt: skip


def write_bert(folder: Path, seed: int = 0, **changes: object) -> dict[str, np.ndarray]:
    """A folder as of the hub, with random weights."""
    rng, d, f = np.random.default_rng(seed), 12, 20
    shapes = {
        "embeddings.word_embeddings.weight": (30, d), "embeddings.position_embeddings.weight": (40, d),
        "embeddings.token_type_embeddings.weight": (2, d), "embeddings.LayerNorm.weight": (d,), "embeddings.LayerNorm.bias": (d,),
    }  # fmt: skip
    for i in range(2):
        at = f"encoder.layer.{i}"
        for part in (
            "attention.self.query",
            "attention.self.key",
            "attention.self.value",
            "attention.output.dense",
        ):
            shapes |= {f"{at}.{part}.weight": (d, d), f"{at}.{part}.bias": (d,)}
        shapes |= {f"{at}.intermediate.dense.weight": (f, d), f"{at}.intermediate.dense.bias": (f,)}
        shapes |= {f"{at}.output.dense.weight": (d, f), f"{at}.output.dense.bias": (d,)}
        for part in ("attention.output.LayerNorm", "output.LayerNorm"):
            shapes |= {f"{at}.{part}.weight": (d,), f"{at}.{part}.bias": (d,)}
    tensors = {name: rng.normal(0, 0.5, shape).astype(np.float32) for name, shape in shapes.items()}
    folder.mkdir(exist_ok=True, parents=True)
    (folder / "config.json").write_text(json.dumps(SIZES | changes))
    save_file(tensors, folder / "model.safetensors")
    return tensors


def sentence_vector(t: dict[str, np.ndarray], ids: np.ndarray) -> np.ndarray:
    """One sentence alone, without batch or padding."""

    def dense(name: str, x: np.ndarray) -> np.ndarray:
        return x @ t[f"{name}.weight"].T.astype(np.float64) + t[f"{name}.bias"]

    def norm(name: str, x: np.ndarray) -> np.ndarray:
        centred = x - x.mean(-1, keepdims=True)
        return (
            centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-12) * t[f"{name}.weight"]
            + t[f"{name}.bias"]
        )

    x = t["embeddings.word_embeddings.weight"][ids] + t["embeddings.position_embeddings.weight"][: len(ids)]
    x = norm("embeddings.LayerNorm", x + t["embeddings.token_type_embeddings.weight"][0])
    for i in range(2):
        at = f"encoder.layer.{i}"
        q, k, v = (
            dense(f"{at}.attention.self.{part}", x).reshape(-1, 3, 4) for part in ("query", "key", "value")
        )
        heads = []
        for h in range(3):
            scores = q[:, h] @ k[:, h].T / 2.0
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            heads.append(weights / weights.sum(-1, keepdims=True) @ v[:, h])
        x = norm(
            f"{at}.attention.output.LayerNorm",
            x + dense(f"{at}.attention.output.dense", np.concatenate(heads, -1)),
        )
        up = dense(f"{at}.intermediate.dense", x)
        x = norm(
            f"{at}.output.LayerNorm", x + dense(f"{at}.output.dense", up * (1 + erf(up / np.sqrt(2))) / 2)
        )
    mean = x.mean(0)
    return mean / np.linalg.norm(mean)


def test_sentences_are_encoded_as_each_alone(tmp_path: Path) -> None:
    tensors = write_bert(tmp_path)
    config, params = load_encoder(tmp_path)
    rng, lengths = np.random.default_rng(1), np.asarray([1, 7, 16, 3], np.int32)
    tokens = rng.integers(0, 30, (4, 16)).astype(np.int32)
    vectors = np.asarray(encode(params, config, tokens, lengths))
    for row, n in enumerate(lengths):
        np.testing.assert_allclose(vectors[row], sentence_vector(tensors, tokens[row, :n]), atol=2e-5)


def test_what_is_no_encoder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not the folder of an encoder"):
        load_encoder(tmp_path / "none")
    write_bert(tmp_path / "roberta", model_type="roberta")
    with pytest.raises(ConfigError, match="holds a 'roberta' with activation 'gelu': they are BertModels"):
        load_encoder(tmp_path / "roberta")
    tensors = write_bert(tmp_path / "short")
    del tensors["encoder.layer.1.output.dense.bias"]
    save_file(tensors, tmp_path / "short" / "model.safetensors")
    with pytest.raises(ConfigError, match=r"lacks the tensor 'encoder\.layer\.1\.output\.dense\.bias'"):
        load_encoder(tmp_path / "short")
