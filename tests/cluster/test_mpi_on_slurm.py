"""Ranks over MPI on a real Slurm: through `srun --mpi=pmix`, and by mpirun inside the job."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from processes import wait_for, workers
from project import PROJECT, Cli
from slurm_study import LONG, SHORT, in_queue, started
from studies import hosts, logged, program, read_json, run_dirs, run_of, starts, steps_done, study_dir

from harness.core import events
from harness.study import rank_exits

pytestmark = [pytest.mark.cluster, pytest.mark.torch, pytest.mark.timeout(1200)]

# Two nodes for four ranks. They share this machine's cores without Slurm's knowledge, so MPI must not busy-wait.
TWO_NODES = ("strategy=mpi", "cluster.gpus_per_node=2", "+cluster.env.OMPI_MCA_mpi_yield_when_idle=1")


@pytest.fixture(autouse=True)
def _environment(torch_python: Path) -> None:
    """Every test here needs the PyTorch environment."""
    if not torch_python.with_name("mpirun").exists():
        pytest.skip("the PyTorch environment has no MPI of its own: it was built with MPI=system")


def batch_scripts(folder: Path) -> list[str]:
    return [path.read_text() for path in study_dir(folder).glob("submitit/*/submission.sh")]


def recording(folder: Path, env: dict[str, str]) -> tuple[dict[str, str], Callable[[], list[str]]]:
    """Return an environment in which srun is recorded, and a function that returns the collective that each step with
    PMIx was told. Slurm does not pass it on to the ranks."""
    asked = folder / "asked"
    script = f'#!/bin/sh\necho "$SLURM_PMIX_FENCE $*" >> {asked}\nexec {shutil.which("srun")} "$@"\n'
    path = program(folder / "recording" / "srun", script).parent

    def collectives() -> list[str]:
        return [line.split(" ")[0] for line in asked.read_text().splitlines() if "--mpi=pmix " in line]

    return {**env, "PATH": f"{path}:{env['PATH']}"}, collectives


@pytest.mark.parametrize(("mpi", "sizes"), [("null", (2, 4)), ("mpirun", (4,))])
def test_ranks_on_two_nodes_are_one_world(
    slurm: Any, cli: Cli, tmp_path: Path, mpi: str, sizes: tuple[int, ...]
) -> None:
    env, collectives = recording(tmp_path, slurm.env)
    done = cli("harness", "-m", f"gpus={','.join(map(str, sizes))}", *SHORT, *TWO_NODES, f"cluster.mpi={mpi}", env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    for gpus in sizes:
        run_dir = run_of(tmp_path, gpus)
        assert [start["world_size"] for start in starts(run_dir)] == [gpus] * gpus
        first, *others = hosts(run_dir)
        assert others == [first] * (gpus - 1) if gpus == 2 else others[0] == first != others[1] == others[2]
        gradients = [logged(run_dir, "gradients", rank=rank)[0] for rank in range(gpus)]
        assert len({(event["sum"], event["magnitude"]) for event in gradients}) == 1
    assert collectives() == (["ring"] * len(sizes) if mpi == "null" else [])
    assert all(("--mpi=pmix" in script) == (mpi == "null") for script in batch_scripts(tmp_path))


def test_ranks_inside_an_allocation_are_one_world(slurm: Any, tmp_path: Path) -> None:
    env, collectives = recording(tmp_path, slurm.env)
    log = tmp_path / "headless.log"
    submitted = slurm.run(
        *("sbatch", "--wait", "--nodes=2", "--ntasks-per-node=2", "--gres=gpu:2", "--time=10", f"--output={log}"),
        *(PROJECT / "sbatch" / "headless.sh", "gpus=4", *SHORT, *TWO_NODES, f"results={tmp_path}/results"),
        cwd=PROJECT,
        env=env,
        timeout=500,
    )
    assert submitted.returncode == 0, log.read_text()
    assert [start["world_size"] for start in starts(run_of(tmp_path, 4))] == [4] * 4
    assert collectives() == ["ring"]


def test_a_killed_rank_is_named_although_pmix_kills_all_supervisors_too(slurm: Any, cli: Cli, tmp_path: Path) -> None:
    fault = ("fault=kill_rank", "fault.step=5", "fault.rank=3", "checkpoint.interval_steps=2", "measure.block_steps=2")
    done = cli("harness", "gpus=4", *SHORT, *TWO_NODES, *fault, "checkpoint.max_restarts=1", env=slurm.env)
    assert done.returncode == 0, done.stdout + done.stderr
    (run_dir,) = run_dirs(tmp_path)
    again = read_json(run_dir / "attempt-1" / "again.json")
    assert (again["by"], again["reason"]) == ("failure", "rank 3 was ended by signal 9 (SIGKILL)")
    assert logged(run_dir, "resume", 2)[0]["step"] == 4


def test_warned_at_the_wall_limit_the_ranks_of_mpirun_save_on_all_nodes(slurm: Any, tmp_path: Path) -> None:
    with started(slurm, tmp_path, "gpus=4", *LONG, *TWO_NODES, "cluster.mpi=mpirun", "measure.steps=60") as process:
        wait_for(lambda: steps_done(tmp_path, 4) >= 6, 240)
        slurm.run("scancel", "--signal=USR2", "--me")  # like Slurm before the limit
        output, _ = process.communicate(timeout=600)
    assert process.returncode == 0, output
    run_dir = run_of(tmp_path, 4)
    assert [d.name for d in events.attempt_dirs(run_dir)] == ["attempt-1", "attempt-2"]
    left = [logged(run_dir, "leave", 1, rank)[0]["step"] for rank in range(4)]
    again = read_json(run_dir / "attempt-1" / "again.json")
    assert [again["by"], *left] == ["wall limit", *[again["step"]] * 4]
    assert logged(run_dir, "resume", 2)[0]["step"] == again["step"]


def test_cancelled_mpirun_ranks_save_first(slurm: Any, cli: Cli, tmp_path: Path) -> None:
    """Slurm signals every process of a step, including mpirun's daemons, which would kill the ranks."""
    done = cli("harness", "gpus=4", *LONG, *TWO_NODES, "cluster.mpi=mpirun", "wait=false", env=slurm.env)
    assert done.returncode == 0, done.stderr
    wait_for(lambda: steps_done(tmp_path, 4) >= 4, 240)
    slurm.run("scancel", "--signal=TERM", "--me")
    run_dir = run_of(tmp_path, 4)
    wait_for(lambda: len(rank_exits.read(run_dir / "attempt-1")) == 4, 120)
    assert {exit_.code for exit_ in rank_exits.read(run_dir / "attempt-1")} == {events.LEFT}
    wait_for(lambda: not in_queue(slurm), 240)
    assert not workers(tmp_path, gpus=4)
    assert not (run_dir / "result.json").exists()


def test_ranks_that_srun_does_not_announce_to_mpi_are_not_a_result(slurm: Any, cli: Cli, tmp_path: Path) -> None:
    """Open MPI 4 then ends the ranks; 5 and MPICH would let each train alone (tests/launch/test_mpi_local.py)."""
    done = cli("harness", "gpus=2", *SHORT, *TWO_NODES, "cluster.mpi=none", env=slurm.env)
    assert done.returncode == 1
    (run_dir,) = run_dirs(tmp_path)
    result = read_json(run_dir / "result.json")
    assert result["status"] == "failed"
    assert any('direct launched using "srun"' in line or "cluster.mpi" in line for line in result["stderr_tail"])
