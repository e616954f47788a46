"""`harness <command> ...` and `python -m harness <command> ...`; without a command, start runs."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Sequence

from harness.cli.commands import COMMANDS, RUN
from harness.core.suggestions import did_you_mean

PROGRAM = "harness"


def main(argv: Sequence[str] | None = None) -> int:
    """Return the exit code of the command; 2 if it is unknown."""
    name, *rest = argv = list(sys.argv[1:] if argv is None else argv) or [RUN]
    if name in COMMANDS:
        command = importlib.import_module(COMMANDS[name][0])
        return int(command.main(rest, f"{PROGRAM} {name}"))
    if re.fullmatch("[a-z]+", name):  # overrides contain a sign and options begin with one
        import analysis.__main__ as analysis

        if name in analysis.COMMANDS:
            return analysis.main(argv, PROGRAM)
        known = [*COMMANDS, *analysis.COMMANDS]
        print(
            f"error: there is no command '{name}'.{did_you_mean(name, known)} Commands: {', '.join(known)}; "
            f"a key takes a value: {name}=...",
            file=sys.stderr,
        )
        return 2
    from harness.cli import run

    return run.main(argv, PROGRAM)
