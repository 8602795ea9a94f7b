"""Contexts: teacher prompts are student prompts plus the skill, tokens stay what was sampled, and room is exact."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from rsipo_jax.agents.context import REQUEST_TOKENS, Conversation, Window, make_context
from rsipo_jax.agents.prompts import (
    Exchange,
    analysis_request,
    skill_block,
    task_of,
    window_message,
)
from rsipo_jax.agents.trajectory import Prompt, Trajectory, Turn
from rsipo_jax.agents.words import ALFWORLD
from rsipo_jax.text.sentencepiece_tokenizer import SentencePieceTokenizer
from rsipo_jax.text.tokenizer import Tokenizer, load_tokenizer
from tests.agents.episodes import ADMISSIBLE, FIRST, ROOM, make_config, task
from tests.text.test_hf_tokenizer import CHATML, build

BANNER, FORMAT, ROLE = ALFWORLD.banner, ALFWORLD.form, ALFWORLD.role
KINDS = ("conversation", "window")
CONTEXTS = (("conversation", "paper"), ("window", "paper"), ("window", "static_first"))
WORDS = (
    "go to drawer 1",
    "mug",
    " 12",
    "\n",
    "<think>",
    "</action>",
    "<|end|>",
    "Your task is to: ",
    "é",
    "'",
)
TEXTS = st.lists(st.sampled_from(WORDS) | st.text(max_size=4), max_size=6).map("".join)
SKILLS = TEXTS.filter(bool)
RESPONSES = st.lists(st.integers(0, 260), min_size=1, max_size=12)
TURNS = st.lists(st.tuples(TEXTS, RESPONSES, st.booleans()), min_size=1, max_size=5)
Told = Sequence[tuple[str, Sequence[int]]]  # observation, response


def play(context: Conversation | Window, told: Told, skill: str = "", last: str = "the end") -> Trajectory:
    """An episode of these observations and responses, up to where the room ends."""
    trajectory = Trajectory(task("never"), 0, 0, skill)
    for observation, response in told:
        trajectory.observations.append(observation)
        prompt = context.acting(trajectory, ADMISSIBLE)
        if prompt is None:
            return trajectory
        ids, text = np.asarray(response, np.int32), context.tokenizer.decode(list(response))
        trajectory.turns.append(Turn(prompt, ids, np.zeros(len(ids), np.float32), text, f"do {text}"))
    trajectory.observations.append(last)
    return trajectory


def responses(tokenizer: SentencePieceTokenizer, turns: Sequence[tuple[str, list[int], bool]]) -> Told:
    """The drawn turns, the flagged ones ended by a stop token."""
    first, *rest = ([*ids, *tokenizer.stop_ids] if ended else ids for _, ids, ended in turns)
    return [(FIRST, first), *((text, ids) for (text, _, _), ids in zip(turns[1:], rest, strict=True))]


def text_of(context: Conversation | Window, prompt: Prompt | None) -> str:
    assert prompt is not None
    return context.tokenizer.decode(prompt.tokens.tolist())


@pytest.mark.parametrize(("kind", "order"), CONTEXTS)
@given(turns=TURNS, skill=SKILLS, max_length=st.integers(300, 700))
def test_the_teacher_s_prompt_is_the_student_s_plus_the_skill(
    tokenizer: SentencePieceTokenizer, kind: str, order: str, turns: list, skill: str, max_length: int
) -> None:
    config = make_config(kind, context__order=order, context__max_length=max_length)
    context = make_context(tokenizer, config)
    assume(context.skill_fits(skill))
    told = responses(tokenizer, turns)
    student, teacher = play(context, told), play(context, told, skill)
    assert len(student.turns) == len(teacher.turns)  # neither ends for want of room before the other
    block = context.skill_tokens(skill)
    assert block.dtype == np.int32 and len(block) and not len(context.skill_tokens(""))
    for mine, theirs in zip(student.turns, teacher.turns, strict=True):
        at = mine.prompt.skill_at
        assert theirs.prompt.skill_at == at
        np.testing.assert_array_equal(theirs.prompt.tokens[at : at + len(block)], block)
        np.testing.assert_array_equal(
            np.delete(theirs.prompt.tokens, np.s_[at : at + len(block)]), mine.prompt.tokens
        )
        assert mine.prompt.tokens.dtype == np.int32
        assert len(theirs.prompt.tokens) + context.turn_tokens <= max_length


@given(turns=TURNS, skill=TEXTS)
def test_a_conversation_goes_on_with_the_very_ids_that_were_sampled(
    tokenizer: SentencePieceTokenizer, turns: list, skill: str
) -> None:
    context = make_context(tokenizer, make_config(context__max_length=5000))
    trajectory = play(context, responses(tokenizer, turns), skill)
    prompts = [turn.prompt for turn in trajectory.turns] + [context.analysis(trajectory)]
    last = [
        *trajectory.observations[1:-1],
        f"{trajectory.observations[-1]}\n{analysis_request(False, ALFWORLD)}",
    ]
    for before, after, said in zip(trajectory.turns, prompts[1:], last, strict=True):
        assert after is not None and after.skill_at == before.prompt.skill_at
        n, m = len(before.prompt.tokens), len(before.response)
        np.testing.assert_array_equal(after.tokens[:n], before.prompt.tokens)
        np.testing.assert_array_equal(after.tokens[n : n + m], before.response)
        closed = [] if before.response[-1] == tokenizer.stop_ids[0] else [tokenizer.stop_ids[0]]
        assert after.tokens[n + m :].tolist() == [*closed, *chain(*tokenizer.following([said]))]


def test_a_response_that_ended_with_another_stop_id_is_closed_with_the_first(
    tokenizer: SentencePieceTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    end, other = tokenizer.stop_ids[0], tokenizer.pad_id
    monkeypatch.setattr(tokenizer, "stop_ids", (end, other))
    context = make_context(tokenizer, make_config())
    trajectory = play(context, [(FIRST, [70, other]), ("next", [70, end])])
    n = len(trajectory.turns[0].prompt.tokens)
    assert trajectory.turns[1].prompt.tokens[n : n + 3].tolist() == [70, other, end]


def test_a_conversation_reads_as_it_should(tokenizer: SentencePieceTokenizer) -> None:
    context = make_context(tokenizer, make_config())
    trajectory = play(
        context, [(FIRST, tokenizer.encode("<think>a</think>")), ("You see a mug 1.", [70])], "take mug 1"
    )
    first = text_of(context, trajectory.turns[0].prompt)
    assert first == (
        f"{FIRST.removeprefix(BANNER)}\n\nSkill for this episode, consult it before you act: take mug 1\n{FORMAT}"
    )
    assert text_of(context, trajectory.turns[1].prompt) == f"{first}<think>a</think>You see a mug 1."
    trajectory.won = True
    assert text_of(context, context.analysis(trajectory)).endswith(
        f"the end\n{analysis_request(True, ALFWORLD)}"
    )
    shown = make_context(
        tokenizer, replace(make_config(), context=replace(make_config().context, show_admissible=True))
    )
    opening = text_of(shown, play(shown, [(FIRST, [70])]).turns[0].prompt)
    assert opening.endswith(
        "Admissible actions:\n'go to drawer 1'\n'look'\n'take mug 1 from drawer 1'\n" + FORMAT
    )


def test_a_window_shows_the_task_the_last_exchanges_and_the_observation(
    tokenizer: SentencePieceTokenizer,
) -> None:
    context = make_context(tokenizer, make_config("window", context__history=2, context__max_length=1200))
    told = [(FIRST if i == 0 else f"seen {i}", tokenizer.encode(f"r{i}")) for i in range(5)]
    trajectory = play(context, told, "take mug 1")
    first, second, _, _, fifth = (text_of(context, turn.prompt) for turn in trajectory.turns)
    skill = "\n\nSkill for this episode, consult it before you act: take mug 1"
    assert f"{ROOM}\n\nYour task is to: put a clean mug in desk.{skill}\nAdmissible actions:" in first
    assert BANNER not in first + second and "Action" not in first and "Steps taken" not in first
    assert f"Observation 1: {FIRST.removeprefix(BANNER)}\nAction 1: do r0" in second
    assert f"Your task is to: put a clean mug in desk.{skill}" in fifth
    assert "Steps taken so far: 4" in fifth and "Now it is step 5. Observation: seen 4" in fifth
    assert "Observation 3: seen 2\nAction 3: do r2\nObservation 4: seen 3\nAction 4: do r3" in fifth
    assert "seen 1" not in fifth and ROOM not in fifth and "r4" not in fifth
    assert "'look'" in fifth and fifth.endswith(FORMAT)


PAPER = """\
You act in a simulated household through text commands.
You are in the middle of a room. Looking quickly around you, you see a bed 1, a desk 1, and a drawer 1.

Your task is to: put a clean mug in desk.[SKILL]
Admissible actions:
'go to drawer 1'
'look'
'take mug 1 from drawer 1'
Reason about the next step inside <think> </think>, then give one action inside <action> </action>."""
PAPER_LATER = """\
You act in a simulated household through text commands.
Your task is to: put a clean mug in desk.[SKILL]
Steps taken so far: 4. The most recent ones:
Observation 4: seen 3
Action 4: do r3
Now it is step 5. Observation: seen 4
Admissible actions:
'go to drawer 1'
'look'
'take mug 1 from drawer 1'
Reason about the next step inside <think> </think>, then give one action inside <action> </action>."""


def test_the_order_of_the_paper_reads_as_ever() -> None:
    opening = window_message(FIRST, [], 0, FIRST, ADMISSIBLE, ALFWORLD)
    assert f"{opening.before}[SKILL]{opening.after}" == PAPER
    later = window_message(
        FIRST, [Exchange("seen 3", "r3", "do r3", True)], 4, "seen 4", ADMISSIBLE, ALFWORLD
    )
    assert f"{later.before}[SKILL]{later.after}" == PAPER_LATER


def test_with_the_static_part_first_nothing_is_lost(tokenizer: SentencePieceTokenizer) -> None:
    changes = {"context__history": 2, "context__max_length": 1200}
    told = [(FIRST if i == 0 else f"seen {i}", tokenizer.encode(f"r{i}")) for i in range(5)]
    texts = {}
    for order in ("paper", "static_first"):
        context = make_context(tokenizer, make_config("window", context__order=order, **changes))
        trajectory = play(context, told, "take mug 1")
        texts[order] = [text_of(context, turn.prompt) for turn in trajectory.turns]
    skill = "\n\nSkill for this episode, consult it before you act: take mug 1"
    role = "You act in a simulated household through text commands."
    static = f"{role}\n{FORMAT}\nYour task is to: put a clean mug in desk.{skill}\n"
    for paper, reordered in zip(texts["paper"], texts["static_first"], strict=True):
        assert reordered.startswith(static)
        assert sorted(filter(None, reordered.split("\n"))) == sorted(filter(None, paper.split("\n")))
    assert texts["static_first"][0].startswith(f"{static}{ROOM}\nAdmissible actions:")


@pytest.fixture(scope="module", params=["sentencepiece", "chatml"])
def either_tokenizer(
    request: pytest.FixtureRequest,
    tokenizer: SentencePieceTokenizer,
    tmp_path_factory: pytest.TempPathFactory,
) -> Tokenizer:
    if request.param == "sentencepiece":
        return tokenizer
    return load_tokenizer(build(tmp_path_factory.mktemp("chatml"), CHATML))


@given(goal=TEXTS, room=TEXTS, turns=TURNS, other=TURNS, skill=TEXTS)
def test_the_static_part_is_the_same_tokens_at_every_turn_and_in_the_whole_group(
    either_tokenizer: Tokenizer, goal: str, room: str, turns: list, other: list, skill: str
) -> None:
    config = make_config("window", context__order="static_first", context__max_length=5000)
    context = make_context(either_tokenizer, config)
    first = f"{BANNER}{room}\n\nYour task is to: {goal}"
    members = [  # one task and one skill, different actions and observations
        play(context, [(first if i == 0 else text, ids) for i, (text, ids, _) in enumerate(drawn)], skill)
        for drawn in (turns, other)
    ]
    prompts = [turn.prompt for member in members for turn in member.turns]
    assert len(prompts) == len(turns) + len(other)
    static = prompts[0].skill_at + len(context.skill_tokens(skill))
    for prompt in prompts:
        assert prompt.skill_at == prompts[0].skill_at
        np.testing.assert_array_equal(prompt.tokens[:static], prompts[0].tokens[:static])
    pieces = [
        f"{ROLE}{FORMAT}\nYour task is to: {task_of(first, ALFWORLD)}",
        skill_block(skill) if skill else "",
    ]
    encoded = [*chain(*(either_tokenizer.encode(piece) for piece in pieces))]
    assert prompts[0].tokens[:static].tolist()[-len(encoded) :] == encoded


@given(length=st.integers(150, 420), long=st.lists(st.integers(1, 40), min_size=3, max_size=3), skill=TEXTS)
def test_a_window_drops_the_oldest_exchanges_first_and_no_more_than_it_must(
    tokenizer: SentencePieceTokenizer, length: int, long: list[int], skill: str
) -> None:
    sizes = {"context__history": 3, "rollout__max_new_tokens": 5, "skill__max_new_tokens": 1}
    context = make_context(tokenizer, make_config("window", context__max_length=length, **sizes))
    roomy = make_context(tokenizer, make_config("window", context__max_length=9999, **sizes))
    assume(context.skill_fits(skill))
    told = [(FIRST if i == 0 else f"seen{i}" + " mug" * n, [70]) for i, n in enumerate([0, *long])]
    trajectory = play(roomy, told[:3], skill)
    trajectory.observations[-1] = told[3][0]
    prompt = context.acting(trajectory, ADMISSIBLE)
    limit = length - 5 - context.reserve
    trajectory.skill = ""
    candidates = []  # with 3, 2, 1, 0 exchanges
    for history in (3, 2, 1, 0):
        short = make_context(
            tokenizer,
            make_config("window", context__max_length=9999, **sizes | {"context__history": history}),
        )
        candidates.append(short.acting(trajectory, ADMISSIBLE))
    fitting = [c for c in candidates if c is not None and len(c.tokens) <= limit]
    if not fitting:
        assert prompt is None
    else:
        assert prompt is not None
        at, n = prompt.skill_at, len(context.skill_tokens(skill))
        np.testing.assert_array_equal(np.delete(prompt.tokens, np.s_[at : at + n]), fitting[0].tokens)


@pytest.mark.parametrize("kind", KINDS)
def test_a_skill_fits_up_to_the_room_kept_for_it(tokenizer: SentencePieceTokenizer, kind: str) -> None:
    context = make_context(tokenizer, make_config(kind, skill__max_new_tokens=20))
    words = len(context.skill_tokens("x"))
    longest = "é" * 99
    while len(context.skill_tokens(longest)) > 20 + REQUEST_TOKENS:
        longest = longest[:-1]
    assert words < len(context.skill_tokens(longest)) and context.skill_fits(longest)
    assert context.skill_fits("") and not context.skill_fits(longest + "éé")


@pytest.mark.parametrize("kind", KINDS)
def test_without_room_there_is_no_prompt(tokenizer: SentencePieceTokenizer, kind: str) -> None:
    roomy = make_context(tokenizer, make_config(kind))
    bare = len(play(roomy, [(FIRST, [70])]).turns[0].prompt.tokens)
    enough = bare + roomy.turn_tokens + roomy.reserve
    exact = make_context(tokenizer, make_config(kind, context__max_length=enough))
    assert len(play(exact, [(FIRST, [70])]).turns) == 1
    short = make_context(tokenizer, make_config(kind, context__max_length=enough - 1))
    assert not play(short, [(FIRST, [70])]).turns
    assert not play(short, [(FIRST, [70])], "a skill").turns


@pytest.mark.parametrize("kind", KINDS)
@given(turns=TURNS, max_length=st.integers(300, 700))
def test_an_analysis_prompt_leaves_room_for_the_analysis(
    tokenizer: SentencePieceTokenizer, kind: str, turns: list, max_length: int
) -> None:
    context = make_context(tokenizer, make_config(kind, context__max_length=max_length))
    trajectory = play(context, responses(tokenizer, turns))
    prompt = context.analysis(trajectory)
    if kind == "conversation" and not trajectory.turns:
        assert prompt is None
    assert prompt is None or len(prompt.tokens) + context.writing_tokens <= max_length


def test_a_conversation_without_room_for_the_request_is_analysed_by_its_digest(
    tokenizer: SentencePieceTokenizer,
) -> None:
    roomy = make_context(tokenizer, make_config(skill__observation_chars=30))
    trajectory = play(roomy, [(FIRST, [70])])
    prompt = roomy.analysis(trajectory)
    assert prompt is not None
    enough = len(prompt.tokens) + roomy.writing_tokens

    def analysed(max_length: int) -> Prompt | None:
        config = make_config(context__max_length=max_length, skill__observation_chars=30)
        return make_context(tokenizer, config).analysis(trajectory)

    fitting = analysed(enough)
    assert fitting is not None and fitting.tokens.tolist() == prompt.tokens.tolist()
    digest = analysed(enough - 1)
    assert digest is not None and len(digest.tokens) < len(prompt.tokens)
    assert text_of(roomy, digest).startswith("Task: put a clean mug in desk.\nResult: failure\nStep 1\n")
    assert analysed(roomy.writing_tokens + 10) is None


def test_a_window_analysis_numbers_its_steps_cuts_observations_and_leaves_out_the_earliest(
    tokenizer: SentencePieceTokenizer,
) -> None:
    config = make_config("window", context__max_length=2000, skill__observation_chars=30)
    context = make_context(tokenizer, config)
    told = [(FIRST if i == 0 else f"seen {i} " + "mug " * 20, tokenizer.encode(f"r{i}")) for i in range(4)]
    trajectory = play(context, told)
    trajectory.turns[2] = replace(trajectory.turns[2], valid=False)
    text = text_of(context, context.analysis(trajectory))
    assert text.startswith(
        "Task: put a clean mug in desk.\nResult: failure\nStep 1\nObservation: You are in the middle of a roo ..."
    )
    assert (
        "Step 3\nObservation: seen 2 mug mug mug mug mug mug ...\nResponse: r2 (malformed action)\nStep 4"
        in text
    )
    assert text.endswith(analysis_request(False, ALFWORLD)) and BANNER not in text
    whole = context.analysis(trajectory)
    assert whole is not None
    tight = replace(
        config, context=replace(config.context, max_length=len(whole.tokens) + context.writing_tokens - 1)
    )
    shorter = text_of(context, make_context(tokenizer, tight).analysis(trajectory))
    assert shorter.startswith(
        "Task: put a clean mug in desk.\nResult: failure\nAt the start: You are in the middle of a roo ...\nSteps left out: "
    )
    assert "Step 1\n" not in shorter and "Step 4\nObservation: seen 3 mug" in shorter
