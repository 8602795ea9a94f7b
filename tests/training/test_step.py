"""One RSIPO step on two tasks with a scripted policy: every number of its credit is worked out by hand below.

Task 0: rollout 0 wins, rollout 1 loses. Both write skills; the replay with skill 0 wins, the one with skill 1 loses.
Task 1: both rollouts lose. Rollout 0 writes no readable skill, rollout 1 a good one, whose replay wins.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from math import sqrt

import jax
import numpy as np
import pytest
from hypothesis import given

from rsipo_jax.agents.context import Conversation, make_context
from rsipo_jax.agents.rollout import ACT, REPLAY, WRITE, Agent
from rsipo_jax.agents.trajectory import Trajectory
from rsipo_jax.config import (
    Config,
    ContextConfig,
    EnvConfig,
    LossConfig,
    ModelSection,
    RolloutConfig,
    SkillConfig,
    TrainConfig,
    TrustConfig,
)
from rsipo_jax.envs.protocol import Observation, Task
from rsipo_jax.methods.method import Credit
from rsipo_jax.models.transformer import ModelConfig, Params, init_params
from rsipo_jax.sampling.protocol import Address
from rsipo_jax.skills.prior import PriorState
from rsipo_jax.text.sentencepiece_tokenizer import SentencePieceTokenizer, train_sentencepiece
from rsipo_jax.training import step as step_module
from rsipo_jax.training.packing import MicroBatch
from rsipo_jax.training.rows import ACTION, CONTEXT, SKILL, Rows, rows_from
from rsipo_jax.training.state import create_state, make_optimizer
from rsipo_jax.training.step import Learner, train_step
from rsipo_jax.training.update import Batch, TokenScores
from rsipo_jax.validation import ConfigError
from tests.agents.episodes import ScriptedPool, ScriptedSampler
from tests.models import reference
from tests.training.trajectories import trajectories

# (purpose, group, rollout) -> what the policy says at its turns; "win" wins. WRITE has one turn.
SCRIPT = {
    (ACT, 0, 0): ["look", "win"],
    (ACT, 0, 1): ["look", "look"],
    (ACT, 1, 0): ["look", "look"],
    (ACT, 1, 1): ["look", "<broken>"],
    (WRITE, 0, 0): json.dumps({"episode_summary": "s", "episode_skill": "win at once"}),
    (WRITE, 0, 1): json.dumps({"episode_summary": "s", "episode_skill": "look"}),
    (WRITE, 1, 0): "no json",
    (WRITE, 1, 1): json.dumps({"episode_summary": "s", "episode_skill": "win"}),
    (REPLAY, 0, 0): ["win"],
    (REPLAY, 0, 1): ["look", "look"],
    (REPLAY, 1, 1): ["win"],
}


def room(task: Task, actions: Sequence[str]) -> Observation:
    """A room in which the command `win` wins and `break` breaks the environment."""
    if not actions:
        return Observation(f"A room. Your task is to: win {task.id}.", ("look", "win"), False)
    if actions[-1] == "break":
        return Observation("", (), False, error="The room fell down.", trace="Traceback: ...")
    return Observation("Done.", ("look", "win"), actions[-1] == "win")


def say(address: Address) -> str:
    """What `SCRIPT` has for an address."""
    purpose, _, group, rollout, turn = address
    said = SCRIPT[purpose, group, rollout]
    if purpose == WRITE:
        return said
    return "oops" if said[turn] == "<broken>" else f"<think>go</think><action>{said[turn]}</action>"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> SentencePieceTokenizer:
    text = [
        json.dumps({"episode_summary": "s", "episode_skill": "win at once look"}),
        "A room. Your task is to: win",
    ]
    return train_sentencepiece(text * 20, tmp_path_factory.mktemp("tokenizer"), 512)


def config(method: str = "rsipo") -> Config:
    return Config(
        method=method,
        env=EnvConfig(max_turns=2),
        model=ModelSection(hidden_size=16, intermediate_size=32, num_layers=1, num_heads=2, num_kv_heads=1),
        context=ContextConfig(max_length=1024, parser="strict"),
        # The policy says what the script says: what its sampler claims about it is nothing to stop for.
        rollout=RolloutConfig(tasks_per_step=2, group_size=2, max_new_tokens=64, slots=4, max_drift=100.0),
        skill=SkillConfig(max_new_tokens=128),
        loss=LossConfig(distill=0.5),
        train=TrainConfig(steps=1, learning_rate=1e-3, minibatch_rows=0, microbatch_tokens=2048),
    )


def run_step(tokenizer: SentencePieceTokenizer, cfg: Config, monkeypatch: pytest.MonkeyPatch) -> tuple:
    """The result of step 1, and what it handed to the update: (result, sampler, rows, scores, credit)."""
    sampler = ScriptedSampler(tokenizer, say)
    model = ModelConfig(tokenizer.vocab_size, 16, 32, 1, 2, 1, 8, scan_layers=False)
    agent = Agent(sampler, ScriptedPool(room), make_context(tokenizer, cfg), tokenizer, cfg)
    tasks = [Task(f"train/{i}", "kind", "train") for i in range(2)]
    monkeypatch.setattr(step_module, "draw_tasks", lambda *_: tasks)
    handed: list[tuple] = []
    update = step_module._update
    monkeypatch.setattr(step_module, "_update", lambda *args: (handed.append(args), update(*args))[1])
    params = init_params(model, jax.random.key(0))
    reference = jax.tree.map(lambda a: a + 0.01, params)
    state = create_state(params, make_optimizer("adamw", 0.0, 1.0))
    result = train_step(Learner(agent, model, {}, reference, tasks), state, PriorState.zero(), 1)
    _, _, rows, _, scores, credit, *_ = handed[0]
    return result, sampler, rows, scores, credit


def test_credit_of_two_tasks(tokenizer: SentencePieceTokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    result, _, rows, scores, credit = run_step(tokenizer, config(), monkeypatch)
    episode, kind = rows.token_episode, rows.kind

    # A_traj. Task 0 returns 10, 0: +-5 over a std (ddof 1) of sqrt(50). Task 1 returns 0, -0.1 (one malformed action):
    # +-0.05 over a std of 0.1/sqrt(2). The 1e-6 beside the second std shows in the fifth digit.
    half = 1 / sqrt(2)
    expected = [half, -half, 0.05 / (0.1 / sqrt(2) + 1e-6), -0.05 / (0.1 / sqrt(2) + 1e-6)]
    for e in range(4):
        np.testing.assert_allclose(
            credit.advantages[(episode == e) & (kind == ACTION)], expected[e], rtol=2e-5
        )

    # Replay gains. Task 0: p0 = 1/2, skills win 1 and 0 of 1: gains +1/2, -1/2. Task 1: p0 = 0, the one readable skill
    # wins: gain 1; the unreadable one gets -1 - 0.2. A_sk is the reward normalised within the task.
    spread = (1 + 1.2) / sqrt(2)
    writing = [0.5 / (half + 1e-6), -0.5 / (half + 1e-6), -1.1 / (spread + 1e-6), 1.1 / (spread + 1e-6)]
    for e in range(4):
        np.testing.assert_allclose(credit.advantages[(episode == e) & (kind == SKILL)], writing[e], rtol=2e-5)

    # Trust per task: pooled counts (s1, n1, s0, n0) = (1, 2, 1, 2) and (1, 1, 0, 2). Two units are fewer than min_units,
    # so the prior is N(0, 0.02). Jeffreys: task 0 d = 0; task 1 d = 1, v = .75*.25/1 + (1/6)(5/6)/2.
    v = 0.75 * 0.25 + (1 / 6) * (5 / 6) / 2
    weights = [0.0, 0.0, 0.0, 0.02 / (v + 0.02)]  # episode 2 has no readable skill, so no teacher
    for e in range(4):
        np.testing.assert_allclose(
            credit.trust[(episode == e) & (kind == ACTION)], weights[e], rtol=1e-5, atol=1e-7
        )
    assert not credit.trust[kind != ACTION].any()
    assert not credit.advantages[kind == CONTEXT].any()

    # The teacher differs from the student exactly where there is a skill to read.
    gap = scores.teacher - scores.old
    for e, readable in enumerate([True, True, False, True]):
        largest = np.abs(gap[(episode == e) & (kind == ACTION)]).max()
        assert largest > 1e-3 if readable else largest < 1e-5  # the same rows, packed otherwise
    taught = (kind == ACTION) & (episode != 2)
    assert result.metrics["teacher_gap_abs"] == pytest.approx(np.abs(gap[taught]).mean(), rel=1e-5)

    assert result.metrics["success"] == 0.25
    assert result.metrics["replay_success"] == pytest.approx(2 / 3)
    assert result.metrics["gain_mean"] == pytest.approx(0.5)
    assert result.metrics["valid_skills"] == 0.75
    assert result.metrics["valid_actions"] == pytest.approx(7 / 8)
    assert [s["gain"] for s in result.skills] == [0.5, -0.5, None, 1.0]
    assert [s["reward"] for s in result.skills] == pytest.approx([0.5, -0.5, -1.2, 1.0])
    assert result.metrics["skill_reward"] == pytest.approx((0.5 - 0.5 - 1.2 + 1.0) / 4)
    assert [s["task_gain"] for s in result.skills] == [0.0, 0.0, 1.0, 1.0]
    assert [s["posterior"] for s in result.skills] == pytest.approx([0, 0, weights[3], weights[3]])
    assert [s["trust"] for s in result.skills] == pytest.approx(weights)  # what was applied
    assert float(result.prior.N[0]) == 2.0


def test_what_was_not_measured_is_not_recorded(
    tokenizer: SentencePieceTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without replays there are no gains, rewards or posterior, and the teacher has its full weight."""
    for method in ("hybrid", "opsd"):
        result, *_ = run_step(tokenizer, config(method), monkeypatch)
        assert [s["trust"] for s in result.skills] == [1.0, 1.0, 0.0, 1.0]
        for name in ("gain", "reward", "task_gain", "posterior"):
            assert [s[name] for s in result.skills] == [None] * 4
        unmeasured = {
            "eta",
            "prior_mean",
            "prior_variance",
            "prior_skill_variance",
            "skill_reward",
            "trust_mean",
        }
        assert not unmeasured & result.metrics.keys()
        assert result.metrics["distill"] == 0.5


def test_the_recorded_trust_is_the_one_applied(
    tokenizer: SentencePieceTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shrinkage by token changes the weight of an episode; a void one is taught nothing."""
    monkeypatch.setitem(SCRIPT, (ACT, 0, 1), ["look", "break"])
    cfg = replace(config("hybrid"), trust=TrustConfig(token_shrinkage=True))
    result, _, rows, _, credit = run_step(tokenizer, cfg, monkeypatch)
    trusts = [s["trust"] for s in result.skills]
    assert trusts[1] is None and trusts[2] == 0.0
    assert any(0 < trusts[e] < 1 for e in (0, 3))
    for e in (0, 3):
        assert (credit.trust[(rows.token_episode == e) & (rows.kind == ACTION)] == trusts[e]).all()


def test_a_skill_never_written_leaves_the_others_alone(
    tokenizer: SentencePieceTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without room for the request an episode has no skill, and its group is the others."""
    monkeypatch.setattr(
        "rsipo_jax.agents.context.Conversation.analysis",
        lambda self, t, original=Conversation.analysis: (
            None if (t.group, t.rollout) == (1, 0) else original(self, t)
        ),
    )
    result, _, rows, _, credit = run_step(tokenizer, config(), monkeypatch)
    assert not credit.advantages[
        (rows.token_episode == 3) & (rows.kind == SKILL)
    ].any()  # alone in its group now
    assert credit.advantages[(rows.token_episode == 0) & (rows.kind == SKILL)].all()
    assert result.metrics["valid_skills"] == 1.0
    assert result.skills[2]["status"] == "no_room"


def test_what_the_environment_spoiled_counts_nowhere(
    tokenizer: SentencePieceTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SCRIPT, (ACT, 0, 1), ["look", "break"])
    monkeypatch.setitem(SCRIPT, (REPLAY, 1, 1), ["break"])
    result, _, rows, _, credit = run_step(tokenizer, config(), monkeypatch)
    metrics = result.metrics
    assert metrics["env_errors"] == 2.0
    assert metrics["success"] == pytest.approx(1 / 3)
    assert metrics["length"] == 2.0
    assert metrics["reward"] == pytest.approx((10 + 0 - 0.1) / 3)
    assert metrics["valid_actions"] == pytest.approx(5 / 6)
    assert metrics["mixed_groups"] == 0.0  # what is left of task 0 won, and task 1 was lost
    assert metrics["replay_success"] == 1.0  # of the one replay that came to its end
    assert metrics["valid_skills"] == pytest.approx(2 / 3)
    assert 1 not in rows.episode
    assert not credit.advantages[
        (rows.token_episode == 0) & (rows.kind == ACTION)
    ].any()  # alone in its group
    assert [s["gain"] for s in result.skills] == [0.0, None, None, None]
    spoiled = [e for e in result.episodes if e["status"] == "env_error"]
    assert [(e["role"], e["error"], e["trace"]) for e in spoiled] == [
        (role, "The room fell down.", "Traceback: ...") for role in ("act", "replay")
    ]


def test_replays_read_the_skill_and_students_do_not(
    tokenizer: SentencePieceTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, sampler, *_ = run_step(tokenizer, config(), monkeypatch)
    for request in sampler.requests:
        (purpose, _, group, rollout, _), prompt = request.address, tokenizer.decode(request.prompt.tolist())
        if purpose == REPLAY:
            skill = json.loads(SCRIPT[WRITE, group, rollout])["episode_skill"]
            assert f"consult it before you act: {skill}" in prompt
        elif purpose == ACT:
            assert "Skill for this episode" not in prompt


def test_trained_ids_are_the_sampled_ids(
    tokenizer: SentencePieceTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, _, rows, _, _ = run_step(tokenizer, config(), monkeypatch)
    for e, key in enumerate([(0, 0), (0, 1), (1, 0), (1, 1)]):
        said: list[int] = []
        for turn in SCRIPT[ACT, *key]:
            text = "oops" if turn == "<broken>" else f"<think>go</think><action>{turn}</action>"
            said += [*tokenizer.encode(text), tokenizer.stop_ids[0]]
        trained = rows.tokens[(rows.token_episode == e) & (rows.kind == ACTION)]
        assert trained.tolist() == said


def test_grpo_is_rsipo_without_skills(
    tokenizer: SentencePieceTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log of GRPO has the same metrics but those of skills, and its policy moves as RSIPO's with lambda = eta = 0."""
    grpo, *_ = run_step(tokenizer, config("grpo"), monkeypatch)
    silent = replace(config(), loss=LossConfig(distill=0.0), skill=SkillConfig(max_new_tokens=128, eta=0.0))
    rsipo, *_ = run_step(tokenizer, silent, monkeypatch)
    assert grpo.metrics.keys() < rsipo.metrics.keys()
    for name in ("success", "length", "reward", "valid_actions"):
        assert grpo.metrics[name] == rsipo.metrics[name]
    assert not grpo.skills
    # The rows differ in their skill-writing tail only, so the gradients agree up to the order of their sums.
    for a, b in zip(jax.tree.leaves(grpo.state.params), jax.tree.leaves(rsipo.state.params), strict=True):
        np.testing.assert_allclose(a, b, atol=2e-5)


def with_skill(**changes: object) -> Config:
    return replace(config(), skill=replace(config().skill, **changes))  # type: ignore[arg-type]


def test_a_misleading_source_gives_each_task_the_skills_of_the_other_and_trains_no_writing(
    tokenizer: SentencePieceTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SCRIPT, (REPLAY, 1, 0), ["look", "look"])  # with task 0's first skill
    result, sampler, rows, _, credit = run_step(tokenizer, with_skill(source="shuffled"), monkeypatch)
    assert [s["text"] for s in result.skills] == ["", "win", "win at once", "look"]
    sources = [(s["source_group"], s["source_rollout"], s["source_won"]) for s in result.skills]
    assert sources == [(1, 0, False), (1, 1, False), (0, 0, True), (0, 1, False)]
    assert [s["reward"] for s in result.skills] == [None] * 4 and "eta" not in result.metrics
    assert [s["gain"] for s in result.skills] == [None, -0.5, 0.0, 1.0]
    read = {
        r.address[2:4]: tokenizer.decode(r.prompt.tolist())
        for r in sampler.requests
        if r.address[0] == REPLAY
    }
    assert read.keys() == {(0, 1), (1, 0), (1, 1)}
    assert "before you act: win" in read[0, 1] and "before you act: look" in read[1, 1]
    assert not (rows.kind == SKILL).any()
    assert not credit.trust[(rows.token_episode == 0)].any()  # an unreadable skill has come its way


def test_a_static_source_writes_with_the_sft_policy_and_trains_no_writing(
    tokenizer: SentencePieceTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[tuple[object, int]] = []
    load = ScriptedSampler.load
    monkeypatch.setattr(
        ScriptedSampler,
        "load",
        lambda self, params, version: (
            loaded.append((params, len(self.requests))),
            load(self, params, version),
        )[1],
    )
    worked: list[int] = []
    counted = step_module.sampler_metrics
    monkeypatch.setattr(
        step_module,
        "sampler_metrics",
        lambda drift, work: (worked.append(sum(w.prompt_tokens for w in work)), counted(drift, work))[1],
    )
    result, sampler, rows, _, _ = run_step(tokenizer, with_skill(source="static"), monkeypatch)
    purposes = [r.address[0] for r in sampler.requests]
    prompts = sum(len(r.prompt) for r in sampler.requests)
    assert prompts > 0 and worked == [prompts]  # of all three weights, not of the last ones
    (policy, first), (reference, second), (again, third) = loaded
    assert policy is again and policy is not reference and first == 0
    assert set(purposes[second:third]) == {WRITE} and WRITE not in (*purposes[:second], *purposes[third:])
    assert not (rows.kind == SKILL).any()
    assert [s["gain"] for s in result.skills] == [0.5, -0.5, None, 1.0]


def test_episodes_that_are_not_analysed_have_no_skill_and_no_teacher(
    tokenizer: SentencePieceTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    result, sampler, rows, _, credit = run_step(tokenizer, with_skill(per_task=1), monkeypatch)
    left_out = [e for e, s in enumerate(result.skills) if s["status"] == "not_analysed"]
    assert len(left_out) == 2 and {e // 2 for e in left_out} == {0, 1}
    assert all((result.skills[e]["reward"], result.skills[e]["trust"]) == (None, 0.0) for e in left_out)
    assert sum(r.address[0] == WRITE for r in sampler.requests) == 2
    of_left_out = np.isin(rows.token_episode, left_out)
    assert not credit.trust[of_left_out].any() and not (rows.kind[of_left_out] == SKILL).any()


def test_the_log_says_what_the_teacher_and_the_reward_weighed(
    tokenizer: SentencePieceTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    cfg = replace(config(), loss=LossConfig(distill=0.5, distill_low=1e-7, distill_high=1e-6))
    result, *_ = run_step(tokenizer, cfg, monkeypatch)
    metrics = result.metrics
    assert (metrics["distill"], metrics["eta"]) == (0.5, 0.1)
    # Task 0: one of two replays wins, as one of two episodes did. Task 1: gain 1.
    shares = [metrics[f"teacher_{name}"] for name in ("better", "equal", "worse")]
    assert shares == [0.5, 0.5, 0.0]
    assert metrics["distill_to_rl"] > 1e-6 and result.distill_scale == pytest.approx(1 / 1.25)


def test_full_trust_gives_the_action_tokens_the_credit_of_the_hybrid(
    tokenizer: SentencePieceTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Property 2 of the specification, and its exception: task 1 when its only replay is void."""
    full = replace(config(), trust=TrustConfig(function="one"))
    for replay in (["win"], ["break"]):
        monkeypatch.setitem(SCRIPT, (REPLAY, 1, 1), replay)
        (_, _, rows, _, one), (_, _, same, _, hybrid) = (
            run_step(tokenizer, cfg, monkeypatch) for cfg in (full, config("hybrid"))
        )
        acting, here = rows.kind == ACTION, same.kind == ACTION
        np.testing.assert_array_equal(one.advantages[acting], hybrid.advantages[here])
        void = (rows.token_episode[acting] == 3) & (replay == ["break"])
        np.testing.assert_array_equal(one.trust[acting], np.where(void, 0, hybrid.trust[here]))


def test_a_cap_of_the_correction_needs_both_scores(
    tokenizer: SentencePieceTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    cfg = replace(config("grpo"), loss=LossConfig(importance_cap=1.5))
    _, _, rows, scores, _ = run_step(tokenizer, cfg, monkeypatch)
    acting = rows.kind == ACTION
    assert scores.importance is not None
    assert not np.array_equal(scores.old[acting], rows.logprobs[acting])  # scored, not taken from the sampler
    expected = np.minimum(np.exp(scores.old - rows.logprobs), 1.5)[acting]
    np.testing.assert_allclose(scores.importance[acting], expected, rtol=1e-5)
    assert np.ptp(expected) > 0


@pytest.mark.parametrize("hybrid", ["advantage", "gated_loss", "modulate"])
def test_the_share_of_the_teacher_is_that_of_its_form(
    tokenizer: SentencePieceTokenizer, monkeypatch: pytest.MonkeyPatch, hybrid: str
) -> None:
    cfg = replace(config("hybrid"), loss=LossConfig(distill=0.5, hybrid=hybrid))
    result, _, rows, scores, credit = run_step(tokenizer, cfg, monkeypatch)
    added, outcome = [], []
    for i in np.flatnonzero(rows.kind == ACTION):
        gap, a = float(scores.teacher[i] - scores.old[i]), float(credit.advantages[i])
        factor = {
            "advantage": min(max(gap, -5.0), 5.0),
            "gated_loss": 1 / (1 + np.exp(-5.0 * gap)),
            "modulate": a * min(max(np.expm1(np.sign(a) * gap), -0.2), 0.2),
        }[hybrid]
        added.append(abs(0.5 * factor) if rows.token_episode[i] != 2 else 0.0)  # which has no readable skill
        outcome.append(abs(a))
    assert result.metrics["distill_to_rl"] == pytest.approx(sum(added) / sum(outcome), rel=1e-5)


def test_an_update_that_ruins_the_policy_stops_the_run(
    tokenizer: SentencePieceTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    cfg = config("grpo")
    cfg = replace(cfg, train=replace(cfg.train, learning_rate=1e30, minibatch_rows=1))
    with pytest.raises(ConfigError) as raised:
        run_step(tokenizer, cfg, monkeypatch)
    message = str(raised.value)
    assert "of RL step 1 is nan" in message and "lower config.train.learning_rate=1e+30" in message
    assert "\n" not in message and ". " not in message


def test_gigpo_credits_each_turn_of_the_sampled_tokens(
    tokenizer: SentencePieceTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    loss = LossConfig(advantage="gigpo", gamma=0.5, omega=2.0)
    _, _, rows, _, credit = run_step(tokenizer, replace(config("grpo"), loss=loss), monkeypatch)
    # Both turns of a task saw the same in both rollouts. Task 0 returns 5, 10 from the turns of rollout 0 on and 0, 0 of
    # rollout 1: +-half at both turns. Task 1 differs at the second turn only, where rollout 1 pays for its malformed action.
    half = 1 / sqrt(2)
    fine = 0.05 / (0.1 / sqrt(2) + 1e-6)
    expected = [(3 * half, 3 * half), (-3 * half, -3 * half), (fine, 3 * fine), (-fine, -3 * fine)]
    for e, (key, values) in enumerate(zip([(0, 0), (0, 1), (1, 0), (1, 1)], expected, strict=True)):
        texts = [say((ACT, 1, *key, turn)) for turn in range(2)]
        lengths = [len(tokenizer.encode(text)) + 1 for text in texts]  # and the stop token
        found = credit.advantages[(rows.token_episode == e) & (rows.kind == ACTION)]
        np.testing.assert_allclose(found, np.repeat(values, lengths), rtol=2e-5)


def test_the_current_teacher_is_scored_anew_before_every_update(
    tokenizer: SentencePieceTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its scores are those of the parameters of that moment, of the rows with the skill, one by one in NumPy."""
    cfg = replace(config(), loss=LossConfig(distill=0.5, teacher="current"))
    cfg = replace(cfg, train=replace(cfg.train, minibatch_rows=2, learning_rate=0.05))
    policies: list[Params] = []
    taught: list[TokenScores] = []
    join, make_batch = step_module.join, step_module.make_batch

    def joined(trained: Params, frozen: Params) -> Params:
        policies.append(jax.tree.map(np.array, join(trained, frozen)))
        return join(trained, frozen)

    def batched(micro: MicroBatch, rows: Rows, scores: TokenScores, credit: Credit) -> Batch:
        taught.append(scores)
        assert len(policies) == 1 + len(taught)  # one policy acted, one taught each mini-batch so far
        mine = micro.take(np.arange(len(rows.tokens)))[micro.segment_ids > 0]
        members.append(np.unique(rows.token_row[mine]))
        return make_batch(micro, rows, scores, credit)

    members: list[np.ndarray] = []
    monkeypatch.setattr(step_module, "join", joined)
    monkeypatch.setattr(step_module, "make_batch", batched)
    _, _, rows, scores, _ = run_step(tokenizer, cfg, monkeypatch)

    assert [len(m) for m in members] == [2, 2] and len(rows) == 4
    context = make_context(tokenizer, cfg)
    model = ModelConfig(tokenizer.vocab_size, 16, 32, 1, 2, 1, 8, scan_layers=False)
    for policy, handed, chosen in zip(policies[1:], taught, members, strict=True):
        for r in range(len(rows)):
            start, end = rows.starts[r], rows.starts[r + 1]
            tokens, kind = rows.tokens[start:end], rows.kind[start:end]
            said = json.loads(SCRIPT[WRITE, *divmod(rows.episode[r], 2)]) if rows.episode[r] != 2 else {}
            block = context.skill_tokens(said.get("episode_skill", ""))
            seen = np.insert(tokens, np.full(len(block), rows.skill_at[r]), block)
            wanted = reference.token_logprobs(policy, model, seen)
            wanted = np.delete(wanted, rows.skill_at[r] + np.arange(len(block)))
            found = handed.teacher[start:end][kind == ACTION]
            np.testing.assert_allclose(found, wanted[kind == ACTION] if r in chosen else 0 * found, atol=1e-4)
        np.testing.assert_array_equal(handed.old, scores.old)
    second = np.isin(rows.token_row, members[1]) & (rows.kind == ACTION)
    moved = taught[1].teacher[second] - scores.teacher[second]  # the first update moved the teacher too
    assert np.abs(moved).max() > 1e-2


@given(trajectories())
def test_action_tokens_know_the_turn_that_sampled_them(played: list[Trajectory]) -> None:
    for e, t in enumerate(played):
        t.won = t.status == "won"
        t.observations = [f"{e}.{i}" for i in range(len(t.turns) + 1)]
        t.turns = [replace(turn, valid=i % 2 == 0) for i, turn in enumerate(t.turns)]
    rows = rows_from(played)
    cfg = RolloutConfig(win_reward=10.0, invalid_penalty=0.25)
    tokens, turns = step_module._tokens(rows, played), step_module._turns(played, cfg)
    assert tokens.turn is not None
    number = 0
    for e, t in enumerate(played):
        if t.void:
            assert e not in turns.episode
            continue
        for i, turn in enumerate(t.turns):
            np.testing.assert_array_equal(rows.tokens[tokens.turn == number], turn.response)
            assert (tokens.episode[tokens.turn == number] == e).all()
            found = turns.episode[number], turns.observations[number]
            assert found == (e, f"{e}.{i}")
            last = i + 1 == len(t.turns)
            assert (turns.rewards[number], turns.penalties[number]) == (10.0 * last, 0.25 * (i % 2))
            number += 1
    assert number == len(turns.episode) == len(turns.observations)
    np.testing.assert_array_equal(tokens.turn >= 0, rows.kind == ACTION)
    np.testing.assert_array_equal(tokens.skill, rows.kind == SKILL)
