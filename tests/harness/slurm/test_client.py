"""Parsing of Slurm's output, and records of submissions; tests/cluster tests the calls themselves."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.core import run_files
from harness.slurm import client
from harness.slurm.client import Client, Queued, SlurmUnavailable
from harness.study import outcome, submissions
from harness.study.submissions import Submission


@pytest.mark.parametrize(
    ("short", "each"),
    [
        ("7", ["7"]),
        ("7_3", ["7_3"]),
        ("7_[0-2,5%4]", ["7_0", "7_1", "7_2", "7_5"]),
        ("7_[4]", ["7_4"]),
        ("7.batch", ["7.batch"]),
    ],
)
def test_elements_of_an_array(short: str, each: list[str]) -> None:
    assert client.array_tasks(short) == each


def test_a_question_asked_inside_a_job_survives_the_signals_that_end_the_job() -> None:
    """Otherwise a job that Slurm has requeued is reported as one that could not be."""
    signalled = "for s in TERM USR1 USR2; do kill -$s $$; done; echo answered"
    assert Client(inside_job=True).run("sh", "-c", signalled).stdout == "answered\n"
    assert Client().run("sh", "-c", signalled).stdout == ""


@pytest.mark.parametrize(
    "said",
    [
        "sbatch: error: Batch job submission failed: Unable to contact slurm controller (connect failure)",
        "slurm_load_jobs error: Socket timed out on send/recv operation",
        "sbatch: error: Batch job submission failed: Zero Bytes were transmitted or received",
        "squeue: error: Connection refused",
    ],
)
def test_a_controller_that_is_away_is_no_refusal(said: str) -> None:
    assert client.is_unavailable(said)


@pytest.mark.parametrize(
    "said",
    [
        "sbatch: error: invalid partition specified: nowhere",
        "sbatch: error: Batch job submission failed: Requested time limit is invalid (missing or exceeds some limit)",
        "sbatch: error: QOSMaxSubmitJobPerUserLimit",
    ],
)
def test_a_refusal_is_no_absence(said: str) -> None:
    assert not client.is_unavailable(said)


def test_slurm_errors_are_joined_on_one_line_without_duplicates() -> None:
    said = (
        "sbatch: error: invalid partition specified: x\nsbatch: error: Batch job submission failed: Invalid partition\n"
    )
    assert (
        client.error_message(said) == "invalid partition specified: x; Batch job submission failed: Invalid partition"
    )
    assert client.error_message("squeue: error: a\nsqueue: error: a\n") == "a"


def test_missing_or_silent_program_counts_as_unavailable() -> None:
    with pytest.raises(SlurmUnavailable, match="No such file"):
        Client().run("no-such-program")
    with pytest.raises(SlurmUnavailable, match=r"sleep did not answer within 0 s|sleep did not answer"):
        Client(seconds=0.1).run("sleep", "5")


def test_failed_requeue_returns_an_error_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))  # no scontrol
    assert Client().requeue("7") == "[Errno 2] No such file or directory: 'scontrol'"


def test_a_setting_without_a_value_does_not_swallow_the_next_one() -> None:
    # As aligned by `scontrol show config` of 22.05.
    text = "MaxArraySize            = 1001\nPrologFlags             = \nSlurmdTimeout           = 300 sec\n"
    assert client.settings_of(text) == {"MaxArraySize": "1001", "PrologFlags": "", "SlurmdTimeout": "300 sec"}


def test_each_task_of_an_array_is_a_record_of_its_own() -> None:
    text = (
        "JobId=9 ArrayJobId=9 ArrayTaskId=1 JobName=a b JobState=RUNNING Reason=None Comment=x=y PreemptTime=None \n"
        "JobId=10 ArrayJobId=9 ArrayTaskId=0 JobName=a b JobState=CANCELLED Reason=None PreemptTime=None \n\n"
    )
    first, second = client.records(text)
    assert (first["JobId"], first["JobState"], first["Comment"]) == ("9", "RUNNING", "x=y")
    assert (second["JobId"], second["JobState"]) == ("10", "CANCELLED")
    assert client.records("No jobs in the system\n") == []


def test_a_submission_is_read_back_and_gives_its_jobs(tmp_path: Path) -> None:
    one = Submission("aa", "17", (("r1",), ("r2",)))
    single = Submission("bb", "18", (("r3", "r4"),))
    for submission in (one, single):
        submissions.write(tmp_path, submission)
    (tmp_path / "submissions" / "torn.json").write_text('{"token": ')
    assert submissions.read(tmp_path) == {"aa": one, "bb": single}
    assert (one.job(1), single.job(0)) == ("17_1", "18")


def test_unrecorded_array_is_found_by_the_token_in_its_name(tmp_path: Path) -> None:
    unknown = Submission("cafe", None, (("r1",), ("r2",)))
    queue = {
        "55_1": Queued("55_1", submissions.name_of("cafe", "4gpu"), "PENDING", "Priority", ""),
        "56": Queued("56", "somebody-else", "RUNNING", "", ""),
    }
    (found,) = submissions.adopt(tmp_path, {"cafe": unknown}, queue)
    assert found.job_id == "55"
    assert submissions.adopt(tmp_path, {"cafe": found}, queue) == []


def test_the_job_of_a_run_is_that_of_its_last_submission(tmp_path: Path) -> None:
    run_dir = tmp_path / "runs" / "r1"
    for number in (1, 2, 3):
        (run_dir / f"attempt-{number}").mkdir(parents=True)
    known = {token: Submission(token, job, (("r1",), ("r2",))) for token, job in (("aa", "17"), ("bb", None))}
    assert submissions.job_of(run_dir, known) is None
    outcome.write_job(run_dir / "attempt-1", "aa", None, 0)
    assert submissions.job_of(run_dir, known) == "17_0"
    # Attempt 2 is the same job, requeued; the id that a job records when it starts counts like a recorded one.
    outcome.write_job(run_dir / "attempt-2", "bb", "99_4")
    assert submissions.job_of(run_dir, known) == "99_4"
    # A local job's number may coincide with someone's Slurm job.
    outcome.write_job(run_dir / "attempt-3", "local", "17_0")
    assert submissions.job_of(run_dir, known) is None


def test_one_of_two_supervisors_requests_a_restart(tmp_path: Path) -> None:
    assert outcome.write_restart(tmp_path, outcome.BY_FAILURE, "rank 1 was ended", 4)
    assert not outcome.write_restart(tmp_path, outcome.BY_FAILURE, "rank 0 was ended", 4)
    assert outcome.read_restart(tmp_path)["reason"] == "rank 1 was ended"
    (tmp_path / run_files.AGAIN).write_text(json.dumps([]))
    assert outcome.read_restart(tmp_path) == {}
