"""Every framework with every strategy it offers, on this machine with real images: all do the same work.

A selection is compared by default, on two nodes (tests/cluster/test_frameworks_on_slurm.py).
"""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from project import Cli
from studies import logged, losses, read_json, run_dirs, study_dir

from harness.core.run_files import VERIFY

pytestmark = [pytest.mark.whole, pytest.mark.torch, pytest.mark.timeout(900)]

# The published comparison and JAX, which Horovod does not support.
SWEEP = ("framework=pytorch,tensorflow,keras,mxnet,jax", "strategy=allreduce,horovod,mpi", "skip_unsupported=true")
SHORT = (
    *("model=resnet20", "dataset=fashion_mnist", "batch=16", "cluster.device=cpu"),
    *("measure=smoke", "measure.probe_steps=0", "measure.evaluate_samples=64"),
)


@pytest.fixture(autouse=True)
def _environments(environments: None) -> None:
    """Every test here needs all environments."""


def test_combinations_train_on_real_images_and_do_the_same_work(cli: Cli, fashion_mnist: Path, tmp_path: Path) -> None:
    asked = ("-m", "gpus=2", *SWEEP, *SHORT, "verify=true", "cluster=local", f"data.root={fashion_mnist}")
    done = cli("harness", *asked, timeout=850)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 failed" in done.stdout
    runs = 5 * 3 - 1
    assert len(run_dirs(tmp_path)) == runs
    for run_dir in run_dirs(tmp_path):
        starts, ends = ([*logged(run_dir, kind), *logged(run_dir, kind, rank=1)] for kind in ("start", "end"))
        assert [start["world_size"] for start in starts] == [2, 2], run_dir.name
        assert [start["threads"] for start in starts] == [1, 1], run_dir.name
        # 2 warm-up and 6 measured steps of 16 samples.
        assert [end["samples"] for end in ends] == [8 * 16, 8 * 16], run_dir.name
        assert (run_dir / "attempt-1" / VERIFY).is_file()
    report = cli("analysis", "results/scaling", "--only", "csv")
    assert report.returncode == 0, report.stdout + report.stderr
    with open(study_dir(tmp_path) / "equal_work.csv", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == runs
    assert {row["verdict"] for row in rows} == {"equal", "reference"}, rows
    # Combinations left out are in study.json, and so in the report.
    commands = read_json(study_dir(tmp_path) / "study.json")["invocations"]
    skipped = [sentence for command in commands for sentence in command.get("skipped", [])]
    [sentence] = skipped
    assert "'horovod' is not offered by framework 'jax'" in sentence
    assert sentence in " ".join(report.stdout.split())


def test_evaluations_in_the_middle_change_the_training_of_no_framework(cli: Cli, tmp_path: Path) -> None:
    """By default only PyTorch's (test_evaluations.py)."""
    small = ("model=resnet20", "dataset=synthetic", "batch=4", "measure=smoke", "cluster.device=cpu", "cluster=local")
    asked = (
        "-m",
        "gpus=2",
        "framework=pytorch,tensorflow,keras,mxnet,jax",
        "measure.evaluate_samples=21",
        "measure.evaluate_every_samples=0,16",
        *small,
    )
    done = cli("harness", *asked, timeout=850)
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[tuple[str, int], Path] = {}
    for run_dir in run_dirs(tmp_path):
        spec = read_json(run_dir / "spec.json")["spec"]
        found[spec["framework"], spec["measure"]["evaluate_every_samples"]] = run_dir
    for framework in {name for name, _ in found}:
        plain, evaluated = found[framework, 0], found[framework, 16]
        # Every two steps of 2 x 4 samples.
        assert [e["step"] for e in logged(evaluated, "eval")] == [2, 4, 6, 8], framework
        assert losses(evaluated) == losses(plain), framework
        for kind, value in (("end", "weights_checksum"), ("eval", "loss")):
            assert logged(evaluated, kind)[-1][value] == logged(plain, kind)[-1][value], framework
        # And each one logs the device's ceilings and the parts of its start-up.
        (ceiling,), (start,) = logged(plain, "ceiling"), logged(plain, "start")
        assert ceiling["reason"] is None, framework
        assert min(ceiling["flops_per_second"], ceiling["bytes_per_second"]) > 1e6, framework
        assert {"interpreter", "imports", "rendezvous", "build"} < set(start["startup_seconds"]), framework
