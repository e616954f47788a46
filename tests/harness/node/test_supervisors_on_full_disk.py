"""Supervisors still tell each other of a failure on a full disk: tested on a small file system in memory."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from builders import make_site, make_spec
from full_disks import fill_bytes, fill_files, mounted
from processes import wait_for

from harness.core import spec
from harness.core.rendezvous import make_token
from harness.core.spec import Placement
from harness.core.system import disk
from harness.study import rank_exits

HEARTBEAT_SECONDS = 3600.0


@pytest.fixture
def run_dir(tmp_path: Path, project: Path) -> Iterator[Path]:
    """A run of two ranks that do nothing, on a file system of 4 MiB and 400 files."""
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexec sleep 3600\n")
    python.chmod(0o755)
    with mounted(tmp_path / "small", "4m", 400) as small:
        run_dir = small / "run"
        run_dir.mkdir()
        site = make_site(python=str(python), project=str(project), heartbeat_seconds=HEARTBEAT_SECONDS)
        spec.write_run(run_dir, make_spec(gpus=2, placement=Placement(1, 2)), site)
        yield run_dir


def supervisor(run_dir: Path, project: Path, rank: int) -> subprocess.Popen[str]:
    task = {"JOB_ID": "1", "NTASKS": "2", "GLOBALID": str(rank), "LOCALID": str(rank)}
    return subprocess.Popen(
        (sys.executable, "-m", "harness.node.attempt", str(run_dir), "1", "0123456789"),
        cwd=project,
        env={**os.environ, **{f"SUBMITIT_LOCAL_{name}": value for name, value in task.items()}},
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("fill", [fill_bytes, fill_files])
def test_ranks_do_not_wait_for_one_that_the_full_disk_keeps_from_beginning(
    run_dir: Path, project: Path, fill: Callable[[Path, int], None]
) -> None:
    attempt_dir = run_dir / "attempt-1"
    with supervisor(run_dir, project, 0) as first:
        wait_for((attempt_dir / "stderr.rank0").exists)
        fill(run_dir.parent, 0)
        with supervisor(run_dir, project, 1) as late:
            late.communicate(timeout=60)
        first.communicate(timeout=60)
    assert first.returncode != 0
    assert late.returncode != 0
    (known,) = rank_exits.read(attempt_dir)
    assert (known.rank, known.reason) == (0, disk.NO_SPACE)


@pytest.mark.parametrize("fill", [fill_bytes, fill_files])
def test_a_failure_is_told_to_the_others_on_a_full_disk(
    run_dir: Path, project: Path, fill: Callable[[Path, int], None]
) -> None:
    attempt_dir = run_dir / "attempt-1"
    with supervisor(run_dir, project, 0) as one, supervisor(run_dir, project, 1) as other:
        wait_for(lambda: all((attempt_dir / f"stderr.rank{rank}").exists() for rank in range(2)))
        fill(run_dir.parent, 0)
        child = wait_for(lambda: Path(f"/proc/{other.pid}/task/{other.pid}/children").read_text().split())
        os.kill(int(child[0]), signal.SIGSEGV)
        for process in (one, other):
            process.communicate(timeout=60)
    first = rank_exits.failure(attempt_dir)
    assert first is not None
    assert (first.rank, first.code) == (1, -signal.SIGSEGV)
    assert len(rank_exits.read(attempt_dir)) == 2
    assert not [path.name for path in attempt_dir.iterdir() if path.name.startswith(".")]


def test_a_rank_that_cannot_write_its_output_says_that_the_disk_is_full(run_dir: Path, project: Path) -> None:
    attempt_dir = run_dir / "attempt-1"
    attempt_dir.mkdir()
    make_token(attempt_dir)
    rank_exits.reserve(attempt_dir, 1)
    fill_files(run_dir.parent, 0)
    with supervisor(run_dir, project, 1) as process:
        process.communicate(timeout=60)
    (known,) = rank_exits.read(attempt_dir)
    assert (known.rank, known.code, known.reason) == (1, disk.FULL, disk.NO_SPACE)
