"""Settings in and out of `ml_collections.ConfigDict`s, and the rules a run's settings must keep.

`validated` is the gate: past it, code holds a `Config` whose every field has the right type, a possible
value and sits well with the others. Each refusal is one sentence with the full key, the value and the fix.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import typing
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from ml_collections import ConfigDict

from rsipo_jax.config import Config, LoraConfig, SearchConfig

ENVIRONMENTS = ("alfworld", "search")
METHODS = ("rsipo", "grpo", "hybrid", "opsd", "vanilla", "skill_prompt")
TEACHING = (
    "rsipo",
    "hybrid",
    "opsd",
)  # methods whose policy writes skills in training, for its teacher to read
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
SEARCH_SETS = ("nq", "triviaqa", "popqa", "hotpotqa", "2wikimultihopqa", "musique", "bamboogle")
SEARCH_PANELS = ("dev", "test", "train_probe", *SEARCH_SETS)

# Sizes of a fresh network, which a checkpoint brings with it.
SIZES = ("hidden_size", "intermediate_size", "num_layers", "num_heads", "num_kv_heads")
# Fields that only the window context reads.
WINDOW_ONLY = ("context.history", "context.order")
# Fields of the search section that only one retriever reads, and whether it can do without.
RETRIEVER_FIELDS = {
    "encoder": ("dense", True),
    "query_prefix": ("dense", False),
    "passage_prefix": ("dense", False),
    "url": ("http", True),
    "timeout_s": ("http", False),
    "retries": ("http", False),
}
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


class ConfigError(ValueError):
    """The settings of a run are wrong; the message is one sentence with the key, the value and the fix."""


def to_config_dict(config: Config) -> ConfigDict:
    """The settings as a locked ConfigDict, which `--config.x.y=...` may override but not extend."""
    return ConfigDict(dataclasses.asdict(config)).lock()


def validated(settings: ConfigDict | Mapping[str, Any]) -> Config:
    """The settings as a `Config`. Raises ConfigError for the first rule they break.

    Takes what `to_config_dict` returned, or a `config.json` read back (whose lists stand for tuples).
    """
    plain = settings.to_dict() if isinstance(settings, ConfigDict) else settings
    config = _section(Config, plain, "config")
    values = {key: setting(config, key) for key in keys()}
    for key, known in CHOICES.items():
        if values[key] not in known:
            raise ConfigError(f"config.{key}={values[key]!r} is unknown: choose one of {', '.join(known)}")
    for key, (holds, wanted) in RANGES.items():
        if not holds(values[key]):
            raise ConfigError(f"config.{key}={values[key]} is out of range: give a value {wanted}")
    sections = _check_model, _check_adapters, _check_context, _check_lengths, _check_panels, _check_search
    for check in (*sections, _check_loss, _check_skills, _check_trust, _check_idle):
        check(config)
    return config


def keys() -> tuple[str, ...]:
    """Every setting's dotted name without the leading `config.`, e.g. `rollout.group_size`."""
    return tuple(_keys(Config, ""))


def setting(config: Config, key: str) -> Any:
    """The value of a setting by its dotted name, without the leading `config.`."""
    value: Any = config
    for name in key.split("."):
        value = getattr(value, name)
    return value


def wrong_type(key: str, value: object) -> ConfigError:
    """The refusal of a value of the wrong type for a setting (`config.x.y`)."""
    kind = type(setting(Config(), key.removeprefix("config.")))
    wanted = {int: "a whole number", float: "a finite number", str: "text", bool: "true or false"}
    return ConfigError(f"{key}={value!r} has the wrong type: give {wanted.get(kind, 'a tuple of texts')}")


def unknown_key(key: str) -> ConfigError:
    """The refusal of a setting (`config.x.y`) that does not exist, with the nearest one that does."""
    name = key.removeprefix("config.")
    sections = {known.rpartition(".")[0] for known in keys()} - {""}
    if name in sections:
        fields = ", ".join(f"config.{known}" for known in keys() if known.startswith(name + "."))
        return ConfigError(f"{key} is a section, not a setting: set one of {fields}")
    near = difflib.get_close_matches(name, keys(), n=1)
    hint = f"did you mean config.{near[0]}?" if near else f"the sections are {', '.join(sorted(sections))}"
    return ConfigError(f"{key} is not a setting: {hint}")


def _keys(section: Any, prefix: str) -> Iterator[str]:
    types = typing.get_type_hints(section)
    for field in dataclasses.fields(section):
        if dataclasses.is_dataclass(types[field.name]):
            yield from _keys(types[field.name], f"{prefix}{field.name}.")
        else:
            yield prefix + field.name


def _section(kind: Any, values: Any, prefix: str) -> Any:
    """The dataclass `kind` made from a mapping, every value of exactly the declared type."""
    if not isinstance(values, Mapping):
        raise ConfigError(f"{prefix}={values!r} is not a section: give a mapping of its fields")
    types = typing.get_type_hints(kind)
    for name in values:
        if name not in types:
            raise unknown_key(f"{prefix}.{name}")
    made = {}
    for name, wanted in types.items():
        key = f"{prefix}.{name}"
        if name not in values:
            raise ConfigError(f"{key} is missing: start from configs/alfworld.py, which sets every field")
        made[name] = (
            _section(wanted, values[name], key)
            if dataclasses.is_dataclass(wanted)
            else _typed(wanted, values[name], key)
        )
    return kind(**made)


def _typed(wanted: Any, value: Any, key: str) -> Any:
    if wanted is float and type(value) in (int, float) and math.isfinite(value):
        return float(value)
    if wanted in (int, str, bool) and type(value) is wanted:
        return value
    if wanted == tuple[str, ...] and isinstance(value, list | tuple) and all(type(v) is str for v in value):
        return tuple(value)
    raise wrong_type(key, value)


def _check_model(config: Config) -> None:
    model, vocabulary = config.model, config.tokenizer.vocab_size
    if model.checkpoint:
        for name in SIZES:
            if getattr(model, name):
                raise ConfigError(
                    f"config.model.{name}={getattr(model, name)} does not go with config.model.checkpoint="
                    f"{model.checkpoint!r}, which brings its sizes: set it to 0"
                )
        if vocabulary:
            raise ConfigError(
                f"config.tokenizer.vocab_size={vocabulary} does not go with config.model.checkpoint="
                f"{model.checkpoint!r}, which brings its tokenizer: set it to 0"
            )
        return
    for name in SIZES:
        if getattr(model, name) < 1:
            raise ConfigError(
                f"config.model.{name}={getattr(model, name)} leaves a fresh network without a size: "
                "give at least 1, or name config.model.checkpoint"
            )
    if vocabulary < SMALLEST_VOCABULARY:
        raise ConfigError(
            f"config.tokenizer.vocab_size={vocabulary} is too small for a fresh network: "
            f"give at least {SMALLEST_VOCABULARY}, or name config.model.checkpoint"
        )
    if model.num_heads % model.num_kv_heads:
        raise ConfigError(
            f"config.model.num_kv_heads={model.num_kv_heads} does not divide config.model.num_heads="
            f"{model.num_heads}: give a divisor"
        )
    if model.hidden_size % (2 * model.num_heads):  # rotary embeddings turn the channels of a head in pairs
        raise ConfigError(
            f"config.model.hidden_size={model.hidden_size} does not split into config.model.num_heads="
            f"{model.num_heads} heads of even width: give a multiple of {2 * model.num_heads}"
        )


def _check_adapters(config: Config) -> None:
    targets = config.lora.targets
    for target in targets:
        if target not in PROJECTIONS or targets.count(target) > 1:
            raise ConfigError(
                f"config.lora.targets={targets} must name different projections of {', '.join(PROJECTIONS)}: "
                "repeat --config.lora.targets=NAME once for each"
            )
    if config.lora.rank and not targets:
        raise ConfigError(
            f"config.lora.rank={config.lora.rank} adapts nothing without config.lora.targets: name some projections"
        )
    if not config.lora.rank and config.lora != LoraConfig():
        raise ConfigError(
            "config.lora.alpha and config.lora.targets have no effect when config.lora.rank=0: leave them as they are "
            "or give a rank"
        )
    if config.lora.rank and config.sft.games and config.sft.optimizer == "muon":
        raise ConfigError(
            "config.sft.optimizer='muon' is for whole matrices, not for adapters (config.lora.rank="
            f"{config.lora.rank}): set it to 'adamw'"
        )


def _check_context(config: Config) -> None:
    if config.context.kind != "conversation":
        return
    for key in WINDOW_ONLY:
        value, default = setting(config, key), setting(Config(), key)
        if value != default:
            raise ConfigError(
                f"config.{key}={value!r} has no effect when config.context.kind='conversation': "
                f"leave it at {default!r} or set config.context.kind='window'"
            )


def _check_lengths(config: Config) -> None:
    longest = config.context.max_length
    for key in ("rollout.max_new_tokens", "skill.max_new_tokens"):
        if setting(config, key) >= longest:
            raise ConfigError(
                f"config.{key}={setting(config, key)} leaves no room for a prompt in "
                f"config.context.max_length={longest}: make it smaller, or the length larger"
            )
    for key in ("train.microbatch_tokens", "sft.batch_tokens"):
        if setting(config, key) < longest:
            raise ConfigError(
                f"config.{key}={setting(config, key)} does not hold one sequence of "
                f"config.context.max_length={longest} tokens: give at least that many"
            )


def _check_panels(config: Config) -> None:
    panels, known = config.eval.panels, SEARCH_PANELS if config.env.name == "search" else PANELS
    for panel in panels:
        if panel not in known or panels.count(panel) > 1:
            raise ConfigError(
                f"config.eval.panels={panels} must name different panels of {', '.join(known)}: "
                "repeat --config.eval.panels=NAME once for each"
            )


def _check_search(config: Config) -> None:
    search, default = config.search, SearchConfig()
    for name, (retriever, needed) in RETRIEVER_FIELDS.items():
        value = getattr(search, name)
        if search.retriever == retriever and needed and not value:
            raise ConfigError(
                f"config.search.retriever={retriever!r} needs config.search.{name}: give one, or set "
                f"config.search.retriever='bm25'"
            )
        if search.retriever != retriever and value != getattr(default, name):
            raise ConfigError(
                f"config.search.{name}={value!r} has no effect when config.search.retriever={search.retriever!r}: leave it "
                f"at {getattr(default, name)!r} or set config.search.retriever={retriever!r}"
            )
    here = search.retriever in ("bm25", "dense")  # whether this process has the passages
    if search.index and not here:
        raise ConfigError(
            f"config.search.index={search.index!r} has no effect when config.search.retriever={search.retriever!r}: "
            "leave it empty"
        )
    if search.corpus and not (here and search.questions):
        cause = (
            f"config.search.retriever={search.retriever!r}"
            if search.questions
            else "config.search.questions=''"
        )
        raise ConfigError(
            f"config.search.corpus={search.corpus!r} has no effect when {cause}: leave it empty, or name questions about it "
            "and search it with 'bm25' or 'dense'"
        )
    if search.questions and here and not search.corpus:
        raise ConfigError(
            f"config.search.questions={search.questions!r} needs config.search.corpus, the passages to search: name them, or "
            "set config.search.retriever='http' or 'none'"
        )
    sets = search.train_sets
    if not sets or any(name not in SEARCH_SETS or sets.count(name) > 1 for name in sets):
        raise ConfigError(
            f"config.search.train_sets={sets} must name different data sets of {', '.join(SEARCH_SETS)}: "
            "repeat --config.search.train_sets=NAME once for each"
        )
    if sets != default.train_sets and not search.questions:
        raise ConfigError(
            f"config.search.train_sets={sets} has no effect when config.search.questions='': leave it at "
            f"{default.train_sets} or name a folder of questions"
        )
    if config.env.name != "search" and search != default:
        name = next(
            f.name for f in dataclasses.fields(search) if getattr(search, f.name) != getattr(default, f.name)
        )
        raise ConfigError(
            f"config.search.{name}={getattr(search, name)!r} has no effect when config.env.name={config.env.name!r}: leave "
            f"it at {getattr(default, name)!r} or set config.env.name='search'"
        )


@dataclasses.dataclass(frozen=True)
class Idle:
    """Settings that have no effect in some runs."""

    settings: str  # dotted names, the section first: "loss.gamma omega similarity"
    when: Callable[[Config], bool]
    because: tuple[str, ...]  # the settings whose values are the reason
    unless: str  # how they would have an effect

    def named(self) -> list[str]:
        section, _, names = self.settings.partition(".")
        return [f"{section}.{name}" for name in names.split()]


def _ever(config: Config, key: str) -> bool:
    """Whether a strength with a schedule (`loss.distill`, `skill.eta`) is above 0 at some step."""
    return setting(config, key) > 0 or setting(config, f"{key}_final") > 0


def _writes(config: Config) -> bool:
    """Whether the writing of skills is trained."""
    return config.method in REPLAYING and config.skill.source == "own" and _ever(config, "skill.eta")


# The first row that holds speaks. `loss.distill` is in none of them: a lambda chosen for a study stands in its base.
IDLE = (
    Idle("loss.gamma omega similarity", lambda c: c.loss.advantage != "gigpo", ("loss.advantage",),
         "set config.loss.advantage='gigpo'"),
    Idle("skill.eta_final", lambda c: c.skill.eta_schedule == "constant", ("skill.eta_schedule",),
         "choose another schedule"),
    Idle("loss.distill_final", lambda c: c.loss.distill_schedule == "constant", ("loss.distill_schedule",),
         "choose another schedule"),
    Idle("trust.function kappa c0 decay tau2_floor min_units tau2_start unit signed prior_class estimator",
         lambda c: c.method not in REPLAYING, ("method",), "set config.method='rsipo', which measures skills"),
    Idle("skill.replays eta eta_schedule adv_group valid_bonus long_penalty max_chars",
         lambda c: c.method not in REPLAYING, ("method",), "set config.method='rsipo', which replays skills"),
    Idle("loss.hybrid teacher gate_slope distill_clip distill_schedule distill_low distill_high",
         lambda c: c.method not in TEACHING, ("method",), "choose a method with a teacher"),
    Idle("skill.per_task source", lambda c: c.method not in TEACHING, ("method",), "choose a method with a teacher"),
    Idle("trust.token_shrinkage", lambda c: c.method not in TEACHING, ("method",), "choose a method with a teacher"),
    Idle("loss.advantage adv_stat distill_low distill_high", lambda c: c.method not in OUTCOMES, ("method",),
         "choose a method with an advantage"),
    Idle("loss.adv_stat distill_low distill_high", lambda c: c.loss.advantage == "none", ("loss.advantage",),
         "give an advantage"),
    Idle("loss.hybrid teacher gate_slope distill_clip distill_low distill_high",
         lambda c: not _ever(c, "loss.distill"), ("loss.distill",), "give config.loss.distill above 0"),
    Idle("trust.token_shrinkage signed", lambda c: not _ever(c, "loss.distill"), ("loss.distill",),
         "give config.loss.distill above 0"),
    Idle("loss.gate_slope", lambda c: c.loss.hybrid != "gated_loss", ("loss.hybrid",),
         "set config.loss.hybrid='gated_loss'"),
    Idle("trust.kappa", lambda c: c.trust.function != "pos_mean", ("trust.function",),
         "set config.trust.function='pos_mean'"),
    Idle("skill.eta eta_schedule adv_group valid_bonus long_penalty max_chars", lambda c: c.skill.source != "own",
         ("skill.source",), "set config.skill.source='own', since only its writing is trained"),
    Idle("skill.adv_group", lambda c: not _ever(c, "skill.eta"), ("skill.eta",), "give config.skill.eta above 0"),
)  # fmt: skip


def idle(config: Config) -> dict[str, Idle]:
    """The settings that differ from their default and have no effect in this run, with the row of `IDLE` that says so.

    A strength that is 0 is off, and says so itself.
    """
    default, found = Config(), dict[str, Idle]()
    for row in IDLE:
        for key in row.named() if row.when(config) else ():
            if setting(config, key) != setting(default, key) and not (
                key == "skill.eta" and not _ever(config, key)
            ):
                found.setdefault(key, row)
    return found


def relevant(settings: ConfigDict, kept: Collection[str]) -> ConfigDict:
    """The settings with what has no effect (`idle`) back at its default, except `kept`: a base made for other methods."""
    found = idle(_section(Config, settings.to_dict(), "config"))
    changed = settings.copy_and_resolve_references()
    changed.update_from_flattened_dict({key: setting(Config(), key) for key in found if key not in kept})
    return changed


def _check_idle(config: Config) -> None:
    for key, row in idle(config).items():
        reason = " and ".join(f"config.{name}={setting(config, name)!r}" for name in row.because)
        raise ConfigError(
            f"config.{key}={setting(config, key)!r} has no effect when {reason}: leave it at {setting(Config(), key)!r} or "
            f"{row.unless}"
        )


def _check_loss(config: Config) -> None:
    loss, skill = config.loss, config.skill
    outcome = config.method in OUTCOMES and loss.advantage != "none"
    if loss.hybrid == "modulate" and not outcome:
        raise ConfigError(
            "config.loss.hybrid='modulate' trains nothing without an advantage to modulate "
            f"(config.method={config.method!r}, config.loss.advantage={loss.advantage!r}): set it to 'advantage' or 'gated_loss'"
        )
    if 0 < loss.importance_cap < 1:
        raise ConfigError(
            f"config.loss.importance_cap={loss.importance_cap} would weaken every token, and a cap below 1 corrects nothing: "
            "give at least 1, or 0 for no correction"
        )
    taught = config.method in TEACHING and _ever(config, "loss.distill")
    if config.method in (*OUTCOMES, *TEACHING) and not (outcome or taught or _writes(config)):
        raise ConfigError(
            f"config.method={config.method!r} trains nothing with config.loss.advantage={loss.advantage!r}, "
            f"config.loss.distill={loss.distill} and config.skill.eta={skill.eta}: give it an advantage or a teacher"
        )


def _check_skills(config: Config) -> None:
    skill, loss, tasks = config.skill, config.loss, config.rollout.tasks_per_step
    if skill.per_task > config.rollout.group_size:
        raise ConfigError(
            f"config.skill.per_task={skill.per_task} is more than config.rollout.group_size={config.rollout.group_size}: "
            "give at most that, or 0 for all"
        )
    if skill.source == "shuffled" and tasks < 2:
        raise ConfigError(
            f"config.skill.source='shuffled' needs another task in a step: set config.rollout.tasks_per_step={tasks} to 2 "
            "or more"
        )
    if skill.per_task == 1 and skill.adv_group != "batch" and _writes(config):
        raise ConfigError(
            f"config.skill.per_task=1 leaves no skill another of its task to be compared with (config.skill.adv_group="
            f"{skill.adv_group!r}), so that writing would not be trained: set config.skill.adv_group='batch', "
            "config.skill.eta=0.0 or config.skill.per_task=2"
        )
    if loss.distill_low > loss.distill_high or (loss.distill_high and not loss.distill_low):
        raise ConfigError(
            f"config.loss.distill_low={loss.distill_low} and config.loss.distill_high={loss.distill_high} are no band: "
            "give 0 < low <= high, or 0 for both"
        )


def _check_trust(config: Config) -> None:
    trust, replays, per_task = config.trust, config.skill.replays, config.skill.per_task
    if trust.unit != "task" and replays < 2:
        # The marginal of a Bernoulli draw with a random rate is the same whatever the variance of the rate.
        raise ConfigError(
            f"config.trust.unit={trust.unit!r} needs config.skill.replays of 2 or more, not {replays}, because one replay "
            "of each skill says nothing about how much skills differ: give more replays or set config.trust.unit='task'"
        )
    if trust.unit == "hier":
        for key, value in (("prior_class", "outcome"), ("estimator", "dersimonian_laird")):
            if getattr(trust, key) == value:
                raise ConfigError(
                    f"config.trust.{key}={value!r} is not defined for config.trust.unit='hier', whose skills share the prior "
                    "of their task and are weighed by its closed form: set one of the two otherwise"
                )
    if trust.unit == "hier" and per_task == 1:
        raise ConfigError(
            "config.trust.unit='hier' compares the skills of a task, of which config.skill.per_task=1 leaves one: set "
            "config.skill.per_task to 2 or more, or config.trust.unit='skill'"
        )
    if trust.prior_class == "outcome" and config.skill.source == "shuffled":
        raise ConfigError(
            "config.trust.prior_class='outcome' is about the episode that wrote the skill, which with config.skill.source="
            "'shuffled' is not the one it teaches: set config.trust.prior_class='none'"
        )
    if trust.signed and trust.function not in SIGNED_FUNCTIONS:
        raise ConfigError(
            f"config.trust.signed=True has no meaning for config.trust.function={trust.function!r}: "
            f"choose one of {', '.join(SIGNED_FUNCTIONS)}"
        )
    if trust.signed and config.loss.hybrid == "gated_loss":
        raise ConfigError(
            "config.trust.signed=True does not go with config.loss.hybrid='gated_loss', whose loss has no lower bound where "
            "the teacher repels: set config.loss.hybrid='advantage' or config.trust.signed=False"
        )
    # At most so many units of a step, each counting `decay` times less at every later step.
    units = config.rollout.tasks_per_step * (
        (per_task or config.rollout.group_size) if trust.unit == "skill" else 1
    )
    units *= 2 if (trust.unit, trust.prior_class) == ("task", "outcome") else 1
    measured = config.method in REPLAYING and trust.function not in ("raw", "one", "zero")
    if measured and units < trust.min_units * (1.0 - trust.decay) * (1.0 - 1e-9):
        raise ConfigError(
            f"config.trust.min_units={trust.min_units} is never reached by {units} units a step with config.trust.decay="
            f"{trust.decay}, so that the prior would stay at its start: give at most {int(units / (1.0 - trust.decay))}, or "
            "a larger decay"
        )
