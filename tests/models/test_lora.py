"""Adapters: nothing changes when they are added, they alone are trained, merged they compute the same."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rsipo_jax.models.lora import TARGETS, add_adapters, join, merged, split
from rsipo_jax.models.transformer import LORA_A, LORA_B, PARAM_AXES, Params, cast_params, hidden_states
from rsipo_jax.models.vocabulary import logits
from rsipo_jax.validation.choices import PROJECTIONS
from tests.models.reference import SMALL, make_params

MODEL = replace(SMALL, lora_alpha=6.0)
IDS = np.random.default_rng(0).integers(0, MODEL.vocab_size, (2, 20)).astype(np.int32)
POSITIONS = np.broadcast_to(np.arange(20, dtype=np.int32), (2, 20))


def forward(params: Params) -> jax.Array:
    return logits(params, MODEL, hidden_states(params, MODEL, IDS, POSITIONS, np.ones_like(IDS)))


def adapted(targets: tuple[str, ...] = PROJECTIONS, rank: int = 3) -> Params:
    return add_adapters(make_params(MODEL), rank, targets, jax.random.key(1))


def trained_a_while(params: Params) -> Params:
    adapters, base = split(params)
    noise = np.random.default_rng(2)
    moved = jax.tree.map(lambda a: a + noise.normal(0, 0.05, a.shape).astype(np.float32), adapters)
    return join(moved, base)


def test_every_projection_can_be_named() -> None:
    assert set(TARGETS) == set(PROJECTIONS)
    layers = adapted()["layers"]
    for w in TARGETS.values():
        n, into, out = layers[w].shape
        assert (layers[w + LORA_A].shape, layers[w + LORA_B].shape) == ((n, into, 3), (n, 3, out))
        assert len(PARAM_AXES[w + LORA_A]) == len(PARAM_AXES[w + LORA_B]) == 3


def test_new_adapters_change_nothing() -> None:
    np.testing.assert_array_equal(forward(adapted()), forward(make_params(MODEL)))


@pytest.mark.parametrize("target", PROJECTIONS)
def test_a_trained_adapter_adds_its_product(target: str) -> None:
    params = trained_a_while(adapted((target,)))
    layers, w = params["layers"], TARGETS[target]
    product = np.einsum("nir,nro->nio", layers[w + LORA_A], layers[w + LORA_B])
    by_hand = make_params(MODEL)
    by_hand["layers"][w] = by_hand["layers"][w] + 6.0 / 3 * product
    found, wanted = forward(params), forward(by_hand)
    np.testing.assert_allclose(found, wanted, atol=1e-4, rtol=1e-4)
    assert np.abs(np.asarray(found - forward(make_params(MODEL)))).max() > 0.01
    by_layer = [merged({k: v[i] for k, v in layers.items()}, w, MODEL) for i in range(MODEL.num_layers)]
    by_hand["layers"][w] = jnp.stack(by_layer)
    np.testing.assert_allclose(forward(by_hand), found, atol=1e-4, rtol=1e-4)


def test_what_is_split_is_joined_again_without_a_copy() -> None:
    params = adapted(("q", "down"))
    trained, frozen = split(params)
    assert set(trained) == {"layers"} and set(trained["layers"]) == {
        w + part for w in ("wq", "w_down") for part in (LORA_A, LORA_B)
    }
    again = join(trained, frozen)
    assert jax.tree.structure(again) == jax.tree.structure(params)
    assert all(a is b for a, b in zip(jax.tree.leaves(again), jax.tree.leaves(params), strict=True))


def test_without_adapters_everything_is_trained() -> None:
    params = make_params(MODEL)
    trained, frozen = split(params)
    assert trained is params and frozen == {}
    assert merged(params["layers"], "wq", MODEL) is params["layers"]["wq"]
    assert jax.tree.leaves(join(trained, frozen)) == jax.tree.leaves(params)


def test_gradients_reach_the_adapters_of_every_layer() -> None:
    trained, frozen = split(trained_a_while(adapted()))
    loss = jax.jit(lambda t: jnp.sum(jnp.sin(forward(join(t, frozen)))))
    for name, grad in jax.grad(loss)(trained)["layers"].items():
        assert np.all(np.abs(np.asarray(grad)).max(axis=(1, 2)) > 0), name


def test_parameters_in_the_compute_dtype_compute_the_same_numbers() -> None:
    half = replace(MODEL, dtype="bfloat16")
    params = make_params(MODEL)
    run = jax.jit(
        partial(hidden_states, config=half, tokens=IDS, positions=POSITIONS, segment_ids=np.ones_like(IDS))
    )
    np.testing.assert_array_equal(run(params), run(cast_params(params, "bfloat16")))
