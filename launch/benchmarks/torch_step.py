"""One optimizer update of the RL loss as torch and transformers do it plainly: what `--suite=train` compares with.

Run by a Python that has torch, and by launch/benchmarks/train.py only: requests come as JSON lines on stdin, answers go
as JSON lines to stdout, weights and rows lie in a folder. Plain means: rows in their order, padded at the right to the
longest of their micro-batch; transformers' own model and attention; autocast where the compute dtype is bfloat16 (the
parameters stay float32); a loss written as in the paper; torch's AdamW.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch  # type: ignore[import-not-found]  # it has an environment of its own
import transformers

CONTEXT, ACTION, SKILL = 0, 1, 2  # as in rsipo_jax/training/rows.py, which this environment cannot import
MAX_LOG_RATIO = 20.0  # as in rsipo_jax/methods/losses.py


def make_weights(folder: Path) -> None:
    """Fresh weights of the network that `folder`/config.json describes, written beside it."""
    torch.manual_seed(0)
    config = transformers.AutoConfig.from_pretrained(folder)
    transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(folder)


class Trainer:
    """The network in `folder` with its optimizer, and the rows of rows.npz beside it.

    `settings`: dtype (the compute dtype's name), micro_rows, temperature, eta, learning_rate, weight_decay, grad_clip,
    and `loss`, a LossConfig as a mapping.
    """

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        self.settings = settings
        self.dtype = getattr(torch, settings["dtype"])
        self.model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).train()
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(),
            lr=settings["learning_rate"],
            betas=(0.9, 0.999),
            eps=1e-8,
            weight_decay=settings["weight_decay"],
        )
        with np.load(folder / "rows.npz") as arrays:
            flat = {name: arrays[name] for name in arrays.files}
        starts = flat.pop("starts")
        self.rows = [
            {name: torch.from_numpy(array[a:b]) for name, array in flat.items()} for a, b in pairwise(starts)
        ]
        # One denominator each for the whole mini-batch, at least 1.
        self.totals = {kind: max(int((flat["kind"] == kind).sum()), 1) for kind in (ACTION, SKILL)}

    def update(self) -> dict[str, float]:
        """One update. Returns its seconds, loss, gradient norm before clipping, and tokens including padding."""
        start = time.perf_counter()
        loss, padded, k = 0.0, 0, self.settings["micro_rows"]
        for first in range(0, len(self.rows), k):
            batch = _pad(self.rows[first : first + k])
            part = self._loss(batch)
            part.backward()
            loss += part.item()
            padded += batch["tokens"].numel()
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.settings["grad_clip"]).item()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return {
            "seconds": time.perf_counter() - start,
            "loss": loss,
            "grad_norm": norm,
            "padded_tokens": padded,
        }

    def _loss(self, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """This micro-batch's part of the loss: `rl_loss` of rsipo_jax/training/update.py, token for token."""
        cfg, tokens = self.settings["loss"], batch["tokens"]
        with torch.autocast("cpu", self.dtype, enabled=self.dtype != torch.float32):
            logits = self.model(input_ids=tokens, attention_mask=batch["real"], use_cache=False).logits
        log_p = torch.log_softmax(logits[:, :-1].float() / self.settings["temperature"], dim=-1)
        new = log_p.gather(-1, tokens[:, 1:, None]).squeeze(-1)
        # The first token of a row has no prediction, and is never a sampled one.
        old, ref, teacher, advantages, trust, kind = (
            batch[name][:, 1:] for name in ("old", "ref", "teacher", "advantages", "trust", "kind")
        )
        gap = (teacher - old).clamp(-cfg["distill_clip"], cfg["distill_clip"])
        hybrid = torch.where(trust > 0, advantages + cfg["distill"] * trust * gap, advantages)

        ratio = torch.exp((new - old).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO))
        x = (ref - new).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
        kl = (torch.exp(x) - x - 1).clamp(-10, 10)

        def surrogate(advantages: torch.Tensor) -> torch.Tensor:
            loss = torch.maximum(
                -advantages * ratio, -advantages * ratio.clamp(1 - cfg["clip"], 1 + cfg["clip"])
            )
            return torch.where(advantages < 0, torch.minimum(loss, -advantages * cfg["dual_clip"]), loss)

        action, skill = kind == ACTION, kind == SKILL
        per_action = surrogate(hybrid) + cfg["kl"] * kl
        if cfg["entropy"]:
            per_action = per_action + cfg["entropy"] * (log_p.exp() * log_p).sum(-1)
        per_skill = surrogate(advantages) + cfg["kl"] * kl
        acted, wrote = per_action[action].sum(), per_skill[skill].sum()
        return acted / self.totals[ACTION] + self.settings["eta"] * wrote / self.totals[SKILL]


def _pad(rows: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """[rows, longest] of every array, zero at padding, and `real`, 1 where a token stands."""
    batch = {
        name: torch.nn.utils.rnn.pad_sequence([row[name] for row in rows], batch_first=True)
        for name in rows[0]
    }
    real = [torch.ones(len(row["tokens"]), dtype=torch.int64) for row in rows]
    return batch | {
        "tokens": batch["tokens"].long(),
        "real": torch.nn.utils.rnn.pad_sequence(real, batch_first=True),
    }


def main() -> None:
    """Answers requests until stdin ends."""
    answers, sys.stdout = sys.stdout, sys.stderr  # what libraries print must not stand among the answers
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    trainer = None
    for line in sys.stdin:
        request = json.loads(line)
        answer: dict[str, Any] = {}
        if request["do"] == "versions":
            answer = {
                "torch": torch.__version__,
                "transformers": transformers.__version__,
                "torch_threads": torch.get_num_threads(),
            }
        elif request["do"] == "make_weights":
            make_weights(Path(request["folder"]))
        elif request["do"] == "load":
            trainer = None  # the one before makes room first
            trainer = Trainer(Path(request["folder"]), request["settings"])
        else:
            assert trainer is not None, "an update needs a network: load one first"
            answer = trainer.update()
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
