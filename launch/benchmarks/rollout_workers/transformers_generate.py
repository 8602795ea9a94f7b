"""transformers' `generate` behind a turn barrier: what most RL code falls back to.

Run by a Python that has torch and transformers, and by launch/benchmarks/rollout.py only. Prompts are padded at the left
to the longest of their batch, a batch generates until its longest response is done and every row is cut to its own
length. Rows are sorted by their prompts' lengths first, which is its fair best: how long responses become, nobody knows
beforehand.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import episodes  # type: ignore[import-not-found]  # beside this script
import torch  # type: ignore[import-not-found]  # it has an environment of its own
import transformers
from serving import serve  # type: ignore[import-not-found]

DTYPES, BATCHES = ("float32", "bfloat16"), (16, 32, 64)
TRIAL_ROWS, TRIAL_PROMPT, TRIAL_NEW = 64, 128, 16  # what the best dtype and batch are chosen by
PRODUCTS = 5  # repetitions of a matrix product, of which the fastest counts


class Generator:
    def __init__(self, folder: str, dtype: str, batch: int) -> None:
        self.dtype, self.batch = dtype, batch
        self.model = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=getattr(torch, dtype)
        ).eval()
        self.model.generation_config = transformers.GenerationConfig(
            pad_token_id=0
        )  # whatever the folder says

    @torch.inference_mode()
    def generate(self, prompts: list[list[int]], lengths: list[int], greedy: bool = False) -> list[list[int]]:
        order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
        sampled: dict[int, list[int]] = {}
        for first in range(0, len(order), self.batch):
            rows = order[first : first + self.batch]
            longest, new = max(len(prompts[i]) for i in rows), max(lengths[i] for i in rows)
            ids = torch.zeros((len(rows), longest), dtype=torch.int64)
            real = torch.zeros_like(ids)
            for row, i in enumerate(rows):
                ids[row, longest - len(prompts[i]) :] = torch.tensor(prompts[i])
                real[row, longest - len(prompts[i]) :] = 1
            drawn = {"do_sample": False} if greedy else {"do_sample": True, "temperature": 1.0, "top_k": 0}
            out = self.model.generate(
                input_ids=ids, attention_mask=real, max_new_tokens=new, min_new_tokens=new, **drawn
            )
            for row, i in enumerate(rows):
                sampled[i] = out[row, longest : longest + lengths[i]].tolist()
        return [sampled[i] for i in range(len(prompts))]


def best(folder: str) -> tuple[Generator, dict[str, Any]]:
    """The faster dtype, then the fastest batch in it, and what the trials took."""
    torch.manual_seed(0)
    prompts = torch.randint(1, 256, (TRIAL_ROWS, TRIAL_PROMPT)).tolist()

    def seconds(generator: Generator, batch: int, rows: int) -> float:
        generator.batch = batch
        start = time.perf_counter()
        generator.generate(prompts[:rows], [TRIAL_NEW] * rows)
        return time.perf_counter() - start

    trials: dict[str, float] = {}
    for dtype in DTYPES:
        generator = Generator(folder, dtype, BATCHES[0])
        seconds(generator, BATCHES[0], BATCHES[0])  # warms up
        trials[dtype] = seconds(generator, BATCHES[0], BATCHES[0])
    dtype = min(DTYPES, key=trials.__getitem__)
    generator = Generator(folder, dtype, BATCHES[0])
    by_batch = {batch: seconds(generator, batch, TRIAL_ROWS) for batch in BATCHES}
    generator.batch = min(by_batch, key=by_batch.__getitem__)
    settings = {"dtype": dtype, "batch": generator.batch}
    return generator, settings | {f"trial_{what}_s": s for what, s in (trials | by_batch).items()}


def product_rate(shapes: list[list[int]], rows: int, dtype: str) -> float:
    """FLOP/s of torch's products of `rows` tokens with matrices (in, out, how many), stored as checkpoints have them."""
    flops = total = 0.0
    for k, n, count in shapes:
        x, w = (torch.ones(shape, dtype=getattr(torch, dtype)) for shape in ((rows, k), (n, k)))
        times = []
        for _ in range(PRODUCTS + 1):  # the first prepares
            start = time.perf_counter()
            torch.nn.functional.linear(x, w)
            times.append(time.perf_counter() - start)
        flops, total = flops + 2.0 * rows * k * n * count, total + min(times[1:]) * count
    return flops / total


def main() -> None:
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    generator: list[Generator] = []

    def versions(_: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "threads": torch.get_num_threads(),
        }

    def greedy(request: Mapping[str, Any]) -> dict[str, Any]:
        exact, prompts = Generator(request["folder"], "float32", len(request["prompts"])), request["prompts"]
        return {"tokens": exact.generate(prompts, [request["new"]] * len(prompts), greedy=True)}

    def load(request: Mapping[str, Any]) -> dict[str, Any]:
        torch.set_num_threads(request["threads"])
        chosen, settings = best(request["folder"])
        generator[:] = [chosen]
        return settings

    def play(request: Mapping[str, Any]) -> dict[str, Any]:
        recording = episodes.read(Path(request["recording"]))
        return asdict(episodes.behind_barrier(recording, generator[0].generate))

    def products(request: Mapping[str, Any]) -> dict[str, Any]:
        return {
            f"{dtype}_{rows}_rows": product_rate(request["shapes"], rows, dtype)
            for dtype in DTYPES
            for rows in request["rows"]
        }

    serve({"versions": versions, "greedy": greedy, "load": load, "play": play, "products": products})


if __name__ == "__main__":
    main()
