"""Demonstrations of searching: they are what the environment shows, win by the way that is known, and tell no answer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rsipo_jax.agents.search_actions import parse_strict
from rsipo_jax.config import Config, EnvConfig, SearchConfig, SFTConfig
from rsipo_jax.envs.protocol import EnvPool
from rsipo_jax.envs.search.answers import exact_match
from rsipo_jax.envs.search.encyclopedia import Example
from rsipo_jax.envs.search.passages import Corpus
from rsipo_jax.envs.search.pool import NO_HITS
from rsipo_jax.skills.leaks import leaks
from rsipo_jax.skills.parsing import parse_skill
from rsipo_jax.training.demonstrations.demonstration import READING, Demonstration
from rsipo_jax.training.demonstrations.demonstrations_dataset_builder import chosen
from rsipo_jax.training.demonstrations.search import (
    FACTS,
    NOISE,
    demonstrations,
    expert_steps,
    reading_questions,
)
from rsipo_jax.training.worlds.search import Search

CONFIG = Config(
    env=EnvConfig(name="search", max_turns=5),
    search=SearchConfig(people=40, demonstrated=40, train=4, dev=4, test=4, hits=2),
    sft=SFTConfig(games=12, reading_questions=1),
)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Search:
    return Search(CONFIG, tmp_path_factory.mktemp("search"))


@pytest.fixture(scope="module")
def pool(world: Search) -> Iterator[EnvPool]:
    pool = world.pool()
    yield pool
    pool.close()


def examples(world: Search) -> list[Example]:
    return [Example(world.data.question(t.id), world.data.hops(t.id)) for t in world.tasks("demonstrated")]


def played(world: Search, pool: EnvPool) -> list[tuple[Example, Demonstration]]:
    return [
        (example, demo)
        for example, task in zip(examples(world), world.tasks("demonstrated"), strict=True)
        for demo in demonstrations(example, task, pool, 0, CONFIG.env.max_turns)
    ]


def test_they_are_what_the_environment_shows_and_every_response_is_strict(
    world: Search, pool: EnvPool
) -> None:
    tasks = {task.id: task for task in world.tasks("demonstrated")}
    lengths = set()
    for _, demo in played(world, pool):
        assert len(demo.responses) == len(demo.imitate) == len(demo.admissible) == len(demo.observations) - 1
        seen = [pool.reset({0: tasks[demo.task_id]})[0]]
        for said in demo.responses:
            parsed = parse_strict(said, ())
            assert parsed.valid
            seen.append(pool.step({0: parsed.command})[0])
        assert tuple(o.text for o in seen) == demo.observations and seen[-1].won == demo.won
        lengths.add(len(demo.responses))
    assert lengths == {2, 3, 4, 5}


def test_without_slips_every_question_is_won_and_with_them_some_are_lost(
    world: Search, pool: EnvPool
) -> None:
    plain = [demo for _, demo in played(world, pool) if not demo.skill]
    assert len(plain) == len(NOISE) * 40
    assert all(demo.won for demo in plain if all(demo.imitate))
    assert (
        sum(not demo.won for demo in plain) > 3
        and sum(demo.won and not all(demo.imitate) for demo in plain) > 3
    )
    assert all(all(demo.imitate) and demo.won for _, demo in played(world, pool) if demo.skill)


def test_what_is_imitated_finds_what_it_looks_for(world: Search, pool: EnvPool) -> None:
    for example, demo in played(world, pool):
        passages = [hop.query for hop in example.hops]
        for said, good, shown in zip(demo.responses, demo.imitate, demo.observations[1:], strict=True):
            command = parse_strict(said, ()).command
            if good and command.startswith("<search>"):
                query = command.removeprefix("<search>").removesuffix("</search>")
                assert query in passages and f"(Title: {query})" in shown and NO_HITS not in shown
            elif good:
                answer = command.removeprefix("<answer>").removesuffix("</answer>")
                assert exact_match(answer, example.question.answers)


def test_a_skill_tells_the_way_and_nothing_that_was_found(world: Search, pool: EnvPool) -> None:
    names = {passage.title for passage in Corpus(world.data.corpus)}
    demos = played(world, pool)
    for (example, first), (_, second) in zip(demos[::2], demos[1::2], strict=True):
        skill = parse_skill(first.analysis)
        assert skill.valid and second.skill == skill.text and second.analysis == "" and first.skill == ""
        assert not leaks(skill.text, example.question.answers)
        assert not any(name in skill.text for name in names)
        places = [skill.text.find(hop.relation) for hop in example.hops]
        assert -1 not in places and skill.text.startswith("search") == first.won
        assert len(second.responses) == len(expert_steps(example))


def test_reading_questions_are_answered_by_the_passages_they_show_and_by_nothing_else() -> None:
    ids = [f"train/{i}" for i in range(60)]
    asked = list(reading_questions(ids, 0, chars=200))
    assert [demo.task_id for demo in asked] == ids and {demo.kind for demo in asked} == {READING}
    known: dict[tuple[str, str], set[str]] = {}
    for demo in asked:
        (text, _), (told,) = demo.observations, demo.responses
        values = [fact.split(": ")[1] for fact in told.strip().split(", ")]
        about = text.rpartition("\nGive the ")[2].removesuffix(".").split(", the ")
        assert len(about) == len(values) <= FACTS and len(values) >= 1
        for value, (relation, _, name) in zip(values, (a.partition(" of ") for a in about), strict=True):
            assert value in text and f"(Title: {name})" in text
            known.setdefault((relation, name), set()).add(value)
    assert asked == list(reading_questions(ids, 0, chars=200)) != list(reading_questions(ids, 1, chars=200))


def test_the_data_set_gives_back_what_was_played(world: Search, pool: EnvPool, tmp_path: Path) -> None:
    demos = world.demonstrations(tmp_path)
    tasks = {task.id for task in chosen(world.tasks("demonstrated"), 12, 0)}
    made = [demo for _, demo in played(world, pool) if demo.task_id in tasks]
    episodes = [demo for demo in demos if demo.kind != READING]
    assert sorted(map(repr, episodes)) == sorted(map(repr, made)) and len(demos) == len(made) + 12
    assert world.demonstrations(tmp_path) == demos
