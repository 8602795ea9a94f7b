"""ALFWorld: `--config=configs/alfworld.py:PRESET`, `tiny` when no preset is named.

`tiny` is a small network that learns from nothing on two CPU cores with no download. The other presets
start from the checkpoints of the paper and its relatives and keep their settings: Table 2 of the paper for
steps, tasks, group and learning rate, the verl-agent lineage for the prompt window, the loss and the
evaluation.
"""

from __future__ import annotations

from ml_collections import ConfigDict

from rsipo_jax.agents.context import REQUEST_TOKENS
from rsipo_jax.config import (
    Config,
    ContextConfig,
    EnvConfig,
    EvalConfig,
    GamesConfig,
    LossConfig,
    MeshConfig,
    ModelSection,
    RolloutConfig,
    SFTConfig,
    SkillConfig,
    TokenizerConfig,
    TrainConfig,
)
from rsipo_jax.validation import ConfigError, to_config_dict

TINY = Config(
    env=EnvConfig(max_turns=15),
    games=GamesConfig(train=800, valid_seen=100, valid_unseen=210, max_per_kind=1),
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
    context=ContextConfig(kind="conversation", max_length=896, parser="strict"),
    rollout=RolloutConfig(
        tasks_per_step=8,
        group_size=8,
        max_new_tokens=24,
        slots=64,
        win_reward=1.0,
        invalid_penalty=0.01,
    ),
    skill=SkillConfig(max_new_tokens=96),
    # Most groups lose whole at first and differ in malformed actions only: divided by their tiny standard deviation,
    # these would drown the few wins. Larger lambdas (1, 3) made RSIPO worse: these skills tell where things lie in one
    # game, which a student without them cannot know, so their teacher is no good example even where it wins.
    loss=LossConfig(mean_norm=True, kl=0.002, distill=0.3),
    train=TrainConfig(
        steps=24, learning_rate=3e-4, minibatch_rows=16, microbatch_tokens=3584, checkpoint_every=5
    ),
    sft=SFTConfig(
        games=400,
        reading_questions=16,
        epochs=2,
        optimizer="muon",
        learning_rate=5e-3,
        batch_tokens=1792,
        observation_weight=0.2,
    ),
    eval=EvalConfig(every=5, during=64),
)


def _paper(checkpoint: str, max_prompt: int = 2048, sampling_tensor: int = 1) -> Config:
    max_response = 512
    skill = SkillConfig(replays=1, max_new_tokens=1024)
    return Config(
        env=EnvConfig(engine="fast", max_turns=50),
        model=ModelSection(checkpoint=checkpoint, dtype="bfloat16"),
        mesh=MeshConfig(sampling_tensor=sampling_tensor),
        context=ContextConfig(
            kind="window",
            history=2,
            order="paper",
            show_admissible=True,
            max_length=max_prompt + max_response + skill.max_new_tokens + REQUEST_TOKENS,
        ),
        rollout=RolloutConfig(
            tasks_per_step=16,
            group_size=8,
            temperature=1.0,
            max_new_tokens=max_response,
            win_reward=10.0,
            invalid_penalty=0.1,
        ),
        skill=skill,
        loss=LossConfig(clip=0.2, dual_clip=3.0, kl=0.01, entropy=0.001, distill=0.03),
        train=TrainConfig(steps=150, learning_rate=1e-6, warmup_ratio=0.0, minibatch_rows=256),
        sft=SFTConfig(games=180, epochs=3, learning_rate=5e-6),  # 30 games of each task type
        eval=EvalConfig(every=5, during=128, temperature=0.4),
    )


PRESETS = {
    "tiny": TINY,
    "smollm2-135m": _paper("HuggingFaceTB/SmolLM2-135M-Instruct"),
    "qwen2.5-1.5b": _paper("Qwen/Qwen2.5-1.5B-Instruct"),
    "qwen2.5-3b": _paper("Qwen/Qwen2.5-3B-Instruct"),
    "qwen2.5-7b": _paper("Qwen/Qwen2.5-7B-Instruct", max_prompt=4096, sampling_tensor=4),
    "qwen3-1.7b": _paper("Qwen/Qwen3-1.7B"),
}


def get_config(preset: str = "tiny") -> ConfigDict:
    """The settings of a preset, locked. Raises ConfigError for an unknown one."""
    if preset not in PRESETS:
        known = ", ".join(PRESETS)
        raise ConfigError(f"the preset {preset!r} of configs/alfworld.py is unknown: choose one of {known}")
    return to_config_dict(PRESETS[preset])
