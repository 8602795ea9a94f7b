"""A run from nothing to its last table: tasks, SFT, evaluation, RL, evaluation."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any

import jax
from rich.console import Console

from rsipo_jax.agents.rollout import Agent
from rsipo_jax.config import Config
from rsipo_jax.evaluation.panels import SPLIT_OF, Panel
from rsipo_jax.evaluation.scores import EpisodeScore, paired_bootstrap, score
from rsipo_jax.methods import METHODS
from rsipo_jax.models.lora import join, split
from rsipo_jax.models.transformer import ModelConfig, Params, cast_params
from rsipo_jax.reports.console import make_console, progress, stage, step_line
from rsipo_jax.reports.curves import save_curves
from rsipo_jax.reports.memory import peak_host_memory
from rsipo_jax.reports.records import read_records
from rsipo_jax.reports.run_log import RECORDS, RunLog
from rsipo_jax.reports.tables import panel_line, summary
from rsipo_jax.skills.prior import PriorState
from rsipo_jax.training import setup
from rsipo_jax.training.checkpoint import Checkpoints
from rsipo_jax.training.state import TrainState, create_state, make_optimizer
from rsipo_jax.training.step import Learner, train_step
from rsipo_jax.training.watch import play_watched
from rsipo_jax.training.worlds import World, open_world
from rsipo_jax.validation import ConfigError

STAGES = 5


def run(config: Config, workdir: Path) -> None:
    """Trains in `workdir`, or goes on there from the last checkpoint, and prints the summary.

    Raises ConfigError when the workdir belongs to a run with other settings.
    """
    console = make_console()
    setup.check_checkpoint(config)
    with ExitStack() as stack:
        stack.enter_context(jax.set_mesh(setup.learner_mesh(config)))
        checkpoints = stack.enter_context(closing(Checkpoints(workdir)))
        log = stack.enter_context(closing(_open_log(config, workdir, checkpoints)))

        stage(console, 1, STAGES, "Tasks and demonstrations", f"workdir: {workdir}")
        if config.train.steps and log.last_step == config.train.steps:
            console.print("All RL steps of this run are done: what follows repeats its results.")
        world = open_world(config, workdir)
        panels, tasks = setup.make_panels(config, world, step=0), world.tasks("train")
        demos = setup.prepare_demonstrations(config, workdir, world)
        network = setup.prepare_network(config, workdir, world, demos)
        size = sum(a.size for a in jax.tree.leaves(network.params))
        console.print(
            f"{len(tasks)} training tasks, {len(demos)} demonstrations; "
            f"a network of {size / 1e6:.2f} M parameters, {network.tokenizer.vocab_size} tokens, "
            f"peak host memory {peak_host_memory() / 2**30:.2f} GiB"
        )
        for part in dict.fromkeys(["train", *(SPLIT_OF[panel.name] for panel in panels)]):
            if reasons := world.left_out(part):
                console.print(f"{part}: left out {reasons}", soft_wrap=True)
        for name in sorted(set(config.eval.panels) - {panel.name for panel in panels}):
            console.print(f"{world} has nothing for the panel {name}: it is left out")

        stage(console, 2, STAGES, "SFT cold start", "act, act with a skill, write a skill")
        updates = partial(progress, console, "SFT updates")
        trained, frozen = split(setup.sft_policy(config, workdir, network, demos, updates))

        agent = setup.make_agent(config, world, network)
        stack.callback(agent.pool.close)
        reference = cast_params(
            join(trained, frozen), network.model.dtype
        )  # computes the same, in half the memory
        learner = Learner(agent, network.model, frozen, reference, tasks)
        cfg = config.train
        optimizer = make_optimizer("adamw", cfg.weight_decay, cfg.grad_clip, cfg.momentum_dtype)
        state, prior, scale = create_state(trained, optimizer), PriorState.zero(), 1.0
        del trained, network
        if log.last_step:
            state, prior, scale = checkpoints.restore(log.last_step, state, prior)
        measure = partial(_measure, console, log, agent, learner.model, world)

        method = METHODS[config.method]
        stage(console, 3, STAGES, "Evaluation of the SFT policy")
        measure(reference, panels, 0, "sft*" if method.skill_at_test else "sft")

        if not method.trains:
            console.print(f"The method {config.method} trains nothing: the run ends here.")
            console.print(report(workdir, config.eval.panels, log.files()))
            return
        stage(console, 4, STAGES, f"RL: {config.method}", f"{config.train.steps} steps")
        state = _reinforce(
            console,
            log,
            checkpoints,
            learner,
            state,
            prior,
            scale,
            measure,
            setup.during_panels(config, world),
        )

        stage(console, 5, STAGES, "Evaluation of the RL policy")
        final = join(state.params, frozen)
        measure(final, setup.make_panels(config, world, config.train.steps), config.train.steps, "rl")
    console.print()
    console.print(report(workdir, config.eval.panels, log.files()))


def _reinforce(
    console: Console,
    log: RunLog,
    checkpoints: Checkpoints,
    learner: Learner,
    state: TrainState,
    prior: PriorState,
    scale: float,
    measure: Callable[[Params, Sequence[Panel], int, str], None],
    during: Sequence[Panel],
) -> TrainState:
    """The RL stage from the step after the last recorded one; each step is recorded, shown, and at times measured and saved.

    Returns the state after the last step.
    """
    config = learner.agent.config
    method, cfg = METHODS[config.method], config.train
    episodes = config.rollout.tasks_per_step * config.rollout.group_size
    analysed = config.rollout.tasks_per_step * (config.skill.per_task or config.rollout.group_size)
    planned = episodes + analysed * config.skill.replays * method.replays
    for step in range(log.last_step + 1, cfg.steps + 1):
        with progress(console, f"step {step}: episodes", planned, transient=True) as advance:
            result = train_step(learner, state, prior, step, lambda _: advance(1), scale)
        state, prior, scale = result.state, result.prior, result.distill_scale
        record = log.step(
            step, result.metrics, result.seconds, result.tokens_per_second, result.episodes, result.skills
        )
        step_line(console, record, cfg.steps)
        if during and step % config.eval.every == 0:
            measure(join(state.params, learner.frozen), during, step, "during")
        if step % cfg.checkpoint_every == 0 or step == cfg.steps:
            checkpoints.save(step, state, prior, scale)
    checkpoints.wait()
    return state


def _measure(
    console: Console,
    log: RunLog,
    agent: Agent,
    model: ModelConfig,
    world: World,
    params: Params,
    panels: Sequence[Panel],
    step: int,
    name: str,
) -> None:
    """Plays and records each panel that this run has not measured yet at this step and stage.

    A stage with a star has skills in the prompts of the measured episodes.
    """
    for panel in panels:
        if (record := log.measured(step, name, panel.name)) is None:
            optimal = world.optimal_turns(panel.tasks)
            with progress(console, f"{panel.name}: episodes", len(panel.tasks)) as advance:
                episodes = play_watched(
                    agent, model, params, panel, step, optimal, advance, with_skills=name.endswith("*")
                )
            record = log.evaluation(
                step,
                name,
                panel.name,
                panel.hash,
                score(panel, episodes).record(),
                list(map(vars, episodes)),
                panel.drawn,
            )
        console.print(panel_line(record), soft_wrap=True)


def report(workdir: Path, panels: tuple[str, ...], files: Mapping[str, Path]) -> Any:
    """The summary of a run from its records (a rich renderable); `panels` are shown, as far as they were measured."""
    evaluations = read_records(workdir / "evaluation.jsonl")
    differences = {}
    for panel in panels:
        by_stage = {r["stage"]: r for r in evaluations if r["panel"] == panel}
        if {"sft", "rl"} <= by_stage.keys() and by_stage["sft"]["hash"] == by_stage["rl"]["hash"]:
            sft, rl = ([EpisodeScore(**e) for e in by_stage[s]["episodes"]] for s in ("sft", "rl"))
            differences[panel] = paired_bootstrap(sft, rl).record()
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
        resume_step = (checkpoints.latest() or 0) if started else None
        return RunLog.open(workdir, settings, resume_step, changeable=("rollout.max_drift",))
    except ValueError as error:
        raise ConfigError(str(error)) from error
