"""Starts fresh interpreters for work beside this process."""

from __future__ import annotations

import os
import sys


def command_calling(module: str, function: str, *arguments: int) -> list[str]:
    """Return the command of a new interpreter that calls a function. It finds modules where this process does."""
    call = f"{function}({', '.join(map(repr, arguments))})"
    code = f"import sys; sys.path[:] = sys.argv[1:]; from {module} import {function}; {call}"
    return [sys.executable, "-c", code, *(path or os.getcwd() for path in sys.path)]
