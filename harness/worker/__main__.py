"""Run one rank in its framework's environment: `python -m harness.worker <run directory> <attempt directory>`."""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from pathlib import Path

from harness.core.errors import DataError, RankError
from harness.core.events import LEFT
from harness.core.spec import read_run
from harness.core.system import disk
from harness.worker.checks.capability import check_packages


def exit_code(run_dir: Path, attempt_dir: Path) -> int:
    """Run the rank; return 0 if it finished, LEFT if it saved and stopped early, disk.FULL if it failed on a full disk,
    otherwise 1 if it failed."""
    try:
        spec, site = read_run(run_dir)
        check_packages(spec.framework, spec.strategy, spec.environment)
        # Only now: it imports NumPy, which may be what is missing.
        from harness.worker.rank import main

        return 0 if main(spec, site, run_dir, attempt_dir) else LEFT
    except (DataError, RankError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except BaseException as error:
        full = disk.is_full(attempt_dir, error)
        with contextlib.suppress(OSError):  # stderr is on the same disk
            traceback.print_exc()
            if full:
                print(f"error: {disk.NO_SPACE}", file=sys.stderr)
        return disk.FULL if full else 1


if __name__ == "__main__":
    code = exit_code(Path(sys.argv[1]), Path(sys.argv[2]))
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    # Skip the interpreter's clean-up. After an error it can block in a collective that the peers never join, which
    # hides the failure. After success, gloo's threads can abort the process (github.com/pytorch/pytorch/pull/179291),
    # and a complete run would count as failed.
    os._exit(code)
