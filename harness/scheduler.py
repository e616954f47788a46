"""Slurm's word: what its commands say, as values. Knows neither submitit nor studies."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

# slurmctld that is away makes its clients wait up to a minute.
COMMAND_SECONDS = 90
# Slurm's words for "I could not be reached", from clients of 20.11 to 25.05.
_AWAY = re.compile(
    r"Unable to contact slurm controller|Socket timed out|Connection (refused|reset|timed out)|"
    r"Zero Bytes were transmitted|temporarily unable|Insane message length|Transport endpoint is not connected|"
    r"slurm_receive_msg|Communication connection failure|Unexpected message received",
    re.IGNORECASE,
)


class Away(Exception):
    """Slurm does not answer; the message has its words."""


@dataclass(frozen=True)
class Queued:
    """One job, or element of an array, in the queue. job: as '123_4'. reason: why it waits, as Slurm writes it."""

    job: str
    name: str
    state: str
    reason: str
    start: str


def command(*argv: str, stdin: str | None = None, seconds: float = COMMAND_SECONDS) -> subprocess.CompletedProcess[str]:
    """Raises Away where the command cannot be run, or Slurm cannot be reached."""
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=seconds, input=stdin)
    except subprocess.TimeoutExpired:
        raise Away(f"{argv[0]} did not answer within {seconds:.0f} s") from None
    except OSError as error:
        raise Away(f"{argv[0]}: {error.strerror}") from None
    if done.returncode != 0 and is_away(done.stderr):
        raise Away(words(done.stderr))
    return done


def is_away(said: str) -> bool:
    """Whether these are Slurm's words for a controller that could not be reached, and not for a refusal."""
    return bool(_AWAY.search(said))


def words(text: str) -> str:
    """What a command of Slurm said, on one line and without its own name before each part."""
    lines = [
        re.sub(r"^(sbatch|sbcast|squeue|sacct|scancel|scontrol|srun|sinfo): (error: )?", "", line)
        for line in text.splitlines()
    ]
    return "; ".join(dict.fromkeys(line.strip() for line in lines if line.strip()))


def queue() -> dict[str, Queued]:
    """This user's jobs by job id: ONE call of squeue. Raises Away."""
    # --me, and not --jobs: that fails as a whole when one of the jobs is already forgotten.
    listed = command("squeue", "--me", "--array", "--noheader", "--format=%i|%j|%T|%S|%r")
    if listed.returncode != 0:
        raise Away(words(listed.stderr))
    jobs = {}
    for line in listed.stdout.splitlines():
        job, name, state, start, reason = line.split("|", 4)
        jobs[job] = Queued(job, name, state, reason, start)
    return jobs


def accounting(jobs: Iterable[str]) -> dict[str, str]:
    """The states of jobs that have left the queue, as the accounting has them: ONE call of sacct. Raises Away.

    A job that it does not know is not there: a cancelled element may never get a row.
    """
    arrays = sorted({job.split("_")[0] for job in jobs})
    if not arrays:
        return {}
    listed = command("sacct", "-X", "--noheader", "--parsable2", "--format=JobID,State", "-j", ",".join(arrays))
    if listed.returncode != 0:
        raise Away(words(listed.stderr))
    states = {}
    for line in listed.stdout.splitlines():
        job, _, state = line.partition("|")
        for element in elements(job):
            states[element] = state
    return states


def elements(job: str) -> list[str]:
    """Slurm's short form of an array's elements, one by one: '7_[0-2,5%4]' -> 7_0, 7_1, 7_2, 7_5."""
    match = re.fullmatch(r"(\d+)_\[([\d,-]+)(?:%\d+)?\]", job)
    if not match:
        return [job]
    found = []
    for part in match[2].split(","):
        first, _, last = part.partition("-")
        found += [f"{match[1]}_{n}" for n in range(int(first), int(last or first) + 1)]
    return found


def cancel(jobs: Sequence[str]) -> str | None:
    """Cancels them; gives Slurm's words where it refused. Raises Away."""
    done = command("scancel", *jobs)
    return None if done.returncode == 0 else words(done.stderr)


def mpi_kinds() -> list[str]:
    """The names that `srun --mpi=` takes here, but for none. Raises Away."""
    listed = command("srun", "--mpi=list")
    text = re.sub(r"^srun: ", "", listed.stdout + listed.stderr, flags=re.MULTILINE)
    kinds = [line.strip() for line in text.splitlines() if re.fullmatch(r"\s*\w+\s*", line)]
    return [kind for kind in [*kinds, *re.findall(r"\bpmix_v\d+", text)] if kind != "none"]


def setting(name: str) -> str | None:
    """A value of slurm.conf, as slurmctld has it. Raises Away."""
    shown = command("scontrol", "show", "config")
    match = re.search(rf"^{re.escape(name)}\s*=\s*(.*?)\s*$", shown.stdout, re.MULTILINE)
    return match[1] if match else None


def nodes_out(partition: str | None) -> bool:
    """Whether nodes of the partition (of all of them, without one) are down or drained. Raises Away."""
    where = ["--partition", partition] if partition else []
    return bool(command("sinfo", "--noheader", "--states=down,drain", "--format=%n", *where).stdout.strip())


def refusal(options: Sequence[str]) -> str | None:
    """Slurm's words, where it would refuse a job with these options of sbatch; None where it would take it.
    Raises Away."""
    done = command("sbatch", "--test-only", *options, stdin="#!/bin/sh\ntrue\n")
    return None if done.returncode == 0 else words(done.stderr)
