"""Checkpoints on a mesh of eight devices; test_huggingface.py runs this program, in which an assertion that fails is a traceback.

python tests/models/on_eight_devices.py layouts FOLDER     FOLDER is a checkpoint
python tests/models/on_eight_devices.py write_wide FOLDER
python tests/models/on_eight_devices.py memory FOLDER      what write_wide wrote
"""

from __future__ import annotations

import collections
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from safetensors.numpy import load_file

from rsipo_jax.models import huggingface
from rsipo_jax.models.hf_export import save_checkpoint
from rsipo_jax.models.huggingface import WEIGHTS, load_params, read_config
from rsipo_jax.models.transformer import PARAM_AXES, ModelConfig, Params, init_params
from rsipo_jax.parallel.sharding import make_mesh, tree_shardings
from rsipo_jax.reports.memory import peak_host_memory

MIB = 2**20
WIDE = ModelConfig(
    vocab_size=32_000,
    hidden_size=1024,
    intermediate_size=4096,
    num_layers=4,
    num_heads=8,
    num_kv_heads=8,
    head_dim=128,
    tie_embeddings=False,
)


def layouts(folder: Path) -> None:
    """On every mesh: the layout of the table, the values of one device, each tensor read once, the same file out again."""
    config = read_config(folder, "float32", scan_layers=True)
    whole = load_params(folder, config)
    written = save(whole, config)
    sizes = {
        name: a.size for file in folder.glob("model*.safetensors") for name, a in load_file(file).items()
    }
    read = count_reads()
    for axes in ((8, 1, 1), (1, 8, 1), (1, 4, 2), (2, 2, 2)):
        mesh = make_mesh(*axes)
        with jax.set_mesh(mesh):
            read.clear()
            params = load_params(folder, config)
            assert read == sizes, axes
            assert save(params, config) == written, axes
        leaves = zip(
            *map(jax.tree.leaves, (params, whole, tree_shardings(whole, PARAM_AXES, mesh))), strict=True
        )
        for leaf, like, layout in leaves:
            assert leaf.sharding.is_equivalent_to(layout, leaf.ndim), (axes, leaf.sharding, layout)
            np.testing.assert_array_equal(leaf, like)


def count_reads() -> collections.Counter[str]:
    """Counts from now on how many elements of each tensor are read."""
    read: collections.Counter[str] = collections.Counter()
    uncounted = huggingface._read

    def counted(files: Any, name: str, part: tuple[slice, ...]) -> np.ndarray:
        values = uncounted(files, name, part)
        read[name] += values.size
        return values

    huggingface._read = counted
    return read


def save(params: Params, config: ModelConfig) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        save_checkpoint(Path(folder), params, config, "float32", 64, (0,), 0, lambda draft: None)
        return (Path(folder) / WEIGHTS).read_bytes()


def write_wide(folder: Path) -> None:
    """A bfloat16 checkpoint of 260 MB in several files."""
    values = np.random.default_rng(0).normal(size=1 << 20).astype(jnp.bfloat16)
    tree = jax.eval_shape(partial(init_params, WIDE), jax.random.key(0))
    params = jax.tree.map(lambda a: jnp.resize(values, a.shape), tree)
    save_checkpoint(folder, params, WIDE, "bfloat16", 64, (0,), 0, lambda draft: None, 50 * MIB)


def memory(folder: Path) -> None:
    """Reading a checkpoint takes little more of the host's memory than its shards."""
    config = read_config(folder, "bfloat16", scan_layers=True)
    with jax.set_mesh(make_mesh(1, 4, 2)):
        small = Path(__file__).parent / "goldens" / "qwen2-untied"
        load_params(small, read_config(small, "bfloat16", scan_layers=True), "bfloat16")
        before = peak_host_memory()
        params = load_params(folder, config, "bfloat16")
        result = sum(shard.data.nbytes for a in jax.tree.leaves(params) for shard in a.addressable_shards)
        besides = peak_host_memory() - before - result
    print(f"{result / MIB:.0f} MiB of parameters, {besides / MIB:.0f} MiB besides")
    assert result > 240 * MIB, "too little to tell"
    assert besides < 80 * MIB


if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", 8)
    {"layouts": layouts, "write_wide": write_wide, "memory": memory}[sys.argv[1]](Path(sys.argv[2]))
