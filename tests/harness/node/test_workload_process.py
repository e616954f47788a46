"""Command line, environment and probe settings of a process of the user's own training."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from builders import make_site, make_spec
from studies import read_json

from harness.core.rendezvous import Rendezvous
from harness.core.spec import ClusterSpec, MeasureSpec, Placement, RunSpec
from harness.core.workload.spec import WorkloadSpec
from harness.node import workload
from harness.node.stop_channel import Address

SECOND_NODE = Rendezvous(5, 8, 1, 4, "gpu03", 29500)
# As a task of `srun --ntasks-per-node=1` on the second node sees it.
ONE_PER_NODE = Rendezvous(1, 2, 0, 1, "gpu03", 29500)
SITE = make_site(python="/envs/mine/bin/python", cwd="/home/me", project="/project")
ATTEMPT = Path("/study/runs/r/attempt-1")


def spec(command: tuple[str, ...] = ("train.py",), gpus: int = 8, **changes: Any) -> RunSpec:
    kind = changes.pop("kind", "script")
    device = changes.pop("device", "cuda")
    env = changes.pop("env", {})
    own = WorkloadSpec(kind, "train", command, {"lr": 0.1}, "git:1234", 256, **changes)
    nodes = 2 if gpus > 1 else 1
    return make_spec(
        framework=kind,
        workload=own,
        gpus=gpus,
        placement=Placement(nodes, gpus // nodes),
        global_batch=256,
        batch_per_gpu=256 // gpus,
        env=env,
        measure=MeasureSpec(warmup_steps=10, steps=200, block_steps=10, probe_steps=0, evaluate_samples=0),
        cluster=ClusterSpec(name="site", device=device, cpus_per_gpu=7),
    )


def command(run: RunSpec, attempt: Path = ATTEMPT, rendezvous: Rendezvous = SECOND_NODE) -> list[str]:
    return workload.command(run, SITE, attempt.parent, attempt, rendezvous, {})


def environment(run: RunSpec, environ: dict[str, str], rendezvous: Rendezvous = SECOND_NODE) -> dict[str, str]:
    return workload.environment(run, SITE, ATTEMPT, rendezvous, environ)


def test_a_script_runs_through_the_probe_with_its_arguments_filled_in() -> None:
    run = spec(("train.py", "--batch={batch_per_gpu}", "--lr={lr}", "--out={run_dir}/{node_rank}"))
    runner = ["/envs/mine/bin/python", "-u", "/project/harness/probe/scaling_probe_run.py", "train.py"]
    assert command(run) == [*runner, "--batch=32", "--lr=0.1", "--out=/study/runs/r/1"]


def test_a_script_with_a_pattern_runs_alone() -> None:
    run = spec(("-m", "package.train"), pattern="megatron")
    assert command(run) == ["/envs/mine/bin/python", "-u", "-m", "package.train"]


def test_a_command_runs_as_it_is_and_in_a_shell_only_on_request() -> None:
    assert command(spec(("./train", "$HOME", "{gpus}"), kind="command")) == ["./train", "$HOME", "8"]
    assert command(spec(("./train $HOME {gpus}",), kind="command", shell=True)) == ["sh", "-c", "./train $HOME 8"]


# With {"node0": ["4", "5", "6", "7"], "node1": ["4", "5", "6", "7"]} for DeepSpeed.
WORLD = "eyJub2RlMCI6IFsiNCIsICI1IiwgIjYiLCAiNyJdLCAibm9kZTEiOiBbIjQiLCAiNSIsICI2IiwgIjciXX0="


@pytest.mark.parametrize(
    ("launcher", "words"),
    [
        (
            "torchrun",
            "torch.distributed.run --nnodes=2 --node-rank=1 --nproc-per-node=4 --master-addr=gpu03 --master-port=29500",
        ),
        (
            "accelerate",
            "accelerate.commands.launch --multi_gpu --num_processes=8 --num_machines=2 --machine_rank=1 "
            "--main_process_ip=gpu03 --main_process_port=29500 --same_network",
        ),
        (
            "deepspeed",
            f"deepspeed.launcher.launch --world_info={WORLD} --node_rank=1 --master_addr=gpu03 --master_port=29500",
        ),
    ],
)
def test_a_launcher_of_the_environment_starts_the_ranks_of_a_node(launcher: str, words: str) -> None:
    devices = {"CUDA_VISIBLE_DEVICES": "4,5,6,7"}
    for script, called in ((("train.py", "{gpus}"), "train.py 8"), (("-m", "a.b", "-m"), "--module a.b -m")):
        run = spec(script, launcher=launcher)
        argv = workload.command(run, SITE, ATTEMPT.parent, ATTEMPT, ONE_PER_NODE, devices)
        assert " ".join(argv) == f"{SITE.python} -u -m {words} {called}"
    tasks = ("RANK", "PMIX_RANK", "PMI_RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID")
    env = environment(run, {**devices, **dict.fromkeys(tasks, "1")}, ONE_PER_NODE)
    assert not env.keys() & {*workload.RANK_VARIABLES, *tasks}
    assert (env["CUDA_VISIBLE_DEVICES"], env["OMP_NUM_THREADS"]) == ("4,5,6,7", "7")
    assert env["SCALING_PROBE"].endswith("probe.rank{rank}.json")


@pytest.mark.parametrize("launcher", ["torchrun", "accelerate", "deepspeed", "mpirun"])
def test_a_single_process_that_is_not_distributed_needs_no_launcher(launcher: str) -> None:
    run = spec(gpus=1, single="plain", launcher=launcher)
    alone = Rendezvous(0, 1, 0, 1, "127.0.0.1", 29500)
    assert command(run, rendezvous=alone) == [
        SITE.python,
        "-u",
        "/project/harness/probe/scaling_probe_run.py",
        "train.py",
    ]
    env = environment(run, {}, alone)
    assert not env.keys() & set(workload.RANK_VARIABLES)
    assert env["SCALING_PROBE"].endswith("probe.rank0.json")


def test_accelerate_does_not_tell_a_single_process_its_rank() -> None:
    run = spec(gpus=1, launcher="accelerate")
    alone = Rendezvous(0, 1, 0, 1, "127.0.0.1", 29500)
    assert command(run, rendezvous=alone)[-2:] == ["/project/harness/probe/scaling_probe_run.py", "train.py"]
    assert environment(run, {}, alone)["SCALING_PROBE"].endswith("probe.rank0.json")


def test_a_rank_of_mpirun_has_mpis_variables() -> None:
    mpi = {"OMPI_COMM_WORLD_RANK": "5", "PMIX_RANK": "5"}
    env = environment(spec(launcher="mpirun"), mpi)
    assert env.keys() >= mpi.keys()
    assert {n: env[n] for n in workload.RANK_VARIABLES if n in env} == {"MASTER_ADDR": "gpu03", "MASTER_PORT": "29500"}
    assert env["SCALING_PROBE"].endswith("probe.rank5.json")
    assert command(spec(("./train",), kind="command", launcher="mpirun")) == ["./train"]


def test_a_later_attempt_gets_the_arguments_to_resume() -> None:
    run = spec(resume_args=("--resume={run_dir}/last.pt",))
    assert command(run)[-1] == "train.py"
    assert command(run, ATTEMPT.with_name("attempt-2"))[-1] == "--resume=/study/runs/r/last.pt"


def test_a_rank_has_what_torchrun_sets_and_all_gpus_of_its_node() -> None:
    env = environment(spec(), {"CUDA_VISIBLE_DEVICES": "4,5,6,7", "RANK": "77"})
    assert {name: env[name] for name in workload.RANK_VARIABLES if name in env} == {
        "RANK": "5",
        "WORLD_SIZE": "8",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "4",
        "GROUP_RANK": "1",
        "MASTER_ADDR": "gpu03",
        "MASTER_PORT": "29500",
    }
    assert env["CUDA_VISIBLE_DEVICES"] == "4,5,6,7"
    assert env["OMP_NUM_THREADS"] == "7"
    assert env["SCALING_PROBE"] == "/study/runs/r/attempt-1/probe.rank5.json"
    assert "PYTHONUNBUFFERED" not in env


def test_the_harness_is_not_visible_but_for_the_probe() -> None:
    ours = os.pathsep.join((f"{sys.prefix}/bin", "/usr/bin"))
    env = environment(spec(), {"PYTHONPATH": "/project:/mine", "PATH": ours, "VIRTUAL_ENV": sys.prefix})
    assert env["PYTHONPATH"] == "/project/harness/probe:/mine"
    assert env["PATH"] == "/envs/mine/bin:/usr/bin"
    assert "VIRTUAL_ENV" not in env


def test_a_local_run_hides_the_allocation_it_was_started_in() -> None:
    slurm = {"SLURM_JOB_ID": "17", "SLURM_NTASKS": "4", "SLURM_PROCID": "0"}
    assert environment(spec(), slurm).keys() >= slurm.keys()
    assert not environment(spec(), {**slurm, "SUBMITIT_LOCAL_JOB_ID": "1"}).keys() & slurm.keys()


@pytest.mark.parametrize(("single", "sets"), [("distributed", True), ("plain", False)])
def test_a_single_process_is_distributed_or_not(single: str, sets: bool) -> None:
    alone = Rendezvous(0, 1, 0, 1, "127.0.0.1", 29500)
    env = environment(spec(gpus=1, single=single), {"RANK": "3", "WORLD_SIZE": "4"}, alone)
    assert (env.get("RANK"), env.get("WORLD_SIZE")) == (("0", "1") if sets else (None, None))


@pytest.mark.parametrize("changes", [{"processes_per_node": "node"}, {"launcher": "own", "processes_per_node": "node"}])
def test_one_process_per_node_has_the_variables_of_nodes(changes: dict[str, str]) -> None:
    env = environment(spec(**changes), {}, ONE_PER_NODE)
    assert {name: env[name] for name in workload.RANK_VARIABLES if name in env} == {
        "NNODES": "2",
        "NODE_RANK": "1",
        "GROUP_RANK": "1",
        "MASTER_ADDR": "gpu03",
        "MASTER_PORT": "29500",
    }
    # What starts ranks of its own passes it on to them.
    assert env["OMP_NUM_THREADS"] == ("7" if "launcher" in changes else "28")
    assert env["CUDA_VISIBLE_DEVICES"] == "0,1,2,3"


def test_a_cpu_run_sees_no_gpu() -> None:
    assert environment(spec(device="cpu"), {"CUDA_VISIBLE_DEVICES": "0,1"})["CUDA_VISIBLE_DEVICES"] == ""


def test_configured_variables_win() -> None:
    assert environment(spec(env={"OMP_NUM_THREADS": "1"}), {})["OMP_NUM_THREADS"] == "1"


def test_what_the_probe_is_told(tmp_path: Path) -> None:
    start = {"host": "gpu04", "local_rank": 1}
    workload.write_probe_files(spec(), tmp_path, SECOND_NODE, start, Address("gpu03", 27000, "secret"))
    told = read_json(tmp_path / "probe.rank5.json")
    assert told["steps"] == {"warmup": 10, "block": 10, "last": 210}
    assert (told["rank"], told["world_size"], told["samples_per_step"]) == (5, 8, 256)
    assert (told["stop_channel"], told["token"]) == (["gpu03", 27000], "secret")
    assert told["events"] == str(tmp_path / "events.rank5.jsonl")
    assert told["start"] == start


def test_a_launcher_of_its_own_finds_what_each_of_its_ranks_is_told(tmp_path: Path) -> None:
    run = spec(launcher="own", stop=False)
    workload.write_probe_files(run, tmp_path, ONE_PER_NODE, {"host": "gpu04"}, None)
    told = [read_json(tmp_path / f"probe.rank{rank}.json") for rank in range(4, 8)]
    assert [(each["rank"], each["start"]["local_rank"]) for each in told] == [(4, 0), (5, 1), (6, 2), (7, 3)]
    assert {(each["world_size"], each["steps"]["last"]) for each in told} == {(8, None)}
    assert environment(run, {}, ONE_PER_NODE)["SCALING_PROBE"].endswith("probe.rank{rank}.json")
    assert list(workload.ranks_of(run, 1)) == [4, 5, 6, 7]
    assert list(workload.ranks_of(spec(), 5)) == [5]


def test_in_a_container_the_shell_restores_variables_and_the_working_directory() -> None:
    site = make_site(
        python="python3", cwd="/home/my runs", project="/project", container=("apptainer", "exec", "i.sif")
    )
    argv = workload.command(spec(), site, ATTEMPT.parent, ATTEMPT, SECOND_NODE, {})
    assert argv[:3] == ["apptainer", "exec", "i.sif"]
    assert argv[-4:] == ["python3", "-u", "/project/harness/probe/scaling_probe_run.py", "train.py"]
    env = workload.environment(spec(), site, ATTEMPT, SECOND_NODE, {"PYTHONPATH": "/mine"})
    assert "PYTHONPATH" not in env
    assert env["HARNESS_ENVIRONMENT"].endswith("cd '/home/my runs'")
    assert "export PYTHONPATH=/project/harness/probe${PYTHONPATH:+:$PYTHONPATH}" in env["HARNESS_ENVIRONMENT"]
    # pyxis starts it as a task, which is no rank.
    launched = workload.environment(spec(launcher="torchrun"), site, ATTEMPT, ONE_PER_NODE, {})
    unset, *_ = launched["HARNESS_ENVIRONMENT"].splitlines()
    assert {"RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"} < set(unset.split())
    # Variables of the image would be those of every rank.
    alike = workload.environment(spec(launcher="mpirun"), site, ATTEMPT, SECOND_NODE, {})
    unset, *exported = alike["HARNESS_ENVIRONMENT"].splitlines()
    assert set(unset.split()[1:]) == set(workload.RANK_VARIABLES)
    assert {line.split("=")[0].removeprefix("export ") for line in exported} >= {"MASTER_ADDR", "MASTER_PORT"}
