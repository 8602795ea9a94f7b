"""What a setting may be by itself: one of some names, or a number in a range."""

from __future__ import annotations

from collections.abc import Callable, Mapping

ENVIRONMENTS = ("alfworld", "search")
METHODS = ("rsipo", "grpo", "hybrid", "opsd", "vanilla", "skill_prompt")
# Methods whose policy writes skills in training, for its teacher to read.
TEACHING = ("rsipo", "hybrid", "opsd")
REPLAYING = ("rsipo",)  # those whose skills are replayed, and so judged and rewarded
OUTCOMES = ("rsipo", "grpo", "hybrid")  # those whose acting tokens have an advantage
ENGINES = ("fast", "textworld")
GAME_VERSIONS = ("as_is", "2.1.1", "2.1.2")
GOALS = ("templated", "human")
CONTEXTS = ("conversation", "window")
ORDERS = ("paper", "static_first")
PARSERS = ("faithful", "strict")
TRUST_FUNCTIONS = ("pos_mean", "prob", "prob_excess", "reliability", "raw", "one", "zero")
SIGNED_FUNCTIONS = ("pos_mean", "prob_excess", "reliability", "raw")
TRUST_UNITS = ("task", "skill", "hier")
PRIOR_CLASSES = ("none", "outcome", "split_success")
ESTIMATORS = ("moments", "dersimonian_laird")
OPTIMIZERS = ("adamw", "muon")
DTYPES = ("float32", "bfloat16")
REMAT = ("none", "dots", "full")
ATTENTION = ("auto", "xla", "splash", "cudnn")
PROJECTIONS = ("q", "k", "v", "o", "gate", "up", "down")
SKILL_GROUPS = ("task", "task_outcome", "batch")
SKILL_SOURCES = ("own", "shuffled", "static")
SCHEDULES = ("constant", "linear", "cosine")
PANELS = ("valid_seen", "valid_unseen", "train_probe", "literature")
RETRIEVERS = ("bm25", "dense", "http", "none")
IN_PROCESS = ("bm25", "dense")  # retrievers that have the passages themselves
SEARCH_SETS = ("nq", "triviaqa", "popqa", "hotpotqa", "2wikimultihopqa", "musique", "bamboogle")
SEARCH_PANELS = ("dev", "test", "train_probe", *SEARCH_SETS)

# Sizes of a fresh network, which a checkpoint brings with it.
SIZES = ("hidden_size", "intermediate_size", "num_layers", "num_heads", "num_kv_heads")
# Bytes, special ids, tags and the characters of the text take up about 400.
SMALLEST_VOCABULARY = 512

CHOICES: Mapping[str, tuple[str, ...]] = {
    "method": METHODS,
    "env.name": ENVIRONMENTS,
    "env.engine": ENGINES,
    "env.version": GAME_VERSIONS,
    "env.goals": GOALS,
    "model.dtype": DTYPES,
    "model.remat": REMAT,
    "model.attention": ATTENTION,
    "train.momentum_dtype": DTYPES,
    "context.kind": CONTEXTS,
    "context.order": ORDERS,
    "context.parser": PARSERS,
    "trust.function": TRUST_FUNCTIONS,
    "trust.unit": TRUST_UNITS,
    "trust.prior_class": PRIOR_CLASSES,
    "trust.estimator": ESTIMATORS,
    "sft.optimizer": OPTIMIZERS,
    "loss.kl_kind": ("k1", "k2", "k3"),
    "loss.average": ("token", "sequence"),
    "loss.advantage": ("grpo", "rloo", "gigpo", "none"),
    "loss.adv_stat": ("episode", "rows"),
    "loss.hybrid": ("advantage", "gated_loss", "modulate"),
    "loss.teacher": ("behaviour", "current"),
    "skill.adv_group": SKILL_GROUPS,
    "skill.source": SKILL_SOURCES,
    "skill.eta_schedule": SCHEDULES,
    "loss.distill_schedule": SCHEDULES,
    "search.retriever": RETRIEVERS,
}

Rule = tuple[Callable[[float], bool], str]


def _at_least(low: int) -> Rule:
    return (lambda x: x >= low), f"at least {low}"


_POSITIVE: Rule = (lambda x: x > 0), "above 0"
_SHARE: Rule = (lambda x: 0 <= x <= 1), "between 0 and 1"

RANGES: Mapping[str, Rule] = {
    "seed": ((lambda x: 0 <= x < 2**31), "from 0 to 2147483647"),
    "env.max_turns": _at_least(1),
    "env.workers": _at_least(1),
    "games.train": _at_least(1),
    "games.valid_seen": _at_least(1),
    "games.valid_unseen": _at_least(1),
    "games.seed": _at_least(0),
    "games.max_per_kind": _at_least(0),
    "model.rope_theta": _POSITIVE,
    "lora.rank": _at_least(0),
    "lora.alpha": _POSITIVE,
    "mesh.data": _at_least(1),
    "mesh.fsdp": _at_least(0),
    "mesh.tensor": _at_least(1),
    "mesh.sampling_tensor": _at_least(1),
    "context.history": _at_least(0),
    "context.max_length": _at_least(2),
    "rollout.tasks_per_step": _at_least(1),
    "rollout.group_size": ((lambda x: x >= 2), "at least 2, because a rollout is judged against its group"),
    "rollout.temperature": ((lambda x: x > 0), "above 0, because a group of equal rollouts teaches nothing"),
    "rollout.max_new_tokens": _at_least(1),
    "rollout.slots": _at_least(1),
    "rollout.win_reward": _POSITIVE,
    "rollout.invalid_penalty": _at_least(0),
    "skill.replays": _at_least(1),
    "skill.max_new_tokens": _at_least(1),
    "skill.max_chars": _at_least(1),
    "skill.long_penalty": _at_least(0),
    "skill.eta": _at_least(0),
    "skill.observation_chars": _at_least(1),
    "trust.kappa": _POSITIVE,
    "trust.c0": _POSITIVE,
    "trust.decay": _SHARE,
    "trust.tau2_floor": _POSITIVE,
    "trust.min_units": _at_least(0),
    "trust.tau2_start": _POSITIVE,
    "loss.clip": ((lambda x: 0 < x < 1), "between 0 and 1, both excluded"),
    "loss.dual_clip": ((lambda x: x > 1), "above 1"),
    "loss.kl": _at_least(0),
    "loss.entropy": _at_least(0),
    "loss.distill": _at_least(0),
    "loss.distill_clip": _POSITIVE,
    "loss.clip_high": _at_least(0),
    "loss.importance_cap": _at_least(0),
    "loss.gamma": _SHARE,
    "loss.omega": _at_least(0),
    "loss.similarity": ((lambda x: 0 < x <= 1), "above 0, at most 1 (1: the same text)"),
    "loss.gate_slope": _at_least(0),
    "train.steps": _at_least(0),
    "train.learning_rate": _POSITIVE,
    "train.warmup_ratio": _SHARE,
    "train.weight_decay": _at_least(0),
    "train.grad_clip": _POSITIVE,
    "train.minibatch_rows": _at_least(0),
    "train.microbatch_tokens": _at_least(1),
    "train.checkpoint_every": _at_least(1),
    "sft.games": _at_least(0),
    "sft.reading_questions": _at_least(0),
    "sft.epochs": _at_least(1),
    "sft.learning_rate": _POSITIVE,
    "sft.batch_tokens": _at_least(1),
    "sft.observation_weight": _at_least(0),
    "eval.every": _at_least(0),
    "eval.during": _at_least(1),
    "eval.temperature": _at_least(0),
    "rollout.top_k": _at_least(0),
    "rollout.top_p": ((lambda x: 0 < x <= 1), "above 0, at most 1 (1 draws from all tokens)"),
    "rollout.min_p": ((lambda x: 0 <= x <= 1), "from 0 (all tokens) to 1"),
    "rollout.watch_rows": _at_least(1),
    "rollout.max_drift": ((lambda x: x > 0), "above 0 nats"),
    "rollout.reuse_drift": _at_least(0),
    "eval.top_k": _at_least(0),
    "eval.top_p": ((lambda x: 0 < x <= 1), "above 0, at most 1 (1 draws from all tokens)"),
    "eval.min_p": ((lambda x: 0 <= x <= 1), "from 0 (all tokens) to 1"),
    "skill.per_task": _at_least(0),
    "skill.valid_bonus": _at_least(0),
    "skill.eta_final": _at_least(0),
    "loss.distill_final": _at_least(0),
    "loss.distill_low": _at_least(0),
    "loss.distill_high": _at_least(0),
    "search.timeout_s": _POSITIVE,
    "search.retries": _at_least(0),
    "search.hits": _at_least(1),
    "search.passage_chars": _at_least(1),
    "search.people": _at_least(12),
    "search.demonstrated": _at_least(1),
    "search.train": _at_least(1),
    "search.dev": _at_least(1),
    "search.test": _at_least(1),
    "search.seed": _at_least(0),
}
