"""Faults of shared clusters provoked on a real Slurm: nothing hangs, nothing is lost, and no failure counts as
success."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from processes import supervisors, wait_for, workers
from project import Cli
from slurm_study import LONG, LONG_TRAINED, SHORT, empty, in_queue, started
from studies import hosts, logged, losses, printed_until, read_json, run_dirs, run_of, steps_done

from harness.core import events

pytestmark = [pytest.mark.cluster, pytest.mark.torch, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def small_disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A file system of its own, mounted before a cluster starts, so that its nodes see it."""
    disk = tmp_path_factory.mktemp("disk")
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=32m", "tmpfs", str(disk)], check=True)
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


@pytest.fixture(scope="module")
def one_node(another_slurm: Any, small_disk: Path) -> Iterator[Any]:
    """A cluster of one node, for faults of its controller, of all of it, and of its disk."""
    with another_slurm(nodes=1, gpus_per_node=4) as cluster:
        yield cluster


@pytest.fixture
def slurm_of_one(one_node: Any) -> Iterator[Any]:
    """That cluster, with no job."""
    yield one_node
    empty(one_node)


@pytest.fixture(autouse=True)
def _environment(torch_python: Path) -> None:
    """Every test here needs the PyTorch environment."""


def uncut(cli: Cli, slurm: Any, *arguments: str) -> None:
    done = cli("harness", *arguments, env=slurm.env)
    assert done.returncode == 0, done.stdout + done.stderr


def test_at_the_wall_limit_a_run_saves_goes_back_into_the_queue_and_goes_on(
    slurm: Any, cli: Cli, tmp_path: Path
) -> None:
    """At the real limit, not by a manual signal. Slurm checks every 30 s and may warn that much early, here 30 to 60 s
    after the start: an attempt that has not begun to train until then only costs another one."""
    # Steps mostly wait, which takes no longer on a busy machine; together longer than the warning can take.
    work = ("measure.steps=70", "fault=slow_rank", "fault.seconds=1")
    limit = ("cluster.timeout_minutes=2", "cluster.signal_seconds=60", *work)
    with started(
        slurm, tmp_path, "gpus=2", *LONG, "checkpoint.interval_steps=0", "checkpoint.max_requeues=30", *limit
    ) as p:
        output, _ = p.communicate(timeout=1000)
    assert p.returncode == 0, output
    (run_dir,) = run_dirs(tmp_path)
    attempts = events.attempt_dirs(run_dir)
    assert len(attempts) >= 2
    for number in range(1, len(attempts)):
        again = read_json(run_dir / f"attempt-{number}" / "again.json")
        assert again["by"] == "wall limit"
        left = [logged(run_dir, "leave", number, rank)[0]["step"] for rank in range(2)]
        assert left[0] == left[1] == again["step"], "all ranks leave at the same step"
        assert logged(run_dir, "resume", number + 1)[0]["step"] == again["step"]
        assert logged(run_dir, "resume", number + 1)[0]["lost_steps"] == 0
    assert read_json(run_dir / "result.json")["attempt"] == len(attempts)
    assert not (run_dir / "checkpoint").exists(), "what is completed needs no checkpoint"


def test_run_without_requeues_left_fails_and_rerunning_resumes_it(slurm: Any, cli: Cli, tmp_path: Path) -> None:
    arguments = ("gpus=1", *LONG, "measure.steps=200", "checkpoint.max_requeues=0", "cluster.signal_seconds=40")
    with started(slurm, tmp_path, *arguments) as process:
        wait_for(lambda: steps_done(tmp_path) >= 10, 240)
        slurm.run("scancel", "--signal=USR2", "--me")
        output, _ = process.communicate(timeout=600)
    assert process.returncode == 1, output
    (run_dir,) = run_dirs(tmp_path)
    result = read_json(run_dir / "result.json")
    assert result["status"] == "failed"
    saved = int(result["reason"].split("saved at step ")[1].split(";")[0])
    assert saved >= 10
    again = cli("harness", *arguments, env=slurm.env)
    assert again.returncode == 0, again.stdout + again.stderr
    assert logged(run_dir, "resume", 2)[0]["step"] == saved


# Emulated weights depend on the samples that the ranks used. test_resume.py covers PyTorch's state.
@pytest.mark.parametrize(
    "trained", [LONG, pytest.param(LONG_TRAINED, marks=pytest.mark.whole)], ids=["emulated", "pytorch"]
)
def test_a_preempted_run_continues_bit_for_bit(slurm: Any, cli: Cli, tmp_path: Path, trained: tuple[str, ...]) -> None:
    # With more than two ranks, a sum depends on the order of summation.
    arguments = ("gpus=3", *trained, "measure.steps=60", "checkpoint.max_requeues=0")
    with started(slurm, tmp_path, *arguments) as process:
        wait_for(lambda: steps_done(tmp_path, 3) >= 10, 240)
        node = hosts(run_of(tmp_path, 3))[0]
        urgent = slurm.run(
            "sbatch", "--parsable", "--partition=high", f"--nodelist={node}", "--exclusive", "--time=1",
            "--output=/dev/null", "--wrap=sleep 5", check=True,
        ).stdout.strip()  # fmt: skip
        output, _ = process.communicate(timeout=600)
    assert process.returncode == 0, output
    run_dir = run_of(tmp_path, 3)
    assert read_json(run_dir / "attempt-1" / "again.json")["by"] == "preemption"
    assert len({logged(run_dir, "leave", 1, rank)[0]["step"] for rank in range(3)}) == 1
    assert slurm.run("sacct", "-X", "-n", "-P", "-j", urgent, "--format=State").stdout.strip() == "COMPLETED"

    other = tmp_path / "uncut"
    other.mkdir()
    done = cli("harness", *arguments, f"results={other}", env=slurm.env)
    assert done.returncode == 0, done.stdout + done.stderr
    (whole,) = (other / "scaling" / "runs").iterdir()
    assert len(events.attempt_dirs(whole)) == 1
    assert losses(run_dir) == losses(whole)
    assert len(losses(whole)) == 3 * 31
    ends = [logged(d, "end", attempt)[0]["weights_checksum"] for d, attempt in ((run_dir, 2), (whole, 1))]
    assert ends[0] == ends[1]


@pytest.mark.parametrize("slurmctld", [pytest.param("knows", marks=pytest.mark.whole), "notices later"])
def test_a_node_whose_power_is_cut_in_the_middle_of_a_step(slurm: Any, tmp_path: Path, slurmctld: str) -> None:
    with started(slurm, tmp_path, "gpus=2", "cluster.gpus_per_node=1", *LONG, "measure.steps=100") as process:
        wait_for(lambda: steps_done(tmp_path, 2) >= 24, 240)
        run_dir = run_of(tmp_path, 2)
        victim = hosts(run_dir)[1]
        try:
            slurm.node_fail(victim) if slurmctld == "knows" else slurm.node_kill(victim)
            output, _ = process.communicate(timeout=600)  # on the two other nodes
        finally:
            slurm.node_back(victim)
    assert process.returncode == 0, output
    assert victim not in hosts(run_dir, 2)
    resume = logged(run_dir, "resume", 2)[0]
    assert resume["step"] >= 20
    assert resume["step"] % 20 in (0, 2), "from the last interval's checkpoint"
    assert read_json(run_dir / "result.json")["status"] == "completed"


def test_a_rank_that_hangs_ends_its_job_and_says_where_it_hung(slurm: Any, tmp_path: Path) -> None:
    # Longer than two ranks take to start on two busy cores, so that they have started before the hang.
    hang = ("heartbeat=60", "fault=hang", "fault.step=21", "fault.rank=1")
    with started(slurm, tmp_path, "gpus=2", "cluster.gpus_per_node=1", *LONG_TRAINED, *hang) as process:
        output, _ = process.communicate(timeout=600)
    assert process.returncode == 1, output
    run_dir = run_of(tmp_path, 2)
    result = read_json(run_dir / "result.json")
    assert result["status"] == "failed"
    assert len(set(hosts(run_dir))) == 2
    assert result["reason"].startswith("rank 1: no progress for 60 s (heartbeat)"), "not rank 0, which waits for it"
    assert "_hang" in (run_dir / "attempt-1" / "stderr.rank1").read_text(), "its stacks"
    assert not workers(tmp_path, gpus=2)
    wait_for(lambda: not in_queue(slurm), 60)  # COMPLETING: Slurm checks that the nodes are free of the job


@pytest.mark.whole  # in CI, the same without Slurm
def test_failed_run_restarts_from_its_checkpoint_as_often_as_allowed(slurm: Any, tmp_path: Path) -> None:
    fault = ("fault=kill_node", "fault.step=31", "fault.rank=3", "checkpoint.max_restarts=1")
    two_nodes = ("gpus=4", "cluster.gpus_per_node=2")
    with started(slurm, tmp_path, *two_nodes, *LONG, "measure.steps=40", *fault) as process:
        output, _ = process.communicate(timeout=600)
    assert process.returncode == 0, output
    run_dir = run_of(tmp_path, 4)
    assert [bool(logged(run_dir, "fault", 1, rank)) for rank in range(4)] == [False] * 2 + [True] * 2
    assert read_json(run_dir / "attempt-1" / "again.json")["by"] == "failure"
    assert logged(run_dir, "resume", 2)[0]["step"] in (20, 22)
    assert not logged(run_dir, "fault", 2, 3), "a fault is injected once"


def test_an_exception_in_every_rank_is_a_failure_with_its_reason(slurm: Any, tmp_path: Path) -> None:
    arguments = (*SHORT, "gpus=1", "dataset=fashion_mnist", "data.check=false", f"data.root={tmp_path}/nowhere")
    with started(slurm, tmp_path, *arguments) as process:
        output, _ = process.communicate(timeout=600)
    assert process.returncode == 1, output
    (run_dir,) = run_dirs(tmp_path)
    assert "was not found" in "".join(read_json(run_dir / "result.json")["stderr_tail"])


def test_a_job_over_its_memory_is_no_success(slurm: Any, tmp_path: Path) -> None:
    with started(slurm, tmp_path, "gpus=1", *LONG_TRAINED, "cluster.memory_per_node=120M") as process:
        output, _ = process.communicate(timeout=600)
    assert process.returncode == 1, output
    (run_dir,) = run_dirs(tmp_path)
    result = read_json(run_dir / "result.json")
    assert result["status"] == "failed"
    assert "memory" in result["reason"].lower(), result


def test_the_submitting_process_is_killed_and_the_same_command_finds_its_jobs(
    slurm: Any, cli: Cli, tmp_path: Path
) -> None:
    arguments = ("-m", "gpus=1", "seed=0,1", *SHORT, "measure.steps=60")
    with started(slurm, tmp_path, *arguments) as process:
        printed_until(process, "submitted job")
        process.send_signal(signal.SIGKILL)
        process.wait()
        again = cli("harness", *arguments, env=slurm.env)
    assert again.returncode == 0, again.stdout + again.stderr
    assert "submitted job" not in again.stdout
    for run_dir in run_dirs(tmp_path):
        assert [p.name for p in events.attempt_dirs(run_dir)] == ["attempt-1"]


def test_a_job_that_vanished_from_the_queue_is_a_failure_and_runs_again(
    slurm_of_one: Any, cli: Cli, tmp_path: Path
) -> None:
    slurm = slurm_of_one
    arguments = ("gpus=1", *LONG, "measure.steps=2000")
    with started(slurm, tmp_path, *arguments) as process:
        wait_for(lambda: steps_done(tmp_path) >= 22, 240)
        slurm.script("down")
        slurm.script("up")  # without knowledge of former jobs
        output, _ = process.communicate(timeout=600)
    assert process.returncode == 1, output
    (run_dir,) = run_dirs(tmp_path)
    result = read_json(run_dir / "result.json")
    assert (result["status"], result["written_by"]) == ("failed", "launcher")
    assert "left the queue without a result" in result["reason"]
    assert "saved at step" in result["reason"]
    again = cli("harness", "gpus=1", *LONG, "measure.steps=2000", "wait=false", env=slurm.env)
    assert again.returncode == 0, again.stdout + again.stderr
    wait_for(lambda: logged(run_dir, "resume", 2), 240)
    assert logged(run_dir, "resume", 2)[0]["step"] >= 20


def test_a_batch_script_ended_by_a_signal_is_told_and_the_run_continues(slurm: Any, cli: Cli, tmp_path: Path) -> None:
    arguments = ("gpus=1", *LONG, "measure.steps=60")
    with started(slurm, tmp_path, *arguments) as process:
        wait_for(lambda: steps_done(tmp_path) >= 22, 240)
        # As slurmd does for a requeue. Slurm knows of none, as after a crash of slurmctld, and calls the job FAILED.
        slurm.run("scancel", "--batch", "--signal=TERM", "--me")
        output, _ = process.communicate(timeout=600)
    assert process.returncode == 1, output
    (run_dir,) = run_dirs(tmp_path)
    reason = read_json(run_dir / "result.json")["reason"]
    assert "exit code 0:15: its batch script was ended by SIGTERM" in reason
    assert "saved at step" in reason
    again = cli("harness", *arguments, env=slurm.env)
    assert again.returncode == 0, again.stdout + again.stderr
    assert logged(run_dir, "resume", 2)[0]["step"] >= 20


def test_why_a_job_ended_is_asked_until_the_accounting_answers(slurm_of_one: Any, tmp_path: Path) -> None:
    slurm = slurm_of_one
    with started(slurm, tmp_path, "gpus=1", *LONG, "measure.steps=2000") as process:
        wait_for(lambda: steps_done(tmp_path) > 0, 240)
        slurm.script("dbd-stop")
        try:
            slurm.run("scancel", "--me")
            printed = printed_until(process, "waiting for it to say why jobs have ended")
        finally:
            slurm.script("dbd-start")
        rest, _ = process.communicate(timeout=600)
    assert process.returncode == 1, printed + rest
    (run_dir,) = run_dirs(tmp_path)
    assert "Slurm says CANCELLED" in read_json(run_dir / "result.json")["reason"]


def test_slurmctld_away_while_submitting_and_while_asking(slurm_of_one: Any, cli: Cli, tmp_path: Path) -> None:
    slurm = slurm_of_one
    slurm.script("ctld-stop")
    slow = ("measure.steps=60", "framework.options.compute_ms=500")
    with started(slurm, tmp_path, "gpus=1", *SHORT, *slow) as process:
        printed = printed_until(process, "waiting for it")
        time.sleep(15)
        slurm.script("ctld-start")
        printed += printed_until(process, "submitted job")
        wait_for(lambda: steps_done(tmp_path) > 0, 240)
        slurm.script("ctld-stop")
        asked = time.monotonic()
        status = cli("harness.status", "results/scaling", env=slurm.env)
        assert time.monotonic() - asked < 100
        assert status.returncode == 0, status.stderr
        assert "Slurm does not answer" in status.stdout
        assert "1 completed" in status.stdout or "1 running" in status.stdout
        slurm.script("ctld-start")
        rest, _ = process.communicate(timeout=600)
    assert process.returncode == 0, printed + rest
    assert "1 completed, 0 failed" in rest


def test_jobs_are_queued_while_a_restarted_slurmctld_does_not_know_its_nodes_yet(
    slurm_of_one: Any, cli: Cli, tmp_path: Path
) -> None:
    slurm = slurm_of_one
    slurm.script("slurmd-kill", "n1")
    slurm.script("ctld-stop")
    slurm.script("ctld-start")
    assert slurm.run("sinfo", "--noheader", "--format=%T").stdout.startswith("unknown")
    done = cli("harness", "gpus=1", *SHORT, "wait=false", env=slurm.env)
    slurm.script("node-back", "n1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "nodes are down, drained or unknown" in done.stdout
    again = cli("harness", "gpus=1", *SHORT, env=slurm.env)
    assert again.returncode == 0, again.stdout + again.stderr


@pytest.mark.whole  # in CI, one that becomes read-only, and full disks without Slurm
def test_a_results_folder_that_becomes_full(slurm_of_one: Any, small_disk: Path, cli: Cli) -> None:
    slurm, folder = slurm_of_one, small_disk / "full"
    folder.mkdir()
    arguments = ("gpus=2", *LONG_TRAINED, "measure.steps=2000", f"results={folder}/results")
    with started(slurm, folder, *arguments) as process:
        wait_for(lambda: steps_done(folder, 2) >= 24, 240)
        filled = subprocess.run(["dd", "if=/dev/zero", f"of={small_disk}/filler", "bs=4k"], capture_output=True)
        assert b"No space left" in filled.stderr
        output, _ = process.communicate(timeout=600)
    assert process.returncode == 1, output
    assert "Traceback" not in output
    assert "0 completed, 1 failed" in output
    assert re.search("no space left", output, re.IGNORECASE), output
    wait_for(lambda: not workers(folder, gpus=2), 20)
    (run_dir,) = run_dirs(folder)
    kept = [path.name for path in (run_dir / "checkpoint").iterdir() if not path.name.endswith(".tmp")]
    assert len(kept) == 1, "the checkpoint from before is still there"
    (small_disk / "filler").unlink()
    again = cli("harness", *arguments, "wait=false", env=slurm.env)
    assert again.returncode == 0, again.stdout + again.stderr
    wait_for(lambda: logged(run_dir, "resume", 2), 240)
    assert logged(run_dir, "resume", 2)[0]["step"] >= 20


def test_a_results_folder_that_becomes_read_only(slurm_of_one: Any, small_disk: Path, cli: Cli) -> None:
    slurm = slurm_of_one
    arguments = ("gpus=1", *SHORT, f"results={small_disk}/results")

    def make(how: str) -> None:
        subprocess.run(["mount", "-o", f"remount,{how}", str(small_disk)], check=True)

    slurm.run("scontrol", "update", "partition=main", "state=down", check=True)
    first = cli("harness", *arguments, "wait=false", env=slurm.env)
    assert first.returncode == 0, first.stdout + first.stderr
    make("ro")
    refused = cli("harness", *arguments, "seed=1", env=slurm.env)
    assert refused.returncode == 2
    assert "cannot be written: Read-only file system" in refused.stderr
    slurm.run("scontrol", "update", "partition=main", "state=up", check=True)
    wait_for(lambda: not in_queue(slurm), 240)  # the job cannot even open its log
    status = cli("harness.status", f"{small_disk}/results/scaling", "--json", env=slurm.env)
    assert [run["state"] for run in json.loads(status.stdout)["runs"]] == ["stopped"]
    make("rw")
    again = cli("harness", *arguments, env=slurm.env)
    assert again.returncode == 0, again.stdout + again.stderr


def test_batch_script_notices_killed_supervisors(slurm: Any, tmp_path: Path) -> None:
    """When srun learns that a node is gone, it sends SIGKILL to every task."""
    with started(slurm, tmp_path, "gpus=2", "cluster.gpus_per_node=1", *LONG, "measure.steps=60") as process:
        wait_for(lambda: steps_done(tmp_path, 2) >= 24, 240)
        victims = supervisors(tmp_path)
        assert len(victims) == 2
        for pid in victims:
            os.kill(pid, signal.SIGKILL)
        output, _ = process.communicate(timeout=600)
    assert process.returncode == 0, output
    run_dir = run_of(tmp_path, 2)
    again = read_json(run_dir / "attempt-1" / "again.json")
    assert again["by"] == "lost node"
    assert "without an exit status" in again["reason"]
    assert logged(run_dir, "resume", 2)[0]["step"] == again["step"] >= 20
