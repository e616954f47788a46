"""How the ranks' supervisors and the batch script end a run, with real processes."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from builders import make_site, make_spec
from studies import read_json

from harness.core import events, spec
from harness.core.spec import Placement
from harness.node import attempt
from harness.study import outcome
from harness.study.outcome import RankExit

ONE_RANK = {
    "SUBMITIT_LOCAL_JOB_ID": "1",
    "SUBMITIT_LOCAL_NTASKS": "1",
    "SUBMITIT_LOCAL_GLOBALID": "0",
    "SUBMITIT_LOCAL_LOCALID": "0",
}


def test_rank_that_hangs_before_installing_handlers_counts_as_stalled(tmp_path: Path, project: Path) -> None:
    """The signal that requests its stacks already kills it, since no handler is installed yet."""
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexec sleep 60\n")
    python.chmod(0o755)
    site = make_site(python=str(python), project=str(project), heartbeat_seconds=2.0)
    spec.write_run(tmp_path, make_spec(gpus=1, placement=Placement(1, 1)), site)
    done = subprocess.run(
        (sys.executable, "-m", "harness.node.attempt", str(tmp_path), "1", "0123456789"),
        cwd=project,
        env={**os.environ, **ONE_RANK},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (1, "")
    (ended,) = outcome.read_exits(tmp_path / "attempt-1")
    assert ended.code == -signal.SIGUSR1
    result = read_json(tmp_path / "result.json")
    assert result["status"] == "failed"
    assert result["reason"].startswith("rank 0: no progress for 2 s (heartbeat)")


STALL = "no progress for 60 s (heartbeat)"


@pytest.mark.parametrize(
    ("exits", "rank"),
    [
        # The peer's collective fails at once; the rank itself writes a core file first.
        ([RankExit(0, 1, 10.0), RankExit(1, -signal.SIGSEGV, 10.4)], 1),
        ([RankExit(0, 1, 10.0), RankExit(1, -signal.SIGSEGV, 12.0)], 0),
        # gloo aborts a rank whose peer has failed.
        ([RankExit(0, 1, 10.0), RankExit(1, -signal.SIGABRT, 10.1)], 0),
        ([RankExit(0, -9, 10.0, "over its time"), RankExit(1, -signal.SIGSEGV, 10.1)], 0),
        ([RankExit(0, -9, 10.0, outcome.PEER_FAILED), RankExit(1, 1, 10.1)], 1),
        ([RankExit(0, -9, 10.0, STALL, waited=True), RankExit(1, -9, 17.0, STALL, waited=False)], 1),
        ([RankExit(0, -9, 10.0, STALL, waited=True), RankExit(1, -9, 17.0, STALL, waited=True)], 0),
        ([RankExit(0, -9, 10.0, STALL, waited=False), RankExit(1, -9, 17.0, STALL, waited=True)], 0),
        ([RankExit(0, 0, 1.0), RankExit(1, events.LEFT, 2.0)], None),
    ],
)
def test_the_rank_that_failed_by_itself_is_named(tmp_path: Path, exits: list[RankExit], rank: int | None) -> None:
    for exit_ in exits:
        outcome.write_exit(tmp_path, exit_)
    first = outcome.failure(tmp_path)
    assert (first.rank if first else None) == rank


@pytest.mark.parametrize(
    ("exits", "reason"),
    [
        # srun terminated rank 1 because another supervisor was gone, and killed all before they could report why.
        ([RankExit(0, -9, 1.0, "no progress"), RankExit(1, -9, 2.0, "no progress", True)], "rank 0: no progress"),
        ([RankExit(0, 1, 1.0), RankExit(1, events.LEFT, 2.0)], "rank 0 exited with code 1"),
        # Stopped by the user or Slurm: unfinished, not failed.
        ([RankExit(0, -9, 1.0, "the job was told to end", True), RankExit(1, 1, 2.0)], None),
        ([RankExit(0, events.LEFT, 1.0)], None),
    ],
)
def test_supervisors_killed_before_they_wrote_a_result(
    tmp_path: Path, exits: list[RankExit], reason: str | None
) -> None:
    spec.write_run(tmp_path, make_spec(), make_site())
    attempt_dir = tmp_path / "attempt-1"
    attempt_dir.mkdir()
    outcome.write_job(attempt_dir, "0123456789", "17")
    spec.write_json(attempt_dir / "begin.json", {"t": time.time()})
    for exit_ in exits:
        outcome.write_exit(attempt_dir, exit_)
    attempt.finish_unreported(tmp_path, 1, "0123456789", ["srun: error: n1: tasks 0-1: Killed"])
    result = events.read_result(tmp_path)
    assert (result and (result["status"], result["reason"])) == (reason and ("failed", reason))


def test_a_full_disk_is_told_by_the_exit_code_of_a_job_without_a_result(tmp_path: Path) -> None:
    def reason(state: str) -> str:
        return outcome.lost_reason(tmp_path, "7_1", state).partition("Slurm says ")[2]

    full = f"FAILED with exit code {errno.ENOSPC}:0"
    assert reason(full) == f"{full}: no space left on the disk of the results"
    assert reason("FAILED with exit code 0:53").endswith("as on a full disk")
    assert reason("FAILED with exit code 1:0") == "FAILED with exit code 1:0"
    assert reason("CANCELLED by 0") == "CANCELLED by 0"
    full_rank = outcome.sentence(tmp_path, RankExit(0, errno.ENOSPC, 1.0))
    assert full_rank == "rank 0 exited with code 28: no space left on the disk of the results"
