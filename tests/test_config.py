"""The settings: presets that validate, and refusals that name the key, the value and the fix."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import runpy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from ml_collections import ConfigDict

from rsipo_jax import methods
from rsipo_jax.agents import actions
from rsipo_jax.agents.context import REQUEST_TOKENS
from rsipo_jax.config import Config
from rsipo_jax.envs.alfworld import versions
from rsipo_jax.envs.search import questions
from rsipo_jax.models import attention, lora, transformer
from rsipo_jax.skills import trust
from rsipo_jax.validation import ConfigError, keys, relevant, setting, to_config_dict, validated
from rsipo_jax.validation.choices import (
    ATTENTION,
    CHOICES,
    GAME_VERSIONS,
    METHODS,
    OUTCOMES,
    PARSERS,
    PROJECTIONS,
    RANGES,
    REMAT,
    REPLAYING,
    SEARCH_SETS,
    SIZES,
    TEACHING,
    TRUST_FUNCTIONS,
)
from rsipo_jax.validation.idle import IDLE

ALFWORLD = runpy.run_path(str(Path(__file__).parents[1] / "configs" / "alfworld.py"))
SEARCH = runpy.run_path(str(Path(__file__).parents[1] / "configs" / "search.py"))
NUMBERS = [key for key in keys() if key in RANGES]


def preset_with(preset: str = "tiny", **changes: Any) -> ConfigDict:
    """A preset with changes; the keyword `rollout__group_size` stands for `rollout.group_size`."""
    config: ConfigDict = (SEARCH if changes.get("env__name") == "search" else ALFWORLD)["get_config"](preset)
    for name, value in changes.items():
        *path, last = name.split("__")
        section = config
        for step in path:
            section = section[step]
        section[last] = value
    return config


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"lora__rank": 8, "lora__targets": ("q", "query")},
            "config.lora.targets=('q', 'query') must name different",
        ),
        (
            {"lora__rank": 8, "lora__targets": ("q", "q")},
            "config.lora.targets=('q', 'q') must name different",
        ),
        ({"lora__rank": 8, "lora__targets": ()}, "config.lora.rank=8 adapts nothing"),
        ({"lora__alpha": 32.0}, "has no effect when config.lora.rank=0"),
        ({"lora__rank": 8}, "config.sft.optimizer='muon' is for whole matrices"),
    ],
)
def test_adapters_that_cannot_be_are_one_sentence(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        validated(preset_with(**changes))


def test_what_the_settings_name_exists() -> None:
    assert set(PROJECTIONS) == set(lora.TARGETS) and attention.ATTENTION == ATTENTION
    for kept in REMAT:
        transformer._rematerialised(lambda x: x, transformer.ModelConfig(8, 8, 8, 1, 1, 1, 8, remat=kept))


@pytest.mark.parametrize("preset", ALFWORLD["PRESETS"])
def test_every_preset_validates_and_survives_its_record(preset: str) -> None:
    config = validated(ALFWORLD["get_config"](preset))
    assert config == ALFWORLD["PRESETS"][preset]
    assert validated(json.loads(json.dumps(dataclasses.asdict(config)))) == config


def test_the_papers_presets_have_the_papers_numbers() -> None:
    for preset in ("qwen2.5-3b", "qwen2.5-7b", "qwen3-1.7b"):
        config = validated(ALFWORLD["get_config"](preset))
        assert (config.train.steps, config.train.learning_rate, config.train.warmup_ratio) == (150, 1e-6, 0.0)
        assert (config.rollout.tasks_per_step, config.rollout.group_size) == (16, 8)
        assert config.context.kind == "window" and config.context.order == "paper"
        assert config.context.show_admissible
        # What is left of the context for a student prompt, once a response and a skill have their room.
        reserve = config.skill.max_new_tokens + REQUEST_TOKENS
        prompt = config.context.max_length - config.rollout.max_new_tokens - reserve
        assert prompt == (4096 if preset == "qwen2.5-7b" else 2048)


def test_a_preset_is_locked() -> None:
    with pytest.raises(AttributeError):
        ALFWORLD["get_config"]().rollout.group_sise = 8


def test_an_unknown_preset_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"'huge' .* unknown: choose one of tiny, .*qwen3-1.7b"):
        ALFWORLD["get_config"]("huge")


@pytest.mark.parametrize("key", [*RANGES, *CHOICES, *(k for row in IDLE for k in row.named())])
def test_every_rule_is_about_a_setting(key: str) -> None:
    assert key in keys()


def test_every_number_has_a_rule() -> None:
    numbers = {key for key in keys() if type(setting(Config(), key)) in (int, float)}
    ruled_with_others = {f"model.{name}" for name in SIZES} | {"tokenizer.vocab_size"}
    assert numbers - ruled_with_others == set(RANGES)


@pytest.mark.parametrize(
    ("preset", "changes", "message"),
    [
        ("tiny", {"rollout__group_size": 0}, r"config\.rollout\.group_size=0 .*at least 2"),
        ("tiny", {"rollout__group_size": 1}, r"config\.rollout\.group_size=1 .*at least 2"),
        ("tiny", {"rollout__temperature": 0.0}, r"config\.rollout\.temperature=0\.0 .*above 0"),
        ("tiny", {"rollout__top_k": -1}, r"config\.rollout\.top_k=-1 .*at least 0"),
        ("tiny", {"rollout__top_p": 0.0}, r"config\.rollout\.top_p=0\.0 .*above 0, at most 1"),
        ("tiny", {"rollout__min_p": 1.5}, r"config\.rollout\.min_p=1\.5 .*from 0 \(all tokens\) to 1"),
        ("tiny", {"rollout__slots": 0}, r"config\.rollout\.slots=0 .*at least 1"),
        ("tiny", {"rollout__watch_rows": 0}, r"config\.rollout\.watch_rows=0 .*at least 1"),
        ("tiny", {"rollout__max_drift": 0.0}, r"config\.rollout\.max_drift=0\.0 .*above 0 nats"),
        ("tiny", {"rollout__max_drift": math.nan}, r"config\.rollout\.max_drift=nan .*finite number"),
        ("tiny", {"rollout__reuse_drift": -1.0}, r"config\.rollout\.reuse_drift=-1\.0 .*at least 0"),
        ("tiny", {"eval__top_k": -1}, r"config\.eval\.top_k=-1 .*at least 0"),
        ("tiny", {"eval__top_p": 1.1}, r"config\.eval\.top_p=1\.1 .*above 0, at most 1"),
        ("tiny", {"eval__min_p": -0.1}, r"config\.eval\.min_p=-0\.1 .*from 0"),
        ("tiny", {"train__steps": -1}, r"config\.train\.steps=-1 .*at least 0"),
        ("tiny", {"trust__decay": 1.5}, r"config\.trust\.decay=1\.5 .*between 0 and 1"),
        ("tiny", {"loss__clip": 1.0}, r"config\.loss\.clip=1\.0 .*between 0 and 1"),
        ("tiny", {"loss__kl": math.nan}, r"config\.loss\.kl=nan .*finite number"),
        ("tiny", {"method": "grop"}, r"config\.method='grop' is unknown: choose one of rsipo, grpo"),
        ("tiny", {"env__engine": "slow"}, r"config\.env\.engine='slow' .*fast, textworld"),
        ("tiny", {"env__version": "2.1.3"}, r"config\.env\.version='2\.1\.3' .*as_is, 2\.1\.1, 2\.1\.2"),
        ("tiny", {"env__goals": "robot"}, r"config\.env\.goals='robot' .*templated, human"),
        ("tiny", {"trust__function": "some"}, r"config\.trust\.function='some' .*pos_mean"),
        ("tiny", {"model__dtype": "float16"}, r"config\.model\.dtype='float16' .*bfloat16"),
        ("tiny", {"model__checkpoint": "Qwen/Qwen2.5-3B"}, r"config\.model\.hidden_size=128 .*set it to 0"),
        ("tiny", {"model__num_layers": 0}, r"config\.model\.num_layers=0 .*config\.model\.checkpoint"),
        ("tiny", {"model__num_heads": 3}, r"config\.model\.num_kv_heads=2 .*num_heads=3: give a divisor"),
        ("tiny", {"model__hidden_size": 100}, r"config\.model\.hidden_size=100 .*multiple of 8"),
        ("tiny", {"tokenizer__vocab_size": 100}, r"config\.tokenizer\.vocab_size=100 .*at least 512"),
        ("qwen2.5-3b", {"tokenizer__vocab_size": 1024}, r"config\.tokenizer\.vocab_size=1024 .*set it to 0"),
        ("qwen2.5-3b", {"model__checkpoint": ""}, r"config\.model\.hidden_size=0 .*model\.checkpoint"),
        ("tiny", {"context__history": 5}, r"config\.context\.history=5 has no effect .*'window'"),
        (
            "tiny",
            {"context__order": "static_first"},
            r"config\.context\.order='static_first' has no effect when config\.context\.kind='conversation'",
        ),
        (
            "qwen2.5-3b",
            {"context__order": "task_first"},
            r"config\.context\.order='task_first' .*static_first",
        ),
        ("tiny", {"skill__per_task": 99}, r"config\.skill\.per_task=99 is more than"),
        (
            "tiny",
            {"skill__source": "shuffled", "rollout__tasks_per_step": 1},
            r"config\.skill\.source='shuffled' needs another task",
        ),
        ("tiny", {"loss__distill_final": 0.1}, r"config\.loss\.distill_final=0\.1 has no effect"),
        ("tiny", {"skill__eta_final": 0.1}, r"config\.skill\.eta_final=0\.1 has no effect"),
        ("tiny", {"loss__distill_low": 0.1}, r"are no band"),
        ("tiny", {"loss__distill_high": 0.1}, r"are no band"),
        ("tiny", {"rollout__max_new_tokens": 1024}, r"config\.rollout\.max_new_tokens=1024 .*length=\d+"),
        ("tiny", {"skill__max_new_tokens": 4096}, r"config\.skill\.max_new_tokens=4096 .*max_length=\d+"),
        ("tiny", {"train__microbatch_tokens": 9}, r"config\.train\.microbatch_tokens=9 .*max_length=\d+"),
        ("tiny", {"sft__batch_tokens": 9}, r"config\.sft\.batch_tokens=9 .*at least that many"),
        (
            "tiny",
            {"search__retriever": "lucene"},
            r"config\.search\.retriever='lucene' .*bm25, dense, http, none",
        ),
        ("tiny", {"search__hits": 0}, r"config\.search\.hits=0 .*at least 1"),
        ("tiny", {"search__people": 11}, r"config\.search\.people=11 .*at least 12"),
        (
            "tiny",
            {"env__name": "search", "search__timeout_s": 0.0},
            r"config\.search\.timeout_s=0\.0 .*above 0",
        ),
        (
            "tiny",
            {"env__name": "search", "search__retriever": "dense"},
            r"retriever='dense' needs config\.search\.encoder: give one",
        ),
        (
            "tiny",
            {"env__name": "search", "search__retriever": "http"},
            r"retriever='http' needs config\.search\.url: give one",
        ),
        (
            "tiny",
            {"env__name": "search", "search__encoder": "E"},
            r"search\.encoder='E' has no effect when .*retriever='bm25'",
        ),
        (
            "tiny",
            {"env__name": "search", "search__query_prefix": "q "},
            r"search\.query_prefix='q ' has no effect .*'dense'",
        ),
        (
            "tiny",
            {"env__name": "search", "search__url": "http://x"},
            r"search\.url='http://x' has no effect .*retriever='http'",
        ),
        (
            "tiny",
            {"env__name": "search", "search__retries": 5},
            r"config\.search\.retries=5 has no effect .*leave it at 3",
        ),
        (
            "tiny",
            {"env__name": "search", "search__retriever": "none", "search__index": "I"},
            r"config\.search\.index='I' has no effect when config\.search\.retriever='none'",
        ),
        (
            "tiny",
            {"env__name": "search", "search__corpus": "C"},
            r"search\.corpus='C' has no effect when config\.search\.questions=''",
        ),
        (
            "tiny",
            {
                "env__name": "search",
                "search__retriever": "none",
                "search__questions": "Q",
                "search__corpus": "C",
            },
            r"config\.search\.corpus='C' has no effect when config\.search\.retriever='none'",
        ),
        (
            "tiny",
            {"env__name": "search", "search__questions": "Q"},
            r"config\.search\.questions='Q' needs config\.search\.corpus",
        ),
        (
            "tiny",
            {"env__name": "search", "search__train_sets": ("squad",)},
            r"search\.train_sets=\('squad',\) must .*bamboogle",
        ),
        (
            "tiny",
            {"env__name": "search", "search__train_sets": ()},
            r"config\.search\.train_sets=\(\) must name different",
        ),
        (
            "tiny",
            {"env__name": "search", "search__train_sets": ("nq", "nq")},
            r"config\.search\.train_sets=.* must name different",
        ),
        (
            "tiny",
            {"search__hits": 5},
            r"config\.search\.hits=5 has no effect when config\.env\.name='alfworld'",
        ),
        (
            "tiny",
            {"env__name": "search", "eval__panels": ("valid_seen",)},
            r"config\.eval\.panels=.* must name different panels of dev, test",
        ),
        ("tiny", {"eval__panels": ("nq",)}, r"config\.eval\.panels=\('nq',\) .*valid_unseen"),
        ("tiny", {"search__train_sets": ("nq",)}, r"config\.search\.train_sets=.* has no effect when"),
        ("tiny", {"eval__panels": ("valid_sene",)}, r"config\.eval\.panels=\('valid_sene',\) .*valid_unseen"),
        ("tiny", {"eval__panels": ("valid_seen", "valid_seen")}, r"config\.eval\.panels=.* different panels"),
    ],
)
def test_an_impossible_setting_is_one_sentence(preset: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as refusal:
        validated(preset_with(preset, **changes))
    assert "\n" not in str(refusal.value)


@given(
    path=st.lists(st.text("abcdefghijklmnop_", min_size=1, max_size=8), min_size=1, max_size=2),
    value=st.integers() | st.text(max_size=3),
)
def test_a_random_unknown_key_is_refused(path: list[str], value: int | str) -> None:
    plain = preset_with().to_dict()
    section = plain
    for name in path[:-1]:
        section = section.setdefault(name, {})
        assume(isinstance(section, dict))
    assume(path[-1] not in section)
    section[path[-1]] = value
    with pytest.raises(ConfigError, match=r"config\.\S+ is not a setting"):
        validated(plain)


@given(key=st.sampled_from(keys()), value=st.none() | st.binary(max_size=2) | st.lists(st.none(), min_size=1))
def test_a_wrong_type_is_refused_wherever_it_stands(key: str, value: Any) -> None:
    plain = preset_with().to_dict()
    *path, last = key.split(".")
    section = plain
    for name in path:
        section = section[name]
    section[last] = value
    with pytest.raises(ConfigError, match=rf"config\.{key}=.* has the wrong type: give "):
        validated(plain)


@given(key=st.sampled_from(NUMBERS), value=st.floats(max_value=-1e-9, allow_infinity=False))
def test_no_number_may_be_negative(key: str, value: float) -> None:
    whole = isinstance(setting(Config(), key), int)
    with pytest.raises(ConfigError, match=rf"config\.{key}="):
        validated(preset_with(**{key.replace(".", "__"): math.floor(value) if whole else value}))


def test_true_is_no_number_and_a_missing_field_is_named() -> None:
    plain = preset_with().to_dict()
    plain["train"]["steps"] = True
    with pytest.raises(ConfigError, match=r"config\.train\.steps=True has .* a whole number"):
        validated(plain)
    del plain["train"]["steps"]
    with pytest.raises(ConfigError, match=r"config\.train\.steps is missing"):
        validated(plain)


def test_a_whole_number_may_stand_for_a_float_and_a_list_for_a_tuple() -> None:
    plain = preset_with().to_dict()
    plain["train"]["grad_clip"] = 1
    plain["eval"]["panels"] = ["valid_unseen"]
    config = validated(plain)
    assert config.train.grad_clip == 1.0 and type(config.train.grad_clip) is float
    assert config.eval.panels == ("valid_unseen",)


@pytest.mark.parametrize(
    "changes",
    [
        {"search__retriever": "none"},
        {"search__retriever": "http", "search__url": "http://127.0.0.1:8000", "search__questions": "Q"},
        {"search__retriever": "dense", "search__encoder": "E", "search__query_prefix": "query: "},
        {"search__questions": "Q", "search__corpus": "C", "search__train_sets": ("musique",)},
    ],
)
def test_searches_that_can_be_made(changes: dict[str, Any]) -> None:
    config = validated(preset_with(env__name="search", eval__panels=("test", "nq", "train_probe"), **changes))
    assert all(setting(config, key.replace("__", ".")) == value for key, value in changes.items())


NO_EFFECT: list[tuple[str, Any, dict[str, Any], str]] = [
    ("trust__function", "raw", {"method": "hybrid"}, "config.method='hybrid'"),
    ("trust__prior_class", "outcome", {"method": "opsd"}, "config.method='opsd'"),
    ("trust__signed", True, {"method": "grpo"}, "config.method='grpo'"),
    ("trust__min_units", 2, {"method": "vanilla"}, "config.method='vanilla'"),
    ("skill__replays", 4, {"method": "hybrid"}, "config.method='hybrid'"),
    ("skill__eta", 0.5, {"method": "opsd"}, "config.method='opsd'"),
    ("skill__adv_group", "batch", {"method": "hybrid"}, "config.method='hybrid'"),
    ("skill__valid_bonus", 0.1, {"method": "hybrid"}, "config.method='hybrid'"),
    ("loss__advantage", "rloo", {"method": "opsd"}, "config.method='opsd'"),
    ("loss__adv_stat", "rows", {"method": "opsd"}, "config.method='opsd'"),
    ("loss__distill_high", 0.2, {"method": "opsd", "loss__distill_low": 0.2}, "config.method='opsd'"),
    ("loss__distill_high", 0.2, {"loss__distill": 0.0, "loss__distill_low": 0.2}, "config.loss.distill=0.0"),
    ("loss__distill_high", 0.2, {"loss__advantage": "none", "loss__distill_low": 0.2}, "config.loss.advantage='none'"),
    ("loss__hybrid", "modulate", {"method": "grpo"}, "config.method='grpo'"),
    ("loss__teacher", "current", {"method": "grpo"}, "config.method='grpo'"),
    ("loss__distill_schedule", "linear", {"method": "grpo"}, "config.method='grpo'"),
    ("skill__source", "static", {"method": "grpo"}, "config.method='grpo'"),
    ("trust__token_shrinkage", True, {"method": "grpo"}, "config.method='grpo'"),
    ("loss__gate_slope", 1.0, {}, "config.loss.hybrid='advantage'"),
    ("trust__kappa", 2.0, {"trust__function": "prob"}, "config.trust.function='prob'"),
    ("skill__eta", 0.5, {"skill__source": "shuffled"}, "config.skill.source='shuffled'"),
    ("skill__adv_group", "batch", {"skill__source": "static"}, "config.skill.source='static'"),
    ("loss__gamma", 0.5, {}, "config.loss.advantage='grpo'"),
    ("search__hits", 5, {}, "config.env.name='alfworld'"),
    ("env__engine", "textworld", {"env__name": "search", "eval__panels": ("test",)}, "config.env.name='search'"),
    ("games__max_per_kind", 2, {"env__name": "search", "eval__panels": ("test",)}, "config.env.name='search'"),
    ("context__history", 3, {}, "config.context.kind='conversation'"),
    ("lora__alpha", 8.0, {}, "config.lora.rank=0"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value", "others", "reason"), NO_EFFECT)
def test_what_has_no_effect_is_one_sentence_and_a_base_may_have_it(
    name: str, value: Any, others: dict[str, Any], reason: str
) -> None:
    key = name.replace("__", ".")
    settings = preset_with(**others, **{name: value})
    with pytest.raises(ConfigError, match=r"config\.\S+=\S+ has no effect when ") as refusal:
        validated(settings)
    assert reason in str(refusal.value) and "\n" not in str(refusal.value)
    base = validated(relevant(settings, ()))
    assert setting(base, key) == setting(Config(), key)
    assert relevant(to_config_dict(base), ()) == to_config_dict(base)


@pytest.mark.parametrize("preset", ALFWORLD["PRESETS"])
@pytest.mark.parametrize("method", METHODS)
def test_every_preset_takes_every_method(preset: str, method: str) -> None:
    assert validated(preset_with(preset, method=method)).method == method
    assert validated(preset_with(preset, method=method, skill__eta=0.0)).skill.eta == 0.0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"method": "grpo", "loss__advantage": "none"}, r"config\.method='grpo' trains nothing"),
        ({"method": "opsd", "loss__distill": 0.0}, r"config\.method='opsd' trains nothing"),
        ({"skill__per_task": 1}, r"config\.skill\.per_task=1 leaves no skill another"),
        ({"skill__per_task": 1, "skill__adv_group": "task_outcome"}, r"per_task=1 leaves no skill another"),
        ({"trust__decay": 0.4}, r"config\.trust\.min_units=16 is never reached by 8 units a step .* at most 13,"),
        ({"trust__unit": "hier", "skill__replays": 2, "skill__per_task": 1, "skill__adv_group": "batch"}, r"'hier' compares"),
        ({"trust__signed": True, "loss__hybrid": "gated_loss"}, r"trust\.signed=True does not go with .*no lower bound"),
        ({"loss__importance_cap": 0.5}, r"config\.loss\.importance_cap=0\.5 .*at least 1, or 0"),
        ({"trust__prior_class": "outcome", "skill__source": "shuffled"}, r"is not the one it teaches"),
    ],
)  # fmt: skip
def test_what_trains_or_learns_nothing_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        validated(preset_with(**changes))


@pytest.mark.parametrize(
    "changes",
    [
        {"skill__per_task": 1, "skill__eta": 0.0},
        {"skill__per_task": 1, "skill__adv_group": "batch"},
        {"trust__decay": 0.5},
        {"trust__prior_class": "outcome", "skill__source": "static"},  # written from the very episode
        {"loss__distill": 0.0, "loss__distill_schedule": "linear", "loss__distill_final": 0.1, "loss__teacher": "current"},
        {"method": "grpo", "loss__distill": 3.0},  # lambda of the study that it is a variant of
        {"skill__per_task": 1, "skill__source": "static"},
        {"skill__per_task": 1, "method": "hybrid"},
        {"skill__per_task": 2, "skill__replays": 2, "trust__unit": "hier"},
        {"loss__hybrid": "gated_loss", "loss__gate_slope": 2.0},
        {"loss__advantage": "none"},
        {"loss__distill_low": 0.1, "loss__distill_high": 0.2, "loss__distill": 0.0, "loss__distill_final": 1.0,
         "loss__distill_schedule": "linear"},
    ],
)  # fmt: skip
def test_what_is_near_a_refusal_and_has_an_effect_is_taken(changes: dict[str, Any]) -> None:
    config = validated(preset_with(**changes))
    assert all(setting(config, key.replace("__", ".")) == value for key, value in changes.items())


def test_to_config_dict_round_trips() -> None:
    config = ALFWORLD["PRESETS"]["tiny"]
    assert validated(to_config_dict(config)) == config


def test_the_known_names_are_those_of_the_registries() -> None:
    """Validation lists what the layers above it register; the two must not drift apart."""
    assert set(METHODS) == set(methods.METHODS)
    known = methods.METHODS.items()
    assert set(TEACHING) == {name for name, method in known if method.writes_skills}
    assert set(REPLAYING) == {name for name, method in known if method.replays}
    assert set(OUTCOMES) == {name for name, method in known if method.trains} - {"opsd"}
    assert set(GAME_VERSIONS) == {"as_is", *versions.VERSIONS}
    assert set(PARSERS) == set(actions.PARSERS)
    assert SEARCH_SETS == questions.SETS
    assert set(TRUST_FUNCTIONS) == set(trust.WEIGHTS)
