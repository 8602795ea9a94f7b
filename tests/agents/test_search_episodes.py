"""Episodes of searching: what the policy reads, that it is trained on its own words only, and what is kept of its answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rsipo_jax.agents.context import make_context
from rsipo_jax.agents.rollout import ACT, Agent, Episode, rollout
from rsipo_jax.agents.trajectory import Trajectory
from rsipo_jax.config import Config, EnvConfig, LossConfig
from rsipo_jax.envs.protocol import Task
from rsipo_jax.envs.search.passages import Passage
from rsipo_jax.envs.search.pool import REMINDER, SearchPool
from rsipo_jax.envs.search.questions import Question
from rsipo_jax.envs.search.retrieval import Hit, RetrievalError
from rsipo_jax.methods.method import Credit
from rsipo_jax.sampling.protocol import Address, Sampling
from rsipo_jax.skills.writing import write_skills
from rsipo_jax.text.sentencepiece_tokenizer import SentencePieceTokenizer
from rsipo_jax.training import update
from rsipo_jax.training.packing import pack
from rsipo_jax.training.rows import ACTION, CONTEXT, SKILL, rows_from
from rsipo_jax.training.update import TokenScores, count_kinds, make_batch, rl_loss
from tests.agents.episodes import ScriptedSampler, make_config
from tests.models.reference import SMALL

QUESTION = Question("train/0", "nq", "who wrote the first program", ("Ada Lovelace", "Ada"))
TASK = Task("train/0", "nq", "train", QUESTION.answers)
SEARCH = "<think> who</think><search> first program</search>"
RIGHT = "<think> Ada</think><answer> ada lovelace.</answer>"
WRONG = "<think> Ada</think><answer> Babbage</answer>"


class Library:
    """Finds passages that look like what the policy is to say; `down`: finds nothing, with an error."""

    def __init__(self, down: bool = False) -> None:
        self.down = down

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        if self.down:
            raise RetrievalError("the library burnt down")
        passage = Passage("7", "Ada", f"<answer> Ada</answer> {RIGHT} wrote it")
        return [[Hit(passage, 1.0)] * k for _ in queries]

    def describe(self) -> Mapping[str, Any]:
        return {}

    def close(self) -> None: ...


def config_of(kind: str, **changes: Any) -> Config:
    config = make_config(kind, context__max_length=900, rollout__max_new_tokens=60, **changes)
    context = replace(config.context, show_admissible=False, parser="strict")
    return replace(config, context=context, env=EnvConfig(name="search", max_turns=4))


def play(
    tokenizer: SentencePieceTokenizer, config: Config, said: Sequence[str], down: bool = False
) -> tuple[Agent, Trajectory]:
    """One episode in which the policy says these things, then the last one again."""

    def respond(address: Address) -> str:
        return said[min(address[-1], len(said) - 1)]

    pool = SearchPool({QUESTION.id: QUESTION}, Library(down), hits=2, passage_chars=100)
    agent = Agent(
        ScriptedSampler(tokenizer, respond), pool, make_context(tokenizer, config), tokenizer, config
    )
    (trajectory,) = rollout(agent, [Episode(TASK, 0, 0)], ACT, 0, Sampling(1.0))
    pool.close()
    return agent, trajectory


@pytest.mark.parametrize(
    ("said", "status", "answer"),
    [
        ([SEARCH, RIGHT], "won", "ada lovelace."),
        ([SEARCH, WRONG], "lost", "Babbage"),
        ([SEARCH], "out_of_turns", ""),
        (["nothing of use"], "out_of_turns", ""),
    ],
)
def test_an_episode_ends_with_its_answer(
    tokenizer: SentencePieceTokenizer, said: list[str], status: str, answer: str
) -> None:
    trajectory = play(tokenizer, config_of("conversation"), said)[1]
    assert (trajectory.status, trajectory.answer, trajectory.won) == (status, answer, status == "won")
    if "nothing" in said[0]:
        assert trajectory.observations[1:] == [REMINDER] * 4 and trajectory.invalid_actions == 4
    else:
        assert trajectory.invalid_actions == 0


def test_a_retriever_that_is_down_makes_the_episode_void(tokenizer: SentencePieceTokenizer) -> None:
    trajectory = play(tokenizer, config_of("conversation"), [SEARCH, RIGHT], down=True)[1]
    assert trajectory.void and trajectory.error == "the library burnt down" and not trajectory.won
    assert len(trajectory.observations) == 1  # nothing was shown in place of passages


CONVERSATION = """\
Question: who wrote the first program?[SKILL]
Reason about the next step inside <think> </think>, then give either one query inside <search> </search> \
or the final answer, nothing but it, inside <answer> </answer>.\
<think> who</think><search> first program</search>\
<information>
Doc 1 (Title: Ada) {0} wrote it
Doc 2 (Title: Ada) {0} wrote it
</information>"""
WINDOW = """\
You answer a question with the help of a search engine, whose passages come inside <information> </information>.
Question: who wrote the first program?[SKILL]
Steps taken so far: 1. The most recent ones:
Observation 1: Question: who wrote the first program?
Action 1: <search>first program</search>
Now it is step 2. Observation: <information>
Doc 1 (Title: Ada) {0} wrote it
Doc 2 (Title: Ada) {0} wrote it
</information>
Reason about the next step inside <think> </think>, then give either one query inside <search> </search> \
or the final answer, nothing but it, inside <answer> </answer>."""


@pytest.mark.parametrize(("kind", "wanted"), [("conversation", CONVERSATION), ("window", WINDOW)])
def test_the_prompt_of_a_second_turn(tokenizer: SentencePieceTokenizer, kind: str, wanted: str) -> None:
    trajectory = play(tokenizer, config_of(kind), [SEARCH, RIGHT])[1]
    prompt = trajectory.turns[1].prompt
    before, after = (
        tokenizer.decode(part.tolist())
        for part in (prompt.tokens[: prompt.skill_at], prompt.tokens[prompt.skill_at :])
    )
    assert f"{before}[SKILL]{after}" == wanted.format(f"<answer> Ada</answer> {RIGHT}")


@pytest.mark.parametrize("kind", ["conversation", "window"])
def test_the_gradient_is_of_sampled_tokens_and_never_of_passages(
    tokenizer: SentencePieceTokenizer, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The passages hold the very tags and words of a response, so looking for those would take them for one."""
    agent, trajectory = play(tokenizer, config_of(kind), [SEARCH, RIGHT])
    rows = rows_from([trajectory])
    said = np.concatenate([turn.response for turn in trajectory.turns])
    np.testing.assert_array_equal(rows.tokens[rows.kind == ACTION], said)
    read = tokenizer.decode(rows.tokens[rows.kind == CONTEXT].tolist())
    assert "<answer> Ada</answer> <think> Ada</think>" in read and "ada lovelace." in read

    count, vocab = len(rows.tokens), agent.tokenizer.vocab_size
    zeros, ones = np.zeros(count, np.float32), np.ones(count, np.float32)
    length = int(rows.lengths.max())
    (micro,) = pack(rows.starts, range(len(rows)), length, len(rows))
    batch = make_batch(micro, rows, TokenScores(zeros, zeros, zeros), Credit(ones, zeros))
    model = replace(SMALL, vocab_size=vocab, hidden_size=vocab, num_layers=1)
    monkeypatch.setattr(update, "hidden_states", lambda params, *_: params["hidden"])
    logits = jnp.asarray(np.random.default_rng(0).normal(size=(*micro.source.shape, vocab)), jnp.float32)

    def loss(logits: jax.Array) -> jax.Array:
        given, totals = {"hidden": logits, "embed": jnp.eye(vocab)}, count_kinds(rows, np.arange(len(rows)))
        return rl_loss(given, model, batch, totals, LossConfig(), (0.0, 0.0), 1.0)[0]

    reached = np.abs(np.asarray(jax.grad(loss)(logits))).sum(axis=-1) > 0
    sampled = np.isin(micro.take(rows.kind), (ACTION, SKILL))
    np.testing.assert_array_equal(reached, np.roll(sampled, -1, axis=1))
    assert reached.sum() == len(said)


@pytest.mark.parametrize(
    ("skill", "status"),
    [
        ("search for the first program", "strict"),
        ("the answer is ADA LOVELACE", "leak"),
        ("do not say Babbage", "leak"),
    ],
)
def test_a_skill_with_the_answer_or_what_was_answered_is_a_leak(
    tokenizer: SentencePieceTokenizer, skill: str, status: str
) -> None:
    written = f'{{"episode_summary": "s", "episode_skill": "{skill}"}}'
    said: Callable[[Address], str] = lambda a: written if a[0] != ACT else (SEARCH, WRONG)[min(a[-1], 1)]  # noqa: E731
    agent, trajectory = play(tokenizer, config_of("conversation", skill__leak_guard=True), [SEARCH, WRONG])
    agent = replace(agent, sampler=ScriptedSampler(tokenizer, said))
    (found,) = write_skills(agent, [trajectory], 0, Sampling(1.0))
    assert (found.status, found.valid) == (status, status == "strict")
