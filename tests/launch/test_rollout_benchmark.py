"""The rollout suite: the same work for every engine, honest counts and limits; never how fast anything is."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from io import StringIO
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from benchmarks import limits, rollout
from benchmarks.recording import Loop, different_tokens, record, summary
from benchmarks.rollout_workers import episodes
from benchmarks.rollout_workers.episodes import Played, Recording, Turn
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from rsipo_jax.config import GamesConfig
from rsipo_jax.envs.alfworld.generator import generate_games
from rsipo_jax.models.transformer import ModelConfig
from rsipo_jax.sampling.protocol import Completion, Request
from rsipo_jax.validation import ConfigError
from tests.launch.launching import python

LOOP = Loop(tasks=2, rollouts=3, turns=3, median=5, shortest=2, longest=9, vocabulary=600)
SMALL = rollout.Sizes(
    rollout.SMOLLM2.network
    | {"vocab_size": 640, "hidden_size": 64, "intermediate_size": 48, "num_hidden_layers": 2,
       "num_attention_heads": 2, "num_key_value_heads": 1, "rope_theta": 1e6},  # heads of 32: vLLM asks for that
    batch=3, prompt=12, new=4, loop=LOOP, repetitions=1,
)  # fmt: skip
turns = st.builds(Turn, st.lists(st.integers(1, 3), min_size=1, max_size=5), st.integers(1, 4))
recordings = st.builds(
    Recording, st.booleans(), st.lists(st.lists(turns, min_size=1, max_size=4), min_size=1, max_size=5)
)


@pytest.fixture(scope="module")
def games(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("made") / "games"
    generate_games(root, GamesConfig(train=4, valid_seen=1, valid_unseen=1, seed=0, max_per_kind=1))
    return root


@pytest.fixture(scope="module")
def loops(games: Path) -> dict[str, Recording]:
    return record(games, LOOP)


class Scripted:
    """A sampler whose tokens are those that `tokens` gives, answered in an order of its own, two a poll."""

    def __init__(self, tokens: Callable[[Request], Sequence[int]]) -> None:
        self.tokens, self.asked, self.waiting, self.loads = tokens, list[Request](), list[Request](), 0

    def load(self, params: object, version: int) -> None:
        assert not self.waiting
        self.loads += 1

    def submit(self, request: Request) -> None:
        assert request.address not in {r.address for r in self.asked[len(self.asked) - len(self.waiting) :]}
        self.asked.append(request)
        self.waiting.append(request)

    def cancel(self, address: object) -> None:
        raise AssertionError("recordings are played to their end")

    def poll(self) -> list[Completion]:
        answered = [self.waiting.pop() for _ in self.waiting[:2]]
        none = np.zeros(0, np.float32)
        return [
            Completion(r.address, np.asarray(self.tokens(r), np.int32), none, none, "length", 0)
            for r in answered
        ]


def numbered(request: Request) -> list[int]:
    """Tokens that tell the episode and the turn they were sampled in."""
    _, _, episode, _, turn = request.address
    return [100 + 10 * episode + turn] * request.max_new_tokens


def wanted_prompts(recording: Recording) -> dict[tuple[int, int], list[int]]:
    """Every prompt as the definition has it, after the tokens of `numbered`."""
    prompts = {}
    for e, episode in enumerate(recording.episodes):
        held: list[int] = []
        for t, turn in enumerate(episode):
            prompts[e, t] = held + turn.ids
            held = prompts[e, t] + [100 + 10 * e + t] * turn.response if recording.grows else []
    return prompts


@given(recordings)
def test_every_engine_is_asked_the_same_whichever_way_it_is_driven(recording: Recording) -> None:
    sampler, calls = Scripted(numbered), list[int]()
    free = rollout.play_with(sampler, recording, step=3)
    asked = {(r.address[2], r.address[4]): (r.prompt.tolist(), r.max_new_tokens) for r in sampler.asked}
    prompts = wanted_prompts(recording)
    assert {name: prompt for name, (prompt, _) in asked.items()} == prompts
    assert {n for _, n in asked.values()} == {t.response for episode in recording.episodes for t in episode}

    together: dict[tuple[int, int], list[int]] = {}

    def generate(batch: list[list[int]], lengths: list[int]) -> list[list[int]]:
        turn = len(calls)
        calls.append(len(batch))
        live = [e for e, episode in enumerate(recording.episodes) if len(episode) > turn]
        together.update({(e, turn): prompt for e, prompt in zip(live, batch, strict=True)})
        return [[100 + 10 * e + turn] * n for e, n in zip(live, lengths, strict=True)]

    barrier = episodes.behind_barrier(recording, generate)
    assert together == prompts and len(calls) == max(map(len, recording.episodes))
    for played in (free, barrier):
        assert played.prompt_tokens == sum(map(len, prompts.values()))
        assert played.new_tokens == sum(t.response for episode in recording.episodes for t in episode)
        assert played.requests == len(prompts) and played.seconds > 0


@given(recordings)
def test_lengths_of_a_recording_are_those_of_its_prompts(recording: Recording) -> None:
    prompts = wanted_prompts(recording)
    responses = [turn.response for episode in recording.episodes for turn in episode]
    assert list(recording.lengths()) == list(zip(map(len, prompts.values()), responses, strict=True))
    assert recording.max_length == max(sum(pair) for pair in recording.lengths())
    assert recording.max_response == max(responses)
    # A trie of all prompts has a node for every prefix; sampled tokens are in prompts of their own episode only.
    nodes = {tuple(prompt[: i + 1]) for prompt in prompts.values() for i in range(len(prompt))}
    read = {node for node in nodes if node[-1] < 100}
    assert different_tokens(recording) == len(read)


@pytest.mark.parametrize("much", [-1, 1])
def test_an_engine_that_samples_another_number_of_tokens_is_refused(much: int) -> None:
    recording = Recording(True, [[Turn([1, 2], 3)]])
    with pytest.raises(ValueError, match=rf"turn 0 of episode 0 got {3 + much} tokens instead of 3"):
        rollout.play_with(Scripted(lambda r: [7] * (r.max_new_tokens + much)), recording, 0)
    with pytest.raises(ValueError, match="instead of 3"):
        episodes.behind_barrier(recording, lambda prompts, lengths: [[7] * (n + much) for n in lengths])


def test_the_recorded_loop_is_made_of_groups_that_share_their_opening_only(
    loops: dict[str, Recording], games: Path, tmp_path: Path
) -> None:
    conversation, window = loops["conversation"], loops["window"]
    assert conversation.grows and not window.grows
    shapes = [[[turn.response for turn in episode] for episode in loop.episodes] for loop in loops.values()]
    assert shapes[0] == shapes[1]
    assert len(conversation.episodes) == LOOP.tasks * LOOP.rollouts
    assert all(LOOP.shortest <= n <= LOOP.longest for episode in shapes[0] for n in episode)
    assert len({n for episode in shapes[0] for n in episode}) > 3
    for loop in loops.values():
        groups = [loop.episodes[i : i + LOOP.rollouts] for i in range(0, len(loop.episodes), LOOP.rollouts)]
        for group in groups:
            assert len({tuple(episode[0].ids) for episode in group}) == 1
            assert len({tuple(tuple(turn.ids) for turn in episode) for episode in group}) > 1
        assert groups[0][0][0].ids != groups[1][0][0].ids
        ids = [i for episode in loop.episodes for turn in episode for i in turn.ids]
        assert rollout.PAD not in ids and max(ids) < LOOP.vocabulary
        told = summary(loop)
        assert told["requests"] == sum(map(len, loop.episodes))
        assert told["different_prompt_tokens"] < told["prompt_tokens"]
        episodes.write(loop, tmp_path / "loop.json")
        assert episodes.read(tmp_path / "loop.json") == loop
    for (
        episode
    ) in conversation.episodes:  # what follows a response is an observation, not the conversation again
        assert all(len(later.ids) < len(episode[0].ids) for later in episode[1:])
        assert len({later.ids[0] for later in episode[1:]}) <= 1  # the id that closes a response
    for episode in window.episodes:
        assert all(a.ids != b.ids for a, b in pairwise(episode))
    assert record(games, LOOP) == loops


def test_the_plain_batch_is_prefilled_and_played_whole() -> None:
    parts = rollout.plain_batches(SMALL)
    first, whole = parts["prefill"], parts["plain"]
    assert [[t.ids for t in e] for e in first.episodes] == [[t.ids for t in e] for e in whole.episodes]
    assert set(first.lengths()) == {(12, 1)} and set(whole.lengths()) == {(12, 4)}
    assert len(whole.episodes) == 3 and parts["warm_up"] != whole
    ids = np.asarray([episode[0].ids for episode in whole.episodes])
    assert ids.min() > rollout.PAD and ids.max() < 640
    assert rollout.plain_batches(SMALL) == parts


def greedy_or_numbered(expected: list[list[int]]) -> Callable[[Request], Sequence[int]]:
    return lambda r: expected[r.address[2]] if r.sampling.temperature == 0 else numbered(r)


def test_ours_alone_is_measured_and_reported(
    games: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Scripted] = []

    def engine(config: ModelConfig, slots: int, max_length: int) -> Scripted:
        made.append(Scripted(greedy_or_numbered(rollout.expected(tmp_path / "model", prompts))))
        return made[-1]

    prompts = rollout.checked_prompts(640)

    monkeypatch.setattr(rollout, "our_engine", engine)
    monkeypatch.setattr(limits, "read_bandwidth", lambda: 1e9)
    sections = rollout.compare(SMALL, games, [], tmp_path, Console(file=StringIO()))
    assert sections.keys() == {
        "agreement", "conversation", "window", "settings ours", "plain ours", "conversation ours", "window ours",
        "ours_to_others", "limits", "software",
    }  # fmt: skip
    assert sections["agreement"] == {"ours": "32/32"}
    plain = sections["plain ours"]
    assert plain["new_tokens"] == 3 * 4 and plain["prompt_tokens"] == 3 * 12
    assert plain["new_tokens_per_s"] == pytest.approx(12 / plain["seconds"])
    assert sections["window ours"]["new_tokens"] == sections["window"]["new_tokens"]
    assert sections["settings ours"]["conversation_slots"] == LOOP.tasks * LOOP.rollouts
    # Each engine of a part is loaded anew before every play: no prefix outlives one.
    assert [s.loads for s in made] == [1, 2, 2, 2, 2]
    assert sections["limits"]["read_gb_per_s"] == 1.0
    json.dumps(sections)


def test_what_engines_took_becomes_rates_shares_and_ratios(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "read_bandwidth", lambda: 1e6)
    config = ModelConfig(
        vocab_size=64, hidden_size=8, intermediate_size=16, num_layers=3,
        num_heads=2, num_kv_heads=1, head_dim=5,
    )  # fmt: skip
    ours = {
        "prefill": Played(1, 2, 36, 3, 3),
        "plain": Played(4, 7, 36, 12, 3),
        "window": Played(5, 9, 80, 20, 6),
    }
    theirs = {
        part: replace(took, seconds=3 * took.seconds, cpu_seconds=2 * took.cpu_seconds)
        for part, took in ours.items()
    }
    played = {
        "ours": ours,
        "vllm": theirs,
        "vllm_continuous": theirs | {"window": replace(ours["window"], seconds=6)},
    }
    rates = {f"{of}_{dtype}_{rows}_rows": speed
             for of, factor in (("jax", 1), ("torch", 2))
             for dtype, speed in (("float32", 1e5), ("bfloat16", factor * 1e6)) for rows in (64, 512)}  # fmt: skip
    sections = rollout.report(played, SMALL, config, rates)
    assert sections["ours_to_others"] == pytest.approx(
        {"plain vllm": 3, "plain vllm per cpu_s": 2, "window vllm": 3, "window vllm per cpu_s": 2,
         "window vllm_continuous": 6 / 5, "window vllm_continuous per cpu_s": 1}
    )  # fmt: skip
    plain, shown = sections["plain ours"], sections["limits"]
    assert (
        plain["decode_s"] == 3
        and plain["decode_tokens_per_s"] == 3
        and plain["decode_tokens_per_cpu_s"] == 9 / 5
    )
    assert plain["prefill_tokens_per_s"] == 36 and plain["prefill_tokens_per_cpu_s"] == 18
    step = limits.decode_step(config, 3, 12 + 4 / 2)
    binding = max(step.bytes_read / 1e6, step.flops / 2e6)  # the fastest product of anyone
    assert shown["decode_limit_tokens_per_s"] == pytest.approx(3 / binding)
    assert shown["decode_share_ours"] == pytest.approx(binding * 3 / 3)
    assert shown["decode_share_vllm"] == pytest.approx(binding * 3 / 9)
    assert "decode_share_vllm_continuous" not in shown and "plain vllm_continuous" not in sections


def test_needs_are_counted_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    config = ModelConfig(
        vocab_size=64, hidden_size=8, intermediate_size=16, num_layers=3,
        num_heads=2, num_kv_heads=1, head_dim=5,
    )  # fmt: skip
    body = 3 * (8 * (10 + 2 * 5) + 10 * 8 + 3 * 8 * 16)  # qkv, output, the feed-forward's three
    head = 8 * 64
    step = limits.decode_step(config, batch=4, context=20)
    assert step.bytes_read == 2 * (body + head + 4 * 20 * 2 * 3 * 5)
    assert step.flops == 4 * (2 * (body + head) + 2 * 2 * 20 * 3 * 10)
    prompts = limits.prefill(config, batch=4, prompt=20)
    assert prompts.flops == 4 * (20 * (2 * body + 2 * 2 * 10 * 3 * 10) + 2 * head)
    assert step.seconds(bandwidth=1.0, flop_rate=1e9) == step.bytes_read
    assert step.seconds(bandwidth=1e9, flop_rate=1.0) == step.flops
    smollm = replace(
        config, vocab_size=49152, hidden_size=576, intermediate_size=1536, num_layers=30,
        num_heads=9, num_kv_heads=3, head_dim=64,
    )  # fmt: skip
    assert limits.decode_step(smollm, 1, 0).bytes_read == pytest.approx(2 * 134_515_008, rel=1e-3)
    for kind, bandwidth in {
        "NVIDIA H200": 4.8e12,
        "TPU v5 lite": 0.82e12,
        "TPU v5": 2.77e12,
        "Abacus": None,
    }.items():
        assert limits.device_bandwidth(kind) == bandwidth


def test_the_machine_is_measured() -> None:
    assert 1e8 < limits.read_bandwidth(1 << 22) < 1e13
    config = ModelConfig(
        vocab_size=64, hidden_size=32, intermediate_size=16, num_layers=2,
        num_heads=2, num_kv_heads=1, head_dim=16,
    )  # fmt: skip
    assert 1e5 < limits.product_rate(config, 8, "float32") < 1e14


@given(st.lists(st.lists(st.integers(0, 2), min_size=3, max_size=3), min_size=1, max_size=4))
@settings(max_examples=50)
def test_agreement_counts_up_to_the_first_difference(rows: list[list[int]]) -> None:
    wanted = [[0, 1, 2]] * len(rows)
    same = [next((i for i in range(3) if row[i] != i), 3) for row in rows]
    if min(same) > 0:
        assert rollout.compared("they", rows, wanted) == f"{sum(same)}/{3 * len(rows)}"
    else:
        with pytest.raises(ConfigError, match="they continues prompts by other tokens"):
            rollout.compared("they", rows, wanted)


def test_on_an_accelerator_ours_is_measured_against_its_bandwidth(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollout, "our_engine", lambda *_: Scripted(numbered))
    monkeypatch.setattr(jax, "devices", lambda: [SimpleNamespace(device_kind="NVIDIA H200")])
    sections = rollout.measure_alone(SMALL, Console(file=StringIO()))
    assert sections.keys() == {"settings ours", "plain ours", "limits", "software"}
    shown = sections["limits"]
    step_s = shown["decode_step_gb"] / shown["read_gb_per_s"]
    assert shown["decode_share_ours"] == pytest.approx(step_s * 3 / sections["plain ours"]["decode_s"])


def test_a_competitor_without_a_python_is_left_out_with_one_sentence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    told = StringIO()
    monkeypatch.setattr(rollout, "TORCH_PYTHON", tmp_path / "none")
    monkeypatch.setattr(
        rollout, "compare", lambda sizes, root, found, *_: {"found": {c.name: p for c, p in found}}
    )
    monkeypatch.setattr(rollout, "generate_games", lambda *_: None)
    found = rollout.measure(
        "", {"transformers": "", "tunix": "", "vllm": "py"}, Console(file=told, width=500)
    )
    assert found == {"found": {"vllm": Path("py")}}
    left_out = told.getvalue().splitlines()
    assert [line.split()[0] for line in left_out] == ["transformers", "tunix"]
    assert "pip install google-tunix" in left_out[1] and "--tunix" in left_out[1]


@pytest.mark.parametrize("given", ["nowhere/python", sys.executable])
def test_a_python_that_cannot_do_it_is_named_in_one_sentence(given: str, tmp_path: Path) -> None:
    if given != "nowhere/python":
        bare = tmp_path / "python"  # -S: no site-packages, so no engine
        bare.write_text(f'#!/bin/sh\nexec {given} -S "$@"\n', encoding="utf-8")
        bare.chmod(0o755)
        given = str(bare)
    for competitor in rollout.COMPETITORS:
        with (
            pytest.raises(ConfigError, match=f"--{competitor.name}={given}") as refused,
            rollout.worker(competitor, Path(given)) as ask,
        ):
            ask({"do": "versions"})
        assert "\n" not in str(refused.value)


def test_the_flags_are_those_of_the_competitors() -> None:
    shown = python("launch/benchmark.py", "--help").stdout
    assert all(f"--{competitor.name}" in shown for competitor in rollout.COMPETITORS)


def python_of(competitor: rollout.Competitor) -> Path:
    """TRANSFORMERS_PYTHON, TUNIX_PYTHON or VLLM_PYTHON; of transformers else that of `make goldens` or this very one."""
    if named := os.environ.get(f"{competitor.name.upper()}_PYTHON"):
        return Path(named)
    if competitor.name == "transformers":
        if rollout.TORCH_PYTHON.exists():
            return rollout.TORCH_PYTHON
        if importlib.util.find_spec("torch") and importlib.util.find_spec("transformers"):
            return Path(sys.executable)
    pytest.skip(f"{competitor.install}, and name its Python in {competitor.name.upper()}_PYTHON")


@pytest.mark.slow
@pytest.mark.parametrize("competitor", rollout.COMPETITORS, ids=lambda c: c.name)
def test_a_competitor_continues_prompts_as_our_network_does_and_plays_a_recording(
    competitor: rollout.Competitor, tmp_path: Path
) -> None:
    chosen = python_of(competitor)
    network = rollout.write_weights(tmp_path / "model", SMALL.network)
    prompts = rollout.checked_prompts(640)
    continued = rollout.continue_prompts(competitor, chosen, network, prompts)
    assert continued == rollout.expected(network, prompts)
    recording = Recording(True, [[Turn([3, 4, 5], 2), Turn([6], 5)], [Turn([7], 3)]])
    parts = {rollout.WARM_UP: recording, "prefill": recording, "plain": recording, "loop": recording}
    for name in parts:
        episodes.write(recording, tmp_path / f"{name}.json")
    with rollout.worker(competitor, chosen) as ask:
        results, _ = rollout.play_theirs(
            competitor, ask, network, parts, SMALL, tmp_path, Console(file=StringIO())
        )
    assert results.keys() == competitor.ways.keys()
    for played in results.values():
        assert (played["loop"].new_tokens, played["loop"].prompt_tokens) == (10, 3 + 6 + 1)
