"""A soak: the cluster, its studies round after round, and the faults."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.soak import examination
from benchmarks.soak.commands import Login, Shape, Study, environment
from benchmarks.soak.faults import Saboteur, Sbatch
from benchmarks.soak.journal import LOST, Finding, Journal
from benchmarks.soak.observer import Observer
from benchmarks.soak.schedule import Schedule

NODES, CPUS = 4, 4
DISK_MB = 512
# A rank is stopped for longer than this.
HEARTBEAT_SECONDS = 90
# After the last fault: how long what is left may take before it counts as lost.
FINISH_SECONDS = 1200.0
COMMON = (
    *("dataset=synthetic", "batch=4", "cluster=cpu", "cluster.gpus_per_node=1", "cluster.cpus_per_gpu=1"),
    *("cluster.timeout_minutes=15", f"heartbeat={HEARTBEAT_SECONDS}", "measure.precision=null"),
    *("measure.warmup_steps=2", "measure.warmup_limit_steps=null", "measure.block_steps=2", "measure.probe_steps=0"),
    *("measure.evaluate_samples=0", "checkpoint.interval_steps=10", "checkpoint.keep=true"),
)
EMULATED = ("gpus=1", "framework=emulated", "framework.options.compute_ms=100", "strategy=plain", "model=resnet20")
# Few in the queue at a time, so that sbatch is called again and again.
SINGLE = (*EMULATED, "measure.steps=40", "cluster.max_submit=20", *COMMON)
PAIR = ("gpus=2", "framework=pytorch", "model=cnn_small", "measure.steps=200", "cluster.max_submit=4", *COMMON)


def shapes(single: int, pairs: int) -> tuple[Shape, Shape]:
    """The two studies: runs of one node and of two."""
    return Shape("single", 1, single, SINGLE), Shape("pair", 2, pairs, PAIR)


@dataclass
class Totals:
    """What a soak has counted.

    Attributes:
        runs: asked for, over all rounds.
        completed: with a completed result in the end.
        failed: with a failed result at some time, whose reason names a fault.
        attempts: begun, of all runs.
        commands: starts of a study's command.
        statuses: calls of `harness status`.
        rounds: of either study.
    """

    runs: int = 0
    completed: int = 0
    failed: int = 0
    attempts: int = 0
    commands: int = 0
    statuses: int = 0
    rounds: int = 0
    reasons: Counter[str] = field(default_factory=Counter)


class Soak:
    def __init__(self, work: Path, out: Path, studies: Sequence[Shape], schedule: Schedule, seconds: float) -> None:
        """work: the file system with the results. out: where journal and logs are kept."""
        self.work, self.out, self.shapes = work, out, studies
        self.schedule, self.seconds = schedule, seconds
        self.journal = Journal(out)
        self.totals = Totals()
        self.logins: list[Login] = []
        self.sbatch = Sbatch(out / "bin")
        self.environment = environment(self.sbatch.folder)
        self.until = 0.0

    def run(self) -> None:
        """Raises RuntimeError if the studies do not even complete undisturbed."""
        self.reference = {shape.name: weights for shape, weights in self._side_by_side(self._undisturbed)}
        begin = time.monotonic()
        self.until = begin + self.seconds
        stop = threading.Event()
        self.journal.note("faults begin")
        saboteur = Saboteur(self.journal, self.work, self.sbatch, _nodes(), lambda: tuple(self.logins))
        observer = Observer(self.journal, self.environment, lambda: tuple(self.logins))
        with ThreadPoolExecutor(len(self.schedule) + 1) as beside:
            watching = beside.submit(observer.run, stop)
            lanes = [beside.submit(saboteur.lane, faults, stop) for faults in self.schedule.values()]
            alarm = threading.Timer(self.seconds, stop.set)
            alarm.start()
            try:
                self._side_by_side(self._rounds)
            finally:
                stop.set()
                alarm.cancel()
                for each in (*lanes, watching):
                    each.result()
        self.totals.statuses = observer.calls
        self.journal.note("over", seconds=time.monotonic() - begin)

    def _side_by_side(self, work: Callable[[Shape], Any]) -> list[tuple[Shape, Any]]:
        with ThreadPoolExecutor(len(self.shapes)) as pool:
            return list(zip(self.shapes, pool.map(work, self.shapes), strict=True))

    def _undisturbed(self, shape: Shape) -> dict[str, str]:
        study = Study(shape, 0, self.work)
        login = self._login(study)
        login.run(given_up=lambda: login.starts > 0)
        if not login.done:
            raise RuntimeError(f"{study.name} does not complete without faults: see {login.log}")
        weights = {run_dir.name: examination.weights(run_dir) for run_dir in study.run_dirs()}
        shutil.rmtree(study.folder)
        return weights

    def _rounds(self, shape: Shape) -> None:
        number = 0
        while time.monotonic() < self.until:
            number += 1
            study = Study(shape, number, self.work)
            login = self._login(study)
            self.logins.append(login)
            login.run(given_up=lambda: time.monotonic() > self.until + FINISH_SECONDS)
            self.logins.remove(login)
            self.totals.rounds += 1
            self._examine(study, login)

    def _login(self, study: Study) -> Login:
        return Login(study, self.journal, self.environment, self.out / f"{study.name}.log")

    def _examine(self, study: Study, login: Login) -> None:
        asked, run_dirs = list(self.reference[study.shape.name]), study.run_dirs()
        findings = examination.examine(run_dirs, asked, self.journal.faults)
        findings += examination.compare(run_dirs, self.reference[study.shape.name])
        if not login.done:
            findings.append(Finding(LOST, study.name, "was not completed in time"))
        failed = [failure for run_dir in run_dirs for failure in examination.failures(run_dir)]
        explained = {f.run: fault for f in failed if (fault := examination.explanation(f, self.journal.faults))}
        self.totals.runs += len(asked)
        self.totals.completed += study.counts()["completed"]
        self.totals.failed += len(explained)
        self.totals.reasons.update(fault.kind for fault in explained.values())
        self.totals.attempts += sum(len(list(run_dir.glob("attempt-*/begin.json"))) for run_dir in run_dirs)
        self.totals.commands += login.starts
        for finding in findings:
            self.journal.found(finding)
        for name in {finding.subject for finding in findings}:
            with contextlib.suppress(OSError):
                shutil.copytree(study.folder / "runs" / name, self.out / "findings" / study.name / name)
        if findings:
            shutil.copytree(study.folder / "submitit", self.out / "findings" / study.name / "submitit")
        self.journal.note("round", study=study.name, counts=study.counts(), findings=len(findings))
        shutil.rmtree(study.folder)


def report(soak: Soak, seed: int | None) -> dict[str, Any]:
    """The document with the figures of a soak; `record.py` makes the section of RESULTS.md from it."""
    journal, totals = soak.journal, soak.totals
    hurt = journal.not_survived()
    made = Counter(fault.kind for fault in journal.faults)
    return {
        "v": 1,
        "seed": seed,
        "minutes": soak.seconds / 60,
        "studies": {shape.name: shape.runs for shape in soak.shapes},
        "faults": {
            kind: {"made": count, "survived": count - sum(fault.kind == kind for fault in hurt)}
            for kind, count in sorted(made.items())
        },
        **vars(totals),
        "findings": [vars(finding) for finding in journal.findings],
    }


@contextlib.contextmanager
def disk(folder: Path) -> Iterator[Path]:
    """A small file system of its own, to be filled; nodes of a cluster that starts later see it."""
    folder.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_MB}m", "tmpfs", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def write_report(out: Path, document: dict[str, Any]) -> None:
    (out / "report.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def _nodes() -> list[str]:
    listed = subprocess.run(
        ["sinfo", "--noheader", "--Node", "--format=%N"], check=True, capture_output=True, text=True, env=os.environ
    )
    return sorted(set(listed.stdout.split()))
