"""One update and a few completions on several meshes, in a process of its own.

    python -m tests.parallel.on_devices FOLDER DEVICES MODEL/DxFxT,... [PROCESS PROCESSES PORT]

Each model on each mesh data x fsdp x tensor leaves FOLDER/<model>-<mesh>.npz with everything that was computed, whole;
the layouts are asserted here. With several processes each has DEVICES of the devices.
"""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from rsipo_jax.config import LossConfig
from rsipo_jax.models import transformer
from rsipo_jax.models.lora import add_adapters, join, split
from rsipo_jax.models.transformer import PARAM_AXES, ModelConfig, Params
from rsipo_jax.models.vocabulary import embed_tokens, token_logprobs
from rsipo_jax.parallel.sharding import (
    batch_shards,
    constrain_tree,
    make_mesh,
    sampling_mesh,
    spec,
    tree_shardings,
)
from rsipo_jax.sampling import engine as sampling
from rsipo_jax.sampling.engine import Engine
from rsipo_jax.sampling.protocol import Request, Sampling, generate
from rsipo_jax.training.packing import pack
from rsipo_jax.training.rows import rows_from
from rsipo_jax.training.state import create_state, make_optimizer
from rsipo_jax.training.update import (
    accumulate,
    apply_gradients,
    count_kinds,
    make_batch,
    no_gradients,
    place_rows,
    score,
)
from tests.models.reference import SMALL, make_params
from tests.training.trajectories import credit_of, some_trajectories

LENGTH, TEMPERATURE, ETA = 64, 0.8, 0.3
LOSS = LossConfig(kl=0.05, entropy=0.02, distill=0.4)
MODELS = {
    "plain": replace(SMALL, vocab_size=64),
    "odd-scanned": replace(
        SMALL, vocab_size=61, num_heads=12, num_kv_heads=3, scan_layers=True, tie_embeddings=False
    ),
    "adapters": replace(SMALL, vocab_size=64, scan_layers=True, remat="dots", qk_norm=True, qkv_bias=False),
}


def whole(tree: Any) -> Any:
    """Arrays laid out anyhow, as NumPy's."""
    mesh = jax.sharding.get_mesh()
    return jax.tree.map(
        np.asarray, jax.jit(lambda t: t, out_shardings=NamedSharding(mesh, PartitionSpec()))(tree)
    )


def on_mesh(mesh: Mesh, name: str, model: ModelConfig) -> dict[str, np.ndarray]:
    """Scores, gradients, sums and the parameters after one update, and sampled tokens."""
    start = make_params(model)
    if name == "adapters":
        start = add_adapters(start, 4, ("q", "o", "down"), jax.random.key(1))
        adapters, _ = split(start)
        start = join(jax.tree.map(lambda a: a + 0.05, adapters), start)
    params = jax.jit(partial(constrain_tree, names_of=PARAM_AXES))(start)
    trained, frozen = split(params)
    few = flat("few", tables_of_few_rows(model))
    optimizer = make_optimizer("adamw", 0.01, 1.0)
    state = create_state(trained, optimizer)
    assert_layout(params, mesh)
    assert_layout(state, mesh)

    rows = rows_from(some_trajectories())
    rows = replace(rows, logprobs=score(params, model, rows, LENGTH, 128, TEMPERATURE))
    scores, credit = credit_of(rows)
    members = np.arange(len(rows))
    grads, total = no_gradients(trained), None
    for micro in pack(rows.starts, members.tolist(), LENGTH, 2 * batch_shards()):
        batch = make_batch(micro, rows, scores, credit)
        assert batch.tokens.sharding.spec == spec(("batch", None), batch.tokens.shape, dict(mesh.shape))
        grads, sums = accumulate(
            trained, frozen, model, batch, count_kinds(rows, members), LOSS, ETA, TEMPERATURE, grads
        )
        total = sums if total is None else jax.tree.map(jnp.add, total, sums)
    assert_layout(grads, mesh)
    found = {**few, "scores": rows.logprobs, **flat("grads", whole(grads)), **flat("sums", whole(total))}
    state, norm = apply_gradients(state, grads, jnp.float32(1e-3), optimizer)
    assert_layout(state, mesh)
    found |= {
        "norm": np.asarray(norm),
        **flat("params", whole(state.params)),
        **flat("optimizer", whole(state.opt_state)),
    }
    if name == "adapters":  # scanned and unrolled layers alike go to the sampler
        return found | flat("completions", completions(model, join(state.params, frozen), mesh))
    return found | flat("completions", completions(model, state.params, mesh))


def completions(model: ModelConfig, params: Params, mesh: Mesh) -> dict[str, np.ndarray]:
    """Tokens sampled on the sampling mesh with weights from this one, and their log-probabilities."""
    local = sampling_mesh(min(mesh.shape["tensor"], jax.local_device_count()))
    sampling.LEAST_ROWS = 1  # the last sequences decode without the idle slots
    engine = Engine(model, local, 8, LENGTH, (5,), 0)
    engine.load(params, 7)
    assert_layout(engine._params, local)
    rng = np.random.default_rng(0)
    prompts = [rng.integers(0, model.vocab_size, n).astype(np.int32) for n in (3, 17, 40, 9, 30)]
    prompts.append(np.concatenate([prompts[4][:20], prompts[1]]))  # begins as another one does
    samplings = (Sampling(), Sampling(top_k=7), Sampling(0.7, top_p=0.8), Sampling(min_p=0.1), Sampling(0.0))
    found: dict[str, np.ndarray] = {}
    for turn in range(2):  # more prompts than slots; the second turn goes on from what the slots hold
        requests = [
            Request(p, (1, 2, i, copy, turn), 9, samplings[(i + turn) % len(samplings)])
            for copy in range(2)
            for i, p in enumerate(prompts)
        ]
        for request, done in zip(requests, generate(engine, requests), strict=True):
            name = "/".join(map(str, request.address[2:]))
            found |= {f"{name}/tokens": done.tokens, f"{name}/logprobs": done.logprobs}
            found[f"{name}/raw_logprobs"] = done.raw_logprobs
        prompts = [
            np.concatenate([p, found[f"{i}/0/{turn}/tokens"]])[: LENGTH - 9] for i, p in enumerate(prompts)
        ]
    assert engine.work.reused_tokens > 0
    heads = math.lcm(model.num_kv_heads, local.shape["tensor"])  # repeated where devices do not divide them
    for columns in jax.tree.leaves(engine._cache):
        assert columns.shape[1:3] == (8, heads), columns.shape
        wanted = NamedSharding(local, PartitionSpec(None, ("data", "fsdp"), "tensor"))
        assert columns.sharding.is_equivalent_to(wanted, 5), columns.sharding
    return found


def assert_layout(tree: Any, mesh: Mesh) -> None:
    """Every array of parameters, gradients or optimizer state lies as the table of axes says."""
    wanted = tree_shardings(tree, PARAM_AXES, mesh)

    def check(path: Any, a: jax.Array, sharding: NamedSharding) -> None:
        assert a.sharding.is_equivalent_to(sharding, a.ndim), f"{path}: {a.sharding} is not {sharding}"

    jax.tree_util.tree_map_with_path(check, tree, wanted)


def assert_activations(mesh: Mesh, model: ModelConfig) -> None:
    """The compiled network lays its named activations out as the table says."""
    seen: list[tuple[tuple, Any, Any]] = []
    constrain = transformer.constrain

    def watched(x: jax.Array, *names: str | None) -> jax.Array:
        y = constrain(x, *names)
        wanted = NamedSharding(mesh, spec(names, x.shape, dict(mesh.shape)))
        jax.debug.inspect_array_sharding(y, callback=lambda found: seen.append((names, found, wanted)))
        return y

    transformer.constrain = watched
    tokens = np.zeros((8, 16), np.int32)
    inputs = place_rows(tokens, tokens, tokens + 1)
    jax.jit(transformer.hidden_states, static_argnums=1).lower(make_params(model), model, *inputs).compile()
    transformer.constrain = constrain
    assert len(seen) == 7 * model.num_layers  # q, k, v, gate, up and two residuals a layer
    for names, found, wanted in seen:
        assert found.is_equivalent_to(wanted, len(names)), f"{names}: {found} is not {wanted}"


def tables_of_few_rows(model: ModelConfig) -> Params:
    """Gradients of the tables from rows that the mesh does not divide, so that every device has them all."""
    rng = np.random.default_rng(0)
    params = jax.jit(partial(constrain_tree, names_of=PARAM_AXES))(make_params(model))
    tokens = rng.integers(0, model.vocab_size, (3, 10)).astype(np.int32)

    @jax.jit
    def gradient(params: Params) -> Params:
        def loss(params: Params) -> jax.Array:
            hidden = embed_tokens(params, model, tokens)
            logprobs, entropy = token_logprobs(
                params, model, jnp.sin(hidden), tokens, jnp.asarray(tokens % 3 > 0)
            )
            return jnp.sum(logprobs) + jnp.sum(entropy)

        return jax.grad(loss)({name: params[name] for name in ("embed", "lm_head") if name in params})

    return whole(gradient(params))


def flat(prefix: str, tree: Any) -> dict[str, np.ndarray]:
    return {
        prefix + jax.tree_util.keystr(path): np.asarray(a)
        for path, a in jax.tree_util.tree_flatten_with_path(tree)[0]
    }


def main(
    folder: str, devices: str, cases: str, process: str = "0", processes: str = "1", port: str = ""
) -> None:
    jax.config.update("jax_num_cpu_devices", int(devices))
    if int(processes) > 1:
        jax.distributed.initialize(f"127.0.0.1:{port}", int(processes), int(process))
    for case in cases.split(","):
        name, _, sizes = case.partition("/")
        mesh = make_mesh(*map(int, sizes.split("x")))
        with jax.set_mesh(mesh):
            if name == "plain" and mesh.size > 1:
                assert_activations(mesh, MODELS[name])
            found = on_mesh(mesh, name, MODELS[name])
        if process == "0":
            np.savez(Path(folder) / f"{name}-{sizes}.npz", **found)


if __name__ == "__main__":
    main(*sys.argv[1:])
