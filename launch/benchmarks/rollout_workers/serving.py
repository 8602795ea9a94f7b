"""How an engine's process is asked: JSON lines on stdin, answered by JSON lines on what was stdout.

Standard library only, as episodes.py.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

Handler = Callable[[Mapping[str, Any]], dict[str, Any]]


def serve(handlers: Mapping[str, Handler]) -> None:
    """Answers requests until stdin ends; `do` in a request names its handler."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what libraries print, in C too, must not stand among the answers
    for line in sys.stdin:
        request = json.loads(line)
        print(json.dumps(handlers[request["do"]](request)), file=answers, flush=True)
