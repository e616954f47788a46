"""Run one rank in its framework's environment: `python -m harness.worker <run directory> <attempt directory>`."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

from harness.core.spec import read_run
from harness.worker.checks.capability import PackageError, check_packages


def exit_code(run_dir: Path, attempt_dir: Path) -> int:
    """As `harness.worker.rank.exit_code`; also 1 if the environment lacks a package."""
    spec, _ = read_run(run_dir)
    try:
        check_packages(spec.framework, spec.strategy, spec.environment)
    except PackageError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    # Only now: it imports NumPy, which may be what is missing.
    from harness.worker import rank

    return rank.exit_code(run_dir, attempt_dir)


if __name__ == "__main__":
    code = exit_code(Path(sys.argv[1]), Path(sys.argv[2]))
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    # Skip the interpreter's clean-up. After an error it can block in a collective that the peers never join, which
    # hides the failure. After success, gloo's threads can abort the process (github.com/pytorch/pytorch/pull/179291),
    # and a complete run would count as failed.
    os._exit(code)
