"""`python -m analysis results/<study>`: report a study, complete or not.

`python -m analysis <command> ...` runs one of COMMANDS; give a study's folder of the same name as ./<name>.
"""

from __future__ import annotations

import importlib
import sys

from analysis.base.errors import StudyError
from analysis.base.text import encodable
from harness.core.console_script import Parser, run_and_exit

PROGRAM = "python -m analysis"
REPORT = "report"  # the default command
COMMANDS = {
    REPORT: "read a study, print a summary, write its report",
    "backtest": "how well the scaling laws predict a table of measurements",
    "compare": "two studies: what became faster, what slower",
    "estimate": "throughput from nominal figures, before anything has run",
    "export": "the runs for MLPerf's tools, TensorBoard or MLflow",
    "next": "which sizes to measure next",
    "predict": "throughput and cost of sizes that were not measured",
    "proposal": "the scaling section of a proposal for computing time",
    "serve": "studies as they run, in a browser",
    "simulate": "many more GPUs than were measured, and runs that fail",
}
# A command is a module of analysis.commands, by its own name or by this one, with two functions: declare(parser) adds
# its arguments and imports little, since --help waits for it; run(options) does the work and returns the exit code.
MODULES = {"next": "suggest"}


def main(arguments: list[str] | None = None, program: str = PROGRAM) -> int:
    """Run the command that the first argument names, or report the study at this path.

    Returns the exit code: 0 on success, even if runs failed (the report names them); 2 for an error the user can fix,
    explained in one sentence on stderr; others are defined by commands.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    name = REPORT
    if is_named := bool(arguments) and arguments[0] in COMMANDS:
        name, arguments = arguments[0], arguments[1:]
        program = f"{program} {name}"
    command = importlib.import_module(f"analysis.commands.{MODULES.get(name, name)}")
    parser = Parser(program, program, epilog=None if is_named else _other_commands())
    command.declare(parser)
    parser.set_defaults(program=program)
    options = parser.parse_intermixed_args(arguments)
    encodable(sys.stdout)
    try:
        return int(command.run(options))
    except StudyError as error:
        print(f"{program}: {error}", file=sys.stderr)
        return 2


def _other_commands() -> str:
    commands = "; ".join(f"`{PROGRAM} {name}`: {what}" for name, what in COMMANDS.items() if name != REPORT)
    return f"other commands, each with its own --help: {commands}"


if __name__ == "__main__":
    run_and_exit(main)
