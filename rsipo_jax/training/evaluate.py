"""Measuring outside a run: a checkpoint on a panel, experts on a panel, one run against another."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jax

from rsipo_jax.config import Config
from rsipo_jax.envs.alfworld.data import GameData, find_tasks, left_out, load_game
from rsipo_jax.envs.alfworld.game import GameDataError
from rsipo_jax.envs.alfworld.handcoded import play_handcoded
from rsipo_jax.envs.alfworld.planner import solve
from rsipo_jax.envs.alfworld.pools import make_pool
from rsipo_jax.envs.alfworld.textworld import EngineMissing
from rsipo_jax.envs.protocol import Task
from rsipo_jax.evaluation.panels import SPLIT_OF, Panel, build_panel
from rsipo_jax.evaluation.play import play_plans
from rsipo_jax.evaluation.scores import EpisodeScore, paired_bootstrap, score
from rsipo_jax.evaluation.teacher_student import BINNING, compare_with_teacher, comparison_record
from rsipo_jax.methods import METHODS
from rsipo_jax.reports.console import make_console, progress
from rsipo_jax.reports.records import leaves, plain, read_records
from rsipo_jax.reports.tables import STAGE_TITLES, panel_line, panel_table
from rsipo_jax.reports.teacher_student import shares_figure
from rsipo_jax.training import setup
from rsipo_jax.training.policies import kept_step, load_policy
from rsipo_jax.training.watch import play_watched
from rsipo_jax.validation import ConfigError

EVALUATIONS = "evaluation.jsonl"
HANDCODED_TURNS = 50  # ALFWorld's own limit


def evaluate(config: Config, workdir: Path, name: str, step: int) -> None:
    """Plays the panel `name` with a checkpoint of the run in `workdir` and compares with what the run recorded.

    `step` -1 is the newest checkpoint, 0 the SFT policy. No record is written. Raises ConfigError when there is no such
    checkpoint.
    """
    console = make_console()
    step, with_skills = kept_step(workdir, step), METHODS[config.method].skill_at_test
    with ExitStack() as stack:
        stack.enter_context(jax.set_mesh(setup.learner_mesh(config)))
        root = setup.prepare_games(config, workdir)
        panel = _panel(config, root, name, step)
        network = setup.load_network(config, workdir)
        params = load_policy(workdir, network, step)
        agent = setup.make_agent(config, root, network)
        stack.callback(agent.pool.close)
        optimal = setup.optimal_turns(config, root, panel)
        with progress(console, f"{name}: games", len(panel.tasks)) as advance:
            episodes = play_watched(agent, network.model, params, panel, step, optimal, advance, with_skills)
    star = "*" if with_skills else ""
    record = _record(panel, episodes, "rl" if step else f"sft{star}", step)
    console.print(panel_table([record]))
    console.print(panel_line(record), soft_wrap=True)
    console.print(f"panel hash {panel.hash}")
    wanted = name, step, with_skills
    recorded = [r for r in _recorded(workdir) if (r["panel"], r["step"], r["stage"].endswith("*")) == wanted]
    if not recorded:
        console.print("the run has no record of this panel at this step")
    for earlier in recorded:
        console.print(_repeated(panel, episodes, earlier, workdir), soft_wrap=True)


def teacher_vs_student(config: Config, workdir: Path, name: str, step: int, episodes: int) -> None:
    """Compares the policy of a checkpoint with itself when it has a skill, over the panel `name` (Fig. 2b of the paper).

    Writes teacher_student_<panel>_<step>.json and .png into the workdir. Raises ConfigError as `evaluate` does.
    """
    console = make_console()
    step = kept_step(workdir, step)
    with ExitStack() as stack:
        stack.enter_context(jax.set_mesh(setup.learner_mesh(config)))
        root = setup.prepare_games(config, workdir)
        panel = _panel(config, root, name, step)
        network = setup.load_network(config, workdir)
        agent = setup.make_agent(config, root, network)
        stack.callback(agent.pool.close)
        agent.sampler.load(load_policy(workdir, network, step), step)
        total = len(panel.tasks) * (BINNING + 1 + 2 * episodes)
        with progress(console, f"{name}: episodes", total) as advance:
            compared = compare_with_teacher(agent, panel, step, episodes, lambda _: advance(1))
    measured = comparison_record(panel, step, compared)
    path = workdir / f"teacher_student_{name}_{step}.json"
    path.write_text(json.dumps(plain(measured, path.name), indent=1) + "\n", encoding="ascii")
    shares_figure(measured).savefig(path.with_suffix(".png"), dpi=150)
    for row in measured["bins"]:
        if row["tasks"]:
            console.print(
                f"{row['bin']} of {BINNING} won: {row['tasks']} tasks, with a skill better {100 * row['better']:.1f}%, "
                f"equal {100 * row['equal']:.1f}%, worse {100 * row['worse']:.1f}% (by chance {100 * row['chance']:.1f}% each)",
                soft_wrap=True,
            )
    console.print(f"{measured['left_out']} tasks left out: no valid skill, or a void episode")
    console.print(f"written to {path} and {path.with_suffix('.png').name}", soft_wrap=True)


def _repeated(panel: Panel, episodes: list[EpisodeScore], earlier: Mapping[str, Any], workdir: Path) -> str:
    """Whether the run recorded the same result, as a sentence."""
    if panel.hash != earlier["hash"]:
        return f"DIFFERS from the run's own record, which is of other games (panel {earlier['hash'][:12]})"
    pairs = zip(episodes, _episodes(earlier, workdir), strict=True)
    other = [now.task_id for now, before in pairs if replace(now, trace="") != replace(before, trace="")]
    if other:
        return f"DIFFERS from the run's own record in {len(other)} games, the first {other[0]}"
    return "equal to the run's own record"


def evaluate_planner(config: Config, workdir: Path, name: str) -> None:
    """Plays the panel `name` with the optimal planner, beside ALFWorld's handcoded expert. No policy is needed."""
    console = make_console()
    root = setup.prepare_games(config, workdir)
    panel = _panel(config, root, name, 0)
    if reasons := left_out(root, SPLIT_OF[name]):
        console.print(f"{SPLIT_OF[name]}: left out {reasons}", soft_wrap=True)
    plans: dict[str, list[str]] = {}
    for task in dict.fromkeys(panel.tasks):
        plan = solve(load_game(root, task))
        if plan is None:
            raise ConfigError(f"{task.id} cannot be won from its start: remove the game from {root}")
        plans[task.id] = plan
    optimal = {id_: len(plan) for id_, plan in plans.items()}
    with (
        closing(make_pool(config.env, root)) as pool,
        progress(console, f"{name}: games, planner", len(panel.tasks)) as advance,
    ):
        planned = play_plans(pool, panel, plans, optimal, config.rollout.slots, advance)
    records, titles = [_record(panel, planned, "planner", 0)], ["planner"]
    try:
        with progress(console, f"{name}: games, handcoded expert", len(panel.tasks)) as advance:
            handcoded = [
                _handcoded(config, root, task, draw, optimal, advance) for task, draw in panel.draws()
            ]
        records.append(_record(panel, handcoded, "handcoded", 0))
        titles.append(f"handcoded*, {HANDCODED_TURNS} turns")
        note = (
            "* alfworld's, on the fast engine, with its put/move mistake put right; a game about a thing that it does "
            "not know is void"
        )
    except EngineMissing as error:
        note = f"Without the handcoded expert: {error}"
    console.print(panel_table(records, titles=titles))
    console.print(note, soft_wrap=True)
    console.print(panel_line(records[0]), soft_wrap=True)
    console.print(f"panel hash {panel.hash}")


def _handcoded(
    config: Config,
    root: GameData,
    task: Task,
    draw: int,
    optimal: Mapping[str, int],
    advance: Callable[[int], None],
) -> EpisodeScore:
    """An episode of the handcoded expert; a void one where the game asks for a thing that it has never heard of."""
    rng, error = random.Random(f"{config.seed}/{task.id}/{draw}"), ""
    try:
        won, turns = play_handcoded(load_game(root, task), rng, HANDCODED_TURNS)
    except GameDataError as unknown:
        won, turns, error = False, 0, str(unknown)
    advance(1)
    return EpisodeScore(task.id, task.kind, won, turns, 0, error, draw, optimal[task.id])


def compare(first: Path, second: Path) -> None:
    """Compares the last measurements of two runs, panel by panel and game by game.

    Raises ConfigError when a folder holds no measurement, or when there is no panel that both played on the same games.
    """
    console = make_console()
    before, after = _last(first), _last(second)
    shared = [panel for panel in before if panel in after]
    same = [panel for panel in shared if before[panel]["hash"] == after[panel]["hash"]]
    if not same:
        raise ConfigError(
            f"{first} measured {_panels(before)} and {second} measured {_panels(after)}: there is nothing to compare; "
            "measure both on the games of one panel (config.eval.panels)"
        )
    for letter, workdir in (("A", first), ("B", second)):
        console.print(f"{letter}: {workdir}", soft_wrap=True)
    settings = [dict(leaves(_settings(workdir))) for workdir in (first, second)]
    for key in sorted(settings[0].keys() | settings[1].keys()):
        values = [of_run.get(key, "not set") for of_run in settings]
        if values[0] != values[1]:
            console.print(f"config.{key}: {values[0]} (A), {values[1]} (B)", soft_wrap=True)
    for panel in shared:
        records = [before[panel], after[panel]]
        console.print()
        if panel not in same:
            hashes = " and ".join(record["hash"][:12] for record in records)
            console.print(f"{panel}: other games in A than in B ({hashes}), not compared")
            continue
        a, b = (_episodes(record, of) for record, of in zip(records, (first, second), strict=True))
        try:
            difference = paired_bootstrap(a, b).record()
        except ValueError as error:
            raise ConfigError(f"panel {panel} of {first} and {second}: {error}") from error
        titles = [
            f"{letter}, {STAGE_TITLES[record['stage']]}, step {record['step']}"
            for letter, record in zip("AB", records, strict=True)
        ]
        console.print(panel_table(records, difference, titles))


def _panels(measured: Mapping[str, Mapping[str, Any]]) -> str:
    return ", ".join(f"{panel} ({record['hash'][:12]})" for panel, record in measured.items())


def _last(workdir: Path) -> dict[str, dict[str, Any]]:
    """The last measurement of each panel in a run's records."""
    records = _recorded(workdir)
    if not records:
        raise ConfigError(
            f"{workdir} holds no measurement ({EVALUATIONS}): name the --workdir of a finished run"
        )
    for record in records:
        _episodes(record, workdir)
    return {record["panel"]: record for record in sorted(records, key=lambda record: record["step"])}


def _episodes(record: Mapping[str, Any], workdir: Path) -> list[EpisodeScore]:
    """The episodes of a measurement. Raises ConfigError for a record that this version did not write."""
    try:
        whole = isinstance(record["step"], int) and record["stage"] in STAGE_TITLES
        whole &= all(isinstance(record[name], str) for name in ("panel", "hash", "drawn"))
        whole &= isinstance(record["score"]["success"], float)
        episodes = [EpisodeScore(**row) for row in record["episodes"]]
    except (KeyError, TypeError):
        whole = False
    if not whole:
        raise ConfigError(
            f"{workdir / EVALUATIONS} holds a record that is no measurement of this version: measure the run again"
        )
    return episodes


def _recorded(workdir: Path) -> list[dict[str, Any]]:
    try:
        return read_records(workdir / EVALUATIONS)
    except ValueError as error:  # one sentence
        raise ConfigError(str(error)) from error


def _settings(workdir: Path) -> dict[str, Any]:
    path = workdir / "config.json"
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{path} holds no settings of a run: name the --workdir of a finished run"
        ) from error
    if not isinstance(settings, dict):
        raise ConfigError(f"{path} holds no settings of a run: name the --workdir of a finished run")
    return settings


def _panel(config: Config, root: GameData, name: str, step: int) -> Panel:
    return build_panel(name, partial(find_tasks, root), config.seed, step)


def _record(panel: Panel, episodes: list[EpisodeScore], stage: str, step: int) -> Mapping[str, Any]:
    """The form of evaluation.jsonl, which the tables read. Raises ConfigError when no episode is valid."""
    try:
        measured = score(panel, episodes).record()
    except ValueError as error:
        raise ConfigError(str(error)) from error
    return {
        "step": step,
        "stage": stage,
        "panel": panel.name,
        "hash": panel.hash,
        "drawn": panel.drawn,
        "score": measured,
    }
