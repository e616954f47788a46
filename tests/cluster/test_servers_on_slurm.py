"""Parameter servers on Slurm nodes of their own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from project import Cli
from slurm_study import TRAINED
from studies import hosts, logged, read_json, run_dirs, starts

pytestmark = [pytest.mark.cluster, pytest.mark.torch, pytest.mark.timeout(600)]


@pytest.fixture(autouse=True)
def _environment(torch_python: Path) -> None:
    """Every test here needs the PyTorch environment."""


OWN = ("strategy=ps_async", "strategy.options.placement=own_nodes", "gpus=2", "cluster.gpus_per_node=2")


def test_servers_get_a_further_node_of_the_job_and_the_report_names_it(slurm: Any, cli: Cli, tmp_path: Path) -> None:
    """Two ranks run on one node; on the other node, one of two tasks is the server."""
    done = cli("harness", *OWN, *TRAINED, env=slurm.env)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 server on additional nodes" in done.stdout
    (run_dir,) = run_dirs(tmp_path)
    [job] = [line.split()[2].rstrip(":") for line in done.stdout.splitlines() if line.startswith("submitted job")]
    assert slurm.run("sacct", "-X", "-n", "-P", "-j", job, "--format=NNodes").stdout.split() == ["2"]
    [rank_node] = set(hosts(run_dir))
    told = {start["communication"] for start in starts(run_dir)}
    assert len(told) == 1
    assert "parameter servers: 1 on 1 node of their own (n" in (said := told.pop())
    assert f"({rank_node})" not in said
    assert [start["world_size"] for start in starts(run_dir)] == [2, 2]
    assert logged(run_dir, "staleness")[0]["samples"] == 2 * 4 * 8
    exit_ = read_json(run_dir / "attempt-1" / "exit.rank2.json")
    assert (exit_["code"], exit_["server"]) == (0, 0)
    assert not (run_dir / "attempt-1" / "exit.rank3.json").exists()
    report = cli("analysis", "results/scaling")
    assert report.returncode == 0, report.stderr
    assert said in (tmp_path / "results" / "scaling" / "report.html").read_text(encoding="utf-8")


def test_ranks_and_servers_in_an_empty_environment_say_what_it_lacks(slurm: Any, cli: Cli, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "empty"], check=True)
    done = cli("harness", *OWN, *TRAINED, f"framework.environment={tmp_path}/empty", env=slurm.env)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "has no package numpy and no torch; install it there" in done.stdout.partition(" failed ")[2]
    (run_dir,) = run_dirs(tmp_path)
    said = [path.read_text() for path in (run_dir / "attempt-1").glob("stderr.rank*")]
    assert said
    assert not [text for text in said if "Traceback" in text]
