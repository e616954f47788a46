"""Shared exit handling of all commands."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any, NoReturn


def run_and_exit(main: Callable[[], int]) -> NoReturn:
    """Exit with main's return code. No traceback if the reader of our output, such as `head`, exits first."""
    code: Any = 0
    try:
        try:
            code = main()
        except SystemExit as end:
            # rich turns a closed pipe into an exit with code 1.
            code = 0 if isinstance(end.__context__, BrokenPipeError) else end.code
        sys.stdout.flush()
    except BrokenPipeError:
        # Python flushes stdout again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)
