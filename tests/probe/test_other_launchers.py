"""Ranks that torchrun starts are hooked without the runner; its own process and other programs are not."""

from __future__ import annotations

from pathlib import Path

import pytest
from ranks import SCRIPTS, run, run_launcher

pytestmark = pytest.mark.torch


@pytest.mark.whole  # in CI, torchrun on two nodes
def test_ranks_of_torchrun_are_measured(torch_python: Path, tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "sitecustomize.py").write_text(
        "import os, sys; print('theirs', os.environ.get('RANK'), '_scaling_probe' in sys.modules, file=sys.stderr)\n"
    )
    torchrun = [str(torch_python), "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    script = [str(SCRIPTS / "train_once.py"), "--ddp", "--workers", "1", "--start-method", "spawn"]
    ranks = run_launcher(tmp_path, [tmp_path / "theirs"], *torchrun, *script, world_size=2)
    for rank in ranks:
        assert rank.one("end")["steps"] == 25
        assert (rank.one("workload")["step_of"], rank.one("start")["world_size"]) == ("SGD", 2)
    theirs = [line for line in ranks[0].stderr.splitlines() if line.startswith("theirs")]
    assert {"theirs None False", "theirs 0 False", "theirs 1 False"} <= set(theirs)


def test_a_rank_that_does_not_train_is_left_alone(torch_python: Path, tmp_path: Path) -> None:
    told = str(tmp_path / "probe.rank{rank}.json")
    (rank,) = run(tmp_path, torch_python, "return", script="how_started.py", runner=False, told=told)
    assert (rank.stderr, rank.events) == ("", [])
    assert "at exit" in rank.stdout


def test_a_rank_that_refuses_its_arguments_says_only_that(torch_python: Path, tmp_path: Path) -> None:
    told = str(tmp_path / "probe.rank{rank}.json")
    (rank,) = run(tmp_path, torch_python, "--local_rank=0", runner=False, told=told, expect=2)
    assert rank.stderr.endswith("train_once.py: error: unrecognized arguments: --local_rank=0\n")
