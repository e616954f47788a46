"""Distributes a packed environment to all nodes of a job with sbcast and unpacks it there
(cluster.stage_environment=sbcast).

sbcast reads the archive once and forwards it from node to node, so the load on the shared file system does not grow
with the number of nodes.

The batch script runs `python -m harness.node.broadcast <srun and its options>`. It starts one task per node (`python -m
harness.node.broadcast`) and coordinates them through srun's pipes: every node creates a folder for its copy; sbcast;
every node unpacks its copy; every node deletes it. The tasks live from the first phase to the last because no step can
be started once a job is cancelled, and each task must clean up its own node. The barrier after each phase allows nodes
to share a disk, as the nodes of a test cluster do.
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
from harness.slurm.client import error_message

# Appended to stage.STAGED. Shared by all nodes, since sbcast takes one path for all of them.
COPY_FOLDER = ".copy"
# Defaults: values exported by the site or by cluster.setup take precedence. The archive is already compressed, and
# needs no shared libraries. Slurm's own timeout of 10 s for one 8 MB block through the whole tree can be too short on a
# busy disk.
SETTINGS = {"SBCAST_COMPRESS": "none", "SBCAST_SEND_LIBS": "no", "SBCAST_TIMEOUT": "60"}


def coordinate(step: Sequence[str], nodes: int, archive: Path, copy: Path) -> float:
    """Coordinate the transfer from the batch step; the environment is on all nodes when this returns.

    Args:
        step: srun and its options, for one task on each node.
        nodes: number of nodes.
        archive: the packed environment.
        copy: path of the copy on each node.

    Returns:
        Seconds spent in sbcast.

    Raises:
        UserError: sbcast failed. Exits if a node or srun failed, which has reported the reason itself.
    """
    # A failed node must not leave the others waiting.
    argv = [*step, "--kill-on-bad-exit=1", sys.executable, "-m", "harness.node.broadcast"]
    # Leaving this block closes the pipe to the tasks and waits for srun, however it ends.
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as srun:
        assert srun.stdin is not None
        assert srun.stdout is not None
        _wait_for_nodes(srun.stdout, nodes)
        began = time.monotonic()
        _sbcast(archive, copy)
        seconds = time.monotonic() - began
        _release_nodes(srun.stdin)
        _wait_for_nodes(srun.stdout, nodes)
        _release_nodes(srun.stdin)
    if srun.returncode != 0:
        sys.exit(1)
    return seconds


def run_on_node(copy: Path, folder: Path) -> None:
    """Run one node's task. On an error, or if the coordinator or the job ends, nothing is left on the node."""
    stage.make_folder(copy.parent, shared=True)
    try:
        _report_and_wait()
        stage.unpack(copy, folder)
        try:
            _report_and_wait()
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
    finally:
        shutil.rmtree(copy.parent, ignore_errors=True)


def copy_of(environ: Mapping[str, str]) -> Path | None:
    """Path of the archive's copy, the same on every node. None outside such a batch script."""
    base = environ.get(stage.STAGED)
    return Path(f"{base}{COPY_FOLDER}", "environment.tar.gz") if base else None


def _sbcast(archive: Path, copy: Path) -> None:
    # --force: nodes that share a disk find each other's copy.
    argv = ["sbcast", "--force", str(archive), str(copy)]
    other = f"use {stage.KEY}={stage.TAR}, which lets each node read the archive itself"
    env = {**SETTINGS, **os.environ}
    try:
        done = subprocess.run(argv, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    except OSError as error:
        raise UserError(f"sbcast cannot be started in the batch script: {error.strerror}; {other}") from None
    if done.returncode != 0:
        said = error_message(done.stderr) or f"exit code {done.returncode}"
        raise UserError(f"sbcast could not bring {archive} to the nodes: {said}; {other}")


def _wait_for_nodes(from_nodes: IO[bytes], nodes: int) -> None:
    """Wait for one line from every node. At end of file a node or srun has failed and reported why."""
    for _ in range(nodes):
        if not from_nodes.readline():
            sys.exit(1)


def _release_nodes(to_nodes: IO[bytes]) -> None:
    try:
        to_nodes.write(b"continue\n")
    except BrokenPipeError:
        sys.exit(1)


def _report_and_wait() -> None:
    """Report that this node has finished its phase and wait for the others."""
    print("ready", flush=True)
    if not sys.stdin.readline():
        sys.exit(0)  # the coordinator has ended and reported why


def main() -> None:
    copy, folder = copy_of(os.environ), stage.node_folder(os.environ)
    if copy is None or folder is None:
        sys.exit(f"error: {stage.STAGED} is not set; this is for the batch scripts of {stage.KEY}={stage.SBCAST}")
    if len(sys.argv) == 1:
        stage.run_on_node(stage.SBCAST, lambda: run_on_node(copy, folder))
        return
    nodes, archive = int(os.environ["SLURM_JOB_NUM_NODES"]), Path(os.environ[stage.ARCHIVE])
    try:
        print(f"{coordinate(sys.argv[1:], nodes, archive, copy):.6f}")
    except UserError as error:
        sys.exit(f"error: {stage.KEY}={stage.SBCAST}: {error}")


if __name__ == "__main__":
    main()
