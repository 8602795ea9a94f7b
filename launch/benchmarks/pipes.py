"""A script in a process of another Python, which answers a line of JSON with a line of JSON."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rsipo_jax.validation import ConfigError

Ask = Callable[[Mapping[str, Any]], dict[str, Any]]  # a request to the script -> its answer


@contextmanager
def answering(
    command: Sequence[str],
    refused: Callable[[str], str],
    ended: Callable[[str], str],
    environment: Mapping[str, str] | None = None,
) -> Iterator[Ask]:
    """Runs the command until the context ends.

    Raises ConfigError with the sentence `refused(reason)` when it cannot be run, and `ended(last words)` when it ends early.
    """
    with tempfile.TemporaryFile("w+", encoding="utf-8") as errors:
        try:
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, encoding="utf-8",
                env=environment,
            )  # fmt: skip
        except OSError as error:
            raise ConfigError(refused(str(error.strerror))) from error
        with process:
            assert process.stdin and process.stdout
            stdin, stdout = process.stdin, process.stdout

            def ask(request: Mapping[str, Any]) -> dict[str, Any]:
                try:
                    print(json.dumps(request), file=stdin, flush=True)
                    return json.loads(stdout.readline())
                except (BrokenPipeError, json.JSONDecodeError) as error:
                    process.wait()
                    errors.seek(0)
                    lines = [line.strip() for line in errors if line.strip()]
                    raise ConfigError(ended(lines[-1] if lines else f"exit {process.returncode}")) from error

            try:
                yield ask
            finally:
                stdin.close()
