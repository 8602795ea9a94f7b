"""Hugging Face checkpoints of Qwen2, Qwen3 and Llama (SmolLM2) as our configuration and parameters.

Whatever a checkpoint asks of transformers and this network would compute otherwise is refused, never ignored. Tensors
are read part by part into the shards of the current mesh, so a host never holds a whole model that its devices share.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from safetensors import SafetensorError, safe_open

from rsipo_jax.models.transformer import PARAM_AXES, Llama3Rope, ModelConfig, Params, init_params
from rsipo_jax.parallel.sharding import tree_shardings

# What tells the families apart in our network.
FAMILIES: Mapping[str, Mapping[str, Any]] = {
    "qwen2": {"qkv_bias": True, "qk_norm": False},
    "qwen3": {"qkv_bias": False, "qk_norm": True},
    "llama": {"qkv_bias": False, "qk_norm": False},
}
# Optional fields that change what transformers computes, with the one value of each that this network computes.
FIXED: Mapping[str, Any] = {
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "attention_dropout": 0,
    "is_causal": True,
    "partial_rotary_factor": 1,
    "quantization_config": None,
    "per_layer_config": {},  # sizes and switches of single layers
    "attention_chunk_size": None,  # transformers' cache would keep no more of the past
}
QWEN3_HEAD_DIM = 128  # where a config leaves it out; elsewhere hidden_size / num_attention_heads

# Our leaves by their names in a checkpoint. Matrices are stored [out, in] there and [in, out] here.
TOP_LEVEL: Mapping[str, str] = {
    "embed": "model.embed_tokens.weight",
    "final_norm": "model.norm.weight",
    "lm_head": "lm_head.weight",
}
IN_LAYER: Mapping[str, str] = {
    "input_norm": "input_layernorm.weight",
    "wq": "self_attn.q_proj.weight",
    "wk": "self_attn.k_proj.weight",
    "wv": "self_attn.v_proj.weight",
    "bq": "self_attn.q_proj.bias",
    "bk": "self_attn.k_proj.bias",
    "bv": "self_attn.v_proj.bias",
    "q_norm": "self_attn.q_norm.weight",
    "k_norm": "self_attn.k_norm.weight",
    "wo": "self_attn.o_proj.weight",
    "post_norm": "post_attention_layernorm.weight",
    "w_gate": "mlp.gate_proj.weight",
    "w_up": "mlp.up_proj.weight",
    "w_down": "mlp.down_proj.weight",
}
ROTARY_TABLE = "rotary_emb.inv_freq"  # old Llama checkpoints store it, though rope_theta already says it
LLAMA3_ROPE = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
ROWS = 4096  # of two matrices that are compared
DTYPES = ("F32", "BF16", "F16")  # safetensors' names; all three are exact in float32

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
HUB_FILES = ("*.json", "model*.safetensors", "tokenizer*", "merges.txt", "chat_template*")


class CheckpointError(ValueError):
    """A checkpoint cannot be used; the message is one sentence with the file, what is wrong in it and the fix."""


def resolve_checkpoint(name: str) -> Path:
    """The folder of a checkpoint: `name` itself if it is one, else the local copy of that hub id, fetched once.

    Raises CheckpointError when there is neither.
    """
    folder = Path(name).expanduser()
    if folder.is_dir():
        return folder
    from huggingface_hub import snapshot_download  # runs on a local folder never need it

    try:
        return Path(snapshot_download(name, allow_patterns=list(HUB_FILES)))
    except (OSError, ValueError) as error:  # offline, refused, unknown, or not even shaped like a hub id
        raise CheckpointError(
            f"config.model.checkpoint={name!r} is no local folder and cannot be fetched from the Hugging Face hub "
            f"({_first_line(error)}): download it elsewhere and set config.model.checkpoint to its folder"
        ) from error


def read_config(folder: Path, dtype: str, scan_layers: bool) -> ModelConfig:
    """Our configuration of the checkpoint in `folder`, from its `config.json`; `dtype` is the compute dtype.

    Reads both spellings of the rotary settings, transformers 5's `rope_parameters` and the earlier `rope_theta`.
    Fields left out have transformers' defaults. Raises CheckpointError for the first field this network cannot honour.
    """
    path = folder / "config.json"
    raw = _read_json(path)
    family = raw.get("model_type")
    if family not in tuple(FAMILIES):
        raise _unsupported(path, "model_type", family, " or ".join(FAMILIES))
    for field, value in FIXED.items():
        ignored = (family, field) == ("qwen2", "attention_bias")  # it has what FAMILIES says
        if not ignored and raw.get(field) not in (None, value):
            raise _unsupported(path, field, raw[field], json.dumps(value))

    num_layers = _size(path, raw, "num_hidden_layers")
    _check_full_attention(path, raw, family, num_layers)
    rope_theta, rope_scaling = _rope(path, raw)
    hidden_size, num_heads = _size(path, raw, "hidden_size"), _size(path, raw, "num_attention_heads")
    num_kv_heads = _size(path, raw, "num_key_value_heads", num_heads)
    if num_heads % num_kv_heads:
        raise _unsupported(path, "num_key_value_heads", num_kv_heads, f"a divisor of {num_heads} heads")
    head_dim = _size(path, raw, "head_dim", QWEN3_HEAD_DIM if family == "qwen3" else hidden_size // num_heads)
    if head_dim % 2:
        raise _unsupported(path, "head_dim", head_dim, "an even width")
    return ModelConfig(
        vocab_size=_size(path, raw, "vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=_size(path, raw, "intermediate_size"),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        rope_theta=rope_theta,
        rope_scaling=rope_scaling,
        rms_norm_eps=_positive(path, "rms_norm_eps", raw.get("rms_norm_eps", 1e-6)),
        tie_embeddings=_switch(path, raw, "tie_word_embeddings"),
        dtype=dtype,
        scan_layers=scan_layers,
        **FAMILIES[family],
    )


def max_position_embeddings(folder: Path) -> int:
    """Tokens that the checkpoint in `folder` is good for, as its config.json says. Nothing here depends on it."""
    path = folder / "config.json"
    return _size(path, _read_json(path), "max_position_embeddings")


def load_params(folder: Path, config: ModelConfig, dtype: str = "float32") -> Params:
    """The parameters of the checkpoint in `folder`: the tree of `init_params`, laid out on the current mesh.

    Norm scales are float32, everything else is `dtype` ("float32" or "bfloat16", in which a bfloat16 checkpoint stays bit
    for bit what it is). Without a mesh all is on JAX's default device. Reads `model.safetensors`, or the files that
    `model.safetensors.index.json` names: besides the result a host holds one shard of one leaf, and what it reads of one
    stored tensor. Raises CheckpointError when tensors are missing, left over, of another shape than `config` says or of
    a type that is no plain float.
    """
    tree = jax.eval_shape(partial(init_params, config), jax.random.key(0))
    files = _tensor_files(folder)
    _check_tensors(folder, files, _stored_shapes(tree, config))
    if config.tie_embeddings:
        _check_shared_head(folder, files, config)

    mesh = jax.sharding.get_mesh()
    layout = {} if mesh.empty else tree_shardings(tree, PARAM_AXES, mesh)

    def leaf(path: Sequence[Any], like: jax.ShapeDtypeStruct) -> jax.Array:
        name = path[-1].key
        read = partial(_read_part, files, name, like.shape, jnp.dtype("float32" if "norm" in name else dtype))
        if mesh.empty:
            return jnp.asarray(read((slice(None),) * like.ndim))
        return _sharded(like.shape, (layout if name in TOP_LEVEL else layout["layers"])[name], read)

    return jax.tree_util.tree_map_with_path(leaf, tree)


def _read_part(
    files: Mapping[str, Path], leaf: str, shape: Sequence[int], dtype: np.dtype, part: tuple[slice, ...]
) -> np.ndarray:
    """A part of a leaf of that shape, given by a slice of each of its dimensions."""
    if leaf in TOP_LEVEL:
        return _read(files, TOP_LEVEL[leaf], part).astype(dtype, copy=False)
    sizes = [len(range(*cut.indices(size))) for cut, size in zip(part, shape, strict=True)]
    stack = np.empty(sizes, dtype)
    for i, layer in enumerate(range(*part[0].indices(shape[0]))):
        stack[i] = _read(files, in_layer(layer, leaf), part[:0:-1]).T
    return stack


def _read(files: Mapping[str, Path], name: str, part: tuple[slice, ...]) -> np.ndarray:
    """A part of a stored tensor. Its file is mapped for this read only: what was read of it would stay in memory."""
    with safe_open(files[name], framework="numpy") as file:
        return file.get_slice(name)[part]


def _sharded(
    shape: tuple[int, ...], layout: NamedSharding, read: Callable[[tuple[slice, ...]], np.ndarray]
) -> jax.Array:
    """An array laid out like that, from its parts: each is read once, whichever devices hold it, one after the other."""
    holders: dict[tuple, list[Any]] = {}
    for device, part in layout.addressable_devices_indices_map(shape).items():
        ends = tuple(cut.indices(size)[:2] for cut, size in zip(part or (), shape, strict=True))
        holders.setdefault(ends, []).append(device)
    shards: list[jax.Array] = []
    for ends, devices in holders.items():
        values = read(tuple(slice(*cut) for cut in ends))
        # The next part is not read before this one has arrived: a transfer keeps its source.
        shards += jax.block_until_ready([jax.device_put(values, device) for device in devices])
    return jax.make_array_from_single_device_arrays(shape, layout, shards)


def _windowless_layers(path: Path, raw: Mapping[str, Any]) -> int:
    """How many of the first layers attend to everything although a window is in use."""
    value = raw.get("max_window_layers") or 0
    if type(value) is not int:
        raise _unsupported(path, "max_window_layers", value, "a whole number")
    return value


def _check_full_attention(path: Path, raw: Mapping[str, Any], family: str, num_layers: int) -> None:
    """Refuses sliding windows, which transformers turns on by `layer_types` or by the three fields it replaced.

    Llama has only one of them, and that only cuts the cache: generating would differ from scoring.
    """
    if family == "llama" and raw.get("sliding_window") is not None:
        raise _unsupported(path, "sliding_window", raw["sliding_window"], "null")
    kinds = raw.get("layer_types") or []
    for kind in kinds if isinstance(kinds, list) else [kinds]:
        if kind != "full_attention":
            raise _unsupported(path, "layer_types", kind, '"full_attention" in every layer')
    window = raw.get("sliding_window", "the default")  # null switches it off, leaving it out does not
    used = raw.get("use_sliding_window") and window is not None
    if used and raw.get("layer_types") is None and _windowless_layers(path, raw) < num_layers:
        raise _unsupported(path, "use_sliding_window", raw["use_sliding_window"], "false")


def _rope(path: Path, raw: Mapping[str, Any]) -> tuple[float, Llama3Rope | None]:
    """The base of the rotary embedding and Llama 3's scaling of it, if any. Refuses every other variant."""
    field = "rope_scaling" if raw.get("rope_scaling") else "rope_parameters"  # transformers' precedence
    rope = raw.get(field) or {}
    if not isinstance(rope, Mapping):
        raise _unsupported(path, field, rope, "a mapping")
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind not in ("default", "llama3"):
        raise _unsupported(path, f"{field}.rope_type", kind, '"default" or "llama3"')
    names = LLAMA3_ROPE if kind == "llama3" else ()
    for name in rope.keys() - {"rope_type", "type", "rope_theta", *names}:
        if rope[name] is not None and (name, rope[name]) != ("partial_rotary_factor", 1):
            raise _unsupported(path, f"{field}.{name}", rope[name], "a rope without it")
    theta = _positive(path, "rope_theta", rope.get("rope_theta", raw.get("rope_theta", 10_000.0)))
    if kind == "default":
        return theta, None

    # transformers looks for the trained length beside the mapping first, and falls back on the model's.
    trained = raw.get(LLAMA3_ROPE[3], rope.get(LLAMA3_ROPE[3], raw.get("max_position_embeddings")))
    trained = _size(path, {LLAMA3_ROPE[3]: trained}, LLAMA3_ROPE[3])
    factor, low, high = (_positive(path, f"{field}.{name}", rope.get(name)) for name in LLAMA3_ROPE[:3])
    if low >= high:
        raise _unsupported(path, f"{field}.low_freq_factor", low, f"less than high_freq_factor={high}")
    return theta, Llama3Rope(factor, low, high, trained)


def _size(path: Path, raw: Mapping[str, Any], field: str, default: int | None = None) -> int:
    value = default if raw.get(field) is None else raw[field]
    if type(value) is not int or value < 1:
        raise _unsupported(path, field, value, "a whole number above 0")
    return value


def _switch(path: Path, raw: Mapping[str, Any], field: str) -> bool:
    value = raw.get(field, False)
    if type(value) is not bool:
        raise _unsupported(path, field, value, "true or false")
    return value


def _positive(path: Path, field: str, value: object) -> float:
    if type(value) not in (int, float) or not 0 < value < math.inf:  # type: ignore[operator]
        raise _unsupported(path, field, value, "a finite number above 0")
    return float(value)  # type: ignore[arg-type]


def _unsupported(path: Path, field: str, value: object, supported: str) -> CheckpointError:
    return CheckpointError(
        f"{path} has {field}={json.dumps(value)}, but only {supported} is supported: "
        "set config.model.checkpoint to another checkpoint"
    )


def in_layer(i: int, leaf: str) -> str:
    """The name in a checkpoint of layer i's part of a leaf."""
    return f"model.layers.{i}.{IN_LAYER[leaf]}"


def _stored_shapes(tree: Params, config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor that a checkpoint must hold for a tree of that shape."""
    shapes = {TOP_LEVEL[leaf]: tree[leaf].shape for leaf in tree.keys() - {"layers"}}
    for leaf, stack in tree["layers"].items():
        shapes |= {in_layer(i, leaf): stack.shape[:0:-1] for i in range(config.num_layers)}
    return shapes


def _tensor_files(folder: Path) -> dict[str, Path]:
    """Every tensor's name with the safetensors file that holds it."""
    files: dict[str, Path] = {}
    for path in _weight_files(folder):
        try:
            with safe_open(path, framework="numpy") as file:
                files |= dict.fromkeys(file.keys(), path)
        except (SafetensorError, OSError) as error:
            raise CheckpointError(
                f"{path} cannot be read as safetensors ({_first_line(error)}): fetch this file again"
            ) from error
    return files


def _weight_files(folder: Path) -> list[Path]:
    whole, index = folder / WEIGHTS, folder / INDEX
    if whole.is_file():
        return [whole]
    if not index.is_file():
        raise CheckpointError(
            f"{folder} holds neither {whole.name} nor {index.name}, and no other format is read: "
            "set config.model.checkpoint to a folder with safetensors"
        )
    shards = _read_json(index).get("weight_map")
    if not isinstance(shards, Mapping) or not all(s == Path(str(s)).name for s in shards.values()):
        raise CheckpointError(
            f"{index} has no weight_map from tensors to files beside it: fetch this file again"
        )
    return [folder / name for name in sorted(set(shards.values()))]


def _check_tensors(folder: Path, files: Mapping[str, Path], shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Checks names, shapes and types against `shapes`, before any data is read."""
    allowed = shapes.keys() | {TOP_LEVEL["lm_head"]}  # tied checkpoints may hold the shared matrix twice
    missing = sorted(shapes.keys() - files.keys())
    left_over = sorted(name for name in files.keys() - allowed if not name.endswith(ROTARY_TABLE))
    for problem, names in (("lack", missing), ("hold unexpected", left_over)):
        if names:
            raise CheckpointError(
                f"the safetensors in {folder} {problem} tensors for its config.json ({_some(names)}): "
                "set config.model.checkpoint to a complete causal language model"
            )
    head, embed = TOP_LEVEL["lm_head"], TOP_LEVEL["embed"]
    wanted = {head: shapes[embed], **shapes}
    for name, found, kind in _stored(files):
        if name in wanted and found != wanted[name]:
            raise CheckpointError(
                f"{name} in {folder} has the shape {found}, but its config.json asks for {wanted[name]}: "
                "fetch both files from the same checkpoint"
            )
        if name in allowed and kind not in DTYPES:
            raise CheckpointError(
                f"{name} in {folder} has the type {kind}, but only {', '.join(DTYPES)} are supported: "
                "set config.model.checkpoint to a checkpoint that is not quantised"
            )


def _stored(files: Mapping[str, Path]) -> Iterator[tuple[str, tuple[int, ...], str]]:
    """Name, shape and type of every tensor."""
    for path in dict.fromkeys(files.values()):
        with safe_open(path, framework="numpy") as file:
            for name in file.keys():  # noqa: SIM118  # it is no mapping
                found = file.get_slice(name)
                yield name, tuple(found.get_shape()), found.get_dtype()


def _check_shared_head(folder: Path, files: Mapping[str, Path], config: ModelConfig) -> None:
    """Refuses a tied checkpoint that holds another output matrix beside its embedding."""
    head, embed = TOP_LEVEL["lm_head"], TOP_LEVEL["embed"]
    if head not in files:
        return
    for first in range(0, config.vocab_size, ROWS):
        part = (slice(first, min(first + ROWS, config.vocab_size)), slice(None))
        if not np.array_equal(_read(files, head, part), _read(files, embed, part)):
            raise CheckpointError(
                f"{head} in {folder} differs from {embed}, but its config.json has tie_word_embeddings=true: "
                "set that to false there"
            )


def _some(names: list[str]) -> str:
    rest = len(names) - 2
    return ", ".join(names[:2]) + (f" and {rest} more" if rest > 0 else "")


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise CheckpointError(
            f"{path.parent} holds no {path.name}: set config.model.checkpoint to a Hugging Face checkpoint's folder"
        ) from error
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} is not JSON ({_first_line(error)}): fetch this file again") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} is not a JSON object: fetch this file again")
    return content


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
