"""From outcomes to advantages: groups and anchor states, replay gains, and the reward of the skills that were replayed.

Pure array functions with group ids, in the default float type; `num_groups` / `num_tasks` are static under
jit. Episode n wrote skill n, so the skill arrays are indexed as the episodes are. Voided episodes (the
environment failed) are masked out: they carry no advantage and enter no mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from difflib import SequenceMatcher
from functools import partial

import jax.numpy as jnp
import numpy as np
from flax import struct
from jax import Array
from jax.ops import segment_max, segment_sum
from jax.typing import ArrayLike

from rsipo_jax.config import SkillConfig

EPSILON = 1e-6  # added to the standard deviation of a group


def group_advantages(
    returns: ArrayLike,
    group_ids: ArrayLike,
    num_groups: int,
    valid: ArrayLike,
    mean_norm: bool = False,
    counts: ArrayLike | None = None,
) -> Array:
    """(R - mean) / (std + 1e-6) within each group; std unbiased (GRPO, DeepSeekMath arXiv 2402.03300).

    A group whose valid returns are all equal gets exactly 0. A group drawn with a single member has nothing
    to be compared with and keeps its return (mean 0, std 1: the rule of the family's code). A group that
    voids left with one member was drawn larger, counts as constant and gets 0: its raw return would dwarf
    every other advantage.

    Args:
        returns: [N]; values of invalid rows are never read.
        group_ids: int [N] in [0, num_groups).
        num_groups: static.
        valid: bool [N]; False rows are not part of their group's statistics and get 0.
        mean_norm: leave out the division by the std: a group that differs in small things only then counts for little.
        counts: [N] how often each return counts in the statistics, once by default. With the turns of each episode they
            are verl-agent's statistics "over all step rows": mean sum(L R) / sum(L), so that long episodes weigh more.

    Returns:
        [N] advantages.
    """
    returns, ids, valid = jnp.asarray(returns, dtype=float), jnp.asarray(group_ids), jnp.asarray(valid, bool)
    times = jnp.ones_like(returns) if counts is None else jnp.asarray(counts, dtype=float)
    total = partial(segment_sum, segment_ids=ids, num_segments=num_groups)
    count, drawn = total(times * valid), total(jnp.ones_like(returns))
    below = _below_best(returns, ids, num_groups, valid)
    mean = total(times * below) / jnp.maximum(count, 1.0)
    deviation = jnp.where(valid, below - mean[ids], 0.0)
    std = jnp.sqrt(total(times * deviation**2) / jnp.maximum(count - 1.0, 1.0))
    alone = (drawn[ids] == 1.0) & (times == 1.0)
    if mean_norm:
        return jnp.where(alone & valid, returns, deviation)
    return jnp.where(alone & valid, returns, deviation) / (jnp.where(alone, 1.0, std[ids]) + EPSILON)


def leave_one_out(
    returns: ArrayLike,
    group_ids: ArrayLike,
    num_groups: int,
    valid: ArrayLike,
    counts: ArrayLike | None = None,
) -> Array:
    """R minus the mean of the other members of the group (RLOO, arXiv 2402.14740); arguments as in `group_advantages`.

    A member without others gets 0, but its return if it was drawn alone: a baseline of 0.
    """
    returns, ids, valid = jnp.asarray(returns, dtype=float), jnp.asarray(group_ids), jnp.asarray(valid, bool)
    times = jnp.ones_like(returns) if counts is None else jnp.asarray(counts, dtype=float)
    total = partial(segment_sum, segment_ids=ids, num_segments=num_groups)
    below, own = _below_best(returns, ids, num_groups, valid), times * valid
    others = total(own)[ids] - own
    baseline = (total(own * below)[ids] - own * below) / jnp.maximum(others, 1.0)
    alone = total(jnp.ones_like(returns))[ids] == 1.0
    return jnp.where(valid, jnp.where(alone, returns, jnp.where(others > 0, below - baseline, 0.0)), 0.0)


def _below_best(returns: Array, ids: Array, num_groups: int, valid: Array) -> Array:
    """Returns minus the largest valid one of the group; 0 where invalid.

    Equal returns become exact zeros. A rounded mean would leave errors near the 1e-6 of the denominator, and so
    advantages of order one.
    """
    best = segment_max(jnp.where(valid, returns, -jnp.inf), ids, num_groups)
    return jnp.where(valid, returns - best[ids], 0.0)


def anchor_groups(observations: Sequence[str], group: np.ndarray, similarity: float) -> np.ndarray:
    """GiGPO's anchor states (arXiv 2505.10978): int32 [T], the same where turns of one task saw the same.

    At `similarity` 1 the texts are equal. Below, a turn joins the first anchor of its task whose first text has at least
    that ratio of matching characters (difflib's), as in verl-agent.
    """
    anchors: dict[int, dict[str, int]] = {}  # of each task: the first text of each anchor
    found, number = np.zeros(len(observations), np.int32), 0
    for i, (text, task) in enumerate(zip(observations, group.tolist(), strict=True)):
        known = anchors.setdefault(task, {})
        anchor = known.get(text)
        if anchor is None and similarity < 1.0:
            anchor = next((a for seen, a in known.items() if _alike(seen, text, similarity)), None)
        if anchor is None:
            anchor = known[text] = number
            number += 1
        found[i] = anchor
    return found


def _alike(a: str, b: str, similarity: float) -> bool:
    matcher = SequenceMatcher(None, a, b)
    # The quick ratios are upper bounds.
    return min(matcher.real_quick_ratio(), matcher.quick_ratio()) >= similarity <= matcher.ratio()


def returns_to_go(rewards: np.ndarray, episode: np.ndarray, gamma: float) -> np.ndarray:
    """G_t = r_t + gamma G_{t+1} of the turns of each episode, which stand together and in order; float32 [T]."""
    found = np.zeros(len(rewards))
    for t in range(len(rewards) - 1, -1, -1):
        last = t + 1 == len(rewards) or episode[t + 1] != episode[t]
        found[t] = rewards[t] + (0.0 if last else gamma * found[t + 1])
    return found.astype(np.float32)


def step_advantages(returns: np.ndarray, anchors: np.ndarray, mean_norm: bool = False) -> np.ndarray:
    """GiGPO's A_S, float32 [T]: the return from each turn on, normalised over the turns with the same anchor.

    A turn that nothing compares with gets 0 (a lone episode, by contrast, keeps its return).
    """
    # Steps differ in their turns; powers of two keep the shapes, and so the compiled programs, few.
    size = 1 << len(returns).bit_length()
    pad = size - len(returns)
    padded, ids = np.pad(returns, (0, pad)), np.pad(anchors, (0, pad), constant_values=size - 1)
    known = np.bincount(ids, minlength=size)[ids] > 1
    known[len(returns) :] = False
    advantages = group_advantages(padded, ids, size, known, mean_norm)
    return np.asarray(advantages, np.float32)[: len(returns)]


@struct.dataclass
class ReplayGains:
    """What the execution check measured, per skill [N] (= per source episode) and per task [T]."""

    skill_rate: Array  # p1 [N]: success rate of the skill's replays
    skill_gain: Array  # d [N]: p1 minus the task's success rate without a skill
    skill_measured: Array  # bool [N]: at least one valid replay and one valid plain episode of the task
    task_rate: Array  # p0 [T]: success rate without a skill
    task_gain: Array  # d [T]: pooled s1/n1 - s0/n0
    task_measured: Array  # bool [T]
    s1: Array  # [T] replays won, over the skills of the task
    n1: Array  # [T] valid replays
    s0: Array  # [T] plain episodes won
    n0: Array  # [T] valid plain episodes


def replay_gains(
    won: ArrayLike,
    valid: ArrayLike,
    task_ids: ArrayLike,
    replay_won: ArrayLike,
    replay_valid: ArrayLike,
    num_tasks: int,
) -> ReplayGains:
    """Replay gain d = p1 - p0 of every skill and every task. Rates and gains that were not measured are 0.

    The baseline p0 is the mean over all episodes of the task, the skill's source included: it is the same
    for all skills of a task and cancels in their group advantages. A leave-source-out baseline would not,
    and would favour the skills of successful episodes.

    Args:
        won, valid: bool [N] plain episodes; not `valid` means voided.
        task_ids: int [N] in [0, num_tasks).
        replay_won, replay_valid: bool [N, K] replays with skill n; `replay_valid` is False for voided replays
            and for all replays of an invalid skill.
        num_tasks: T, static.
    """
    ids = jnp.asarray(task_ids)
    valid, replay_valid = jnp.asarray(valid, bool), jnp.asarray(replay_valid, bool)
    wins = (jnp.asarray(won, bool) & valid).astype(float)
    skill_wins = jnp.sum(jnp.asarray(replay_won, bool) & replay_valid, axis=1, dtype=float)
    skill_replays = jnp.sum(replay_valid, axis=1, dtype=float)
    total = partial(segment_sum, segment_ids=ids, num_segments=num_tasks)
    s1, n1, s0, n0 = total(skill_wins), total(skill_replays), total(wins), total(valid.astype(float))
    skill_rate, rate, p0 = _rate(skill_wins, skill_replays), _rate(s1, n1), _rate(s0, n0)
    skill_measured, task_measured = (skill_replays > 0) & (n0[ids] > 0), (n1 > 0) & (n0 > 0)
    return ReplayGains(
        skill_rate=skill_rate,
        skill_gain=jnp.where(skill_measured, skill_rate - p0[ids], 0.0),
        skill_measured=skill_measured,
        task_rate=p0,
        task_gain=jnp.where(task_measured, rate - p0, 0.0),
        task_measured=task_measured,
        s1=s1,
        n1=n1,
        s0=s0,
        n0=n0,
    )


def _rate(successes: Array, trials: Array) -> Array:
    return successes / jnp.maximum(trials, 1.0)


def skill_rewards(gain: ArrayLike, valid: ArrayLike, lengths: ArrayLike, cfg: SkillConfig) -> Array:
    """u = d + valid_bonus - long_penalty * [longer than max_chars]; invalid: the lowest there is, -1 - long_penalty.

    The advantages A_sk are `group_advantages(u, task_ids, num_tasks, valid)` over the skills whose reward is
    known: the measured and the invalid ones.

    Args:
        gain: [N] replay gains d in [-1, 1].
        valid: bool [N], the skill could be read.
        lengths: int [N] characters of the skill's text.
    """
    readable = jnp.asarray(valid, bool)
    penalised = ~readable | (jnp.asarray(lengths) > cfg.max_chars)
    return (
        jnp.where(readable, jnp.asarray(gain, dtype=float) + cfg.valid_bonus, -1.0)
        - cfg.long_penalty * penalised
    )
