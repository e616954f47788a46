"""Names of the files and folders in a study and its runs (docs/run-directory.md)."""

from __future__ import annotations

from pathlib import Path

# Files of a study.
STUDY = "study.json"
LOCK = ".lock"  # held by the command that is using the study; holds its process id and machine
RUNS = "runs"
SUBMISSIONS = "submissions"
# Files of a run.
SPEC = "spec.json"
RESULT = "result.json"
CHECKPOINT = "checkpoint"
ATTEMPT_PREFIX = "attempt-"
# Files of an attempt: its job, its start, the request for another attempt, its environment.
JOB, BEGIN, AGAIN, ENVIRONMENT = "job.json", "begin.json", "again.json", "env.json"
# What Slurm's accounting says of its energy; the network that verify=true compares.
SLURM_ENERGY, VERIFY = "slurm_energy.json", "verify.npz"
# What the ranks prove to each other that they know; readable for this user only.
TOKEN = "token"
# Output of mpirun and of the supervisors it started.
MPIRUN_LOG = "mpirun.log"
# An attempt's result after a later attempt's has replaced it.
REPLACED_RESULT = "result-of-this-attempt.json"
# Written by a rank with trace=true and trace=nsys.
TRACE, NSYS_REPORT = "trace.rank{rank}.json.gz", "trace.rank{rank}.nsys-rep"
# The user's own training: where its ranks learn when to stop, and that its output has shown enough.
STOP_CHANNEL, ENOUGH = "stop_channel.json", "enough.json"
# Patterns that match the files of all ranks.
EVENTS_OF_RANKS, EXITS_OF_RANKS = "events.rank*.jsonl", "exit.rank*.json"


def attempt_dir(run_dir: Path, number: int) -> Path:
    """number: starts at 1."""
    return run_dir / f"{ATTEMPT_PREFIX}{number}"


def attempt_number(attempt_dir: Path) -> int:
    return int(attempt_dir.name[len(ATTEMPT_PREFIX) :])


def events(rank: int) -> str:
    return f"events.rank{rank}.jsonl"


def exit_status(rank: int) -> str:
    return f"exit.rank{rank}.json"


def reserved_exit(rank: int) -> str:
    """Space for the exit status, which becomes it."""
    return f".{exit_status(rank)}.reserved"


def stdout(rank: int) -> str:
    return f"stdout.rank{rank}"


def stderr(rank: int) -> str:
    return f"stderr.rank{rank}"


def probe(rank: int | str) -> str:
    """What the probe inside the user's own training needs to know."""
    return f"probe.rank{rank}.json"
