"""The published comparison on a cluster: every framework and strategy on one rank, and on two ranks on two nodes. All
do the same work."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest
from project import Cli
from studies import logged, read_json, run_dirs, study_dir

from harness.core.run_files import VERIFY

pytestmark = [pytest.mark.cluster, pytest.mark.torch, pytest.mark.timeout(1500)]

SWEEP = ("framework=pytorch,tensorflow,keras,mxnet", "strategy=allreduce,horovod,mpi", "gpus=1,2")
# Two frameworks that communicate differently. MPI on two nodes is in test_mpi_on_slurm.py.
SELECTION = (
    ("framework=pytorch", "strategy=allreduce", "gpus=2"),
    ("framework=tensorflow", "strategy=horovod", "gpus=2"),
)
SHORT = ("batch=16", "cluster.device=cpu", "measure=smoke", "measure.probe_steps=0", "measure.evaluate_samples=64")
# The small network compiles in half the time.
SMALL, PUBLISHED = ("model=cnn_small", "dataset=synthetic"), ("model=resnet20", "dataset=fashion_mnist")
# One rank per node, so that two ranks use two nodes; few jobs at a time, since all nodes share one machine.
PLACED = ("cluster=slurm", "cluster.gpus_per_node=1", "cluster.cpus_per_gpu=1", "cluster.array_parallelism=2")


@pytest.fixture(autouse=True)
def _environments(environments: None) -> None:
    """Every test here needs all environments."""


@pytest.mark.parametrize(
    ("sweeps", "network", "runs"),
    [
        pytest.param(SELECTION, SMALL, {2: 2}, id="selection"),
        pytest.param((SWEEP,), PUBLISHED, {1: 12, 2: 12}, id="every", marks=pytest.mark.whole),
    ],
)
def test_combinations_train_across_nodes(
    slurm: Any,
    cli: Cli,
    fashion_mnist: Path,
    tmp_path: Path,
    sweeps: tuple[tuple[str, ...], ...],
    network: tuple[str, ...],
    runs: dict[int, int],
) -> None:
    for sweep in sweeps:
        done = cli(
            "harness",
            "-m",
            *sweep,
            *network,
            *SHORT,
            *PLACED,
            "verify=true",
            f"data.root={fashion_mnist}",
            env=slurm.env,
            timeout=1400,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert "0 failed" in done.stdout
    first_gradients: dict[int, list[float]] = {gpus: [] for gpus in runs}
    for run_dir in run_dirs(tmp_path):
        gpus = read_json(run_dir / "spec.json")["spec"]["gpus"]
        starts, gradients = (
            [event for rank in range(gpus) for event in logged(run_dir, kind, rank=rank)]
            for kind in ("start", "gradients")
        )
        assert [start["world_size"] for start in starts] == [gpus] * gpus, run_dir.name
        assert len({start["host"] for start in starts}) == gpus, run_dir.name
        assert [start["threads"] for start in starts] == [1] * gpus, run_dir.name
        # 2 warm-up and 6 measured steps of 16 samples.
        assert [logged(run_dir, "end", rank=rank)[0]["samples"] for rank in range(gpus)] == [8 * 16] * gpus
        assert (run_dir / "attempt-1" / VERIFY).is_file()
        first_gradients[gpus] += [event["magnitude"] for event in gradients]
    for gpus, magnitudes in first_gradients.items():
        assert len(magnitudes) == gpus * runs[gpus]
        # The bound on gradients between frameworks, in fp32 (docs/frameworks.md).
        assert max(magnitudes) - min(magnitudes) <= 1e-3 * max(magnitudes)
    report = cli("analysis", "results/scaling", "--only", "csv")
    assert report.returncode == 0, report.stdout + report.stderr
    assert "differs" not in report.stdout
    with open(study_dir(tmp_path) / "equal_work.csv", encoding="utf-8") as file:
        verdicts = [row["verdict"] for row in csv.DictReader(file)]
    assert len(verdicts) == sum(runs.values())
    assert set(verdicts) == {"equal", "reference"}
