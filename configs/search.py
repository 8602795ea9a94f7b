"""Search: `--config=configs/search.py:PRESET`, `tiny` when no preset is named.

`tiny` is a small network that learns from nothing on two CPU cores with no download: questions about a fictional
encyclopaedia that is made from the seed, and BM25 over it. The other presets start from the checkpoints of the paper and its
relatives; they are given questions and a corpus, or a server of Search-R1's protocol: see the README. Their settings are
those of the verl-agent lineage: 4 turns, 3 passages, a window of 4 exchanges.
"""

from __future__ import annotations

from ml_collections import ConfigDict

from rsipo_jax.agents.context import REQUEST_TOKENS
from rsipo_jax.config import (
    Config,
    ContextConfig,
    EnvConfig,
    EvalConfig,
    LossConfig,
    MeshConfig,
    ModelSection,
    RolloutConfig,
    SearchConfig,
    SFTConfig,
    SkillConfig,
    TokenizerConfig,
    TrainConfig,
)
from rsipo_jax.validation import ConfigError, to_config_dict
from rsipo_jax.validation.choices import SEARCH_SETS

TINY = Config(
    env=EnvConfig(name="search", max_turns=5),
    search=SearchConfig(people=480, demonstrated=1600, train=800, dev=100, test=400, hits=1),
    model=ModelSection(
        hidden_size=128,
        intermediate_size=384,
        num_layers=3,
        num_heads=4,
        num_kv_heads=2,
        rope_theta=1e6,
        scan_layers=False,
        remat="none",
    ),
    tokenizer=TokenizerConfig(vocab_size=1024),
    context=ContextConfig(kind="conversation", max_length=640, parser="strict"),
    rollout=RolloutConfig(
        tasks_per_step=8,
        group_size=8,
        max_new_tokens=48,
        slots=64,
        win_reward=1.0,
        invalid_penalty=0.01,
    ),
    skill=SkillConfig(max_new_tokens=96, leak_guard=True),
    loss=LossConfig(mean_norm=True, kl=0.002, distill=0.3),
    train=TrainConfig(
        steps=24, learning_rate=3e-4, minibatch_rows=16, microbatch_tokens=3584, checkpoint_every=5
    ),
    sft=SFTConfig(
        games=1200,
        reading_questions=5,
        epochs=1,
        optimizer="muon",
        learning_rate=5e-3,
        batch_tokens=1792,
        observation_weight=0.2,
    ),
    eval=EvalConfig(every=5, during=64, panels=("test",)),
)


def _paper(checkpoint: str, max_prompt: int = 4096, sampling_tensor: int = 1) -> Config:
    max_response = 512
    skill = SkillConfig(replays=1, max_new_tokens=1024, leak_guard=True)
    return Config(
        env=EnvConfig(name="search", max_turns=4),
        search=SearchConfig(retriever="http", url="http://127.0.0.1:8000/retrieve", hits=3),
        model=ModelSection(checkpoint=checkpoint, dtype="bfloat16"),
        mesh=MeshConfig(sampling_tensor=sampling_tensor),
        context=ContextConfig(
            kind="window",
            history=4,
            order="paper",
            max_length=max_prompt + max_response + skill.max_new_tokens + REQUEST_TOKENS,
        ),
        rollout=RolloutConfig(
            tasks_per_step=256,
            group_size=5,
            temperature=1.0,
            max_new_tokens=max_response,
            win_reward=1.0,
            invalid_penalty=0.01,
        ),
        skill=skill,
        loss=LossConfig(clip=0.2, dual_clip=3.0, kl=0.001, entropy=0.001, distill=0.03),
        train=TrainConfig(steps=150, learning_rate=1e-6, warmup_ratio=0.0, minibatch_rows=512),
        eval=EvalConfig(every=0, temperature=0.4, panels=SEARCH_SETS),
    )


PRESETS = {
    "tiny": TINY,
    "qwen2.5-3b": _paper("Qwen/Qwen2.5-3B-Instruct"),
    "qwen2.5-7b": _paper("Qwen/Qwen2.5-7B-Instruct", sampling_tensor=4),
    "qwen3-1.7b": _paper("Qwen/Qwen3-1.7B"),
}


def get_config(preset: str = "tiny") -> ConfigDict:
    """The settings of a preset, locked. Raises ConfigError for an unknown one."""
    if preset not in PRESETS:
        known = ", ".join(PRESETS)
        raise ConfigError(f"the preset {preset!r} of configs/search.py is unknown: choose one of {known}")
    return to_config_dict(PRESETS[preset])
