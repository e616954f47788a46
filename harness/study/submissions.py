"""What a study has submitted: one file per job array, written before sbatch is asked and completed after.

So a login node that dies in between leaves a trace: the array is found again by the token in its name, and nothing is
submitted twice.
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
    """token: in the job's name. job_id: of the array, once sbatch has said it. elements: run ids, by array index."""

    token: str
    job_id: str | None
    elements: tuple[tuple[str, ...], ...]

    def job(self, element: int) -> str | None:
        """As Slurm names it: '123_4', or '123' for a job that is alone and therefore no array."""
        if self.job_id is None or len(self.elements) == 1:
            return self.job_id
        return f"{self.job_id}_{element}"


def new_token() -> str:
    return secrets.token_hex(5)


def name_of(token: str, label: str) -> str:
    """The name of the jobs, by which they are found again."""
    return f"harness-{label}-{token}"


def write(study_folder: Path, submission: Submission) -> None:
    folder = study_folder / run_files.SUBMISSIONS
    folder.mkdir(exist_ok=True)
    document = {"v": events.STUDY_VERSION, "t": time.time(), **spec.to_plain(submission)}
    spec.write_json(folder / f"{submission.token}.json", document)


def forget(study_folder: Path, submission: Submission) -> None:
    """After sbatch refused it."""
    (study_folder / run_files.SUBMISSIONS / f"{submission.token}.json").unlink(missing_ok=True)


def read(study_folder: Path) -> dict[str, Submission]:
    """By token; what cannot be read is passed over: its jobs are found by what they write when they begin."""
    folder = study_folder / run_files.SUBMISSIONS
    paths = [path for path in folder.iterdir() if not path.name.startswith(".")] if folder.is_dir() else []
    return {submission.token: submission for submission in map(_read, paths) if submission is not None}


def run_of_array_task(study_folder: Path, token: str, element: int) -> tuple[Path, int] | None:
    """(the folder of the one run, the number of its first attempt) of an array's element; None where no attempt belongs
    to the submission, or it cannot be read."""
    submission = _read(study_folder / run_files.SUBMISSIONS / f"{token}.json")
    if submission is None:
        return None
    (run_id,) = submission.elements[element]
    run_dir = study_folder / run_files.RUNS / run_id
    mine = [d for d in events.attempt_dirs(run_dir) if outcome.read_job(d).get("submission") == token]
    return (run_dir, run_files.attempt_number(mine[0])) if mine else None


def _read(path: Path) -> Submission | None:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        document["elements"] = tuple(tuple(element) for element in document["elements"])
        return spec.from_plain(Submission, document)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def adopt(submissions: Mapping[str, Submission], queue: Mapping[str, Queued]) -> list[Submission]:
    """Those whose job id was never written down, and whose jobs are in the queue: with the id that they have there."""
    unknown = {token: s for token, s in submissions.items() if s.job_id is None}
    found = {}
    for queued in queue.values():
        token = queued.name.rpartition("-")[2]
        if token in unknown:
            found[token] = queued.job.split("_")[0]
    return [replace(unknown[token], job_id=job_id) for token, job_id in found.items()]


def jobs(study_folder: Path, run_ids: Iterable[str]) -> dict[str, str | None]:
    """The job that each run was last submitted as; None where none is known."""
    submissions = read(study_folder)
    return {run_id: job_of(study_folder / run_files.RUNS / run_id, submissions) for run_id in run_ids}


def job_of(run_dir: Path, submissions: Mapping[str, Submission]) -> str | None:
    """The job of the run's last attempt, where that was submitted: the number of a local job may be that of anybody's
    job in Slurm."""
    for attempt in reversed(events.attempt_dirs(run_dir)):
        if job := outcome.read_job(attempt):
            submission = submissions.get(job.get("submission", ""))
            if submission is None:
                return None
            element = job.get("element")
            noted = submission.job(element) if isinstance(element, int) else None
            # A job says its number itself when it begins.
            return noted or job.get("job_id")
    return None


def unfinished_jobs(study_folder: Path, run_ids: Sequence[str]) -> dict[str, str]:
    """run id -> job, of the runs without a result that have a job."""
    without = [r for r in run_ids if not (study_folder / run_files.RUNS / r / run_files.RESULT).exists()]
    return {run_id: job for run_id, job in jobs(study_folder, without).items() if job is not None}
