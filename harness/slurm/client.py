"""The client of Slurm's programs: runs them within a deadline and returns their answers as values.

Knows neither submitit nor studies. Standard library only: the supervisor of every rank loads it.
"""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.core.system import programs
from harness.core.system.programs import NoAnswer

# Clients of a slurmctld that is down wait up to a minute.
SECONDS = 90.0
# What clients of 20.11 to 25.05 print when they cannot reach a daemon.
_UNAVAILABLE = re.compile(
    r"Unable to contact slurm controller|Socket timed out|Connection (refused|reset|timed out)|"
    r"Zero Bytes were transmitted|temporarily unable|Insane message length|Transport endpoint is not connected|"
    r"slurm_receive_msg|Communication connection failure|Unexpected message received",
    re.IGNORECASE,
)


class SlurmUnavailable(NoAnswer):
    """Slurm does not answer; the message quotes it."""


class SlurmRefused(Exception):
    """Slurm answered with an error; the message quotes it."""


@dataclass(frozen=True)
class Queued:
    """A job, or a task of a job array, in the queue."""

    job: str  # as '123_4'
    name: str
    state: str
    reason: str  # why it waits, in Slurm's words
    start: str


@dataclass(frozen=True)
class Job:
    """A job as slurmctld describes it. A field is None when Slurm does not give it."""

    state: str
    reason: str | None = None
    exit_code: str | None = None  # 'code:signal'
    batch_host: str | None = None
    submit_time: str | None = None
    start_time: str | None = None
    preempt_time: str | None = None


@dataclass(frozen=True)
class Client:
    """Runs Slurm's programs. Every method calls one program once and may raise SlurmUnavailable."""

    seconds: float = SECONDS  # the deadline of each call
    # When Slurm ends or requeues a job, it sends SIGTERM to every process of the job, including programs that the job
    # itself has started to ask Slurm; mpirun forwards SIGUSR1 and SIGUSR2 to the whole process group of a supervisor.
    inside_job: bool = False

    def run(self, *argv: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        """Run a program. Raises SlurmUnavailable if it cannot be run or cannot reach Slurm."""
        try:
            done = self._run(*argv, stdin=stdin)
        except NoAnswer as error:
            raise SlurmUnavailable(str(error)) from None
        if done.returncode != 0 and is_unavailable(done.stderr):
            raise SlurmUnavailable(error_message(done.stderr))
        return done

    def lines(self, *argv: str) -> list[str]:
        """Return the lines that a program prints. Raises SlurmUnavailable on any error."""
        done = self.run(*argv)
        if done.returncode != 0:
            raise SlurmUnavailable(error_message(done.stderr))
        return done.stdout.splitlines()

    def queue(self) -> dict[str, Queued]:
        """Return this user's jobs by job id (squeue)."""
        # --me rather than --jobs, which fails as a whole when one of the jobs is already forgotten.
        jobs = {}
        for line in self.lines("squeue", "--me", "--array", "--noheader", "--format=%i|%j|%T|%S|%r"):
            job, name, state, start, reason = line.split("|", 4)
            jobs[job] = Queued(job, name, state, reason, start)
        return jobs

    def accounting(self, jobs: Iterable[str]) -> dict[str, str]:
        """Return the states of jobs that have left the queue (sacct); of failed ones with Slurm's `code:signal`.

        A job that the accounting does not know is missing: a cancelled array task may never get a row.
        """
        arrays = sorted({job.split("_")[0] for job in jobs})
        if not arrays:
            return {}
        states = {}
        asked = ("--format=JobID,State,ExitCode", "-j", ",".join(arrays))
        for line in self.lines("sacct", "-X", "--noheader", "--parsable2", *asked):
            job, state, code = line.split("|")
            for task in array_tasks(job):
                states[task] = f"{state} with exit code {code}" if state == "FAILED" else state
        return states

    def job(self, job_id: str) -> Job | None:
        """Return one job, by its own number rather than as '123_4' (scontrol). None for an unknown job."""
        # The last task of an array has the array's number as its own; scontrol then prints the other tasks too.
        found = [fields for fields in self.show("job", job_id) if fields.get("JobId") == job_id]
        if not found or "JobState" not in found[0]:
            return None
        fields = found[0]
        return Job(
            state=fields["JobState"],
            reason=fields.get("Reason"),
            exit_code=fields.get("ExitCode"),
            batch_host=fields.get("BatchHost"),
            submit_time=fields.get("SubmitTime"),
            start_time=fields.get("StartTime"),
            preempt_time=None if (preempted := fields.get("PreemptTime")) == "None" else preempted,
        )

    def node_cpus(self, node: str) -> int | None:
        """Return how many CPUs Slurm believes a node to have (scontrol). None for an unknown node."""
        found = [fields.get("CPUTot", "") for fields in self.show("node", node)]
        return int(found[0]) if found and found[0].isdigit() else None

    def settings(self) -> dict[str, str]:
        """Return slurmctld's slurm.conf (scontrol). Empty on an error."""
        return settings_of(self.run("scontrol", "show", "config").stdout)

    def show(self, kind: str, name: str) -> list[dict[str, str]]:
        """Return the records that `scontrol show` prints of a job, node or partition. Empty on an error."""
        shown = self.run("scontrol", "--oneliner", "show", kind, name)
        return records(shown.stdout) if shown.returncode == 0 else []

    def step_field(self, step: str, field: str) -> str | None:
        """Return a value of a running job step (sstat). None on an error."""
        done = self.run("sstat", "--noheader", "--parsable2", f"--format={field}", "--jobs", step)
        return done.stdout if done.returncode == 0 else None

    def submit(self, script: str | Path, options: Sequence[str] = ()) -> str:
        """Submit a batch script, given as text or as a file, and return its job id (sbatch). Raises SlurmRefused."""
        if isinstance(script, Path):
            done = self.run("sbatch", "--parsable", *options, str(script))
        else:
            done = self.run("sbatch", "--parsable", *options, stdin=script)
        if done.returncode != 0:
            raise SlurmRefused(error_message(done.stderr))
        # A site's wrapper may print more.
        job = re.search(r"^(\d+)(;.*)?$", done.stdout, re.MULTILINE)
        if job is None:
            raise SlurmUnavailable(f"sbatch printed no job id: {done.stdout.strip()!r}")
        return job[1]

    def refusal(self, options: Sequence[str]) -> str | None:
        """Return why Slurm would refuse a job with these sbatch options; None if it would accept it."""
        done = self.run("sbatch", "--test-only", *options, stdin="#!/bin/sh\ntrue\n")
        return None if done.returncode == 0 else error_message(done.stderr)

    def cancel(self, jobs: Sequence[str]) -> str | None:
        """Cancel jobs by id (scancel). Returns Slurm's message if it refused."""
        done = self.run("scancel", *jobs)
        return None if done.returncode == 0 else error_message(done.stderr)

    def cancel_named(self, name: str) -> None:
        """Cancel the jobs of this name (scancel)."""
        self.run("scancel", f"--name={name}")

    def requeue(self, job: str) -> str | None:
        """Put a running job back into the queue (scontrol). Returns the error message on failure; raises nothing."""
        try:
            done = self._run("scontrol", "requeue", job)
        except NoAnswer as error:
            return str(error.__cause__)
        if done.returncode == 0:
            return None
        return " ".join(done.stderr.split()) or f"exit code {done.returncode}"

    def nodes_answer(self, nodes: int) -> bool:
        """Inside a job: return whether srun can start a process on each of its nodes."""
        shape = (f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1", "--cpus-per-task=1")
        return self.run("srun", "--overlap", "--mpi=none", *shape, "true").returncode == 0

    def mpi_kinds(self) -> list[str]:
        """Return the names that `srun --mpi=` accepts here, except none."""
        listed = self.run("srun", "--mpi=list")
        text = re.sub(r"^srun: ", "", listed.stdout + listed.stderr, flags=re.MULTILINE)
        kinds = [line.strip() for line in text.splitlines() if re.fullmatch(r"\s*\w+\s*", line)]
        return [kind for kind in [*kinds, *re.findall(r"\bpmix_v\d+", text)] if kind != "none"]

    def has_pyxis(self) -> bool:
        """Return whether srun has the options of the container plugin pyxis."""
        helped = self.run("srun", "--help")
        return "--container-image" in helped.stdout + helped.stderr

    def nodes_out(self, partition: str | None) -> bool:
        """Return whether nodes of the partition (None: of any) are down or drained, or unknown as after a restart of
        slurmctld until they have answered (sinfo)."""
        where = ["--partition", partition] if partition else []
        done = self.run("sinfo", "--noheader", "--states=down,drain,unknown", "--format=%n", *where)
        return bool(done.stdout.strip())

    def _run(self, *argv: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        before = _ignore_job_signals if self.inside_job else None
        return programs.run(*argv, seconds=self.seconds, stdin=stdin, before=before)


def _ignore_job_signals() -> None:
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)


def is_unavailable(message: str) -> bool:
    """Return whether a program of Slurm says that it could not reach a daemon, and not that a request was refused."""
    return bool(_UNAVAILABLE.search(message))


def error_message(stderr: str) -> str:
    """Join the errors that a Slurm program printed into one line, without the program's name."""
    lines = [
        re.sub(r"^(sbatch|sbcast|squeue|sacct|scancel|scontrol|srun|sinfo): (error: )?", "", line)
        for line in stderr.splitlines()
    ]
    return "; ".join(dict.fromkeys(line.strip() for line in lines if line.strip()))


def records(text: str) -> list[dict[str, str]]:
    """Return the fields of each record that `scontrol --oneliner show` prints. Values end at the first space.

    Of equal keys the first counts: the later SubmitLine (since 25.05) and Comment hold whatever a user wrote.
    """
    found = (dict(reversed(re.findall(r"(\S+?)=(\S*)", line))) for line in text.splitlines())
    return [fields for fields in found if fields]


def settings_of(text: str) -> dict[str, str]:
    """Return the keys and values that `scontrol show config` prints."""
    return dict(re.findall(r"^(\w+)[ \t]*=[ \t]*(.*?)[ \t]*$", text, re.MULTILINE))


def array_tasks(job: str) -> list[str]:
    """Expand Slurm's short form of several array tasks: '7_[0-2,5%4]' -> 7_0, 7_1, 7_2, 7_5."""
    match = re.fullmatch(r"(\d+)_\[([\d,-]+)(?:%\d+)?\]", job)
    if not match:
        return [job]
    found = []
    for part in match[2].split(","):
        first, _, last = part.partition("-")
        found += [f"{match[1]}_{n}" for n in range(int(first), int(last or first) + 1)]
    return found
