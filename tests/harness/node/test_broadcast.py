"""A broadcast environment: the nodes' tasks as real processes, coordinated by the test or the real coordinator.

sbcast works only inside a Slurm job; here the test copies the file. tests/cluster/test_staging_on_slurm.py uses the
real sbcast.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from project import PROJECT

from harness.node import broadcast, stage

TASK = (sys.executable, "-m", "harness.node.broadcast")
# Replaces srun: one task on this machine, without the first srun option that the coordinator adds.
HERE = ("/bin/sh", "-c", 'shift; exec "$@"', "srun")


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    shared = tmp_path_factory.mktemp("shared")
    folder = shared / "small"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True, timeout=120)
    return stage.pack(shared / "study", folder, print)


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    return tmp_path / "node disk"


def variables(disk: Path, archive: Path, node: str = "n1", **more: str) -> dict[str, str]:
    own = {stage.STAGED: str(disk / "harness-17-0"), stage.ARCHIVE: str(archive), "SLURMD_NODENAME": node}
    return {**os.environ, **own, "SLURM_JOB_NUM_NODES": "1", "PYTHONPATH": str(PROJECT), **more}


def task(disk: Path, archive: Path, node: str = "n1") -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    env = variables(disk, archive, node)
    return subprocess.Popen(TASK, env=env, stdin=pipe, stdout=pipe, stderr=pipe, text=True, cwd=PROJECT)


def wait_until_ready(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"


def go_on(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("continue\n")
    process.stdin.flush()


def test_nodes_that_share_a_disk_unpack_one_copy_and_leave_the_environments_alone(disk: Path, archive: Path) -> None:
    tasks = [task(disk, archive, node) for node in ("n1", "n2")]
    copy = broadcast.copy_of(variables(disk, archive))
    assert copy is not None
    for process in tasks:
        wait_until_ready(process)
    assert copy.parent.stat().st_mode & 0o077 == 0, "nobody else's file may be there, nor may others read this one"
    shutil.copy(archive, copy)
    for process in tasks:
        go_on(process)
    for process in tasks:
        wait_until_ready(process)
    assert copy.exists(), "the other node may still read it"
    for process in tasks:
        go_on(process)
    assert [process.communicate(timeout=60) for process in tasks] == [("", "")] * 2
    assert [process.returncode for process in tasks] == [0, 0]
    assert sorted(path.name for path in disk.iterdir()) == ["harness-17-0-n1", "harness-17-0-n2"]
    for folder in disk.iterdir():
        subprocess.run([folder / "bin" / "python", "-c", "pass"], check=True, timeout=60)


@pytest.mark.parametrize("unpacked", [False, True], ids=["no copy yet", "unpacked"])
@pytest.mark.parametrize("how", ["the job is cancelled", "the leader has ended"])
def test_a_node_that_is_cut_off_leaves_nothing(disk: Path, archive: Path, unpacked: bool, how: str) -> None:
    process = task(disk, archive)
    wait_until_ready(process)
    copy = broadcast.copy_of(variables(disk, archive))
    assert copy is not None
    shutil.copy(archive, copy)
    if unpacked:
        go_on(process)
        wait_until_ready(process)
    if how == "the job is cancelled":
        process.send_signal(signal.SIGTERM)
    # communicate also closes the pipe.
    assert process.communicate(timeout=60) == ("", "")
    assert process.returncode == (128 + signal.SIGTERM if how == "the job is cancelled" else 0)
    assert list(disk.iterdir()) == []


def test_a_node_that_cannot_unpack_its_copy_says_so_in_a_sentence(disk: Path, archive: Path) -> None:
    process = task(disk, archive)
    wait_until_ready(process)
    copy = broadcast.copy_of(variables(disk, archive))
    assert copy is not None
    copy.write_bytes(archive.read_bytes()[:100])
    go_on(process)
    said = process.communicate(timeout=60)[1]
    assert process.returncode == 1
    assert said.startswith("error: cluster.stage_environment=sbcast: on ")
    assert "cannot be unpacked" in said
    assert said.count("\n") == 1
    assert list(disk.iterdir()) == []


@pytest.mark.parametrize("there", ["a link", "open to others", "a file"])
def test_copy_rejects_folders_created_by_others(disk: Path, archive: Path, there: str) -> None:
    copy = broadcast.copy_of(variables(disk, archive))
    assert copy is not None
    disk.mkdir()
    if there == "a link":
        (disk / "elsewhere").mkdir(mode=0o700)
        copy.parent.symlink_to(disk / "elsewhere")
    elif there == "open to others":
        copy.parent.mkdir()
        copy.parent.chmod(0o777)
    else:
        copy.parent.touch()
    process = task(disk, archive)
    said = process.communicate(timeout=60)[1]
    assert process.returncode == 1
    assert "cannot be created: File exists; set cluster.stage_folder to another one" in said
    assert os.path.lexists(copy.parent), "it is not the job's to remove"


def test_missing_sbcast_is_reported_and_nothing_is_left_behind(disk: Path, archive: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [*TASK, *HERE],
        env=variables(disk, archive, PATH=str(tmp_path)),
        capture_output=True,
        text=True,
        timeout=120,
        cwd=PROJECT,
    )
    assert done.returncode == 1
    assert done.stdout == ""
    (sentence,) = done.stderr.splitlines()
    assert sentence.startswith("error: cluster.stage_environment=sbcast: sbcast cannot be started in the batch script")
    assert sentence.endswith("use cluster.stage_environment=tar, which lets each node read the archive itself")
    assert list(disk.iterdir()) == []


def test_coordinator_exits_silently_if_a_node_fails(disk: Path, archive: Path) -> None:
    disk.touch()
    done = subprocess.run(
        [*TASK, *HERE], env=variables(disk, archive), capture_output=True, text=True, timeout=120, cwd=PROJECT
    )
    assert (done.returncode, done.stdout) == (1, "")
    (sentence,) = done.stderr.splitlines()
    assert "cluster.stage_environment=sbcast: on " in sentence
    assert "cannot be created" in sentence
