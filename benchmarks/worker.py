"""Steps per second of our worker compared with a minimal DDP loop: same model, data, batch, ranks and threads.

ResNet-20, real Fashion-MNIST, 64 images per rank, fp32, one compute thread per rank, gloo, no augmentation. Ours is the
`step` of strategy=allreduce, timed as in the loop; the peer is sides/minimal_ddp.py. Both alternate in the same ranks:
n = 150 pairs of blocks of 5 steps, enough for an interval of about ± 1 %. A block's time is that of its slowest rank.
Our batches are prepared by a background thread, which may use an idle core; the peer prepares them between steps.
Results are in RESULTS.md.
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
from harness.core.rendezvous import Rendezvous
from harness.core.spec import read_run
from harness.core.system.ports import held_port
from harness.node.command import rank_environment

PAIRS, STEPS, BATCH = 150, 5, 64


def rows() -> list[Row]:
    result = []
    for ranks in (1, 2):
        with tempfile.TemporaryDirectory() as folder:
            (run_dir,) = harness(
                *(Path(folder), f"ranks{ranks}", f"gpus={ranks}", "model=resnet20", "dataset=fashion_mnist"),
                *("dataset.augment=false", f"data.root={ROOT / 'data'}", f"batch={BATCH}", "scaling=weak"),
                *("cluster=local", "cluster.device=cpu", "strategy=allreduce", "measure=smoke"),
                *("measure.warmup_steps=1", "measure.steps=1", "measure.block_steps=1", "measure.probe_steps=0"),
                "measure.evaluate_samples=0",
            )
            seconds = beside(run_dir, ranks)
        ours, peer = ([STEPS / s for s in seconds[name]] for name in ("ours", "peer"))
        what = f"worker, steps per second, {ranks} rank{'s' * (ranks > 1)}"
        result.append(paired(what, "steps/s", ours, "hand-written DDP loop", peer, "≥ 0.99 of the peer"))
    return result


def beside(run_dir: Path, ranks: int, pairs: int = PAIRS) -> dict[str, list[float]]:
    """Seconds of each block of our worker and of the minimal loop, of the slowest rank."""
    spec, site = read_run(run_dir)
    command = [site.python, "-m", "benchmarks.sides.beside_ddp", str(run_dir), str(pairs), str(STEPS)]
    processes = []
    with held_port() as port:
        for rank in range(ranks):
            rendezvous = Rendezvous(rank, ranks, rank, ranks, "127.0.0.1", port)
            environment = {**rank_environment(spec, site, rendezvous, os.environ), "GLOO_SOCKET_IFNAME": "lo"}
            processes.append(subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True))
        said = [process.communicate()[0] for process in processes]
    assert not any(process.returncode for process in processes), "a rank failed"
    of_ranks = [json.loads(lines.splitlines()[-1]) for lines in said]
    return {
        name: [max(block) for block in zip(*(own[name] for own in of_ranks), strict=True)] for name in ("ours", "peer")
    }


def run_of_harness(folder: Path, study: str, *overrides: str) -> Run:
    """One run on this machine's CPU as the report reads it: fixed steps, no probes, no evaluation."""
    fixed = ("measure.precision=null", "measure.warmup_limit_steps=null", "measure.evaluate_samples=0")
    cpu = ("cluster=local", "cluster.device=cpu", "scaling=weak", "measure.probe_steps=0")
    harness(folder, study, *cpu, *fixed, *overrides)
    return read_study(folder / "results" / study).runs[0]
