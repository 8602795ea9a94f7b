"""What settings must be together, beside having an effect at all (`idle.py`).

Each refusal is one sentence with the full key, the value and the fix.
"""

from __future__ import annotations

from rsipo_jax.config import Config
from rsipo_jax.validation.choices import (
    IN_PROCESS,
    OUTCOMES,
    PANELS,
    PROJECTIONS,
    REPLAYING,
    SEARCH_PANELS,
    SEARCH_SETS,
    SIGNED_FUNCTIONS,
    SIZES,
    SMALLEST_VOCABULARY,
    TEACHING,
)
from rsipo_jax.validation.idle import ever, writes
from rsipo_jax.validation.settings import ConfigError, setting


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
    if config.lora.rank and config.sft.games and config.sft.optimizer == "muon":
        raise ConfigError(
            "config.sft.optimizer='muon' is for whole matrices, not for adapters (config.lora.rank="
            f"{config.lora.rank}): set it to 'adamw'"
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
    search = config.search
    for retriever, name in (("dense", "encoder"), ("http", "url")):
        if search.retriever == retriever and not getattr(search, name):
            raise ConfigError(
                f"config.search.retriever={retriever!r} needs config.search.{name}: give one, or set "
                "config.search.retriever='bm25'"
            )
    if search.questions and search.retriever in IN_PROCESS and not search.corpus:
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
    taught = config.method in TEACHING and ever(config, "loss.distill")
    if config.method in (*OUTCOMES, *TEACHING) and not (outcome or taught or writes(config)):
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
    if skill.per_task == 1 and skill.adv_group != "batch" and writes(config):
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


RULES = (
    *(_check_model, _check_adapters, _check_lengths, _check_panels, _check_search),
    *(_check_loss, _check_skills, _check_trust),
)
