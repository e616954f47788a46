"""Asks `harness status` again and again, and compares what it says with the files and the queue."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence

from benchmarks.soak.commands import Login, SlurmUnavailable, Study, read_result
from benchmarks.soak.journal import WRONG, Finding, Journal

PAUSE_SECONDS = 15.0


class Observer:
    def __init__(self, journal: Journal, environment: Mapping[str, str], logins: Callable[[], Sequence[Login]]) -> None:
        self.journal, self.environment, self.logins = journal, environment, logins
        self.calls = 0

    def run(self, stop: threading.Event) -> None:
        while not stop.wait(PAUSE_SECONDS):
            for login in self.logins():
                if (login.study.folder / "study.json").exists():
                    self._ask(login.study)

    def _ask(self, study: Study) -> None:
        before, running_before = _results(study), _running(study)
        done = subprocess.run(
            [sys.executable, "-m", "harness.status", str(study.folder), "--json"],
            capture_output=True, text=True, env=dict(self.environment), timeout=300,
        )  # fmt: skip
        after, running_after = _results(study), _running(study)
        if not study.folder.exists() or not study.run_dirs():
            return  # the round was over meanwhile
        self.calls += 1
        if done.returncode != 0 or "Traceback" in done.stderr:
            said = f"harness status ended with exit code {done.returncode}: {done.stderr[-600:]}"
            self.journal.found(Finding(WRONG, study.name, said))
            return
        status = json.loads(done.stdout)
        # What did not change while it looked must be what it says.
        for run in status["runs"]:
            name, state = run["run_id"], run["state"]
            ended, job = after.get(name), running_after.get(name)
            if before.get(name) == ended and (state if state in ("completed", "failed") else None) != ended:
                self._wrong(study, name, state, f"its result says {ended or 'nothing'}")
            slurm_runs_it = status["remark"] is None and job is not None and running_before.get(name) == job
            if state in ("stopped", "missing") and slurm_runs_it:
                self._wrong(study, name, state, f"its job {job} is running")

    def _wrong(self, study: Study, run: str, state: str, but: str) -> None:
        self.journal.found(Finding(WRONG, run, f"harness status of {study.name} says {state}, but {but}"))


def _results(study: Study) -> dict[str, str]:
    results = {run_dir.name: read_result(run_dir) for run_dir in study.run_dirs()}
    return {name: str(result["status"]) for name, result in results.items() if result is not None}


def _running(study: Study) -> dict[str, str]:
    """Run id -> job id; empty if Slurm does not answer."""
    try:
        return {run: job for job, run in study.running().items()}
    except (SlurmUnavailable, OSError):
        return {}
