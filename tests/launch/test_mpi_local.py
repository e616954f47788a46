"""MPI ranks on this machine: mpirun starts their supervisors, which decide how a run ends."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from environments import trains_on_cpus
from processes import wait_for, workers
from project import Cli
from studies import EMULATED, UNPROBED, logged, read_json, run_dirs, run_of, started, starts, steps_done

pytestmark = pytest.mark.torch

SHORT = ("cluster=local", "strategy=mpi", *UNPROBED, *EMULATED)
ENDLESS = (*SHORT, "measure.steps=100000", "measure.block_steps=2")


@pytest.fixture(autouse=True)
def _environment(torch_python: Path) -> None:
    """Every test here needs the PyTorch environment."""
    if not torch_python.with_name("mpirun").exists():
        pytest.skip("the PyTorch environment has no MPI of its own: it was built with MPI=system")


def mpiruns(folder: Path) -> list[str]:
    """Return the command lines of mpirun processes of runs in the folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_text(errors="replace").split("\0")
            except OSError:
                continue
            if "mpirun" in words[0] and any(f"{folder}/" in word for word in words):
                found.append(" ".join(words))
    return found


def nothing_is_left(folder: Path, gpus: int = 2) -> bool:
    return not workers(folder, gpus) and not mpiruns(folder)


@pytest.mark.parametrize("strategy", [pytest.param("mpi", marks=pytest.mark.whole), "horovod"])
def test_ranks_over_mpi_are_one_world(cli: Cli, tmp_path: Path, torch_python: Path, strategy: str) -> None:
    asked = [f"strategy={strategy}"]
    if strategy == "mpi":  # by a symbolic link, as users name environments that lie on another disk
        (tmp_path / "linked").symlink_to(torch_python.parents[1])
        asked.append(f"framework.environment={tmp_path / 'linked'}")
    if strategy == "horovod":
        asked.append("strategy.options.controller=mpi")
        if not trains_on_cpus("horovod"):
            pytest.skip("the PyTorch environment has no Horovod: it was built with HOROVOD=0")
    done = cli("harness", "gpus=2", "cluster=local", *UNPROBED, *asked)
    assert done.returncode == 0, done.stdout + done.stderr
    (run_dir,) = run_dirs(tmp_path)
    assert [start["world_size"] for start in starts(run_dir)] == [2, 2]
    gradients = [logged(run_dir, "gradients", rank=rank)[0] for rank in range(2)]
    assert len({(event["sum"], event["magnitude"]) for event in gradients}) == 1
    checksums = {logged(run_dir, "end", rank=rank)[0]["weights_checksum"] for rank in range(2)}
    assert len(checksums) == 1, "the ranks' weights differ"
    assert nothing_is_left(tmp_path)


@pytest.mark.whole  # in CI, on Slurm
def test_a_killed_rank_is_named_and_the_run_goes_on_from_its_checkpoint(cli: Cli, tmp_path: Path) -> None:
    fault = ("fault=kill_rank", "fault.step=5", "fault.rank=1", "checkpoint.interval_steps=2", "measure.block_steps=2")
    first = cli("harness", "gpus=2", *SHORT, *fault)
    assert first.returncode == 1
    (run_dir,) = run_dirs(tmp_path)
    result = read_json(run_dir / "result.json")
    assert result["reason"] == "rank 1 was ended by signal 9 (SIGKILL)"
    assert (result["failed_rank"], result["exit_code"]) == (1, -9)
    assert nothing_is_left(tmp_path)
    restarted = cli("harness", "gpus=2", "seed=1", *SHORT, *fault, "checkpoint.max_restarts=1")
    assert restarted.returncode == 0, restarted.stdout + restarted.stderr
    run_dir = run_of(tmp_path, gpus=2, seed=1)
    assert read_json(run_dir / "attempt-1" / "again.json")["by"] == "failure"
    assert logged(run_dir, "resume", 2)[0]["step"] == 4


@pytest.mark.whole  # in CI, the same of a rank that the harness starts
def test_a_rank_that_hangs_is_ended_by_its_supervisor(cli: Cli, tmp_path: Path) -> None:
    done = cli("harness", "gpus=2", *SHORT, "fault=hang", "fault.step=3", "fault.rank=0", "heartbeat=60")
    assert done.returncode == 1
    (run_dir,) = run_dirs(tmp_path)
    assert "no progress for 60 s (heartbeat)" in read_json(run_dir / "result.json")["reason"]
    assert nothing_is_left(tmp_path)


def test_interrupted_the_ranks_save_and_the_same_command_continues(tmp_path: Path) -> None:
    for attempt, whom in ((1, "terminal"), (2, "process")):
        with started(tmp_path, "gpus=2", *ENDLESS) as process:
            wait_for(lambda attempt=attempt: steps_done(tmp_path, gpus=2, attempt=attempt, rank=1))
            if whom == "terminal":  # Ctrl-C reaches every process of the terminal
                os.killpg(process.pid, signal.SIGINT)
            else:
                process.terminate()
            output, _ = process.communicate(timeout=120)
        assert process.returncode == 130, output
        assert "the same command resumes the study" in output
        assert nothing_is_left(tmp_path)
    (run_dir,) = run_dirs(tmp_path)
    left = [logged(run_dir, "leave", 1, rank)[0]["step"] for rank in range(2)]
    assert left[0] == left[1] == logged(run_dir, "resume", 2)[0]["step"]
    assert not (run_dir / "result.json").exists()


@pytest.mark.quiet
def test_killed_launcher_leaves_no_ranks(tmp_path: Path) -> None:
    with started(tmp_path, "gpus=2", *ENDLESS) as process:
        wait_for(lambda: steps_done(tmp_path, gpus=2, rank=1))
        process.kill()
        killed = time.monotonic()
        wait_for(lambda: nothing_is_left(tmp_path), 30)
        assert time.monotonic() - killed < 25
    (run_dir,) = run_dirs(tmp_path)
    assert not (run_dir / "result.json").exists()
    assert (run_dir / "checkpoint").exists(), "the ranks have saved"


def test_without_mpirun_the_command_says_so(cli: Cli, tmp_path: Path, torch_python: Path) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {torch_python} "$@"\n')
    python.chmod(0o755)
    nowhere = {**os.environ, "PATH": str(tmp_path)}
    done = cli("harness", "gpus=2", *SHORT, f"framework.environment={python}", env=nowhere)
    assert done.returncode == 2
    assert "there is no mpirun to start the ranks" in done.stderr
    refused = cli("harness", "gpus=2", *SHORT, "cluster.mpi=pmix")
    assert refused.returncode == 2
    assert "cluster.mpi=pmix is a name for srun" in refused.stderr


def test_mpirun_errors_are_quoted(cli: Cli, tmp_path: Path, torch_python: Path) -> None:
    """An mpirun next to the interpreter that fails like the real one on a node that lacks something."""
    (tmp_path / "bin").mkdir()
    for name, text in (
        ("python", f'exec {torch_python} "$@"'),
        ("mpirun", f'exec {torch_python.with_name("mpirun")} --host no-such-host.invalid "$@"'),
    ):
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    done = cli("harness", "gpus=2", *SHORT, f"framework.environment={tmp_path}/bin/python")
    assert done.returncode == 1, done.stdout
    (run_dir,) = run_dirs(tmp_path)
    assert "mpirun says:" in read_json(run_dir / "result.json")["reason"]


def test_ranks_that_mpi_was_not_told_of_are_no_result(cli: Cli, tmp_path: Path, torch_python: Path) -> None:
    """As in an image that drops variables: each rank is a world of its own, and would appear to scale perfectly."""
    python = tmp_path / "python"
    python.write_text(
        "#!/bin/sh\n"
        "unset $(env | sed -n 's/^\\(OMPI_[A-Za-z0-9_]*\\|PMIX_[A-Za-z0-9_]*\\)=.*/\\1/p')\n"
        f"export OPAL_PREFIX={torch_python.parent.parent} OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1\n"
        f'exec {torch_python} "$@"\n'
    )
    python.chmod(0o755)
    path = {**os.environ, "PATH": f"{torch_python.parent}:{os.environ['PATH']}"}
    done = cli("harness", "gpus=2", *SHORT, f"framework.environment={python}", env=path)
    assert done.returncode == 1
    (run_dir,) = run_dirs(tmp_path)
    (said,) = [line for line in read_json(run_dir / "result.json")["stderr_tail"] if "sees a world of 1" in line]
    assert "the run has 2 ranks" in said
    assert "cluster.mpi" in said
