"""A run from nothing to its last table: games, SFT, evaluation, RL, evaluation."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from rich.console import Console

from rsipo_jax.agents.rollout import Agent
from rsipo_jax.config import Config
from rsipo_jax.envs.alfworld.data import find_tasks
from rsipo_jax.evaluation.panels import Panel, make_panel
from rsipo_jax.evaluation.play import play_panel
from rsipo_jax.evaluation.scores import EpisodeScore, paired_bootstrap, score
from rsipo_jax.methods import METHODS
from rsipo_jax.models.transformer import Params
from rsipo_jax.reports.console import make_console, progress, stage, step_line
from rsipo_jax.reports.curves import save_curves
from rsipo_jax.reports.records import plain, read_records
from rsipo_jax.reports.run_log import RECORDS, RunLog
from rsipo_jax.reports.tables import panel_table, summary
from rsipo_jax.skills.trust import PriorState
from rsipo_jax.training import setup
from rsipo_jax.training.checkpoint import Checkpoints
from rsipo_jax.training.state import TrainState, create_state, make_optimizer
from rsipo_jax.training.step import Learner, train_step
from rsipo_jax.validation import ConfigError

STAGES = 5


def run(config: Config, workdir: Path) -> None:
    """Trains in `workdir`, or goes on there from the last checkpoint, and prints the summary.

    Raises ConfigError when the workdir belongs to a run with other settings.
    """
    console = make_console()
    setup.check_checkpoint(config)
    with ExitStack() as stack:
        checkpoints = stack.enter_context(closing(Checkpoints(workdir)))
        log = stack.enter_context(closing(_open_log(config, workdir, checkpoints)))

        stage(console, 1, STAGES, "Games and demonstrations", f"workdir: {workdir}")
        root = setup.prepare_games(config, workdir)
        panels, tasks = setup.make_panels(config, root), find_tasks(root, "train")
        demos = setup.prepare_demonstrations(config, workdir, root)
        network = setup.prepare_network(config, workdir, demos)
        size = sum(a.size for a in jax.tree.leaves(network.params))
        console.print(
            f"{len(tasks)} training games, {len(demos)} demonstrations; "
            f"a network of {size / 1e6:.2f} M parameters, {network.tokenizer.vocab_size} tokens"
        )
        for name in sorted(set(config.eval.panels) - panels.keys()):
            console.print(f"{root} has no split {name}: that panel is left out")

        stage(console, 2, STAGES, "SFT cold start", "act, act with a skill, write a skill")
        updates = partial(progress, console, "SFT updates")
        reference = setup.sft_policy(config, workdir, network, demos, updates)

        agent = setup.make_agent(config, root, network)
        stack.callback(agent.pool.close)
        learner = Learner(agent, network.model, reference, tasks)
        optimizer = make_optimizer("adamw", config.train.weight_decay, config.train.grad_clip)
        state, prior = create_state(jax.tree.map(jnp.copy, reference), optimizer), PriorState.zero()
        if log.last_step:
            state, prior = checkpoints.restore(log.last_step, state, prior)
        whole = {name: panel for name, panel in panels.items() if name != setup.DURING}

        stage(console, 3, STAGES, "Evaluation of the SFT policy")
        _measure(console, log, agent, reference, whole, 0, "sft")

        stage(console, 4, STAGES, f"RL: {config.method}", f"{config.train.steps} steps")
        _reinforce(console, log, checkpoints, learner, state, prior, panels)
        final = checkpoints.restore_params(config.train.steps, reference) if config.train.steps else reference

        stage(console, 5, STAGES, "Evaluation of the RL policy")
        _measure(console, log, agent, final, whole, config.train.steps, "rl")
    console.print()
    console.print(report(workdir, config.eval.panels, log.files()))


def evaluate(config: Config, workdir: Path, panel: str, step: int) -> None:
    """Plays a panel with a checkpoint of the run in `workdir` and compares with what the run recorded.

    `step` -1 is the newest checkpoint, 0 the SFT policy. No record is written. Raises ConfigError when there is no such
    checkpoint.
    """
    console = make_console()
    if not (workdir / setup.SFT).exists():
        raise ConfigError(
            f"{workdir} has no policy yet: let launch/train.py finish its SFT stage there first"
        )
    with ExitStack() as stack:
        checkpoints = stack.enter_context(closing(Checkpoints(workdir)))
        kept = [0, *checkpoints.steps()]
        step = max(kept) if step < 0 else step
        if step not in kept:
            raise ConfigError(f"{workdir} has no checkpoint of step {step}: choose --step from {kept}")
        root = setup.prepare_games(config, workdir)
        network = setup.load_network(config, workdir)
        params = setup.load_sft(workdir, network)
        if step:
            params = checkpoints.restore_params(step, params)
        agent = setup.make_agent(config, root, network)
        stack.callback(agent.pool.close)
        agent.sampler.load(params)
        games = make_panel(panel, find_tasks(root, panel))
        with progress(console, f"{panel}: games", len(games.tasks)) as advance:
            episodes = play_panel(agent, games, step, lambda _: advance(1))
    record = {
        "panel": panel,
        "hash": games.hash,
        "step": step,
        "stage": "rl" if step else "sft",
        "score": score(games, episodes).record(),
    }
    console.print(panel_table([record]))
    console.print(panel_line(record), soft_wrap=True)
    console.print(f"panel hash {games.hash}")
    recorded = [
        r for r in read_records(workdir / "evaluation.jsonl") if (r["panel"], r["step"]) == (panel, step)
    ]
    if not recorded:
        console.print("the run has no record of this panel at this step")
    for earlier in recorded:
        same = plain(list(map(vars, episodes)), "episodes") == earlier["episodes"]
        same &= games.hash == earlier["hash"]
        console.print("equal to the run's own record" if same else "DIFFERS from the run's own record")


def _reinforce(
    console: Console,
    log: RunLog,
    checkpoints: Checkpoints,
    learner: Learner,
    state: TrainState,
    prior: PriorState,
    panels: Mapping[str, Panel],
) -> None:
    """The RL stage from the step after the last recorded one; each step is recorded, shown, and at times measured and saved."""
    config = learner.agent.config
    method, cfg = METHODS[config.method], config.train
    episodes = config.rollout.tasks_per_step * config.rollout.group_size
    planned = episodes * (1 + config.skill.replays * method.writes_skills)
    for step in range(log.last_step + 1, cfg.steps + 1):
        with progress(console, f"step {step}: episodes", planned, transient=True) as advance:
            result = train_step(learner, state, prior, step, lambda _: advance(1))
        state, prior = result.state, result.prior
        record = log.step(
            step, result.metrics, result.seconds, result.tokens_per_second, result.episodes, result.skills
        )
        step_line(console, record, cfg.steps)
        if setup.DURING in panels and step % config.eval.every == 0:
            during = {setup.DURING: panels[setup.DURING]}
            _measure(console, log, learner.agent, state.params, during, step, "during")
        if step % cfg.checkpoint_every == 0 or step == cfg.steps:
            checkpoints.save(step, state, prior)
    checkpoints.wait()


def _measure(
    console: Console,
    log: RunLog,
    agent: Agent,
    params: Params,
    panels: Mapping[str, Panel],
    step: int,
    name: str,
) -> None:
    """Plays and records each panel that this run has not measured yet at this step and stage."""
    for panel in panels.values():
        if (record := log.measured(step, name, panel.name)) is None:
            agent.sampler.load(params)
            with progress(console, f"{panel.name}: games", len(panel.tasks)) as advance:
                episodes = play_panel(agent, panel, step, lambda _: advance(1))
            record = log.evaluation(
                step, name, panel.name, panel.hash, score(panel, episodes).record(), list(map(vars, episodes))
            )
        console.print(panel_line(record), soft_wrap=True)


def panel_line(record: Mapping[str, Any]) -> str:
    """One measurement of a panel as a sentence."""
    measured = record["score"]
    low, high = measured["interval"]
    return (
        f"{record['panel']}: success {100 * measured['success']:.1f}% [{100 * low:.1f}, {100 * high:.1f}] over episodes, "
        f"{100 * measured['success_macro']:.1f}% over task kinds; {measured['episodes']} games, "
        f"{measured['turns']:.1f} turns (panel {record['hash'][:12]})"
    )


def report(workdir: Path, panels: tuple[str, ...], files: Mapping[str, Path]) -> Any:
    """The summary of a run from its records (a rich renderable); `panels` are shown, as far as they were measured."""
    evaluations = read_records(workdir / "evaluation.jsonl")
    differences = {}
    for panel in panels:
        by_stage = {
            r["stage"]: [EpisodeScore(**e) for e in r["episodes"]] for r in evaluations if r["panel"] == panel
        }
        if {"sft", "rl"} <= by_stage.keys():
            differences[panel] = paired_bootstrap(by_stage["sft"], by_stage["rl"]).record()
    steps = read_records(workdir / "log.jsonl")
    skills = read_records(workdir / "skills.jsonl")
    figures = {"curves": save_curves(workdir)} if steps else {}
    shown = [r for r in evaluations if r["panel"] in panels]
    return summary(
        shown, differences, steps, skills, {**files, **figures, "checkpoints": workdir / "checkpoints"}
    )


def _open_log(config: Config, workdir: Path, checkpoints: Checkpoints) -> RunLog:
    """A new log, or that of the run in `workdir`, cut back to its last checkpoint."""
    settings = dataclasses.asdict(config)
    # A run that failed before it made anything leaves its settings only: a corrected one may start there. And a folder
    # with no settings but with what an earlier run made (say, a copied sft/) is a start from there.
    made = any((workdir / name).exists() for name in (*RECORDS, *setup.MADE))
    started = made and (workdir / "config.json").exists()
    if not started and checkpoints.latest() is not None:
        raise ConfigError(
            f"{workdir} holds checkpoints without the records of their run: choose another --workdir, or delete them"
        )
    try:
        return RunLog.open(workdir, settings, resume_step=(checkpoints.latest() or 0) if started else None)
    except ValueError as error:
        raise ConfigError(str(error)) from error
