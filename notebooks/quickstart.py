# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#       format_version: '1.3'
#       jupytext_version: 1.19.6
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # RSIPO on ALFWorld: quickstart
#
# [![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/rsipo-jax/rsipo_jax/blob/main/notebooks/quickstart.ipynb)
#
# RSIPO trains a language agent by reinforcement learning and lets it teach itself on the way.
# The policy plays a group of episodes of each task; then it writes a *skill* from each finished episode: the workflow
# if it won, the mistake to avoid if it lost.
# Every skill is put to the test, by playing its task again with the skill in the prompt; what that changes in success
# is the skill's **replay gain**.
# The policy with the skill in its context is a teacher of the policy without it (the same parameters under two
# prompts), and empirical Bayes says how far the few replays justify trusting that teacher.
# One loss then teaches three things (and a KL term keeps the policy near where it started): what won, what the
# teacher would rather have said, as far as it is trusted, and to write skills that help.
#
# **Replay gain** of task $x$: success rate of its $n_1$ replays with a skill minus that of its $n_0$ episodes without,
#
# $$d_x = \frac{s_1}{n_1} - \frac{s_0}{n_0}.$$
#
# **Posterior gain and trust.** The gain is noisy ($v_x$ is its sampling variance) and true gains vary around a common
# mean, $d_x \mid \Delta_x \sim \mathcal N(\Delta_x, v_x)$ and $\Delta_x \sim \mathcal N(\mu, \tau^2)$. With $\mu$ and
# $\tau^2$ estimated from all tasks seen so far,
#
# $$m_x = B_x\,\mu + (1 - B_x)\,d_x, \qquad B_x = \frac{v_x}{v_x + \tau^2}, \qquad
# w_x = \mathrm{clip}\!\left(\frac{m_x}{\kappa},\ 0,\ 1\right).$$
#
# **Token advantage** of response token $y_t$ in context $h_t$: the group-normalised return of its trajectory, plus the
# trusted part of what the teacher, who also read the skill $s$, thinks of that token,
#
# $$A_t = A_{\mathrm{traj}} + \lambda\, w_x\, \mathrm{clip}\big(\log \pi(y_t \mid h_t, s) - \log \pi(y_t \mid h_t),\
# \pm\delta_{\max}\big).$$
#
# The tokens of the skills themselves carry their replay gain, normalised over the skills of one task.
# Where $w_x = 0$ the token advantage is that of GRPO, bit for bit.

# %%
import importlib.util
import os
import sys

REPOSITORY = "https://github.com/rsipo-jax/rsipo_jax"  # where Colab gets the code: put your fork here

if importlib.util.find_spec("rsipo_jax") is None and "google.colab" in sys.modules:
    # !git clone --depth 1 {REPOSITORY} /content/rsipo_jax
    # The original game engine is left out: it has to be compiled, and this notebook plays the fast one.
    # !grep -Ev '^(alfworld|textworld)==' /content/rsipo_jax/requirements.txt > /content/requirements.txt
    # %pip install -q -r /content/requirements.txt
    # %pip install -q --no-deps -e /content/rsipo_jax
    sys.path.insert(0, "/content/rsipo_jax")  # this process started before the package was installed

# %% [markdown]
# ## Settings
#
# A preset of `configs/alfworld.py` is an `ml_collections.ConfigDict`; `validated` turns it into frozen dataclasses and
# refuses, in one sentence, whatever does not exist or does not go together. `tiny` is a small network that learns from
# nothing in fifteen to thirty minutes on two CPU cores: it downloads no weights and makes its own ALFWorld games. With
# `RSIPO_QUICK=1` in the environment everything is cut down to two steps that take half a minute and teach it nothing.

# %%
# %matplotlib inline
import runpy
from dataclasses import replace
from pathlib import Path

import numpy as np
import rich

import rsipo_jax
from rsipo_jax.validation import validated

settings = runpy.run_path(Path(rsipo_jax.__file__).parents[1] / "configs" / "alfworld.py")["get_config"]("tiny")
settings.seed = 0  # change anything here, as --config.seed=0 would on the command line
settings.eval.panels = ("valid_unseen",)  # games in rooms that no training game uses

QUICK = os.environ.get("RSIPO_QUICK") == "1"
if QUICK:
    settings.update_from_flattened_dict({
        "games.train": 8, "games.valid_seen": 2, "games.valid_unseen": 6, "env.max_turns": 3,
        "model.hidden_size": 32, "model.intermediate_size": 64, "model.num_layers": 1,
        "context.max_length": 512, "skill.max_new_tokens": 32,
        "sft.games": 4, "sft.epochs": 1, "eval.every": 0,
        "train.steps": 2, "rollout.tasks_per_step": 2, "rollout.group_size": 2, "rollout.slots": 8,
    })

config = validated(settings)
workdir = Path("runs") / ("quickstart-quick" if QUICK else "quickstart")
print(config.rollout, config.skill, config.trust, sep="\n")

# %% [markdown]
# ## Train
#
# The whole run: games and expert demonstrations, the SFT cold start (act, act with a skill, write a skill), an
# evaluation, RSIPO, the evaluation again. `rsipo_jax/training/step.py` is one RSIPO step from top to bottom.
# Interrupt it and run the cell again, and it goes on from its last checkpoint; once finished, it only reports.
# At the end it prints its tables; the cells below read them again from the records.

# %%
from rsipo_jax.training import loop

loop.run(config, workdir)

# %% [markdown]
# ## What it learned
#
# Everything the run has to say is in JSON lines in the workdir: `log.jsonl` has one line a step. The thick curves are
# means over ten steps. Success is that of the training episodes without a skill; the replay gain is what the skills
# add to it.

# %%
from rsipo_jax.reports.curves import curves
from rsipo_jax.reports.records import read_records

curves(read_records(workdir / "log.jsonl"))

# %% [markdown]
# Held-out games, each played once before RL and once after. The intervals of the cells are Wilson's; the change is
# paired game by game and bootstrapped.

# %%
from rsipo_jax.evaluation.scores import EpisodeScore, paired_bootstrap
from rsipo_jax.reports.tables import panel_table, sample_skills, skill_table

measured = {r["stage"]: r for r in read_records(workdir / "evaluation.jsonl") if r["panel"] == "valid_unseen"}
sft, rl = measured["sft"], measured["rl"]
change = paired_bootstrap(*([EpisodeScore(**e) for e in r["episodes"]] for r in (sft, rl)))
rich.print(panel_table([sft, rl], change.record()))

# %% [markdown]
# Three of the skills that the policy wrote in the last step: those with the largest, the median and the smallest
# replay gain, and the trust their task was given. (A run of a few steps writes nothing that can be read as a skill.)

# %%
skills = sample_skills(read_records(workdir / "skills.jsonl"))
rich.print(skill_table(skills) if skills else "no skill that can be read yet")

# %% [markdown]
# ## Play a game
#
# The trained policy on one training game, without and with a skill: the best one of the last step, replayed on the
# task it was written from. Random draws are addressed by (purpose, step, group, rollout, turn), never consumed in
# sequence, so both episodes use the same ones and differ in their prompts only.

# %%
from rsipo_jax.agents.rollout import EVALUATE, Episode, rollout, sampling_of
from rsipo_jax.training import setup
from rsipo_jax.training.checkpoint import Checkpoints
from rsipo_jax.training.worlds import open_world

world = open_world(config, workdir)  # its games are found again, not made again
network = setup.load_network(config, workdir)
checkpoints = Checkpoints(workdir)
agent = setup.make_agent(config, world, network)
agent.sampler.load(checkpoints.restore_params(config.train.steps, network.params), config.train.steps)
checkpoints.close()

if skills:
    task_id, skill = skills[0]["task"], skills[0]["text"]
else:  # nothing written yet: borrow the skill of a demonstration
    demo = next(d for d in setup.prepare_demonstrations(config, workdir, world) if d.skill)
    task_id, skill = demo.task_id, demo.skill
task = {task.id: task for task in world.tasks("train")}[task_id]


def play(skill: str = "") -> None:
    """Plays one episode of the task and prints what was seen and said."""
    episode = Episode(task, group=0, rollout=0, skill=skill)
    [played] = rollout(agent, [episode], EVALUATE, config.train.steps, sampling_of(config.eval))
    for seen, turn in zip(played.observations, played.turns):
        print(seen.strip(), f"> {turn.text.strip()}", sep="\n\n", end="\n\n")
    print(played.observations[-1].strip())
    print(f"\n{played.status} after {len(played.turns)} turns")


# %%
play()

# %%
print(f"Skill: {skill}\n")
play(skill)

# %% [markdown]
# ## Change one idea
#
# A method is one file in `rsipo_jax/methods/`: whether skills are written and replayed, and how much credit each token
# gets. Everything else (rollouts, replays, scoring, loss, evaluation) is shared, so two runs that differ in
# `--config.method` differ in that idea only. As an example, RSIPO whose teacher speaks only in lost episodes:

# %%
from rsipo_jax.methods.method import Credit, Outcomes, SkillEvidence, Tokens
from rsipo_jax.methods.rsipo import RSIPO


class LostOnly(RSIPO):
    """RSIPO that lets its teacher speak in episodes with no positive return only."""

    def credit(self, outcomes: Outcomes, skills: SkillEvidence | None, tokens: Tokens) -> Credit:
        credit = super().credit(outcomes, skills, tokens)
        lost = (outcomes.returns <= 0).astype(np.float32)
        return replace(credit, trust=credit.trust * lost[tokens.episode])


# %% [markdown]
# Credit is plain array arithmetic, so it can be tried on counts made up by hand: one task, won once in four episodes;
# each of the four skills replayed once, and three of these replays won.

# %%
from rsipo_jax.methods.advantages import replay_gains, skill_rewards
from rsipo_jax.skills.prior import PriorState
from rsipo_jax.skills.trust import trust, update_prior

group, won, every = np.zeros(4, int), np.array([True, False, False, False]), np.ones(4, bool)
replay_won = np.array([[True], [True], [False], [True]])
gains = replay_gains(won, every, group, replay_won, every[:, None], num_tasks=1)
counts = (gains.s1, gains.n1, gains.s0, gains.n0, gains.task_measured)
belief = trust(update_prior(PriorState.zero(), *counts, config.trust), *counts, config.trust)
rewards = np.asarray(skill_rewards(gains.skill_gain, every, np.full(4, 80), config.skill))

outcomes = Outcomes(config.rollout.win_reward * won.astype(np.float32), group, every, num_groups=1)
evidence = SkillEvidence(every, every, rewards, gains, belief, unit=group, source_won=won)
# two tokens an episode: one of an action, one of the skill written at its end
tokens = Tokens(np.repeat(np.arange(4), 2), action=np.tile([True, False], 4), skill=np.tile([False, True], 4))

print(f"gain {gains.task_gain[0]:+.2f}, shrunk to {belief.posterior_mean[0]:+.3f}: trust {belief.weight[0]:.3f}")
for method in (RSIPO(), LostOnly()):
    credit = method.credit(outcomes, evidence, tokens)
    print(type(method).__name__)
    print("  advantage of the actions:", credit.advantages[0::2].round(2))
    print("  trust in the teacher:    ", credit.trust[0::2].round(3))
    print("  advantage of the skills: ", credit.advantages[1::2].round(2))

# %% [markdown]
# To train with it, put the class into `rsipo_jax/methods/lost_only.py`, enter it as `"lost_only"` in `METHODS` of
# `rsipo_jax/methods/__init__.py`, add the name to `METHODS` of `rsipo_jax/validation/choices.py`, and run
#
# ```
# python launch/train.py --config=configs/alfworld.py --config.method=lost_only
# ```
#
# From there: `configs/alfworld.py` for the settings and presets, `README.md` for the records, real ALFWorld data and
# larger models.
