"""How the ranks' supervisors and the batch script end a run, with real processes."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from builders import make_site, make_spec
from studies import read_json

from harness.core import events, run_files, spec
from harness.core.spec import Placement
from harness.core.system import disk
from harness.node import attempt
from harness.study import outcome, rank_exits
from harness.study.rank_exits import RankExit

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
    (ended,) = rank_exits.read(tmp_path / "attempt-1")
    assert ended.code == -signal.SIGUSR1
    result = read_json(tmp_path / "result.json")
    assert result["status"] == "failed"
    assert result["reason"].startswith("rank 0: no progress for 2 s (heartbeat)")


@pytest.mark.parametrize(
    ("code", "replaced", "done"),
    [(0, False, True), (0, True, False), (events.LEFT, False, False), (None, False, False)],
)
def test_what_a_lost_node_had_finished_is_not_run_again(
    tmp_path: Path, project: Path, code: int | None, replaced: bool, done: bool
) -> None:
    """The node was lost after its rank had ended and before its supervisor had written the result. replaced: it had
    one, and its run was submitted again."""
    spec.write_run(
        tmp_path, make_spec(gpus=1, placement=Placement(1, 1)), make_site(python="false", project=str(project))
    )
    first = tmp_path / "attempt-1"
    first.mkdir()
    outcome.write_job(first, "0123456789", "17")
    if code is not None:
        rank_exits.write(first, RankExit(0, code, 10.0))
    if replaced:
        (first / run_files.REPLACED_RESULT).write_text("{}")
    subprocess.run(
        (sys.executable, "-m", "harness.node.attempt", str(tmp_path), "2", "0123456789"),
        cwd=project,
        env={**os.environ, **ONE_RANK},
        capture_output=True,
        timeout=60,
    )
    assert (tmp_path / "attempt-2").exists() is not done
    result = read_json(tmp_path / "result.json")
    assert (result["status"], result["attempt"]) == (("completed", 1) if done else ("failed", 2))


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
        ([RankExit(0, -9, 10.0, rank_exits.PEER_FAILED), RankExit(1, 1, 10.1)], 1),
        ([RankExit(0, -9, 10.0, STALL, waited=True), RankExit(1, -9, 17.0, STALL, waited=False)], 1),
        ([RankExit(0, -9, 10.0, STALL, waited=True), RankExit(1, -9, 17.0, STALL, waited=True)], 0),
        ([RankExit(0, -9, 10.0, STALL, waited=False), RankExit(1, -9, 17.0, STALL, waited=True)], 0),
        ([RankExit(0, 0, 1.0), RankExit(1, events.LEFT, 2.0)], None),
    ],
)
def test_the_rank_that_failed_by_itself_is_named(tmp_path: Path, exits: list[RankExit], rank: int | None) -> None:
    for exit_ in exits:
        rank_exits.write(tmp_path, exit_)
    first = rank_exits.failure(tmp_path)
    assert (first.rank if first else None) == rank


FULL = disk.NO_SPACE
# Seconds by which the clock of node b is ahead.
AHEAD = 3600.0


def exit_on(node: str, rank: int, code: int, t: float, reason: str | None = None, waited: bool | None = None) -> Any:
    return RankExit(rank, code, t + (AHEAD if node == "b" else 0.0), reason, waited=waited, machine=node)


def write_log(attempt_dir: Path, rank: int, node: str, steps: int = 1) -> None:
    """A rank that left the rendezvous at 1.0 s and ended its first step at 2.0 s, by a common clock."""
    ahead = AHEAD if node == "b" else 0.0
    lines = [{"ev": "start", "t": 1.5 + ahead, "startup_seconds": {"rendezvous": 9.0, "build": 0.3, "facts": 0.2}}]
    lines += [{"ev": "steps", "t": 2.0 + ahead, "step": 0, "n": 1}] * steps
    (attempt_dir / f"events.rank{rank}.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))


@pytest.mark.parametrize(
    ("exits", "rank"),
    [
        ([exit_on("a", 0, 1, 12.0), exit_on("b", 1, 1, 10.0)], 1),
        ([exit_on("a", 0, 1, 10.0), exit_on("b", 1, 1, 12.0)], 0),
        ([exit_on("a", 0, 1, 10.0), exit_on("b", 1, -signal.SIGSEGV, 10.5)], 1),
        ([exit_on("a", 0, 1, 10.0), exit_on("b", 1, -signal.SIGSEGV, 12.0)], 0),
        ([exit_on("a", 0, -9, 17.0, STALL, True), exit_on("b", 1, -9, 10.0, STALL, True)], 1),
    ],
)
@pytest.mark.parametrize("steps", [0, 1])
def test_times_of_two_nodes_are_compared_by_what_their_ranks_did_together(
    tmp_path: Path, exits: list[RankExit], rank: int, steps: int
) -> None:
    spec.write_run(tmp_path, make_spec(), make_site())
    attempt_dir = tmp_path / "attempt-1"
    attempt_dir.mkdir()
    for exit_ in exits:
        write_log(attempt_dir, exit_.rank, str(exit_.machine), steps)
        rank_exits.write(attempt_dir, exit_)
    first = rank_exits.failure(attempt_dir)
    assert first is not None
    assert first.rank == rank


@pytest.mark.parametrize(
    ("exits", "rank"),
    [
        # Times say nothing: rank 1's is an hour later. A signal, a full disk or stacks do.
        ([exit_on("a", 0, 1, 10.0), exit_on("b", 1, -signal.SIGSEGV, 10.0)], 1),
        ([exit_on("a", 0, 1, 10.0), exit_on("b", 1, disk.FULL, 10.0, FULL)], 1),
        ([exit_on("a", 0, -9, 10.0, STALL, True), exit_on("b", 1, -9, 10.0, STALL, False)], 1),
        ([exit_on("a", 0, 1, 10.0), exit_on("b", 1, -9, 10.0, STALL, False)], 1),
        ([exit_on("a", 0, -signal.SIGABRT, 10.0), exit_on("b", 1, -9, 10.0, STALL, True)], 1),
        ([exit_on("a", 0, -signal.SIGSEGV, 10.0), exit_on("b", 1, -9, 10.0, STALL, False)], 0),
        # On one node they still count.
        ([exit_on("b", 1, 1, 12.0), exit_on("b", 2, 1, 10.0), exit_on("a", 3, 1, 0.0)], 2),
        # Nothing tells them apart.
        ([exit_on("a", 0, 1, 10.0), exit_on("b", 1, 1, 10.0)], 0),
    ],
)
def test_without_a_common_moment_causes_decide_between_nodes(tmp_path: Path, exits: list[RankExit], rank: int) -> None:
    spec.write_run(tmp_path, make_spec(), make_site())
    attempt_dir = tmp_path / "attempt-1"
    attempt_dir.mkdir()
    write_log(attempt_dir, 0, "a")
    for exit_ in exits:
        rank_exits.write(attempt_dir, exit_)
    first = rank_exits.failure(attempt_dir)
    assert first is not None
    assert first.rank == rank


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
        rank_exits.write(attempt_dir, exit_)
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
    assert outcome.sentence(tmp_path, RankExit(0, disk.FULL, 1.0, FULL)) == f"rank 0: {FULL}"
    (tmp_path / "attempt-1").mkdir()
    rank_exits.write(tmp_path / "attempt-1", RankExit(1, disk.FULL, 1.0, FULL))
    assert reason("FAILED with exit code 1:0") == f"FAILED with exit code 1:0; rank 1: {FULL}"
