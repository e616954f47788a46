"""Makes the faults on the cluster, its disk and the studies' commands, and undoes them."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from benchmarks.soak.commands import Login, SlurmUnavailable
from benchmarks.soak.journal import Injected, Journal
from benchmarks.soak.schedule import Fault
from benchmarks.submission import SCRIPT

POLL_SECONDS = 0.2
# How long to look for something that a fault can hit, such as a running job.
TARGET_SECONDS = 20.0
# What sbatch answers: to a refused array, as for a limit on jobs, and without slurmctld.
ANSWERS = {
    "refused": "sbatch: error: QOSMaxSubmitJobPerUserLimit\nsbatch: error: Batch job submission failed: Job violates "
    "accounting/QOS policy (job submit limit, user's size and/or time limits)",
    "no answer": "sbatch: error: Batch job submission failed: Unable to contact slurm controller (connect failure)",
}
# Submits and then takes its time to answer, or answers without submitting, as the file `mode` says.
SBATCH = """#!/bin/sh
mode=$(cat {folder}/mode)
case $mode in
slow*) answer=$({sbatch} "$@"); code=$?; sleep "${{mode#slow }}"; [ -z "$answer" ] || echo "$answer"; exit $code ;;
"") exec {sbatch} "$@" ;;
*) cat "{folder}/$mode" >&2; exit 1 ;;
esac
"""


class Sbatch:
    """A program sbatch in front of the real one, whose manners can be changed."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self.folder = folder
        (folder / "sbatch").write_text(SBATCH.format(folder=folder, sbatch=shutil.which("sbatch")), encoding="utf-8")
        (folder / "sbatch").chmod(0o755)
        for how, answer in ANSWERS.items():
            (folder / how).write_text(f"{answer}\n", encoding="utf-8")
        self.set("")

    def set(self, mode: str) -> None:
        """mode: empty, `slow <seconds>` or a key of ANSWERS. Replaced at once, since it is read at any time."""
        (self.folder / "mode.new").write_text(mode, encoding="utf-8")
        (self.folder / "mode.new").replace(self.folder / "mode")


class Saboteur:
    """Makes the faults of a schedule's lanes."""

    def __init__(
        self, journal: Journal, disk: Path, sbatch: Sbatch, nodes: Sequence[str], logins: Callable[[], Sequence[Login]]
    ) -> None:
        """disk: mount point of the file system with the results. logins: the sessions at that moment."""
        self.journal, self.disk, self.sbatch, self.nodes, self.logins = journal, disk, sbatch, nodes, logins
        self._makers = {
            "node lost": self._node_lost,
            "slurmctld restarted": self._daemon_restarted,
            "slurmdbd restarted": self._daemon_restarted,
            "disk full": self._disk_full,
            "job cancelled": self._job_told,
            "job requeued": self._job_told,
            "rank stopped": self._rank_stopped,
            "sbatch slow": self._sbatch_slow,
            "sbatch refuses": self._sbatch_refuses,
            "login killed": self._login_killed,
        }

    def lane(self, faults: Sequence[Fault], stop: threading.Event) -> None:
        """Make these faults one after another until `stop`; what has begun is undone."""
        for fault in faults:
            if stop.wait(fault.after):
                return
            if not self._makers[fault.kind](fault, stop):
                self.journal.note("fault without a target", kind=fault.kind, how=fault.how)

    @contextlib.contextmanager
    def _journaled(self, fault: Fault, target: str = "") -> Iterator[Injected]:
        injected = self.journal.began(fault.kind, fault.how, target)
        try:
            yield injected
        finally:
            self.journal.ended(injected)

    def _node_lost(self, fault: Fault, stop: threading.Event) -> bool:
        node = self.nodes[int(fault.pick * len(self.nodes))]
        with self._journaled(fault, node):
            script("node-fail" if fault.how == "reported" else "node-kill", node)
            stop.wait(fault.seconds)
            script("node-back", node)
        return True

    def _daemon_restarted(self, fault: Fault, stop: threading.Event) -> bool:
        daemon = "ctld" if fault.kind == "slurmctld restarted" else "dbd"
        with self._journaled(fault):
            script(f"{daemon}-stop")
            stop.wait(fault.seconds)
            script(f"{daemon}-start")
        return True

    def _disk_full(self, fault: Fault, stop: threading.Event) -> bool:
        filler = self.disk / "filler"
        with self._journaled(fault):
            try:
                with contextlib.suppress(OSError), open(filler, "wb", buffering=0) as file:
                    room = os.statvfs(self.disk)
                    with contextlib.suppress(OSError):
                        os.posix_fallocate(file.fileno(), 0, room.f_bavail * room.f_bsize)
                    file.seek(0, os.SEEK_END)
                    while True:  # until there is no space left
                        file.write(bytes(4096))
                stop.wait(fault.seconds)
            finally:
                filler.unlink(missing_ok=True)
        return True

    def _job_told(self, fault: Fault, stop: threading.Event) -> bool:
        found = self._running(fault, stop)
        if found is None:
            return False
        job, run, _ = found
        with self._journaled(fault, run) as injected:
            told = ["scancel", job] if fault.kind == "job cancelled" else ["scontrol", "requeue", job]
            try:
                done = subprocess.run(told, capture_output=True, text=True, timeout=60)
            except subprocess.TimeoutExpired:
                self.journal.note("no answer", told=told)
            else:
                if done.returncode:  # it has ended by itself, or slurmctld is away
                    self.journal.note("not told", told=told, error=done.stderr)
                    self.journal.faults.remove(injected)
        return True

    def _rank_stopped(self, fault: Fault, stop: threading.Event) -> bool:
        deadline = time.monotonic() + TARGET_SECONDS
        while (found := self._running(fault, stop)) is not None:
            _, run, folder = found
            ranks = rank_processes(folder / "runs" / run)
            if ranks:
                break
            if time.monotonic() > deadline or stop.wait(POLL_SECONDS):
                return False
        if found is None:
            return False
        number = int(fault.pick * len(ranks))
        with contextlib.suppress(ProcessLookupError):
            descriptor = os.pidfd_open(ranks[number])
            try:
                signal.pidfd_send_signal(descriptor, signal.SIGSTOP)
                with self._journaled(fault, run):
                    until = time.monotonic() + fault.seconds
                    while time.monotonic() < until and Path(f"/proc/{ranks[number]}").exists() and not stop.is_set():
                        time.sleep(POLL_SECONDS)
                    signal.pidfd_send_signal(descriptor, signal.SIGCONT)
            finally:
                os.close(descriptor)
        return True

    def _sbatch_slow(self, fault: Fault, stop: threading.Event) -> bool:
        with self._journaled(fault):
            self.sbatch.set(f"slow {2 + 10 * fault.pick:.1f}")
            stop.wait(fault.seconds)
            self.sbatch.set("")
        return True

    def _sbatch_refuses(self, fault: Fault, stop: threading.Event) -> bool:
        with self._journaled(fault):
            self.sbatch.set(fault.how)
            stop.wait(fault.seconds)
            self.sbatch.set("")
        return True

    def _login_killed(self, fault: Fault, stop: threading.Event) -> bool:
        logins = [login for login in self.logins() if not login.done]
        if not logins:
            return False
        login = logins[int(fault.pick * len(logins))]
        if not login.kill(fault.how, fault.seconds):
            return False
        with self._journaled(fault, login.study.name):
            stop.wait(fault.seconds)
        return True

    def _running(self, fault: Fault, stop: threading.Event) -> tuple[str, str, Path] | None:
        """Choose a running job of either study; returns job, run and the study's folder. None if there is none."""
        deadline = time.monotonic() + TARGET_SECONDS
        while time.monotonic() < deadline and not stop.is_set():
            with contextlib.suppress(SlurmUnavailable, OSError):
                running = [(login.study.folder, login.study.running()) for login in self.logins() if not login.done]
                running = [(folder, jobs) for folder, jobs in running if jobs]
                if running:
                    # Both studies alike, although one has more jobs.
                    place = fault.pick * len(running)
                    folder, jobs = running[int(place)]
                    job = sorted(jobs)[int(place % 1 * len(jobs))]
                    return job, jobs[job], folder
            stop.wait(1)
        return None


def rank_processes(run_dir: Path) -> list[int]:
    """Return the process ids of the run's ranks, in order of rank."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                argv = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
                if "harness.worker" in argv and str(run_dir) in argv:
                    words = (entry / "environ").read_bytes().decode(errors="replace").split("\0")
                    found.update({int(word[5:]): int(entry.name) for word in words if word.startswith("RANK=")})
    return [pid for _, pid in sorted(found.items())]


def script(command: str, *argv: str) -> None:
    """Run a command of sbatch/slurm-cluster.sh for this process's cluster. Raises CalledProcessError."""
    subprocess.run([SCRIPT, command, *argv], check=True, stdout=subprocess.DEVNULL, start_new_session=True)
