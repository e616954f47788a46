"""Steps per second of our worker compared with a minimal DDP loop: same model, data, batch, ranks and threads.

ResNet-20, real Fashion-MNIST, 64 images per rank, fp32, one compute thread per rank, gloo, no augmentation. Ours is a
normal `python -m harness`, measured by the report's throughput (the slowest rank of each block). The peer is
`minimal_ddp.py` with the same environment variables, which times the same number of steps as one block. Runs alternate,
n = 8 pairs for 1 rank and for 2. Our batches are prepared by a background thread, which may use an idle core; the peer
prepares them between steps. Results are in RESULTS.md.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from pathlib import Path

from analysis.read.row import Run
from analysis.read.study import read_study
from benchmarks.common import ROOT, Row, harness, paired
from harness.core.ports import held_port
from harness.core.rendezvous import Rendezvous
from harness.node.command import THREAD_VARIABLES

N = 8
BATCH, WARMUP, STEPS = 64, 20, 100


def rows() -> list[Row]:
    result = []
    for ranks in (1, 2):
        ours, peer = [], []
        with tempfile.TemporaryDirectory() as folder:
            for pair in range(N):
                ours.append(harness_steps_per_second(Path(folder), ranks, pair))
                peer.append(minimal_steps_per_second(ranks))
        what = f"worker, steps per second, {ranks} rank{'s' * (ranks > 1)}"
        result.append(paired(what, "steps/s", ours, "hand-written DDP loop", peer, "≥ 0.99 of the peer"))
    return result


def harness_steps_per_second(folder: Path, ranks: int, repeat: int) -> float:
    run = run_of_harness(
        *(folder, f"ranks{ranks}-{repeat}", f"gpus={ranks}", "model=resnet20", "dataset=fashion_mnist"),
        *("dataset.augment=false", f"data.root={ROOT / 'data'}", f"batch={BATCH}"),
        *(f"measure.warmup_steps={WARMUP}", f"measure.steps={STEPS}"),
    )
    return 1 / run.step_seconds


def run_of_harness(folder: Path, study: str, *overrides: str) -> Run:
    """One run on this machine's CPU as the report reads it: fixed steps, no probes, no evaluation."""
    fixed = ("measure.precision=null", "measure.warmup_limit_steps=null", "measure.evaluate_samples=0")
    cpu = ("cluster=local", "cluster.device=cpu", "scaling=weak", "measure.probe_steps=0")
    harness(folder, study, *cpu, *fixed, *overrides)
    return read_study(folder / "results" / study).runs[0]


def minimal_steps_per_second(ranks: int) -> float:
    script = ROOT / "benchmarks" / "sides" / "minimal_ddp.py"
    arguments = [str(ROOT / "data" / "fashion-mnist"), str(BATCH), str(WARMUP), str(STEPS)]
    command = [str(ROOT / ".envs" / "pytorch" / "bin" / "python"), str(script), *arguments]
    own = {**dict.fromkeys(THREAD_VARIABLES, "1"), "PYTHONPATH": str(ROOT), "GLOO_SOCKET_IFNAME": "lo"}
    processes = []
    with held_port() as port:
        for rank in range(ranks):
            environment = {**os.environ, **own, **Rendezvous(rank, ranks, rank, ranks, "127.0.0.1", port).environment()}
            processes.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True))
        seconds = [json.loads(process.communicate()[0]) for process in processes]
    assert not any(process.returncode for process in processes), "the minimal loop failed"
    return STEPS / max(seconds)
