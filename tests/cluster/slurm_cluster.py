"""The Slurm cluster of the tests: real daemons and virtual nodes, from sbatch/slurm-cluster.sh."""

from __future__ import annotations

import os
import random
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from slurm_study import empty

from harness.core.system.ports import JOB_PORTS

HERE = Path(__file__).parent
SCRIPT = HERE.parents[1] / "sbatch" / "slurm-cluster.sh"
PROGRAMS = (
    *("slurmctld", "slurmd", "slurmdbd", "sbatch", "srun", "squeue", "sinfo", "sacct", "sacctmgr", "scontrol"),
    *("munged", "munge", "mariadbd", "mariadb", "mariadb-install-db", "unshare", "nsenter", "flock", "ss", "ps"),
)


@dataclass(frozen=True)
class SlurmCluster:
    """A cluster in its own state folder. Its nodes n1, n2, ... see the same files as the tests."""

    folder: Path
    port: int
    nodes: int
    gpus_per_node: int
    extra_conf: str = ""

    @property
    def env(self) -> dict[str, str]:
        """Environment for programs that use this cluster."""
        outer = {key: value for key, value in os.environ.items() if not key.startswith(("SLURM_", "SBATCH_"))}
        return {**outer, "SLURM_CONF": str(self.folder / "etc" / "slurm.conf")}

    def run(self, *argv: str | Path, timeout: float = 60, **kwargs: Any) -> subprocess.CompletedProcess[str]:
        """Run a program against this cluster; its output is captured as text. With check=True a failure raises."""
        options: dict[str, Any] = {"env": self.env, "text": True, "capture_output": True, **kwargs}
        try:
            return subprocess.run([str(a) for a in argv], timeout=timeout, **options)
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            error.add_note(f"stdout: {error.stdout}\nstderr: {error.stderr}")
            raise

    def script(self, command: str, *argv: str, timeout: float = 400) -> str:
        """Run a command of sbatch/slurm-cluster.sh for this cluster and return what it prints; raises if it fails."""
        settings = {
            "CLUSTER_DIR": str(self.folder),
            "CLUSTER_PORT": str(self.port),
            "CLUSTER_NODES": str(self.nodes),
            "CLUSTER_GPUS": str(self.gpus_per_node),
            "CLUSTER_EXTRA_CONF": self.extra_conf,
        }
        outer = {key: value for key, value in os.environ.items() if not key.startswith("CLUSTER_")}
        # In its own session: the Ctrl-C that stops the tests must not stop the `down` that follows.
        done = self.run(SCRIPT, command, *argv, env=outer | settings, timeout=timeout, start_new_session=True)
        if done.returncode != 0:
            raise RuntimeError(f"{SCRIPT.name} {command} failed; state folder {self.folder}\n{done.stderr}")
        return done.stdout

    def node_kill(self, node: str) -> None:
        """Cut the node's power; slurmctld notices after about 30 seconds."""
        self.script("node-kill", node)

    def node_fail(self, node: str) -> None:
        """Cut the node's power and tell slurmctld."""
        self.script("node-fail", node)

    def node_back(self, node: str) -> None:
        """Power the node on and wait until it takes jobs."""
        self.script("node-back", node)


@contextmanager
def running_cluster(nodes: int, gpus_per_node: int, extra_conf: str = "") -> Iterator[SlurmCluster]:
    # Not under pytest's tmp_path: the path of a Unix socket has at most 107 characters.
    folder = Path(tempfile.mkdtemp(prefix="sc-", dir="/tmp"))
    conf = f"FirstJobId={first_job_id()}\n{extra_conf}"
    cluster = SlurmCluster(folder, free_ports(10 + nodes + 1), nodes, gpus_per_node, conf)
    try:
        cluster.script("up")
        yield cluster
    finally:
        cluster.script("down")
    shutil.rmtree(folder)  # not after a failure: the logs in there explain it


def free_ports(count: int) -> int:
    """Return the first of `count` consecutive free ports. Below JOB_PORTS, since otherwise a port derived from a job id
    could be slurmctld's."""
    bases = own_share(range(10000, JOB_PORTS[0] - count, 50))
    for base in random.sample(bases, len(bases)):
        try:
            for port in range(base, base + count):
                with socket.socket() as probe:
                    probe.bind(("", port))
        except OSError:
            continue
        return base
    raise RuntimeError(f"no {count} consecutive free ports in {bases}")


def first_job_id() -> int:
    """Choose the first job id so that jobs of concurrent clusters use different ports, as on separate machines. In the
    first half of the share, to leave room for later jobs."""
    share = own_share(range(len(JOB_PORTS)))
    return 1000 * len(JOB_PORTS) + random.choice(share[: len(share) // 2])


def own_share(numbers: range) -> range:
    """Return this process's part of the numbers: pytest-xdist's processes do not see each other's choices."""
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % workers
    size = len(numbers) // workers
    return numbers[worker * size : (worker + 1) * size]


def why_no_cluster() -> str:
    """Return why this machine cannot run the cluster; empty if it can, and then a cluster that fails is an error."""
    if not sys.platform.startswith("linux"):
        return f"needs Linux, this is {sys.platform}"
    if os.environ.get("SYSTEM") == "0":
        return "SYSTEM=0 is set"
    if os.geteuid() != 0:
        return "not root"
    path = os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin"
    missing = [program for program in PROGRAMS if shutil.which(program, path=path) is None]
    if missing:
        return f"programs missing: {', '.join(missing)}"
    # Root in an ordinary container, for example, has no right to create namespaces.
    namespaces = ["unshare", "--uts", "--ipc", "--mount", "--pid", "--fork", "--mount-proc", "true"]
    if subprocess.run(namespaces, capture_output=True, timeout=30).returncode != 0:
        return "root can make no namespaces here, which the virtual nodes need (docker run --privileged)"
    return ""


@pytest.fixture(scope="session")
def able_to_run_slurm() -> None:
    if reason := why_no_cluster():
        # Set by .ci/run, where silently skipped tests would be worthless.
        if os.environ.get("REQUIRE_SLURM") == "1":
            pytest.fail(f"REQUIRE_SLURM=1, but no Slurm cluster: {reason}")
        pytest.skip(f"no Slurm cluster: {reason}; `make test` as root on Debian/Ubuntu installs and runs one")


@pytest.fixture(scope="session")
def shared_slurm(able_to_run_slurm: None) -> Iterator[SlurmCluster]:
    with running_cluster(nodes=3, gpus_per_node=4) as cluster:
        yield cluster


@pytest.fixture
def slurm(shared_slurm: SlurmCluster) -> Iterator[SlurmCluster]:
    """The shared cluster: 3 nodes with 4 declared v100 GPUs each, all idle. Tests must restore its state; a test ends
    once its jobs have ended."""
    yield shared_slurm
    empty(shared_slurm)


@pytest.fixture(scope="session")
def another_slurm(able_to_run_slurm: None) -> Callable[..., AbstractContextManager[SlurmCluster]]:
    """Start a cluster for one test or module only: `with another_slurm(nodes=1, gpus_per_node=0) as cluster: ...`"""
    return running_cluster
