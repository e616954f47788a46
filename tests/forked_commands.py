"""Runs the project's commands in processes that are forked from one that has imported their modules, which takes longer
than most commands (tests/fork_server.py)."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from environments import answered
from project import PROJECT

# `python -m` these, and what they import.
FORKED = ("harness", "harness.status", "harness.cancel", "harness.doctor", "analysis")
IMPORTED = (
    *("harness.cli.main", "harness.cli.run", "harness.cli.console", "harness.cli.status", "harness.cli.cancel"),
    *("harness.config.composition.sweep", "harness.config.capabilities", "harness.plan.request", "harness.study.study"),
    *("harness.plan.environments", "harness.plan.machine", "harness.plan.memory", "harness.doctor.command"),
    *("analysis.commands.report", "analysis.commands.predict", "analysis.commands.suggest"),
    *("analysis.commands.proposal", "analysis.commands.compare", "analysis.commands.estimate"),
    *("analysis.report.findings", "analysis.report.series_choice", "analysis.report.terminal.summary"),
    *("analysis.report.print.figures", "analysis.report.html.render", "analysis.tables.points"),
)
# What libraries read while they are imported does not follow the variables of a test.
_ENVIRON = dict(os.environ)
# Nothing reads these while it is imported.
_FOLLOWED = ("COLUMNS", "PATH", "PYTEST_CURRENT_TEST", "PYTHONPATH", "SBATCH_", "SLURM_")


def follows(environ: dict[str, str]) -> bool:
    """Return whether a forked process sees these variables as one that is started with them."""
    changed = dict(environ.items() ^ _ENVIRON.items())
    return all(name.startswith(_FOLLOWED) for name in changed)


def run(
    module: str, arguments: Sequence[str], folder: Path, environ: dict[str, str], timeout: float
) -> subprocess.CompletedProcess[str]:
    """Run `python -m module` with these environment variables in the folder; after so many seconds it is killed."""
    argv = [module, *arguments]
    request = {"argv": argv, "environ": environ, "path": [str(PROJECT)], "folder": str(folder)}
    status, stdout, stderr = answered(Path(sys.executable), IMPORTED, request, timeout, _ENVIRON)
    code = os.waitstatus_to_exitcode(status)
    return subprocess.CompletedProcess(argv, code, stdout, stderr)
