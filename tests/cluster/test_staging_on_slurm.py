"""Environments staged on the nodes' disks, on a real Slurm with two nodes, which here share one disk."""

from __future__ import annotations

import csv
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from processes import wait_for
from project import Cli
from slurm_study import LONG, SHORT, in_queue, started
from studies import read_json, run_dirs, steps_done, study_dir

pytestmark = [pytest.mark.cluster, pytest.mark.torch, pytest.mark.timeout(1200)]

TWO_NODES = ("cluster=slurm", "cluster.gpus_per_node=1", "gpus=2")


@pytest.fixture
def environment(torch_python: Path, tmp_path: Path) -> Path:
    """A small environment that finds PyTorch in the real one: packing 1 GB would take most of the test's time."""
    folder = tmp_path / "envs" / "small"
    subprocess.run([torch_python, "-m", "venv", "--without-pip", folder], check=True, timeout=120)
    (packages,) = folder.glob("lib/python3*/site-packages")
    (torch_packages,) = torch_python.parent.parent.glob("lib/python3*/site-packages")
    (packages / "torch.pth").write_text(f"{torch_packages}\n")
    return folder


def test_ranks_run_from_the_nodes_disks_and_leave_nothing_there(
    slurm: Any, cli: Cli, environment: Path, tmp_path: Path
) -> None:
    disk = tmp_path / "node disk"
    asked = (*TWO_NODES, *SHORT, f"framework.environment={environment}")
    staged = ("cluster.stage_environment=tar", f"cluster.stage_folder='{disk}'")
    done = cli("harness", *asked, *staged, env=slurm.env)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "packed the environment small in" in done.stdout
    (run_dir,) = run_dirs(tmp_path)
    begin = read_json(run_dir / "attempt-1" / "begin.json")
    assert (begin["staged"]["way"], begin["staged"]["broadcast_seconds"]) == ("tar", None)
    assert 0 < begin["staged"]["seconds"] < begin["t"] - begin["job_started"]
    interpreter = read_json(run_dir / "attempt-1" / "env.json")["interpreter"]
    assert interpreter == f"{begin['staged']['folder']}/bin/python"
    assert Path(interpreter).is_relative_to(disk)
    wait_for(lambda: not in_queue(slurm), 120)
    assert list(disk.iterdir()) == [], "it is gone when the job has ended"

    # Cancelled during training: the ranks save, exit and remove the folders.
    with started(slurm, tmp_path, *TWO_NODES, *LONG, f"framework.environment={environment}", *staged):
        wait_for(lambda: len(list(disk.iterdir())) == 2 and steps_done(tmp_path, gpus=2) >= 10, 240)
        slurm.run("scancel", "--me", check=True)
        wait_for(lambda: not list(disk.iterdir()), 60)
    (cancelled,) = [run for run in run_dirs(tmp_path) if run != run_dir]

    # A node that cannot unpack it: one sentence from the node, and no fallback to the shared environment.
    (archive,) = (study_dir(tmp_path) / "environments").iterdir()
    archive.write_bytes(archive.read_bytes()[:100])
    done = cli("harness", *asked, *staged, "seed=1", env=slurm.env)
    assert done.returncode == 1, done.stdout + done.stderr
    (failed,) = [run for run in run_dirs(tmp_path) if run not in (run_dir, cancelled)]
    reason = read_json(failed / "result.json")["reason"]
    assert "the ranks could not be started: error: cluster.stage_environment=tar: on " in reason
    assert "cannot be unpacked" in reason
    assert list(disk.iterdir()) == []

    report = cli("analysis", "results/scaling", "--only", "csv")
    assert report.returncode == 0, report.stdout + report.stderr
    (line,) = csv.DictReader((study_dir(tmp_path) / "startup.csv").read_text().splitlines())
    assert line["staged"] == "tar"
    assert float(line["stage_seconds"]) == pytest.approx(begin["staged"]["seconds"], abs=1e-5)


@pytest.mark.whole  # in CI, nodes that unpack an archive
def test_slurm_brings_the_nodes_copies_and_nothing_of_them_is_left(
    slurm: Any, cli: Cli, environment: Path, tmp_path: Path
) -> None:
    disk = tmp_path / "node disk"
    asked = (*TWO_NODES, *SHORT, f"framework.environment={environment}")
    staged = ("cluster.stage_environment=sbcast", f"cluster.stage_folder='{disk}'")
    done = cli("harness", *asked, *staged, env=slurm.env)
    assert done.returncode == 0, done.stdout + done.stderr
    (run_dir,) = run_dirs(tmp_path)
    begin = read_json(run_dir / "attempt-1" / "begin.json")
    assert begin["staged"]["way"] == "sbcast"
    assert 0 < begin["staged"]["broadcast_seconds"] < begin["staged"]["seconds"] < begin["t"] - begin["job_started"]
    interpreter = read_json(run_dir / "attempt-1" / "env.json")["interpreter"]
    assert interpreter == f"{begin['staged']['folder']}/bin/python"
    assert Path(interpreter).is_relative_to(disk)
    wait_for(lambda: not in_queue(slurm), 120)
    assert list(disk.iterdir()) == [], "it is gone when the job has ended"

    # Cancelled during the broadcast, slowed down here: no step could be started to remove the copy.
    slow = tmp_path / "slow" / "sbcast"
    slow.parent.mkdir()
    slow.write_text(f'#!/bin/sh\n{shutil.which("sbcast")} "$@" && touch "{slow.parent}/brought" && sleep 60\n')
    slow.chmod(0o755)
    setup = (f"cluster.setup=['PATH=\"{slow.parent}:$PATH\"']",)
    with started(slurm, tmp_path, *asked, *staged, *setup, "seed=1"):
        wait_for(lambda: (slow.parent / "brought").exists(), 240)
        assert [copy.stat().st_size > 0 for copy in disk.glob("*.copy/*")] == [True]
        slurm.run("scancel", "--me", check=True)
        wait_for(lambda: not list(disk.iterdir()), 20)  # before Slurm kills what has not exited
    (cancelled,) = [run for run in run_dirs(tmp_path) if run != run_dir]

    # sbcast fails because the archive is gone: its message, and no fallback to the shared environment.
    (archive,) = (study_dir(tmp_path) / "environments").iterdir()
    done = cli("harness", *asked, *staged, f"cluster.setup=['rm {archive}']", "seed=2", env=slurm.env)
    assert done.returncode == 1, done.stdout + done.stderr
    (failed,) = [run for run in run_dirs(tmp_path) if run not in (run_dir, cancelled)]
    reason = read_json(failed / "result.json")["reason"]
    assert "the ranks could not be started: error: cluster.stage_environment=sbcast: sbcast could not bring" in reason
    assert "No such file or directory; use cluster.stage_environment=tar" in reason
    assert list(disk.iterdir()) == []

    report = cli("analysis", "results/scaling", "--only", "csv")
    assert report.returncode == 0, report.stdout + report.stderr
    (line,) = csv.DictReader((study_dir(tmp_path) / "startup.csv").read_text().splitlines())
    assert line["staged"] == "sbcast"
    assert float(line["stage_seconds"]) == pytest.approx(begin["staged"]["seconds"], abs=1e-5)
