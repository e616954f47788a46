"""What all commands share: a parser whose errors are one sentence, and their exit."""

from __future__ import annotations

import argparse
import gc
import os
import re
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from harness.core.suggestions import did_you_mean

MISSING = re.compile(r"the following arguments are required: (.*)")
UNKNOWN = re.compile(r"unrecognized arguments: (.*)")


class Parser(argparse.ArgumentParser):
    """As argparse's, but without the usage before an error: what is wrong, what there is, and where to read more."""

    def __init__(self, prog: str, said_by: str = "error", **keywords: object) -> None:
        """said_by: what errors begin with."""
        super().__init__(prog=prog, **keywords)  # type: ignore[arg-type]
        self._said_by = said_by

    def error(self, message: str) -> NoReturn:
        if missing := MISSING.fullmatch(message):
            message = "; ".join(self._missing(name) for name in missing[1].split(", "))
        elif unknown := UNKNOWN.fullmatch(message):
            message = self._unknown(unknown[1].split()[0])
        self.exit(2, f"{self._said_by}: {message}; `{self.prog} --help` says more\n")

    def _missing(self, name: str) -> str:
        action = next((action for action in self._actions if name in (action.metavar, action.dest)), None)
        if action is None or not action.help:
            return f"{name} is missing"
        choices = f": {', '.join(map(str, action.choices))}" if action.choices else ""
        return f"{name} is missing ({action.help.split(', see below')[0]}{choices})"

    def _unknown(self, word: str) -> str:
        if not word.startswith("-"):
            return f"'{word}' is one argument too many"
        options = [name for action in self._actions for name in action.option_strings if name.startswith("--")]
        return f"there is no option {word}.{did_you_mean(word, options)} Valid: {', '.join(options)}"


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
    # Otherwise Python looks for garbage in all that was imported, before all of it goes: 0.3 s for an analysis.
    gc.freeze()
    sys.exit(code)
