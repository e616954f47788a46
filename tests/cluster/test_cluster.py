"""The temporary Slurm cluster behaves like a Slurm cluster, as the other tests of this folder assume."""

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "sbatch" / "slurm-cluster.sh"


def until(condition: Callable[[], object], seconds: float = 120) -> None:
    """Poll until the condition holds. Slurm's answers lag: the accounting's by up to 5 seconds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"still not so after {seconds} s"
        time.sleep(0.1)


def submit(slurm, script: str, *options: str) -> str:
    """Submit a batch script and return the job id."""
    argv = ["sbatch", "--parsable", "--output=/dev/null", *options]
    return slurm.run(*argv, input=f"#!/bin/bash\n{script}\n", check=True).stdout.strip()


def squeue_is_empty_of(slurm, job: str) -> bool:
    return not slurm.run("squeue", "--noheader", "--jobs", job, check=True).stdout


def accounted_states(slurm, job: str) -> list[str]:
    return slurm.run("sacct", "-X", "-n", "-P", "-o", "state", "-j", job, check=True).stdout.split()


def node_states(slurm) -> dict[str, str]:
    """Query all nodes: for a single one slurmctld returns a cached state, and an idle node may stay `mixed` forever."""
    lines = slurm.run("sinfo", "-h", "-N", "-p", "main", "-o", "%N %T", check=True).stdout.splitlines()
    return dict(line.split() for line in lines)


def heartbeat(path: Path) -> str:
    """Return a batch script whose task keeps writing the time to the file."""
    return f"srun bash -c 'while :; do date +%s.%N >{path}.new; mv {path}.new {path}; sleep .05; done'"


def beats(path: Path, seconds: float = 0.5) -> bool:
    """Return whether the task that writes the file is alive."""
    before = path.exists() and path.read_text()
    time.sleep(seconds)
    return path.exists() and path.read_text() != before


def test_three_nodes_with_four_gpus_are_idle(slurm):
    def sinfo() -> list[str]:
        return slurm.run("sinfo", "-h", "-N", "-p", "main", "-o", "%N %T %G", check=True).stdout.splitlines()

    until(lambda: sinfo() == [f"n{i} idle gpu:v100:4" for i in (1, 2, 3)])


def test_array_job_gets_nodes_of_the_requested_shape_and_sees_its_gpus(slurm, tmp_path):
    tell = "$SLURM_ARRAY_TASK_ID $(hostname) $SLURM_JOB_NODELIST $CUDA_VISIBLE_DEVICES"
    shape = ("--nodes=1", "--ntasks-per-node=2", "--gres=gpu:v100:2", "--mem=1000")
    job = submit(
        slurm, f"srun bash -c 'echo {tell} > {tmp_path}/$SLURM_ARRAY_TASK_ID.$SLURM_PROCID'", "--array=0-3", *shape
    )
    until(lambda: squeue_is_empty_of(slurm, job))

    told = {path.name: path.read_text().split() for path in tmp_path.iterdir()}
    assert sorted(told) == [f"{element}.{rank}" for element in range(4) for rank in range(2)]
    for name, (element, host, node_list, gpus) in told.items():
        assert name.startswith(f"{element}.")
        assert host == node_list, "one node of its own per element"
        assert gpus in ("0,1", "2,3")


def test_tasks_on_two_nodes_see_their_rank_their_host_and_each_other(slurm, tmp_path):
    look = f"echo $SLURM_PROCID $SLURM_NTASKS $(hostname) $(getent hosts n1 n2 n3 | wc -l) > {tmp_path}/$SLURM_PROCID"
    slurm.run("srun", "--nodes=2", "--ntasks=2", "--ntasks-per-node=1", "bash", "-c", look, check=True)

    ranks = [(tmp_path / str(rank)).read_text().split() for rank in range(2)]
    assert [(rank, ntasks, known) for rank, ntasks, _, known in ranks] == [("0", "2", "3"), ("1", "2", "3")]
    hosts = {host for _, _, host, _ in ranks}
    assert len(hosts) == 2
    assert hosts < {"n1", "n2", "n3"}


def test_pmix_gives_ranks_to_tasks_on_two_nodes(slurm):
    done = slurm.run("srun", "--mpi=pmix", "--nodes=2", "--ntasks=2", "printenv", "PMIX_RANK", check=True)
    assert sorted(done.stdout.split()) == ["0", "1"]


def test_sacct_tells_how_jobs_ended(slurm):
    good, bad = submit(slurm, "true"), submit(slurm, "exit 3")
    until(lambda: accounted_states(slurm, good) == ["COMPLETED"])
    until(lambda: accounted_states(slurm, bad) == ["FAILED"])


def test_power_cut_ends_the_tasks_and_the_node_comes_back(slurm, tmp_path):
    beat = tmp_path / "beat"
    job = submit(slurm, heartbeat(beat), "--nodelist=n2", "--no-requeue")
    until(lambda: beats(beat))

    slurm.node_fail("n2")
    assert not beats(beat), "the task must be dead when node_fail returns"
    assert node_states(slurm)["n2"].startswith("down")
    until(lambda: accounted_states(slurm, job) == ["NODE_FAIL"])

    slurm.node_back("n2")
    assert slurm.run("srun", "--nodelist=n2", "hostname", check=True).stdout == "n2\n"


def test_tasks_outlive_slurmd_and_slurmctld(slurm, tmp_path):
    beat = tmp_path / "beat"
    job = submit(slurm, heartbeat(beat), "--nodelist=n1")
    until(lambda: beats(beat))

    slurm.script("slurmd-kill", "n1")
    until(lambda: beats(beat))
    slurm.node_back("n1")
    slurm.script("ctld-stop")
    assert slurm.run(SCRIPT, "status", env={**os.environ, "CLUSTER_DIR": str(slurm.folder)}).returncode == 1
    until(lambda: beats(beat))
    slurm.script("ctld-start")
    assert slurm.run("squeue", "-h", "-j", job, "-o", "%T", check=True).stdout == "RUNNING\n"
    # A node is unknown until slurmctld has heard from it again.
    until(lambda: "unknown" not in node_states(slurm).values())
    slurm.run("scancel", job, check=True)
    until(lambda: not beats(beat))
    until(lambda: set(node_states(slurm).values()) == {"idle"})


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--gres=gpu:v100:9"], "Requested node configuration is not available"),
        (["--nodes=4"], "Node count specification invalid|Requested node configuration is not available"),
        (["--partition=nowhere"], "invalid partition specified: nowhere"),
    ],
)
def test_sbatch_refuses_at_once_what_can_never_run(slurm, options, complaint):
    done = slurm.run("sbatch", *options, "--wrap=true", timeout=20)
    assert done.returncode != 0
    assert any(text in done.stderr for text in complaint.split("|")), done.stderr


def test_second_cluster_on_the_same_ports_is_refused_with_the_reason(slurm, tmp_path):
    settings = {"CLUSTER_DIR": str(tmp_path)[:60], "CLUSTER_PORT": str(slurm.port)}
    done = slurm.run(SCRIPT, "up", env={**os.environ, **settings})
    assert done.returncode == 1
    assert "ports are taken by somebody else" in done.stderr
    assert f"127.0.0.1:{slurm.port}" in done.stderr


def test_down_leaves_no_process_and_job_ids_go_on_after_it(another_slurm):
    with another_slurm(nodes=1, gpus_per_node=0) as cluster:
        running = submit(cluster, "sleep 600")
        first = submit(cluster, "true")
        assert processes_of(cluster.folder)
        cluster.script("down")
        assert not processes_of(cluster.folder)

        cluster.script("up")
        second = submit(cluster, "true")
        assert int(running) < int(first) < int(second)
        listed = cluster.run("squeue", "-h", "-o", "%i", check=True).stdout.split()
        assert running not in listed, "`up` starts with no jobs"
        until(lambda: "RUNNING" not in accounted_states(cluster, running))
    assert not processes_of(cluster.folder)


def processes_of(folder: Path) -> list[str]:
    """Return running processes that name the folder in their command line or environment."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command, environment = ((process / name).read_bytes() for name in ("cmdline", "environ"))
        except OSError:  # it has ended
            continue
        if str(folder).encode() in command + environment:
            found.append(f"{process.name} {command.decode(errors='replace')}")
    return found
