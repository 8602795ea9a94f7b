import json
from pathlib import Path
from typing import Any, SupportsFloat

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tensorboardX.proto.event_pb2 import Event
from tensorboardX.record_writer import masked_crc32c

from rsipo_jax.reports.records import encode_line, plain, read_records
from rsipo_jax.reports.run_log import RECORDS, TIMINGS, RunLog, truncate

CONFIG = {"seed": 0, "train": {"steps": 9, "panels": ("a", "b")}}


def fill(log: RunLog, first: int, last: int, slowness: float = 1.0) -> None:
    """Records steps first..last of one deterministic run, `slowness` times as slow as it might be."""
    for step in range(first, last + 1):
        metrics: dict[str, SupportsFloat] = {
            "success": step / 7,
            "gain_mean": np.float32(0.1),
            "kl": jnp.float32(1e-3),
        }
        log.step(
            step,
            metrics,
            {"rollout": 1.5 * slowness, "update": 0.5 * slowness},
            1000 / slowness,
            episodes=[{"task": f"t{i}", "won": np.bool_(i % 2 == 0)} for i in range(2)],
            skills=[{"text": "open the fridge\u2028first", "gain": -0.25}],
        )
        if step % 2 == 0:
            log.evaluation(
                step, "during", "valid_seen_64", "a" * 64, {"success": 0.5, "kinds": {}}, [{"won": True}]
            )


def contents(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in RECORDS}


def scalars(folder: Path) -> dict[str, dict[int, float]]:
    """Every scalar under a TensorBoard folder: tag -> step -> value."""
    found: dict[str, dict[int, float]] = {}
    for path in sorted((folder / "tensorboard").iterdir()):
        data = path.read_bytes()
        while data:
            length = int.from_bytes(data[:8], "little")
            assert masked_crc32c(data[:8]) == int.from_bytes(data[8:12], "little")
            event = Event.FromString(data[12 : 12 + length])
            for value in event.summary.value:
                found.setdefault(value.tag, {})[event.step] = value.simple_value
            data = data[16 + length :]
    return found


def test_a_step_is_one_line_with_timings_apart(tmp_path: Path) -> None:
    log = RunLog.open(tmp_path, CONFIG)
    log.step(1, {"success": 0.1 + 0.2, "kl": 3}, {"update": 0.5}, 1e3)
    assert (tmp_path / "log.jsonl").read_text() == (  # readable before close: the line is flushed
        '{"step": 1, "kl": 3.0, "success": 0.30000000000000004, '
        '"seconds": {"update": 0.5}, "tokens_per_second": 1000.0}\n'
    )
    log.close()
    assert json.loads((tmp_path / "config.json").read_text()) == {
        "seed": 0,
        "train": {"panels": ["a", "b"], "steps": 9},
    }


def test_two_equal_runs_differ_in_timings_only(tmp_path: Path) -> None:
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder, slowness in zip(folders, (1.0, 1.7), strict=True):
        log = RunLog.open(folder, CONFIG)
        fill(log, 1, 3, slowness)
        log.close()
    one, two = map(contents, folders)
    assert one.pop("log.jsonl") != two.pop("log.jsonl")
    assert one == two
    without = [
        [
            {key: value for key, value in record.items() if key not in TIMINGS}
            for record in read_records(folder / "log.jsonl")
        ]
        for folder in folders
    ]
    assert list(map(json.dumps, without[0])) == list(map(json.dumps, without[1]))


def test_killed_and_resumed_equals_uninterrupted(tmp_path: Path) -> None:
    whole = RunLog.open(tmp_path / "whole", CONFIG)
    fill(whole, 1, 6)
    killed = RunLog.open(tmp_path / "killed", CONFIG)
    fill(killed, 1, 5)
    with (tmp_path / "killed" / "episodes.jsonl").open("ab") as file:
        file.write(b'{"step": 6, "task": "t0", "wo')  # cut off in the middle of step 6
    resumed = RunLog.open(tmp_path / "killed", CONFIG, resume_step=4)
    assert resumed.measured(4, "during", "valid_seen_64") is not None
    assert resumed.measured(6, "during", "valid_seen_64") is None
    fill(resumed, 5, 6)
    assert contents(tmp_path / "killed") == contents(tmp_path / "whole")
    for log in (whole, killed, resumed):
        log.close()


def test_tensorboard_has_the_same_numbers_under_names_with_the_split(tmp_path: Path) -> None:
    log = RunLog.open(tmp_path, CONFIG)
    fill(log, 1, 2)
    score = {
        "success": 0.5,
        "interval": [0.4, 0.6],
        "kinds": {"heat": {"success": 0.25}, "cool": {"success": None}},
    }
    log.evaluation(2, "rl", "valid_unseen", "b" * 64, score, [])
    log.close()
    found = scalars(tmp_path)
    assert found["train/success"] == pytest.approx({1: 1 / 7, 2: 2 / 7})
    assert found["seconds/rollout"] == {1: 1.5, 2: 1.5}
    assert found["tokens_per_second"] == {1: 1000, 2: 1000}
    assert found["eval/valid_unseen/success"] == {2: 0.5}
    assert found["eval/valid_unseen/kinds/heat/success"] == {2: 0.25}
    assert not any("cool" in tag or "interval" in tag for tag in found)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), np.float32("-inf")])
def test_a_number_json_cannot_hold_is_named_and_nothing_is_written(tmp_path: Path, bad: float) -> None:
    log = RunLog.open(tmp_path, CONFIG)
    with pytest.raises(ValueError, match=r"step 1: kl is (nan|-?inf)"):
        log.step(1, {"success": 0.5, "kl": bad}, {}, 1.0)
    with pytest.raises(ValueError, match=r"step 1: skill: gain is"):
        log.step(1, {"success": 0.5}, {}, 1.0, episodes=[{"won": True}], skills=[{"gain": bad}])
    with pytest.raises(ValueError, match=r"step 0: panel 'p': kinds: heat: success is"):
        log.evaluation(0, "sft", "p", "a", {"kinds": {"heat": {"success": bad}}}, [])
    assert not any((tmp_path / name).exists() for name in RECORDS)
    log.step(1, {"success": 0.5}, {}, 1.0)  # the failed calls left no trace
    log.close()


def test_refusals(tmp_path: Path) -> None:
    log = RunLog.open(tmp_path / "run", CONFIG)
    fill(log, 1, 2)
    with pytest.raises(ValueError, match="step 2 cannot be recorded after step 2"):
        fill(log, 2, 2)
    with pytest.raises(ValueError, match="metric 'seconds'"):
        log.step(3, {"seconds": 1.0}, {}, 1.0)
    with pytest.raises(ValueError, match="already recorded at step 2, stage 'during'"):
        log.evaluation(2, "during", "valid_seen_64", "a" * 64, {}, [])
    with pytest.raises(
        ValueError, match="'valid_seen_64' has hash bbbbbbbbbbbb here and aaaaaaaaaaaa earlier"
    ):
        log.evaluation(2, "rl", "valid_seen_64", "b" * 64, {}, [])
    with pytest.raises(ValueError, match="'before'; use one of sft, sft\\*, during, rl"):
        log.evaluation(2, "before", "valid_seen_64", "a" * 64, {}, [])
    log.close()
    before = contents(tmp_path / "run")
    with pytest.raises(ValueError, match="already holds the records of a run"):
        RunLog.open(tmp_path / "run", CONFIG)
    with pytest.raises(ValueError, match=r"no record of step 5, .* is 2"):
        RunLog.open(tmp_path / "run", CONFIG, resume_step=5)
    changed = {"seed": 0, "train": {"steps": 10, "panels": ("a", "b")}}
    with pytest.raises(ValueError, match=r"train\.steps is 10, .* started with 9"):
        RunLog.open(tmp_path / "run", changed, resume_step=2)
    with pytest.raises(ValueError, match=r"config\.json does not exist"):
        RunLog.open(tmp_path / "nothing", CONFIG, resume_step=2)
    assert contents(tmp_path / "run") == before


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(b'{"step": 1}\n{"step": \n{"step": 3}\n')
    with pytest.raises(ValueError, match=r"log\.jsonl line 2 is not JSON"):
        read_records(path)
    path.write_bytes(b'{"step": 1}\n[2]\n')
    with pytest.raises(ValueError, match=r"log\.jsonl line 2 is no record"):
        read_records(path)


# Any text, lone surrogates and line separators included: skills are whatever the policy wrote.
text = st.text(st.characters(codec=None), max_size=8)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=8,
)


@given(
    st.lists(st.tuples(st.integers(0, 9), st.dictionaries(text, values, max_size=4)), max_size=12),
    st.integers(0, 9),
)
def test_records_round_trip_and_truncate(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[int, dict[str, Any]]], last: int
) -> None:
    folder = tmp_path_factory.mktemp("run")
    path = folder / "skills.jsonl"
    records = [{**plain(row, "row"), "step": step} for step, row in rows]
    lines = [encode_line(record) for record in records]
    path.write_bytes(b"".join(lines))
    assert read_records(path) == records
    kept = b"".join(line for line, record in zip(lines, records, strict=True) if record["step"] <= last)
    truncate(folder, last)
    assert path.read_bytes() == kept
    truncate(folder, last)
    assert path.read_bytes() == kept
    if kept:
        path.write_bytes(kept[:-1])  # the last line lost its end
        truncate(folder, 9)
        assert kept.startswith(path.read_bytes())
        assert path.read_bytes().count(b"\n") == kept.count(b"\n") - 1


@given(st.dictionaries(text, values, max_size=4))
def test_equal_records_are_equal_bytes_in_any_insertion_order(record: dict[str, Any]) -> None:
    backwards = dict(reversed(record.items()))
    assert encode_line(plain(backwards, "row")) == encode_line(plain(record, "row"))
