"""A pool driven in any order of sending and receiving."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hypothesis import strategies as st

from rsipo_jax.envs.protocol import EnvPool, Observation, Task

# Which slot sends next, or whether to receive (0), or to wait for it (1). Drawn beforehand: what the moves meet depends
# on how fast the workers are, and what is drawn must not.
MOVES = st.lists(st.integers(0, 12), max_size=40)


def play_interleaved(
    pool: EnvPool, scripts: Mapping[int, Sequence[Task | str]], moves: Sequence[int]
) -> dict[int, list[Observation]]:
    """All answers, by slot, to each slot's commands: after the moves the rest is sent as early as can be."""
    seen: dict[int, list[Observation]] = {slot: [] for slot in scripts}
    sent = dict.fromkeys(scripts, 0)

    def send(slot: int) -> None:
        if sent[slot] == len(seen[slot]) < len(scripts[slot]):
            pool.send(slot, scripts[slot][sent[slot]])
            sent[slot] += 1

    def receive(wait: bool) -> None:
        unanswered = {slot for slot in scripts if sent[slot] > len(seen[slot])}
        assert set(pool.unanswered) == unanswered
        answers = pool.receive(wait)
        assert answers.keys() <= unanswered and (answers or not unanswered or not wait)
        for slot, observation in answers.items():
            seen[slot].append(observation)

    for move in moves:
        if move < 2:
            receive(wait=move == 1)
        else:
            send(list(scripts)[move % len(scripts)])
    while any(len(seen[slot]) < len(script) for slot, script in scripts.items()):
        for slot in scripts:
            send(slot)
        receive(wait=True)
    assert not pool.unanswered and pool.receive(wait=True) == {}
    return seen
