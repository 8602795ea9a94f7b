"""The command line of every launcher: `--config`, its overrides and `--workdir`.

A launcher is a `main(config, workdir)` handed to `run`, which parses and validates first. Whatever is wrong
with the command line or the settings ends as one sentence on stderr and exit code 2, before anything is
computed. A launcher that needs more flags defines them with `absl.flags` before it calls `run`; one that does
several jobs puts the parts of `run` together itself.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from absl import app, flags
from ml_collections import config_flags

from rsipo_jax.config import Config
from rsipo_jax.validation import ConfigError, keys, unknown_key, validated, wrong_type

SETTINGS = "config.json"  # written into the workdir by the run that made it

config_flags.DEFINE_config_file(
    "config", None, "Settings: FILE.py or FILE.py:PRESET, e.g. configs/alfworld.py:tiny."
)
flags.DEFINE_string(
    "workdir", "", "Folder of the run; without it, a folder of runs/ named after the settings."
)


def run(main: Callable[[Config, Path], None]) -> None:
    """Calls `main` with the validated settings and the workdir of the command line.

    Without `--config` the settings are those of an earlier run, `config.json` in `--workdir`. Exits with
    code 2 and one sentence for a ConfigError, also for one that `main` raises.
    """
    with errors_as_sentences():
        no_more(parse())
        main(*settings())


@contextmanager
def errors_as_sentences() -> Iterator[None]:
    """Ends the program with code 2 and one sentence when a ConfigError is raised inside, or a file cannot be used.

    Ctrl-C ends it with code 130 and a sentence.
    """
    try:
        yield
    except ConfigError as error:
        sentence = _one_line(error)
    except OSError as error:
        if error.filename is None:  # not about a file
            raise
        sentence = f"{error.filename}: {error.strerror}"
    except KeyboardInterrupt:
        print(
            f"\n{Path(sys.argv[0]).name}: interrupted; the same command goes on from what is kept",
            file=sys.stderr,
        )
        sys.exit(130)
    else:
        return
    print(f"{Path(sys.argv[0]).name}: {sentence}", file=sys.stderr)
    sys.exit(2)


def parse() -> list[str]:
    """Parses the command line into `flags.FLAGS` and returns the arguments that are no flags. Raises ConfigError."""
    source = _config_source(sys.argv)
    app.define_help_flags()
    for name in ("config", "workdir"):  # what --help shows of this module
        flags.FLAGS.register_key_flag_for_module(sys.argv[0], flags.FLAGS[name])
    try:
        return list(flags.FLAGS(sys.argv)[1:])
    except flags.IllegalFlagValueError as error:
        raise _illegal_value(error, source) from error
    except flags.Error as error:
        raise ConfigError(f"the command line is wrong: {_one_line(error)}") from error
    except (SyntaxError, ImportError, AttributeError) as error:
        raise ConfigError(f"--config={source} cannot be loaded: {_one_line(error)}") from error


def no_more(rest: Sequence[str]) -> None:
    """Raises ConfigError when arguments are left over."""
    if rest:
        raise ConfigError(f"{rest[0]!r} is not a flag: flags are given as --name=value")


def settings(default: str = "") -> tuple[Config, Path]:
    """The validated settings and the workdir. `default` is the config file used when neither is named. Raises ConfigError."""
    workdir = flags.FLAGS.workdir
    if flags.FLAGS.config is None and not workdir and default:
        flags.FLAGS["config"].parse(default)
    if flags.FLAGS.config is None:
        config = _earlier(workdir)
    else:
        config = _with_data(validated(flags.FLAGS.config))
    return config, Path(workdir) if workdir else _default_workdir(config)


def _with_data(config: Config) -> Config:
    """`$ALFWORLD_DATA` written into the settings, so that the record of a run says which games it played."""
    if config.env.name != "alfworld":
        return config
    data = config.env.data or os.environ.get("ALFWORLD_DATA", "")
    return dataclasses.replace(config, env=dataclasses.replace(config.env, data=data))


def _config_source(argv: list[str]) -> str:
    """What `--config` names, "" without it. Refuses what config_flags would meet with a stack trace."""
    source = ""
    for argument, value in zip(argv, [*argv[1:], ""], strict=True):
        if match := re.fullmatch(r"--?config(?:=(.*))?", argument):
            source = value if match[1] is None else match[1]
            if not Path(source.partition(":")[0]).is_file():
                raise ConfigError(f"--config={source} is not a file: name one, such as configs/alfworld.py")
        elif match := re.match(r"--?(?:no)?(config\.[^=]*)", argument):
            if match[1].removeprefix("config.") not in keys():
                raise unknown_key(match[1])
            if not source:
                raise ConfigError(f"{argument} overrides nothing: give --config=FILE before it")
    return source


def _illegal_value(error: flags.IllegalFlagValueError, source: str) -> ConfigError:
    """The sentence for a value that absl or the config file refused."""
    cause: BaseException = error
    while cause.__context__ is not None:
        cause = cause.__context__
    if isinstance(cause, ConfigError):  # raised by get_config, e.g. for an unknown preset
        return cause
    if match := re.match(r"flag --(config\.[\w.]+)=(.*?): ", str(error), re.DOTALL):
        return wrong_type(match[1], match[2])
    if str(error).startswith("flag --config="):
        return ConfigError(f"--config={source} cannot be loaded: {type(cause).__name__}: {_one_line(cause)}")
    return ConfigError(f"the command line is wrong: {_one_line(error)}")


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())


def _earlier(workdir: str) -> Config:
    """The settings of the run in `workdir`."""
    if not workdir:
        raise ConfigError(
            "--config is missing: give --config=configs/alfworld.py, or an earlier run's --workdir"
        )
    path = Path(workdir) / SETTINGS
    if not Path(workdir).is_dir():
        raise ConfigError(f"there is no run in {workdir}: name an earlier run's --workdir, or give --config")
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} holds no settings of a run: give --config=configs/alfworld.py") from error
    return validated(settings)


def _default_workdir(config: Config) -> Path:
    """One folder for each set of settings: the same command finds its run, another never meets its files."""
    digest = hashlib.sha256(json.dumps(dataclasses.asdict(config), sort_keys=True).encode()).hexdigest()[:8]
    return Path("runs") / f"{config.method}-seed{config.seed}-{digest}"
