"""Settings that have no effect in a run: refused, or, where a study's settings serve several methods, left out."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from ml_collections import ConfigDict

from rsipo_jax.config import Config, SearchConfig
from rsipo_jax.validation.choices import IN_PROCESS, OUTCOMES, REPLAYING, TEACHING
from rsipo_jax.validation.settings import ConfigError, setting, typed_section


@dataclass(frozen=True)
class Idle:
    """Settings that have no effect in some runs."""

    settings: str  # dotted names, the section first: "loss.gamma omega similarity"
    when: Callable[[Config], bool]
    because: tuple[str, ...]  # the settings whose values are the reason
    unless: str  # how they would have an effect

    def named(self) -> list[str]:
        section, _, names = self.settings.partition(".")
        return [f"{section}.{name}" for name in names.split()]


def ever(config: Config, key: str) -> bool:
    """Whether a strength with a schedule (`loss.distill`, `skill.eta`) is above 0 at some step."""
    return setting(config, key) > 0 or setting(config, f"{key}_final") > 0


def writes(config: Config) -> bool:
    """Whether the writing of skills is trained."""
    return config.method in REPLAYING and config.skill.source == "own" and ever(config, "skill.eta")


# The first row that holds speaks. `loss.distill` is in none of them: a lambda chosen for a study stands in its base.
IDLE = (
    Idle("env.engine data official version goals workers", lambda c: c.env.name != "alfworld", ("env.name",),
         "set config.env.name='alfworld'"),
    Idle("games.train valid_seen valid_unseen seed max_per_kind", lambda c: c.env.name != "alfworld", ("env.name",),
         "set config.env.name='alfworld'"),
    Idle(f"search.{' '.join(SearchConfig.__dataclass_fields__)}", lambda c: c.env.name != "search", ("env.name",),
         "set config.env.name='search'"),
    Idle("search.encoder query_prefix passage_prefix", lambda c: c.search.retriever != "dense", ("search.retriever",),
         "set config.search.retriever='dense'"),
    Idle("search.url timeout_s retries", lambda c: c.search.retriever != "http", ("search.retriever",),
         "set config.search.retriever='http'"),
    Idle("search.index corpus", lambda c: c.search.retriever not in IN_PROCESS, ("search.retriever",),
         "set config.search.retriever='bm25' or 'dense'"),
    Idle("search.corpus train_sets", lambda c: not c.search.questions, ("search.questions",), "name a folder of questions"),
    Idle("context.history order", lambda c: c.context.kind != "window", ("context.kind",),
         "set config.context.kind='window'"),
    Idle("lora.alpha targets", lambda c: not c.lora.rank, ("lora.rank",), "give a rank"),
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
         lambda c: not ever(c, "loss.distill"), ("loss.distill",), "give config.loss.distill above 0"),
    Idle("trust.token_shrinkage signed", lambda c: not ever(c, "loss.distill"), ("loss.distill",),
         "give config.loss.distill above 0"),
    Idle("loss.gate_slope", lambda c: c.loss.hybrid != "gated_loss", ("loss.hybrid",),
         "set config.loss.hybrid='gated_loss'"),
    Idle("trust.kappa", lambda c: c.trust.function != "pos_mean", ("trust.function",),
         "set config.trust.function='pos_mean'"),
    Idle("skill.eta eta_schedule adv_group valid_bonus long_penalty max_chars", lambda c: c.skill.source != "own",
         ("skill.source",), "set config.skill.source='own', since only its writing is trained"),
    Idle("skill.adv_group", lambda c: not ever(c, "skill.eta"), ("skill.eta",), "give config.skill.eta above 0"),
)  # fmt: skip


def idle(config: Config) -> dict[str, Idle]:
    """The settings that differ from their default and have no effect in this run, with the row of `IDLE` that says so.

    A strength that is 0 is off, and says so itself.
    """
    default, found = Config(), dict[str, Idle]()
    for row in IDLE:
        for key in row.named() if row.when(config) else ():
            if setting(config, key) != setting(default, key) and not (
                key == "skill.eta" and not ever(config, key)
            ):
                found.setdefault(key, row)
    return found


def relevant(settings: ConfigDict, kept: Collection[str]) -> ConfigDict:
    """The settings with what has no effect (`idle`) back at its default, except `kept`: a base made for other methods."""
    found = idle(typed_section(Config, settings.to_dict(), "config"))
    changed = settings.copy_and_resolve_references()
    changed.update_from_flattened_dict({key: setting(Config(), key) for key in found if key not in kept})
    return changed


def check_idle(config: Config) -> None:
    for key, row in idle(config).items():
        reason = " and ".join(f"config.{name}={setting(config, name)!r}" for name in row.because)
        raise ConfigError(
            f"config.{key}={setting(config, key)!r} has no effect when {reason}: leave it at {setting(Config(), key)!r} or "
            f"{row.unless}"
        )
