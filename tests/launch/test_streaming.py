"""Training on streamed shards: interrupted and resumed, and messages about unequal shares."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
from project import PROJECT, Cli
from studies import EMULATED, logged, losses, read_json, run_dirs, starts

pytestmark = [pytest.mark.torch, pytest.mark.timeout(600)]


# Emulated weights depend on the classes of the samples used; test_data_shards.py covers their order.
@pytest.mark.parametrize("trained", [EMULATED, pytest.param((), marks=pytest.mark.whole)], ids=["emulated", "pytorch"])
def test_killed_streamed_run_sees_the_samples_of_an_uninterrupted_one(
    cli: Cli, tmp_path: Path, torch_python: Path, trained: tuple[str, ...]
) -> None:
    made = ("harness.shards", "dataset=synthetic", "dataset.train_samples=100", "dataset.test_samples=20")
    done = cli(*made, "--shards", "5")
    assert done.returncode == 0, done.stderr
    asked = ("gpus=2", "model=cnn_small", "batch=8", "measure=smoke", "cluster=local", "cluster.device=cpu")
    asked += ("measure.probe_steps=0", *trained)
    data = ("dataset=synthetic", "dataset.reader=shards", "data.shuffle_buffer=16")
    fault = ("fault=none,kill_rank", "fault.step=5", "fault.rank=1")
    again = ("checkpoint.interval_steps=2", "checkpoint.max_restarts=1")
    done = cli("harness", "-m", *asked, *data, *fault, *again, timeout=550)
    assert done.returncode == 0, done.stdout + done.stderr
    # Rank 0 has three shards of 20 samples, rank 1 two.
    assert "their shares range from 40 to 60 samples" in done.stdout
    by_fault = {read_json(run_dir / "spec.json")["spec"]["fault"]["name"]: run_dir for run_dir in run_dirs(tmp_path)}
    never, killed = by_fault["none"], by_fault["kill_rank"]
    # Eight steps of eight samples are more than an epoch of rank 1.
    assert logged(killed, "resume", 2)[0]["step"] == 4
    assert losses(killed) == losses(never)
    assert logged(killed, "end", 2)[0]["weights_checksum"] == logged(never, "end")[0]["weights_checksum"]
    shares = [start["stream"] for start in starts(never)]
    assert shares == [{"shards": n, "samples": 20 * n, "buffer_samples": 16} for n in (3, 2)]
    schema = json.loads((PROJECT / "harness" / "schemas" / "events.schema.json").read_text())
    jsonschema.validate(starts(never)[0], schema)
    report = cli("analysis", "results/scaling", "--only", "html")
    assert report.returncode == 0, report.stderr
    html = (tmp_path / "results" / "scaling" / "report.html").read_text(encoding="utf-8")
    assert "the shares are 40 to 60 samples: those of a small one were seen more often" in html
