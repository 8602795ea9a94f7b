"""Export of a run: the folder holds its policy, bit for bit, and starts another run or transformers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest
from transformers import AutoConfig, AutoTokenizer

from rsipo_jax.models import huggingface
from rsipo_jax.text.tokenizer import load_tokenizer
from rsipo_jax.training import setup
from rsipo_jax.training.export import export
from rsipo_jax.training.policies import load_policy
from rsipo_jax.validation import ConfigError
from tests.launch.launching import python
from tests.training.tiny_run import config

FILES = {
    "chat_template.jinja",
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
}


@pytest.mark.parametrize("step", [2, 1, 0])
def test_the_exported_policy_is_that_of_the_step(finished: Path, tmp_path: Path, step: int) -> None:
    export(config(), finished, step, tmp_path / "out", "float32")
    network = setup.load_network(config(), finished)
    policy = load_policy(finished, network, step)
    folder = huggingface.resolve_checkpoint(str(tmp_path / "out"))
    model = huggingface.read_config(folder, network.model.dtype, network.model.scan_layers)
    assert model == replace(network.model, remat=model.remat, attention=model.attention)
    jax.tree.map(np.testing.assert_array_equal, huggingface.load_params(folder, model), policy)
    for other in {0, 1, 2} - {step}:
        embed = load_policy(finished, network, other)["embed"]
        assert (np.asarray(embed) != np.asarray(policy["embed"])).any()


def test_the_newest_checkpoint_is_written_and_listed(finished: Path, tmp_path: Path) -> None:
    result = python("launch/export.py", f"--workdir={finished}", f"--out={tmp_path / 'a' / 'out'}")
    assert result.returncode == 0, result.stderr
    folder = tmp_path / "a" / "out"
    assert {path.name for path in folder.iterdir()} >= FILES
    assert f"step 2 of {finished}, in bfloat16" in result.stdout
    for path in folder.iterdir():
        assert f" {path.stat().st_size:,} bytes" in result.stdout and path.name in result.stdout

    network = setup.load_network(config(), finished)
    tokenizer = network.tokenizer
    assert AutoConfig.from_pretrained(folder).max_position_embeddings == config().context.max_length
    assert json.loads((folder / "generation_config.json").read_text())["eos_token_id"] == list(
        tokenizer.stop_ids
    )
    theirs, text = AutoTokenizer.from_pretrained(folder), "You open the drawer 1."
    assert theirs.encode(text, add_special_tokens=False) == tokenizer.encode(text)
    again = load_tokenizer(folder)
    assert again.opening([text]) == tokenizer.opening([text])
    prompt = theirs.apply_chat_template(
        [{"role": "user", "content": text}], add_generation_prompt=True, return_dict=False
    )
    assert prompt == [i for part in tokenizer.opening([text]) for i in part]
    assert (again.stop_ids, again.pad_id) == (tokenizer.stop_ids, tokenizer.pad_id)


def test_nothing_is_overwritten(finished: Path, tmp_path: Path) -> None:
    for name in ("folder", "file"):
        out = tmp_path / name
        (out if name == "file" else out / "mine").parent.mkdir(exist_ok=True)
        (out if name == "file" else out / "mine").write_text("mine")
        with pytest.raises(ConfigError, match=f"--out={out} is there already"):
            export(config(), finished, -1, out, "float32")
        assert (out if name == "file" else out / "mine").read_text() == "mine"


def test_a_run_without_the_policy_is_one_sentence(finished: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no checkpoint of step 7: choose --step from \[0, 1, 2\]"):
        export(config(), finished, 7, tmp_path / "out", "float32")
    (tmp_path / "run").mkdir()
    with pytest.raises(ConfigError, match="has no policy yet"):
        export(config(), tmp_path / "run", -1, tmp_path / "out", "float32")
    assert not (tmp_path / "out").exists()
