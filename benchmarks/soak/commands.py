"""The studies' commands, as a user gives them: started again whenever they end, until all runs are completed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.common import ROOT
from benchmarks.soak.journal import WRONG, Finding, Injected, Journal
from harness.core import events, run_files
from harness.slurm.client import Client, SlurmUnavailable
from harness.study import submissions

# How long after a fault its message may come: Slurm's clients try for a minute, and the harness for ten.
GRACE_SECONDS = 120.0
REFUSED = r"Slurm (refused|would refuse) the array"
# What a command that ends with exit code 2 says, by what may have caused it.
REFUSALS = {
    "sbatch refuses": rf"{REFUSED}|Slurm has not answered",
    "disk full": r"No space left|cannot be written",
    "slurmctld restarted": rf"Slurm does not answer|Slurm has not answered|{REFUSED}",
    "node lost": REFUSED,
}
SUMMARY = re.compile(r"^(\d+) completed, (\d+) failed, (\d+) were completed before$", re.MULTILINE)


@dataclass(frozen=True)
class Shape:
    """One of the soak's studies. ranks: of each of its runs; overrides: of its sweep."""

    name: str
    ranks: int
    runs: int
    overrides: tuple[str, ...]


class Study:
    """A round of a shape: the same runs as in every round, in a results folder of its own."""

    def __init__(self, shape: Shape, number: int, folder: Path) -> None:
        """folder: where the command is given."""
        self.shape, self.name, self.cwd = shape, f"{shape.name}-{number}", folder
        self.folder = folder / "results" / self.name

    def command(self, *more: str) -> list[str]:
        sweep = ("-m", *self.shape.overrides, f"seed=range({self.shape.runs})", f"study={self.name}")
        return [sys.executable, "-m", "harness", *sweep, *more]

    def run_dirs(self) -> list[Path]:
        return sorted((self.folder / run_files.RUNS).glob("*"))

    def counts(self) -> Counter[str]:
        """Count the runs by the status in their result."""
        results = [read_result(run_dir) for run_dir in self.run_dirs()]
        return Counter(str(result["status"]) for result in results if result is not None)

    def running(self) -> dict[str, str]:
        """Return job id -> run id of the runs whose job is running. Raises SlurmUnavailable."""
        queue = Client(seconds=15).queue()
        jobs = submissions.unfinished_jobs(self.folder, [run_dir.name for run_dir in self.run_dirs()])
        return {job: run for run, job in jobs.items() if job in queue and queue[job].state == "RUNNING"}


def read_result(run_dir: Path) -> dict[str, object] | None:
    """A run's result; None if there is none, or it cannot be read."""
    try:
        return events.read_result(run_dir)
    except (OSError, ValueError):
        return None


class Login:
    """The login session of a study."""

    def __init__(self, study: Study, journal: Journal, environment: dict[str, str], log: Path) -> None:
        self.study, self.journal, self.environment, self.log = study, journal, environment, log
        self.done = False
        self.starts = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._killed = threading.Event()
        self._pause = 0.0

    def run(self, given_up: Callable[[], bool]) -> None:
        """Give the command until it says that all runs are completed, or `given_up`."""
        while not given_up():
            output, code = self._once()
            if self._killed.is_set():
                self._killed.clear()
                time.sleep(self._pause)
                continue
            self.journal.note("command ended", study=self.study.name, code=code, said=output.splitlines()[-3:])
            for finding in reported_wrongly(self.study, output, code, self.journal.faults):
                self.journal.found(finding)
            if code == 0:
                self.done = True
                return
            time.sleep(2)

    def _once(self) -> tuple[str, int]:
        self.starts += 1
        with open(self.log, "ab") as log:
            begin = log.tell()
            with self._lock:
                self._process = subprocess.Popen(
                    self.study.command(), cwd=self.study.cwd, env=self.environment, stdin=subprocess.DEVNULL,
                    stdout=log, stderr=log, start_new_session=True,
                )  # fmt: skip
            code = self._process.wait()
        with open(self.log, "rb") as log:
            log.seek(begin)
            return log.read().decode(errors="replace"), code

    def kill(self, how: str, pause: float) -> bool:
        """End the command without a warning; it is given again `pause` seconds later. False if none is running."""
        with self._lock:
            process = self._process
            if process is None or process.poll() is not None:
                return False
            self._pause = pause
            self._killed.set()
            if how == "session":
                os.killpg(process.pid, signal.SIGKILL)
            else:
                process.kill()
            return True

    def stop(self) -> None:
        with self._lock:
            if self._process is not None and self._process.poll() is None:
                os.killpg(self._process.pid, signal.SIGKILL)


def reported_wrongly(study: Study, output: str, code: int, faults: Sequence[Injected]) -> list[Finding]:
    """Compare what a command has said with the results, and a refusal with the faults."""

    def wrong(text: str) -> Finding:
        return Finding(WRONG, study.name, text)

    if "Traceback" in output:
        return [wrong(f"the command printed a traceback: {output[-600:]}")]
    if code == 2:
        now = time.time()
        message = output[f"\n{output}".rfind("\nerror: ") :]
        causes = {fault.kind for fault in faults if fault.lasted_until(now, GRACE_SECONDS)} & REFUSALS.keys()
        if not any(re.search(REFUSALS[cause], message) for cause in causes):
            return [wrong(f"no fault explains the command's refusal: {message.strip()}")]
        return []
    if code not in (0, 1):
        return [wrong(f"the command ended with exit code {code}: {output[-600:]}")]
    counts = study.counts()
    if said := SUMMARY.search(output):
        completed, failed, before = map(int, said.groups())
        unwritten = output.count("result.json cannot be written: No space left")
        if (completed + before, failed - unwritten) != (counts["completed"], counts["failed"]):
            return [wrong(f"said '{said[0]}', but the results are {dict(counts)}")]
        if (code == 0) != (counts["completed"] == study.shape.runs):
            return [wrong(f"exit code {code} with {dict(counts)}")]
    elif code == 0 and counts["completed"] != study.shape.runs:
        return [wrong(f"exit code 0 with {dict(counts)}: {output[-600:]}")]
    return []


def environment(bin_folder: Path) -> dict[str, str]:
    """The environment of the studies' commands, in which programs of the folder come first."""
    return {**os.environ, "PYTHONPATH": str(ROOT), "PATH": f"{bin_folder}:{os.environ['PATH']}", "COLUMNS": "200"}


__all__ = ["GRACE_SECONDS", "Login", "Shape", "SlurmUnavailable", "Study", "environment", "read_result"]
