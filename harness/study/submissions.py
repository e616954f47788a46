"""A study's submissions: one file per job array, written before sbatch is called and completed afterwards.

If the login node dies in between, the array is found by the token in its name, and nothing is submitted twice.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from harness.core import events, run_files, spec
from harness.slurm.client import Queued
from harness.study import outcome


@dataclass(frozen=True)
class Submission:
    """A submitted job array."""

    token: str  # part of the jobs' names
    job_id: str | None  # the array's id; None until sbatch has returned it
    run_ids: tuple[tuple[str, ...], ...]  # by array index; several with pack=true

    def job(self, array_index: int) -> str | None:
        """The job id as Slurm writes it: '123_4', or '123' for a single job, which is not an array."""
        if self.job_id is None or len(self.run_ids) == 1:
            return self.job_id
        return f"{self.job_id}_{array_index}"


def new_token() -> str:
    return secrets.token_hex(5)


def name_of(token: str, label: str) -> str:
    """Name of the jobs, by which they can be found."""
    return f"harness-{label}-{token}"


def write(study_folder: Path, submission: Submission) -> None:
    folder = study_folder / run_files.SUBMISSIONS
    folder.mkdir(exist_ok=True)
    document = {
        "v": events.STUDY_VERSION,
        "t": time.time(),
        "token": submission.token,
        "job_id": submission.job_id,
        "elements": submission.run_ids,
    }
    spec.write_json(folder / f"{submission.token}.json", document)


def forget(study_folder: Path, submission: Submission) -> None:
    """Remove a submission that sbatch refused."""
    (study_folder / run_files.SUBMISSIONS / f"{submission.token}.json").unlink(missing_ok=True)


def read(study_folder: Path) -> dict[str, Submission]:
    """Read all submissions by token. Unreadable ones are skipped: their jobs are identified by the files that they
    write when they start."""
    folder = study_folder / run_files.SUBMISSIONS
    paths = [path for path in folder.iterdir() if not path.name.startswith(".")] if folder.is_dir() else []
    return {submission.token: submission for submission in map(_read, paths) if submission is not None}


def find(study_folder: Path, token: str) -> Submission | None:
    """Read one submission; None if it is missing or unreadable."""
    return _read(study_folder / run_files.SUBMISSIONS / f"{token}.json")


def log_folder(study_folder: Path, token: str) -> Path:
    """Folder of a submission's batch script and the output of its jobs."""
    return study_folder / "submitit" / token


def runs_of_array_task(study_folder: Path, token: str, array_index: int) -> list[tuple[Path, int]]:
    """Look up the runs of an array task.

    Returns:
        Run directories and the number of each run's first attempt. Without runs of which no attempt belongs to the
        submission; empty if the submission is unreadable.
    """
    submission = find(study_folder, token)
    found = []
    for run_id in submission.run_ids[array_index] if submission else ():
        run_dir = study_folder / run_files.RUNS / run_id
        attempts = _attempts(run_dir, token)
        if attempts:
            found.append((run_dir, run_files.attempt_number(attempts[0])))
    return found


def _attempts(run_dir: Path, token: str) -> list[Path]:
    return [d for d in events.attempt_dirs(run_dir) if outcome.read_job(d).get("submission") == token]


def _read(path: Path) -> Submission | None:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        run_ids = tuple(tuple(map(str, ids)) for ids in document["elements"])
        return Submission(str(document["token"]), document["job_id"], run_ids)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def adopt(study_folder: Path, submissions: Mapping[str, Submission], queue: Mapping[str, Queued]) -> list[Submission]:
    """Find the jobs of submissions without a recorded job id, and return these with their id.

    Jobs are found in the queue, or by what they recorded when they started if they have left it.
    """
    unknown = {token: s for token, s in submissions.items() if s.job_id is None}
    found = {}
    for token, submission in unknown.items():
        run_dirs = [study_folder / run_files.RUNS / run_id for job in submission.run_ids for run_id in job]
        recorded = (outcome.read_job(d).get("job_id") for run_dir in run_dirs for d in _attempts(run_dir, token))
        if job := next(filter(None, recorded), None):
            found[token] = job.split("_")[0]
    for queued in queue.values():
        token = queued.name.rpartition("-")[2]
        if token in unknown:
            found[token] = queued.job.split("_")[0]
    return [replace(unknown[token], job_id=job_id) for token, job_id in found.items()]


def jobs(study_folder: Path, run_ids: Iterable[str]) -> dict[str, str | None]:
    """The job of each run's last submission; None if unknown."""
    submissions = read(study_folder)
    return {run_id: job_of(study_folder / run_files.RUNS / run_id, submissions) for run_id in run_ids}


def job_of(run_dir: Path, submissions: Mapping[str, Submission]) -> str | None:
    """The job of a run's last attempt, if it was submitted.

    Local job ids are ignored: they may coincide with the id of an unrelated Slurm job.
    """
    for attempt in reversed(events.attempt_dirs(run_dir)):
        if job := outcome.read_job(attempt):
            submission = submissions.get(job.get("submission", ""))
            if submission is None:
                return None
            index = job.get("element")
            noted = submission.job(index) if isinstance(index, int) else None
            # A job records its own id when it starts.
            return noted or job.get("job_id")
    return None


def unfinished_jobs(study_folder: Path, run_ids: Sequence[str]) -> dict[str, str]:
    """Jobs of the runs without a result, by run id."""
    without = [r for r in run_ids if not (study_folder / run_files.RUNS / r / run_files.RESULT).exists()]
    return {run_id: job for run_id, job in jobs(study_folder, without).items() if job is not None}
