"""The network once more, one sequence at a time in float64 numpy: what the fast versions are held against."""

from __future__ import annotations

import jax
import numpy as np

from rsipo_jax.models.transformer import ModelConfig, Params, init_params

SMALL = ModelConfig(
    vocab_size=61,
    hidden_size=32,
    intermediate_size=48,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    scan_layers=False,
)


def make_params(config: ModelConfig, seed: int = 0) -> Params:
    """Parameters of which every part matters: no bias is zero and no norm is one."""
    rng = np.random.default_rng(seed)
    fresh = init_params(config, jax.random.key(seed))
    return jax.tree.map(lambda a: a + rng.normal(0, 0.1, a.shape).astype(np.float32), fresh)


def logits(params: Params, config: ModelConfig, tokens: np.ndarray) -> np.ndarray:
    """Logits [T, V] of one sequence of ids [T]."""
    c = config
    p = jax.tree.map(lambda a: np.asarray(a, np.float64), params)
    length = len(tokens)
    x = p["embed"][tokens]
    for i in range(c.num_layers):
        w = {name: stack[i] for name, stack in p["layers"].items()}
        y = _norm(x, w["input_norm"], c.rms_norm_eps)
        q, k, v = (
            (y @ w[f"w{n}"] + w.get(f"b{n}", 0)).reshape(length, -1, c.head_dim).swapaxes(0, 1) for n in "qkv"
        )
        if c.qk_norm:
            q, k = _norm(q, w["q_norm"], c.rms_norm_eps), _norm(k, w["k_norm"], c.rms_norm_eps)
        q, k = _rotate(q, c.rope_theta), _rotate(k, c.rope_theta)
        heads = []
        for h in range(c.num_heads):
            shared = h // (c.num_heads // c.num_kv_heads)
            scores = q[h] @ k[shared].T / np.sqrt(c.head_dim)
            scores[np.triu_indices(length, 1)] = -np.inf
            heads.append(softmax(scores) @ v[shared])
        x = x + np.concatenate(heads, axis=-1) @ w["wo"]
        y = _norm(x, w["post_norm"], c.rms_norm_eps)
        gate = y @ w["w_gate"]
        x = x + (gate / (1 + np.exp(-gate)) * (y @ w["w_up"])) @ w["w_down"]
    table = p["embed"] if c.tie_embeddings else p["lm_head"]
    return _norm(x, p["final_norm"], c.rms_norm_eps) @ table.T


def token_logprobs(
    params: Params, config: ModelConfig, tokens: np.ndarray, temperature: float = 1.0
) -> np.ndarray:
    """Log-probability of each token [T] given those before it; 0 for the first, which nothing predicts."""
    log_p = np.log(softmax(logits(params, config, tokens[:-1]) / temperature))
    return np.concatenate([[0.0], log_p[np.arange(len(tokens) - 1), tokens[1:]]])


def softmax(x: np.ndarray) -> np.ndarray:
    y = np.exp(x - x.max(axis=-1, keepdims=True))
    return y / y.sum(axis=-1, keepdims=True)


def _norm(x: np.ndarray, scale: np.ndarray, eps: float) -> np.ndarray:
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * scale


def _rotate(x: np.ndarray, theta: float) -> np.ndarray:
    """Pairs (i, i + h/2) of x [heads, T, h] turned by t * theta^(-2i/h), as complex numbers."""
    half = x.shape[-1] // 2
    turn = np.exp(1j * np.outer(np.arange(x.shape[1]), theta ** (-np.arange(half) / half)))
    z = (x[..., :half] + 1j * x[..., half:]) * turn
    return np.concatenate([z.real, z.imag], axis=-1)
