"""Measures policies on panels of games or questions.

    python launch/evaluate.py --workdir=FOLDER [--panel=valid_unseen] [--step=N]  a checkpoint of a run
    python launch/evaluate.py --policy=planner [--panel=train]                   the optimal planner, and an expert
    python launch/evaluate.py --workdir=FOLDER --teacher-vs-student [--panel=train_probe] [--episodes=4]
                                                                                 the policy against itself with a skill
    python launch/evaluate.py --compare A B                                      two runs, game by game

The first plays the panel, or several (--panel=A,B), with the newest checkpoint (or that of --step; 0 is the SFT policy)
and says whether the result is the one the run recorded. The second needs no run: it plays the games of --config (default
configs/alfworld.py), of --workdir, or of $ALFWORLD_DATA. The last reads the records of two workdirs and plays nothing.
"""

from pathlib import Path

import jax
from absl import flags
from flags import errors_as_sentences, no_more, parse, settings

from rsipo_jax.config import Config
from rsipo_jax.evaluation.panels import SPLIT_OF
from rsipo_jax.training.evaluate import compare, evaluate, evaluate_planner, teacher_vs_student
from rsipo_jax.validation import ConfigError

TEACHER = "teacher-vs-student"
flags.DEFINE_list(
    "panel", [], f"What to play, of {', '.join(SPLIT_OF)}; the last of config.eval.panels if none is named."
)
flags.DEFINE_integer(
    "step", -1, "RL step whose checkpoint is measured; -1: the newest, 0: the SFT policy.", lower_bound=-1
)
flags.DEFINE_enum("policy", "checkpoint", ["checkpoint", "planner"], "Who plays.")
flags.DEFINE_bool(TEACHER, False, "Compares the policy with itself when it has a skill.")
flags.DEFINE_integer("episodes", 4, "Of student and of teacher, with --teacher-vs-student.", lower_bound=1)
flags.DEFINE_string("compare", "", "Compares the records of two runs: --compare WORKDIR WORKDIR.")

DEFAULT_CONFIG = Path(__file__).parents[1] / "configs" / "alfworld.py"


def main() -> None:
    rest = parse()
    if flags.FLAGS.compare:
        _refuse("--compare", "panel", "step", "policy", "workdir", "config", TEACHER, "episodes")
        if len(rest) != 1:
            raise ConfigError("--compare needs two runs: --compare WORKDIR WORKDIR")
        compare(Path(flags.FLAGS.compare), Path(rest[0]))
        return
    no_more(rest)
    if flags.FLAGS.policy == "planner":
        _refuse("--policy=planner", "step", TEACHER, "episodes")
        config, workdir = settings(default=str(DEFAULT_CONFIG))
        evaluate_planner(config, workdir, _one_panel(config))
        return
    config, workdir = settings()
    jax.config.update("jax_compilation_cache_dir", str((workdir / "compiled").resolve()))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    if flags.FLAGS[TEACHER].value:
        teacher_vs_student(config, workdir, _one_panel(config), flags.FLAGS.step, flags.FLAGS.episodes)
    else:
        if flags.FLAGS["episodes"].present:
            raise ConfigError("--episodes has no effect without --teacher-vs-student: leave it out")
        evaluate(config, workdir, _panels(config), flags.FLAGS.step)


def _panels(config: Config) -> list[str]:
    """The panels to play, each once. Raises ConfigError for one that there is not."""
    names = list(dict.fromkeys(flags.FLAGS.panel or config.eval.panels[-1:]))
    for name in names:
        if name not in SPLIT_OF:
            raise ConfigError(f"--panel={name} is unknown: choose of {', '.join(SPLIT_OF)}")
    if not names:
        raise ConfigError("config.eval.panels is empty: name what to play with --panel")
    return names


def _one_panel(config: Config) -> str:
    names = _panels(config)
    if len(names) > 1:
        raise ConfigError(f"--panel={','.join(names)} names several panels: this job plays one")
    return names[0]


def _refuse(job: str, *names: str) -> None:
    """Raises ConfigError for a flag that this job does not read."""
    for name in names:
        if flags.FLAGS[name].present:
            raise ConfigError(f"--{name} has no effect with {job}: leave it out")


if __name__ == "__main__":
    with errors_as_sentences():
        main()
