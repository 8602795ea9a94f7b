"""The update: which tokens it trains, its exact limits, and that neither packing nor micro-batches change it."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings

from rsipo_jax.agents.trajectory import Trajectory
from rsipo_jax.config import LossConfig
from rsipo_jax.methods.method import Credit
from rsipo_jax.models.transformer import Params
from rsipo_jax.training import update
from rsipo_jax.training.packing import pack
from rsipo_jax.training.rows import ACTION, CONTEXT, SKILL, Rows, rows_from, teacher_rows
from rsipo_jax.training.state import create_state, make_optimizer, warmup
from rsipo_jax.training.update import (
    Sums,
    TokenScores,
    accumulate,
    apply_gradients,
    count_kinds,
    importance_weights,
    make_batch,
    no_gradients,
    rl_loss,
    score,
)
from tests.methods import reference as formulas
from tests.models import reference
from tests.models.reference import SMALL, make_params
from tests.training.trajectories import (
    VOCAB,
    credit_of,
    some_trajectories,
    trajectories,
    unmerged,
)

MODEL = replace(SMALL, num_layers=1)
LENGTH, ETA, TEMPERATURE = 64, 0.3, 0.8
LOSS = LossConfig(kl=0.05, entropy=0.02, distill=0.4)
STRENGTHS = LOSS.distill, ETA
PLAIN = replace(LOSS, kl=0.0, entropy=0.0, distill=0.0)  # the policy's surrogate alone


@cache
def params() -> Params:
    return make_params(MODEL)


def gradient(
    rows: Rows,
    scores: TokenScores,
    credit: Credit,
    microbatch_tokens: int = 10**4,
    length: int = LENGTH,
    cfg: LossConfig = LOSS,
    eta: float = ETA,
) -> tuple[Params, dict[str, float]]:
    """The gradient of all rows, and the sums, through the functions that training uses."""
    totals = count_kinds(rows, np.arange(len(rows)), cfg.average)
    grads, sums = jax.tree.map(jnp.zeros_like, params()), []
    for micro in pack(rows.starts, range(len(rows)), length, max(1, microbatch_tokens // length)):
        batch = make_batch(micro, rows, scores, credit)
        grads, new = accumulate(
            params(), {}, MODEL, batch, totals, cfg, (cfg.distill, eta), TEMPERATURE, grads
        )
        sums.append(new)
    return grads, {name: sum(float(getattr(s, name)) for s in sums) for name in Sums.__annotations__}


def scored(rows: Rows) -> Rows:
    """The rows with the policy's own log-probs as the behaviour's."""
    own = score(params(), MODEL, rows, LENGTH, 10**4, TEMPERATURE)
    return replace(rows, logprobs=own)


@cache
def usual() -> tuple[Rows, TokenScores, Credit]:
    rows = scored(rows_from(some_trajectories()))
    return rows, *credit_of(rows)


def assert_close(a: Params, b: Params, atol: float) -> None:
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=atol, rtol=1e-4), a, b)


def test_scores_are_the_log_probabilities_of_sampled_tokens() -> None:
    for rows in (usual()[0], teacher_rows(usual()[0], [np.arange(3, dtype=np.int32)] * 5)):
        wanted = np.concatenate(
            [
                reference.token_logprobs(params(), MODEL, rows.tokens[a:b], TEMPERATURE)
                for a, b in zip(rows.starts[:-1], rows.starts[1:], strict=True)
            ]
        )
        found = score(params(), MODEL, rows, LENGTH, 10**4, TEMPERATURE)
        np.testing.assert_allclose(found, np.where(rows.kind == CONTEXT, 0, wanted), atol=1e-4)
        one_by_one = score(params(), MODEL, rows, int(rows.lengths.max()), 1, TEMPERATURE)
        np.testing.assert_allclose(one_by_one, found, atol=1e-4)


def test_nothing_at_observation_tokens_reaches_loss_or_gradient() -> None:
    rows, scores, credit = usual()
    grads, sums = gradient(rows, scores, credit)
    junk = np.where(
        rows.kind == CONTEXT, np.random.default_rng(2).choice([np.nan, np.inf, 1e9, -7], len(rows.kind)), 0
    )
    junk = junk.astype(np.float32)
    polluted = gradient(
        rows,
        TokenScores(scores.old + junk, scores.ref + junk, scores.teacher + junk),
        Credit(credit.advantages + junk, credit.trust + junk),
    )
    jax.tree.map(np.testing.assert_array_equal, polluted, (grads, sums))
    assert all(np.isfinite(g).all() for g in jax.tree.leaves(grads)) and float(optax.tree.norm(grads)) > 0


def test_logits_get_a_gradient_exactly_where_a_sampled_token_is_predicted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows, scores, credit = usual()
    (micro,) = pack(rows.starts, range(len(rows)), LENGTH, 4)
    batch = make_batch(micro, rows, scores, credit)
    # The hidden states are the logits: the output table is the identity.
    model = replace(MODEL, vocab_size=VOCAB, hidden_size=VOCAB)
    monkeypatch.setattr(update, "hidden_states", lambda params, *_: params["hidden"])
    logits = jnp.asarray(
        np.random.default_rng(0).normal(size=(*micro.source.shape, VOCAB)).astype(np.float32)
    )

    def loss(logits: jax.Array) -> jax.Array:
        given = {"hidden": logits, "embed": jnp.eye(VOCAB)}
        return rl_loss(
            given, model, batch, count_kinds(rows, np.arange(len(rows))), LOSS, STRENGTHS, TEMPERATURE
        )[0]

    reached = np.abs(np.asarray(jax.grad(loss)(logits))).sum(axis=-1) > 0
    sampled = np.isin(micro.take(rows.kind), (ACTION, SKILL))
    np.testing.assert_array_equal(reached, np.roll(sampled, -1, axis=1))
    assert not sampled[:, 0].any() and reached.any() and not reached.all()


@pytest.mark.parametrize(
    "cfg",
    [
        replace(LOSS, clip_high=0.3),
        replace(LOSS, average="sequence", kl_kind="k2", teacher="current"),
        replace(LOSS, hybrid="gated_loss", kl_kind="k1", average="sequence"),
        replace(LOSS, hybrid="modulate"),
    ],
    ids=["advantage", "sequence", "gated_loss", "modulate"],
)
def test_the_loss_is_its_formula_from_the_logits_on_and_its_gradient_the_finite_difference(
    cfg: LossConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With entropy, importance weights and skill tokens, in a batch that packs several rows into a bin."""
    rows, scores, credit = usual()
    rng = np.random.default_rng(6)
    scores = replace(scores, importance=rng.uniform(0.5, 2, len(rows.tokens)).astype(np.float32))
    micro, *_ = pack(rows.starts, range(len(rows)), LENGTH, 4)
    batch = make_batch(micro, rows, scores, credit)
    model = replace(MODEL, vocab_size=VOCAB, hidden_size=VOCAB)
    monkeypatch.setattr(update, "hidden_states", lambda params, *_: params["hidden"])
    logits = rng.normal(size=(*micro.source.shape, VOCAB))
    totals = count_kinds(rows, np.arange(len(rows)), cfg.average)

    def loss(logits: jax.Array) -> jax.Array:
        given = {"hidden": logits, "embed": jnp.eye(VOCAB)}
        return rl_loss(given, model, batch, totals, cfg, STRENGTHS, TEMPERATURE)[0]

    row = micro.take(rows.token_row)
    start = _scored_by_hand(logits, micro.take(rows.tokens))[0]

    def by_hand(logits: np.ndarray) -> float:
        new, entropy = _scored_by_hand(logits, micro.take(rows.tokens))
        parts: dict[tuple[int, int], list[float]] = {}  # of each row and kind: the loss of its tokens
        for at in zip(*np.nonzero(np.isin(micro.take(rows.kind), (ACTION, SKILL))), strict=True):
            kind = int(batch.kind[at])
            weight = LOSS.distill * float(batch.trust[at]) if kind == ACTION else 0.0
            given = batch.old_logprobs, batch.ref_logprobs, batch.teacher_logprobs, batch.advantages
            old, ref, teacher, advantage = (float(a[at]) for a in given)
            value = formulas.token(
                new[at], start[at], old, ref, teacher, advantage, weight, float(batch.importance[at]), cfg
            )
            value -= cfg.entropy * entropy[at] if kind == ACTION else 0.0
            parts.setdefault((int(row[at]), kind), []).append(value)
        found = 0.0
        for kind, strength in ((ACTION, 1.0), (SKILL, ETA)):
            own = [values for (_, k), values in parts.items() if k == kind]
            if cfg.average == "sequence":
                found += strength * float(np.mean([np.mean(values) for values in own]))
            else:
                found += strength * float(np.mean(np.concatenate(own)))
        return found

    value, gradient = jax.jit(jax.value_and_grad(loss))(jnp.asarray(logits, jnp.float32))
    assert float(value) == pytest.approx(by_hand(logits), abs=2e-5)
    h = 1e-6
    for _ in range(6):
        way = rng.normal(size=logits.shape)
        numeric = (by_hand(logits + h * way) - by_hand(logits - h * way)) / (2 * h)
        assert float(np.sum(np.asarray(gradient) * way)) == pytest.approx(numeric, rel=1e-3, abs=1e-4)


def _scored_by_hand(logits: np.ndarray, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What the logits one place earlier give each token: its log-probability, and the entropy there."""
    p = reference.softmax(np.roll(logits, 1, axis=1) / TEMPERATURE)
    log_p = np.log(p)
    return np.take_along_axis(log_p, tokens[..., None], axis=-1)[..., 0], -(p * log_p).sum(axis=-1)


def test_schedules_of_lambda_and_eta_compile_nothing_anew() -> None:
    rows, scores, credit = usual()
    (micro,) = pack(rows.starts, range(len(rows)), LENGTH, 4)
    batch, totals = make_batch(micro, rows, scores, credit), count_kinds(rows, np.arange(len(rows)))
    norms, compiled = set(), set()
    for strengths in ((0.4, 0.3), (0.2, 0.1), (0.0, 0.0)):
        zeros = jax.tree.map(jnp.zeros_like, params())
        grads, _ = accumulate(params(), {}, MODEL, batch, totals, LOSS, strengths, TEMPERATURE, zeros)
        norms.add(float(optax.tree.norm(grads)))
        compiled.add(accumulate._cache_size())
    assert len(compiled) == 1 and len(norms) == 3


def test_micro_batches_add_up_to_the_batch() -> None:
    rows, scores, credit = usual()
    whole, sums = gradient(rows, scores, credit)
    for tokens in (2 * LENGTH, 1):  # two bins at a time; one bin at a time
        parts, again = gradient(rows, scores, credit, tokens)
        assert_close(parts, whole, 1e-6)
        assert again == pytest.approx(sums, abs=1e-4)
    assert sums["actions"] == (rows.kind == ACTION).sum() and sums["skills"] == (rows.kind == SKILL).sum()


@pytest.mark.parametrize(
    "cfg",
    [
        replace(LOSS, average="sequence", kl_kind="k2", clip_high=0.3),
        replace(LOSS, hybrid="gated_loss", teacher="current", average="sequence"),
        replace(LOSS, hybrid="modulate", kl_kind="k1"),
    ],
    ids=str,
)
def test_micro_batches_add_up_under_every_option(cfg: LossConfig) -> None:
    rows, scores, credit = usual()
    scores = replace(scores, importance=importance_weights(scores.old, scores.ref, 1.05))
    whole, sums = gradient(rows, scores, credit, cfg=cfg)
    parts, again = gradient(rows, scores, credit, 1, cfg=cfg)
    assert_close(parts, whole, 1e-6)
    assert again == pytest.approx(sums, abs=1e-4)
    plain, _ = gradient(rows, scores, credit)
    assert float(optax.tree.norm(jax.tree.map(jnp.subtract, whole, plain))) > 1e-4


def test_strengths_change_without_another_program() -> None:
    rows, scores, credit = usual()
    gradient(rows, scores, credit)
    programs = accumulate._cache_size()
    gradient(rows, scores, credit, eta=0.123)
    assert accumulate._cache_size() == programs


def test_importance_scales_the_surrogate_of_each_token_up_to_its_cap() -> None:
    rows, scores, credit = usual()
    weights = importance_weights(np.float32([-1.0, -1.0, -1.0]), np.float32([-1.0, -2.0, -0.5]), 2.0)
    np.testing.assert_allclose(weights, [1.0, 2.0, np.exp(-0.5)], rtol=1e-6)
    double = replace(scores, importance=np.full_like(scores.old, 2.0))
    twice = Credit(2 * credit.advantages, np.zeros_like(credit.trust))
    once = Credit(credit.advantages, np.zeros_like(credit.trust))
    assert_close(gradient(rows, double, once)[0], gradient(rows, scores, twice)[0], 1e-6)


def test_sequence_denominators_count_rows() -> None:
    rows, _, _ = usual()
    every = np.arange(len(rows))
    assert count_kinds(rows, every, "sequence") == (5, 4)
    assert count_kinds(rows, np.zeros(0, int), "sequence") == (1, 1)


def test_some_rows_are_scored_as_all_are() -> None:
    rows, _, _ = usual()
    found = score(params(), MODEL, rows, LENGTH, 10**4, TEMPERATURE, [3, 1])
    chosen = np.isin(rows.token_row, [1, 3])
    np.testing.assert_allclose(found, np.where(chosen, rows.logprobs, 0), atol=1e-5)


def test_packed_rows_are_the_rows_one_by_one() -> None:
    rows, scores, credit = usual()
    packed, _ = gradient(rows, scores, credit)
    totals = count_kinds(rows, np.arange(len(rows)))
    grads = jax.tree.map(jnp.zeros_like, params())
    for r in range(len(rows)):
        (micro,) = pack(rows.starts, [r], LENGTH, 1)
        grads, _ = accumulate(
            params(),
            {},
            MODEL,
            make_batch(micro, rows, scores, credit),
            totals,
            LOSS,
            STRENGTHS,
            TEMPERATURE,
            grads,
        )
    assert_close(grads, packed, 1e-6)


def test_a_conversation_in_one_row_is_its_turns_in_rows_of_their_own() -> None:
    played = some_trajectories()
    merged = scored(rows_from(played))
    parts = [(e, part) for e, t in enumerate(played) for part in unmerged(t)]
    split = rows_from([part for _, part in parts])
    split = scored(replace(split, episode=np.asarray([e for e, _ in parts], np.int32)))
    assert len(merged) == 5 and len(split) == len(parts) > 10
    for kind in (ACTION, SKILL):
        np.testing.assert_array_equal(merged.tokens[merged.kind == kind], split.tokens[split.kind == kind])
        np.testing.assert_allclose(
            merged.logprobs[merged.kind == kind], split.logprobs[split.kind == kind], atol=1e-4
        )
    split.logprobs[split.kind != CONTEXT] = merged.logprobs[merged.kind != CONTEXT]
    one, sums = gradient(merged, *credit_of(merged))
    many, again = gradient(split, *credit_of(split))
    assert_close(many, one, 1e-5)
    assert again == pytest.approx(sums, abs=1e-3)


def test_without_trust_the_teacher_may_say_anything() -> None:
    rows, scores, credit = usual()
    nan = np.full_like(scores.teacher, np.nan)
    untrusted = Credit(credit.advantages, np.zeros_like(credit.trust))
    grpo = replace(LOSS, distill=0.0)
    jax.tree.map(
        np.testing.assert_array_equal,
        gradient(rows, replace(scores, teacher=nan), untrusted),
        gradient(rows, replace(scores, teacher=scores.old), credit, cfg=grpo),
    )
    trusted, _ = gradient(rows, scores, credit)
    plain, _ = gradient(rows, scores, untrusted)
    assert float(optax.tree.norm(jax.tree.map(jnp.subtract, trusted, plain))) > 1e-3


def test_without_eta_skill_tokens_train_nothing_and_with_it_they_train_alone() -> None:
    rows, scores, credit = usual()
    other = np.where(rows.kind == SKILL, 5, credit.advantages).astype(np.float32)
    same = gradient(rows, scores, credit, eta=0.0)[0]
    jax.tree.map(
        np.testing.assert_array_equal, same, gradient(rows, scores, Credit(other, credit.trust), eta=0.0)[0]
    )
    # Action tokens worth nothing: what is left is eta times the loss of the skill tokens.
    silent = Credit(np.where(rows.kind == SKILL, credit.advantages, 0), np.zeros_like(credit.trust))
    half, whole = (gradient(rows, scores, silent, cfg=PLAIN, eta=eta)[0] for eta in (0.5, 1.0))
    assert float(optax.tree.norm(half)) > 1e-3
    assert_close(jax.tree.map(lambda g: 2 * g, half), whole, 1e-6)


def test_on_policy_the_gradient_is_the_policy_gradient() -> None:
    rows, scores, credit = usual()
    found, sums = gradient(rows, scores, credit, cfg=PLAIN, eta=1.0)
    (micro,) = pack(rows.starts, range(len(rows)), LENGTH, 4)
    weight = np.zeros(len(rows.tokens), np.float32)
    for kind in (ACTION, SKILL):
        weight[rows.kind == kind] = credit.advantages[rows.kind == kind] / (rows.kind == kind).sum()

    sampled = micro.take(rows.kind) != CONTEXT

    def objective(params: Params) -> jax.Array:
        logprobs, _ = update.logprobs_of(
            params, MODEL, micro.take(rows.tokens), micro.positions, micro.segment_ids, sampled, TEMPERATURE
        )
        return -jnp.sum(micro.take(weight) * logprobs)

    assert_close(found, jax.grad(objective)(params()), 1e-6)
    assert sums["clipped"] == 0


def test_clipped_counts_the_action_tokens_whose_ratio_left_the_interval() -> None:
    rows, scores, credit = usual()
    moved = scores.old.copy()
    some = np.flatnonzero(rows.kind == ACTION)[:3]
    moved[some] += [0.5, -0.5, 0.1]
    moved[np.flatnonzero(rows.kind == SKILL)[:2]] += 1
    assert gradient(rows, replace(scores, old=moved), credit)[1]["clipped"] == 2


def test_denominators_count_the_tokens_of_the_chosen_rows() -> None:
    rows, _, _ = usual()
    for members in (np.arange(len(rows)), np.array([2]), np.array([4, 0]), np.zeros(0, int)):
        kinds = np.concatenate(
            [rows.kind[rows.starts[r] : rows.starts[r + 1]] for r in members] or [np.zeros(0)]
        )
        wanted = max((kinds == ACTION).sum(), 1), max((kinds == SKILL).sum(), 1)
        assert count_kinds(rows, members) == wanted


@given(trajectories(most=4))
@settings(max_examples=15)
def test_any_rows_give_finite_gradients_and_padding_rows_none(played: list[Trajectory]) -> None:
    rows = rows_from(played)
    scores, credit = credit_of(rows)
    grads, sums = gradient(rows, scores, credit, 4 * LENGTH)
    assert all(np.isfinite(g).all() for g in jax.tree.leaves(grads))
    assert sums["actions"] == (rows.kind == ACTION).sum()
    if not len(rows):
        assert not any(np.any(g) for g in jax.tree.leaves(grads))


@pytest.mark.parametrize("clip", [0.5, 1e6])
def test_updates_are_those_of_adamw(clip: float) -> None:
    decay, rate = 0.1, 3e-3
    ours = make_optimizer("adamw", decay, clip)
    theirs = optax.chain(optax.clip_by_global_norm(clip), optax.adamw(rate, weight_decay=decay))
    start = {"w": jnp.arange(6.0).reshape(2, 3), "b": jnp.ones(3)}
    wanted, theirs_state = start, theirs.init(start)
    state = create_state(start, ours)
    for i in range(4):
        grads = jax.tree.map(lambda a, i=i: jnp.cos(a + i), start)
        norm = float(optax.tree.norm(grads))
        state, found = apply_gradients(state, grads, jnp.float32(rate), ours)
        changes, theirs_state = theirs.update(grads, theirs_state, wanted)
        wanted = optax.apply_updates(wanted, changes)
        assert float(found) == pytest.approx(norm)
        assert_close(state.params, wanted, 1e-6)
    assert int(state.updates) == 4


def test_the_first_moment_may_be_kept_in_bfloat16() -> None:
    grads = {"w": jnp.linspace(-1.0, 1.0, 64)}
    states = {}
    for dtype in ("float32", "bfloat16"):
        optimizer = make_optimizer("adamw", 0.0, 1e6, dtype)
        state = create_state({"w": jnp.ones(64)}, optimizer)
        for _ in range(3):
            state, _ = apply_gradients(state, grads, jnp.float32(1e-2), optimizer)
        moments = {
            path[-2].name: a.dtype
            for path, a in jax.tree_util.tree_flatten_with_path(state.opt_state)[0]
            if a.ndim
        }
        assert moments == {"mu": jnp.dtype(dtype), "nu": jnp.dtype("float32")}
        states[dtype] = state.params["w"]
    np.testing.assert_allclose(states["bfloat16"], states["float32"], atol=1e-3)
    assert np.any(states["bfloat16"] != states["float32"])


def test_muons_momentum_may_be_kept_in_bfloat16_too() -> None:
    params = {"layers": {"w": jnp.ones((2, 4, 4))}}
    for dtype in ("float32", "bfloat16"):
        state = create_state(params, make_optimizer("muon", 0.0, 1.0, dtype))
        assert {a.dtype for a in jax.tree.leaves(state.opt_state) if a.ndim == 3} == {jnp.dtype(dtype)}


def test_state_and_gradients_give_their_memory_to_what_replaces_them() -> None:
    rows, scores, credit = usual()
    (micro,) = pack(rows.starts, range(len(rows)), LENGTH, 10**4 // LENGTH)
    optimizer = make_optimizer("adamw", 0.1, 1.0)
    state, zeros = create_state(params(), optimizer), no_gradients(params())
    batch, totals = make_batch(micro, rows, scores, credit), count_kinds(rows, np.arange(len(rows)))
    grads, _ = accumulate(state.params, {}, MODEL, batch, totals, LOSS, STRENGTHS, TEMPERATURE, zeros)
    assert all(a.is_deleted() for a in jax.tree.leaves(zeros))
    apply_gradients(state, grads, jnp.float32(1e-3), optimizer)
    assert all(a.is_deleted() for a in jax.tree.leaves((state.params, state.opt_state)))
    assert not any(a.is_deleted() for a in jax.tree.leaves(params()))  # the state was a copy


def test_equal_settings_share_one_optimizer_and_one_program() -> None:
    assert make_optimizer("adamw", 0.1, 1.0) is make_optimizer("adamw", 0.1, 1.0)
    programs = apply_gradients._cache_size()
    for _ in range(3):
        state = create_state({"w": jnp.ones(5)}, make_optimizer("adamw", 0.2, 1.0))
        apply_gradients(state, {"w": jnp.ones(5)}, jnp.float32(0.1), make_optimizer("adamw", 0.2, 1.0))
    assert apply_gradients._cache_size() == programs + 1


def test_muon_takes_orthogonal_steps_downhill_on_layer_matrices_and_leaves_the_rest_to_adam() -> None:
    rng, rate = np.random.default_rng(0), 0.01
    grads = {
        "layers": {"w": rng.normal(size=(2, 6, 6)).astype(np.float32), "norm": np.ones((2, 6), np.float32)},
        "embed": rng.normal(size=(3, 6)).astype(np.float32),
    }
    optimizer = make_optimizer("muon", 0.0, 1e6)
    state = create_state(jax.tree.map(jnp.zeros_like, grads), optimizer)
    state, _ = apply_gradients(state, grads, jnp.float32(rate), optimizer)
    for step, grad in zip(np.asarray(state.params["layers"]["w"]), grads["layers"]["w"], strict=True):
        singular = np.linalg.svd(step, compute_uv=False)
        assert singular.max() < 2 * singular.min()  # the gradient's own differ by more
        assert np.sqrt(np.mean(step**2)) == pytest.approx(0.2 * rate, rel=0.3)
        assert np.sum(step * grad) < 0
    for step, grad in (
        (state.params["embed"], grads["embed"]),
        (state.params["layers"]["norm"], grads["layers"]["norm"]),
    ):
        # The first step of Adam with Nesterov's momentum: the gradient's sign, a little more than the rate.
        np.testing.assert_allclose(step, -1.4737 * rate * np.sign(grad), rtol=1e-3)


def test_warm_up_is_linear_and_ends_at_the_peak() -> None:
    assert [warmup(i, 10, 2.0, 0.5) for i in (0, 1, 4, 5, 9)] == pytest.approx([0.4, 0.8, 2.0, 2.0, 2.0])
    assert warmup(0, 10, 2.0, 0.0) == 2.0
