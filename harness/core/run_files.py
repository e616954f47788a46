"""Names of the files and folders of a study and of its runs (docs/run-directory.md)."""

from __future__ import annotations

from pathlib import Path

# Of a study.
STUDY = "study.json"
RUNS = "runs"
SUBMISSIONS = "submissions"
# Of a run.
RESULT = "result.json"
CHECKPOINT = "checkpoint"
ATTEMPT_PREFIX = "attempt-"
# Of an attempt: the job that it belongs to, its start, that another attempt follows it, what it ran on.
JOB, BEGIN, AGAIN, ENVIRONMENT = "job.json", "begin.json", "again.json", "env.json"
# What mpirun, and the supervisors that it started, printed.
MPIRUN_LOG = "mpirun.log"
# Where the result of an attempt stays when another attempt's takes its place.
REPLACED_RESULT = "result-of-this-attempt.json"
# What trace=true and trace=nsys leave of a rank.
TRACE, NSYS_REPORT = "trace.rank{rank}.json.gz", "trace.rank{rank}.nsys-rep"
# Of all ranks, for glob.
EVENTS_OF_RANKS, EXITS_OF_RANKS = "events.rank*.jsonl", "exit.rank*.json"


def attempt_dir(run_dir: Path, number: int) -> Path:
    """number: from 1."""
    return run_dir / f"{ATTEMPT_PREFIX}{number}"


def attempt_number(attempt_dir: Path) -> int:
    return int(attempt_dir.name[len(ATTEMPT_PREFIX) :])


def events(rank: int) -> str:
    return f"events.rank{rank}.jsonl"


def exit_status(rank: int) -> str:
    return f"exit.rank{rank}.json"


def stdout(rank: int) -> str:
    return f"stdout.rank{rank}"


def stderr(rank: int) -> str:
    return f"stderr.rank{rank}"
