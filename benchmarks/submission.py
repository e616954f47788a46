"""Cost of 1,000 runs on the login node with a real Slurm controller: submission and status; and of 10,000.

Uses a temporary cluster of sbatch/slurm-cluster.sh with its partition closed, so that nothing starts. Ours: the whole
process of `python -m harness -m` with 1,000 runs of one shape and wait=false. The peer: `sbatch --array=0-999` of the
same script with 1,000 empty tasks. Alternating, n = 6. Status: the whole process of `python -m harness.status` on the
1,000 pending runs, compared with one `squeue --me --array`. Then each command of a study of SCALE runs (10,000;
BENCHMARK_SCALE_RUNS), n = 6, with the peak RSS of the process and its children, sampled every 50 ms. Needs root and
Slurm's packages; skipped with a note if they are missing. Results are in RESULTS.md.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.common import ROOT, Cost, Row, cost_of, paired, python, seconds_of
from harness.core.system.ports import JOB_PORTS

N = 6
RUNS = 1000
SCALE = int(os.environ.get("BENCHMARK_SCALE_RUNS", "10000"))
SCRIPT = ROOT / "sbatch" / "slurm-cluster.sh"


def rows() -> list[Row]:
    if os.geteuid() != 0:
        print("submission: left out, it needs root for a Slurm cluster of its own", file=sys.stderr)
        return []
    ours, peer, status, squeue = [], [], [], []
    with tempfile.TemporaryDirectory() as folder, cluster(), closed():
        sweep = ["-m", "gpus=1", f"seed=range({RUNS})", "cluster=slurm", "dataset=synthetic", "wait=false"]
        for turn in range(N):
            ours.append(seconds_of(python("-m", "harness", *sweep, f"study=s{turn}"), cwd=folder))
            for _ in range(3):
                status.append(seconds_of(python("-m", "harness.status", f"results/s{turn}"), cwd=folder))
                squeue.append(seconds_of(["squeue", "--me", "--array", "--noheader"]))
            _empty_queue()
            (submission,) = Path(folder).glob(f"results/s{turn}/submitit/*/submission.sh")
            plain = Path(folder) / "plain.sh"
            plain.write_text(submission.read_text().split("# command")[0] + "true\n")
            peer.append(seconds_of(["sbatch", str(plain)], cwd=folder))
            _empty_queue()
        large = _large(folder)
    beside = [a - b for a, b in zip(ours, peer, strict=True)]
    return [
        paired(f"submitting {RUNS:,} runs, all of it", "s", ours, f"sbatch of an array of {RUNS:,}", peer),
        Row("… beside what sbatch itself needs", "s", beside, target="≤ 30 s"),
        paired(f"`harness.status` of {RUNS:,} runs", "s", status, "squeue alone", squeue, "≤ 2 s"),
        *large,
    ]  # fmt: skip


def _large(folder: str) -> list[Row]:
    """Measure each command of a study of SCALE runs, none of which starts."""
    sweep = ("-m", "gpus=1", f"seed=range({SCALE})", "cluster=slurm", "dataset=synthetic")
    costs: dict[str, list[Cost]] = {}
    for turn in range(N):
        study = f"large{turn}"
        for what, command in {
            "planning (plan_only=true)": python("-m", "harness", *sweep, f"study={study}", "plan_only=true"),
            "submitting (wait=false)": python("-m", "harness", *sweep, f"study={study}", "wait=false"),
            "`harness.status`": python("-m", "harness.status", f"results/{study}"),
            "`python -m analysis`, all runs pending": python("-m", "analysis", f"results/{study}"),
        }.items():
            costs.setdefault(what, []).append(cost_of(command, cwd=folder))
        _empty_queue()
    found = []
    for what, of in costs.items():
        found.append(Row(f"{SCALE:,} runs: {what}", "s", [cost.seconds for cost in of]))
        found.append(Row("… CPU time", "s", [cost.cpu_seconds for cost in of]))
        found.append(Row("… memory", "GB", [cost.peak_gb for cost in of], target="largest ≤ 1 GB"))
    return found


@contextlib.contextmanager
def cluster(cpus: int = 8, nodes: int = 1) -> Iterator[None]:
    """A cluster of nodes with this many CPUs, used by this process's commands."""
    state = tempfile.mkdtemp(prefix="bench-", dir="/tmp")
    os.rmdir(state)
    before = dict(os.environ)
    port = _first_of_free_ports(11 + nodes)
    os.environ.update(CLUSTER_DIR=state, CLUSTER_PORT=str(port), CLUSTER_NODES=str(nodes), CLUSTER_CPUS=str(cpus))
    try:
        subprocess.run([SCRIPT, "up"], check=True, stdout=subprocess.DEVNULL)
        os.environ["SLURM_CONF"] = f"{state}/etc/slurm.conf"
        yield
    finally:
        subprocess.run([SCRIPT, "down"], check=False)
        os.environ.clear()
        os.environ.update(before)
        subprocess.run(["rm", "-rf", state], check=True)


def _first_of_free_ports(count: int) -> int:
    """Return the first of as many consecutive free ports, below those of jobs (harness/core/system/ports.py)."""
    for first in range(16960, JOB_PORTS[0] - count, 50):
        with contextlib.suppress(OSError):
            for port in range(first, first + count):
                with socket.socket() as probe:
                    probe.bind(("", port))
            return first
    raise RuntimeError(f"no {count} consecutive free ports")


@contextlib.contextmanager
def closed() -> Iterator[None]:
    """Close the partition: it accepts jobs but starts none."""
    subprocess.run(["scontrol", "update", "partition=main", "state=down"], check=True)
    yield
    subprocess.run(["scontrol", "update", "partition=main", "state=up"], check=True)


def _empty_queue() -> None:
    subprocess.run(["scancel", "--me"], check=True)
    while subprocess.run(["squeue", "--me", "--noheader"], capture_output=True, text=True).stdout.strip():
        time.sleep(0.2)
