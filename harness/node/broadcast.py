"""A packed environment brought to every node of a job by Slurm (cluster.stage_environment=sbcast), and unpacked there.

sbcast reads the archive once and hands it on from node to node; the shared file system does not see how many there are.
The batch script runs `python -m harness.node.broadcast <srun and its options>`, which starts one task per node
(`python -m harness.node.broadcast`) and leads them through srun's pipes: every node has a folder for its copy; sbcast;
every node has unpacked its copy; every node removes it. The tasks stay from the first to the last, for once a job is
cancelled no step can be started any more: whoever made something on a node is there to remove it. That all wait for all
lets nodes share a disk, as those of a test cluster do.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from harness.core.errors import UserError
from harness.node import stage
from harness.slurm.client import words

COPY_FOLDER = ".copy"  # after stage.STAGED: of the job, for sbcast has but one name for all nodes
# What the site or cluster.setup exports wins. The archive is compressed already, and is no program with libraries;
# Slurm's own 10 s for a block of 8 MB through the whole tree may be short for a busy disk.
SETTINGS = {"SBCAST_COMPRESS": "none", "SBCAST_SEND_LIBS": "no", "SBCAST_TIMEOUT": "60"}


def lead(step: Sequence[str], nodes: int, archive: Path, copy: Path) -> float:
    """In the batch step: the environment is on all nodes when it returns. Gives the seconds that sbcast took.

    step: srun and its options, for one task on each of so many nodes. Raises UserError with sbcast's words; exits where
    a node, or srun, has said itself what is wrong.
    """
    # A node that failed must not leave the others waiting.
    argv = [*step, "--kill-on-bad-exit=1", sys.executable, "-m", "harness.node.broadcast"]
    # However this ends, the pipe to the tasks is closed then, and srun waited for.
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as srun:
        assert srun.stdin is not None
        assert srun.stdout is not None
        _hear(srun.stdout, nodes)
        began = time.monotonic()
        _sbcast(archive, copy)
        seconds = time.monotonic() - began
        _tell(srun.stdin)
        _hear(srun.stdout, nodes)
        _tell(srun.stdin)
    if srun.returncode != 0:
        sys.exit(1)
    return seconds


def follow(copy: Path, folder: Path) -> None:
    """A node's task. Raises UserError; then, and where the leader or the job ends before, nothing is left here."""
    stage.make(copy.parent, shared=True)
    try:
        _answer()
        stage.unpack(copy, folder)
        try:
            _answer()
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
    finally:
        shutil.rmtree(copy.parent, ignore_errors=True)


def copy_of(environ: Mapping[str, str]) -> Path | None:
    """The archive's copy, at the same path on every node; None: not in the batch script of such a job."""
    base = environ.get(stage.STAGED)
    return Path(f"{base}{COPY_FOLDER}", "environment.tar.gz") if base else None


def _sbcast(archive: Path, copy: Path) -> None:
    # --force: of nodes that share a disk, one finds the other's copy.
    argv = ["sbcast", "--force", str(archive), str(copy)]
    other = f"take {stage.KEY}={stage.TAR}, with which each node reads the archive itself"
    env = {**SETTINGS, **os.environ}
    try:
        done = subprocess.run(argv, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    except OSError as error:
        raise UserError(f"sbcast cannot be started in the batch script: {error.strerror}; {other}") from None
    if done.returncode != 0:
        said = words(done.stderr) or f"exit code {done.returncode}"
        raise UserError(f"sbcast could not bring {archive} to the nodes: {said}; {other}")


def _hear(nodes_say: IO[bytes], nodes: int) -> None:
    """A line from every node. Fewer: one has failed, and has said so, or srun has."""
    for _ in range(nodes):
        if not nodes_say.readline():
            sys.exit(1)


def _tell(nodes_hear: IO[bytes]) -> None:
    try:
        nodes_hear.write(b"go on\n")
    except BrokenPipeError:
        sys.exit(1)


def _answer() -> None:
    """Tells the leader that this node is so far, and waits for all others."""
    print("here", flush=True)
    if not sys.stdin.readline():
        sys.exit(0)  # the leader has ended, and has said why


def main() -> None:
    copy, folder = copy_of(os.environ), stage.node_folder(os.environ)
    if copy is None or folder is None:
        sys.exit(f"error: {stage.STAGED} is not set; this is for the batch scripts of {stage.KEY}={stage.SBCAST}")
    if len(sys.argv) == 1:
        stage.on_node(stage.SBCAST, lambda: follow(copy, folder))
        return
    nodes, archive = int(os.environ["SLURM_JOB_NUM_NODES"]), Path(os.environ[stage.ARCHIVE])
    try:
        print(f"{lead(sys.argv[1:], nodes, archive, copy):.6f}")
    except UserError as error:
        sys.exit(f"error: {stage.KEY}={stage.SBCAST}: {error}")


if __name__ == "__main__":
    main()
