"""Resources recorded by real ranks; recording does not change the training."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from project import Cli
from studies import SMALL, logged, read_json, run_dirs, study_dir

pytestmark = pytest.mark.torch

SHORT = ("cluster=local", *SMALL, "model=cnn_small", "batch=16", "measure.probe_steps=0", "measure.evaluate_samples=0")


def test_two_ranks_record_what_they_use_and_train_the_same_without(
    cli: Cli, torch_python: Path, tmp_path: Path
) -> None:
    done = cli("harness", "-m", "gpus=2", "measure.record=true,false", *SHORT)
    assert done.returncode == 0, done.stdout + done.stderr
    runs = {read_json(d / "spec.json")["spec"]["measure"]["record"]: d for d in run_dirs(tmp_path)}
    first, second = (logged(runs[True], "resources", rank=rank) for rank in (0, 1))
    assert len(first) == len(second) == 1
    start = logged(runs[True], "start")[0]
    for used in (first[0], second[0]):
        assert used["steps"] == 6
        assert used["processor_seconds"] > 0
        # A process that has imported PyTorch; measured: 360 MiB.
        assert 100e6 < used["host_peak_bytes"] < 10e9
        assert used["device_peak_source"].startswith("none: ")
        assert used["nccl"] is None
        # Synthetic data are not read from files; only reading the counters counts, about 100 bytes per block.
        assert used["read_call_bytes"] is None or used["read_call_bytes"] < 3 * 1000
    assert second[0]["network_bytes"] is None
    # gloo over the loopback interface: all gradients to the other rank and back, plus the machine's other traffic.
    assert first[0]["network_bytes"]["lo sent"] >= 6 * 2 * start["gradient_bytes"]

    assert [logged(runs[False], kind) for kind in ("device", "resources")] == [[], []]
    assert logged(runs[False], "start")[0]["energy_of"] is None
    with_, without = (logged(runs[record], "end")[0]["weights_checksum"] for record in (True, False))
    assert with_ == without

    assert cli("analysis", "results/scaling").returncode == 0
    with open(study_dir(tmp_path) / "resources.csv", encoding="utf-8") as file:
        on, off = sorted(csv.DictReader(file), key=lambda row: row["host_peak_bytes"] == "")
    assert float(on["network_bytes_per_step"]) >= float(on["network_required_bytes_per_step"]) > 0
    assert (off["energy"], off["network_bytes_per_step"]) == ("absent", "")
