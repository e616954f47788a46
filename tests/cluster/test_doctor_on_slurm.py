"""The doctor on a real Slurm: its queries to the controller, and a real probe job."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from processes import wait_for
from project import PROJECT, Cli
from slurm_study import counting, started
from studies import printed_until

from harness.config import composition
from harness.doctor import node_probe

pytestmark = [pytest.mark.cluster, pytest.mark.torch, pytest.mark.timeout(1200)]

ASKED = ("sbatch", "scontrol", "sinfo", "squeue", "sacct", "sacctmgr", "srun")
# The nodes declare GPUs that do not exist: Slurm allocates them, the framework computes on the CPU.
CPU = ("cluster=slurm", "dataset=synthetic", "cluster.device=cpu")
# Loading every framework takes most of the doctor's time, and is not Slurm's matter.
SLURM_ALONE = ("harness.doctor", "--only=slurm")


@pytest.fixture(autouse=True)
def _environment(torch_python: Path) -> None:
    """Every test here needs the PyTorch environment."""


def checks(done: subprocess.CompletedProcess[str]) -> dict[str, dict[str, str]]:
    """Return the checks of `--json` by group and name."""
    assert "Traceback" not in done.stderr
    return {f"{check['group']}: {check['name']}": check for check in json.loads(done.stdout)}


def missing(done: subprocess.CompletedProcess[str]) -> list[str]:
    return [name for name, check in checks(done).items() if check["state"] == "missing"]


@contextmanager
def hidden_from(slurm: Any, node: str, folder: Path) -> Iterator[None]:
    """Show the node an empty folder, as if the file system were not shared."""
    process = (slurm.folder / "run" / f"node-{node}.pid").read_text().split()[0]
    inside = ("nsenter", "--target", process, "--mount")
    slurm.run(*inside, "mount", "-t", "tmpfs", "tmpfs", folder, check=True)
    try:
        yield
    finally:
        slurm.run(*inside, "umount", folder, check=True)


def left_behind(slurm: Any, tmp_path: Path) -> list[str]:
    """Return the doctor's jobs in the queue, and all files."""
    jobs = slurm.run("squeue", "--noheader", "--format=%j", check=True).stdout.split()
    return [name for name in jobs if "doctor" in name] + [str(path) for path in tmp_path.iterdir()]


def test_a_healthy_cluster(cli: Cli, slurm: Any, tmp_path: Path) -> None:
    done = cli(*SLURM_ALONE, *CPU, "gpus=12", "cluster.gpu_type=v100", "--json", env=slurm.env)
    assert done.returncode == 0, done.stdout + done.stderr
    found = checks(done)
    assert found["Slurm: sbatch"]["found"].startswith("slurm")
    assert "is UP" in found["Slurm: controller"]["found"]
    assert found["Slurm: accounting"]["found"] == "answers"
    assert found["Slurm: accounts"]["found"] == "root (QOS normal)"
    # As sbatch/slurm-cluster.sh sets them.
    assert found["Slurm: limits"]["found"] == "MaxArraySize=10001, MaxJobCount=50000, KillWait=8 sec"
    assert "pmi2" in found["Slurm: MPI"]["found"]
    assert found["Slurm: partition main"]["found"].endswith("/3, the default")
    assert found["Slurm: partition high"]["state"] == "ok"
    assert found["Slurm: GPUs per node"]["found"] == "gpu:v100:4 needed; the nodes have gpu:v100:4 on 3"
    assert found["Slurm: cores per node"]["found"] == "8 (4 ranks x 2) needed; the nodes have 8 cores on 3"
    assert found["Slurm: nodes"]["found"].startswith("3 of 3 in main meet all")
    assert "GraceTime=20 s: preempted jobs are warned first" in found["Slurm: preemption"]["found"]
    assert found["Slurm: test submission"]["found"] == "a job of one node with 4 ranks would be accepted"
    assert left_behind(slurm, tmp_path) == []


@pytest.mark.parametrize(
    ("arguments", "expected", "advice"),
    [
        (
            ["cluster.gpu_type=a100"],
            ["Slurm: GPUs per node", "Slurm: nodes", "Slurm: test submission"],
            "set cluster.gpu_type=v100",
        ),
        (
            ["cluster.gpus_per_node=8", "cluster.cpus_per_gpu=1"],
            ["Slurm: GPUs per node", "Slurm: nodes", "Slurm: test submission"],
            "set cluster.gpus_per_node=4",
        ),
        (
            ["cluster.cpus_per_gpu=3"],
            ["Slurm: cores per node", "Slurm: nodes", "Slurm: test submission"],
            "set cluster.cpus_per_gpu to at most 2",
        ),
        (
            ["cluster.memory_per_node=100GB"],
            ["Slurm: memory per node", "Slurm: nodes", "Slurm: test submission"],
            "set cluster.memory_per_node to at most 64000MB",
        ),
        (["gpus=16"], ["Slurm: nodes"], "the configuration needs 4"),
        (
            ["cluster.partition=gpu"],
            ["Slurm: partition gpu", "Slurm: test submission"],
            "set cluster.partition to one of: main, high",
        ),
        (["cluster.constraint=fast"], ["Slurm: test submission"], "cluster.constraint"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) and "=" in value[0] else "",
)
def test_missing_node_features_are_reported(
    cli: Cli, slurm: Any, arguments: list[str], expected: list[str], advice: str
) -> None:
    done = cli(*SLURM_ALONE, *CPU, *arguments, "--json", env=slurm.env)
    assert done.returncode == 1
    assert missing(done) == expected
    assert advice in checks(done)[expected[0]]["advice"]


def test_an_account_that_is_not_the_users(cli: Cli, slurm: Any) -> None:
    done = cli(*SLURM_ALONE, *CPU, "cluster.account=theirs", "--json", env=slurm.env)
    check = checks(done)["Slurm: accounts"]
    assert check["state"] == "note", "this cluster does not enforce accounts"
    assert "cluster.account=theirs is not among root's" in check["found"]


def test_a_build_without_cuda_for_gpu_nodes(cli: Cli, slurm: Any, torch_python: Path) -> None:
    cuda = subprocess.run([torch_python, "-c", "import torch; assert torch.version.cuda"], capture_output=True)
    if cuda.returncode == 0:
        pytest.skip("this is a CUDA build of torch")
    done = cli("harness.doctor", "cluster=slurm", "dataset=synthetic", "--only=framework", "--json", env=slurm.env)
    assert done.returncode == 1
    assert missing(done) == ["frameworks: pytorch"]
    assert "GPU=<v100, a100, ...> sbatch/env/pytorch.sh" in checks(done)["frameworks: pytorch"]["advice"]


def test_a_cluster_as_it_changes_and_goes_away(
    cli: Cli, another_slurm: Callable[..., AbstractContextManager[Any]], tmp_path: Path
) -> None:
    def look(*arguments: str) -> subprocess.CompletedProcess[str]:
        return cli(*SLURM_ALONE, *CPU, "cluster.gpus_per_node=2", *arguments, "--json", env=slurm.env)

    # No --signal before a preemption, associations enforced, jobs beyond a partition's limit not refused.
    conf = "SlurmctldParameters=max_dbd_msg_action=discard\nAccountingStorageEnforce=associations\nEnforcePartLimits=NO"
    with another_slurm(nodes=2, gpus_per_node=2, extra_conf=conf) as slurm:
        slurm.run("scontrol", "update", "partitionname=main", "maxtime=10", check=True)
        slurm.run("sacctmgr", "-i", "modify", "user", "root", "set", "maxsubmitjobs=7", check=True)
        done = look()
        assert missing(done) == ["Slurm: partition main"]
        assert checks(done)["Slurm: partition main"]["advice"] == "set cluster.timeout_minutes to at most 10"
        assert "set cluster.max_submit=7" in checks(done)["Slurm: accounts"]["advice"]
        assert checks(done)["Slurm: limits"]["state"] == "note"
        assert "preempted jobs get no warning" in checks(done)["Slurm: preemption"]["found"]
        assert checks(done)["Slurm: preemption"]["advice"].startswith("set checkpoint.interval_steps")
        assert missing(look("cluster.timeout_minutes=10")) == []
        assert "Slurm: accounts" in missing(look("cluster.account=theirs"))
        assert checks(look("cluster.max_submit=7"))["Slurm: accounts"]["state"] == "ok"

        slurm.run("scontrol", "update", "nodename=n[1-2]", "state=drain", "reason=test", check=True)
        nodes = checks(look("cluster.timeout_minutes=10"))["Slurm: nodes"]
        assert (nodes["state"], nodes["found"].split("; ")[-1]) == ("note", "0 accept jobs now")

        slurm.script("dbd-stop")
        accounting = checks(look())["Slurm: accounting"]
        assert (accounting["state"], "does not answer" in accounting["found"]) == ("note", True)

        slurm.script("ctld-stop")
        env, log = counting(tmp_path, slurm.env, *ASKED)
        done = cli("harness.doctor", *CPU, "--json", env=env)
        called = log.read_text().splitlines()
        assert called == ["sbatch --version", "scontrol ping"], "what does not answer is asked once"
        assert done.returncode == 1
        assert missing(done) == ["Slurm: controller"]
        assert "DOWN" in checks(done)["Slurm: controller"]["found"]
        assert checks(done)["frameworks: pytorch"]["state"] == "ok", "the other groups are looked at all the same"

        done = look("--probe")
        assert missing(done) == ["Slurm: controller", "probe: job"]


@pytest.mark.parametrize(
    ("framework", "further"),
    # MXNet has no compiler to try, which takes most of the probe's time.
    [("mxnet", set()), pytest.param("pytorch", {"convolution, bf16", "compile=true"}, marks=pytest.mark.whole)],
    ids=["mxnet", "pytorch"],
)
def test_the_probe_job_tells_what_its_node_sees_and_reduces_over_two(
    cli: Cli, slurm: Any, tmp_path: Path, environments: None, framework: str, further: set[str]
) -> None:
    two_nodes = ("gpus=4", "cluster.gpus_per_node=2", f"framework={framework}")
    done = cli(*SLURM_ALONE, *CPU, *two_nodes, "--probe", "--json", env=slurm.env)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "waiting up to 10 min for its start, Ctrl-C cancels it" in done.stderr
    found = {name: check["found"] for name, check in checks(done).items() if check["group"] == "probe"}
    job, host = re.match(r"job (\d+) ran on (n[123])", found["probe: job"]).groups()  # type: ignore[union-attr]
    assert host != socket.gethostname()
    assert found["probe: results folder"] == f"{host} and this machine read each other's files"
    assert found["probe: harness"] == f"{sys.executable} starts on {host}"
    assert found["probe: ranks"] == f"srun started 4 of 4 ranks on {host}"
    assert found["probe: GPUs"].startswith(f"{host} ")
    assert {"mxnet": "mxnet ", "pytorch": "torch "}[framework] in found[f"probe: {framework}"]
    assert found["probe: data set synthetic"] == f"on {host}: generated from the seed"
    # Tiny runs of the real worker, with as many ranks as the node has GPUs, and on both nodes.
    prefix = f"probe: {framework}: "
    computed = {name.removeprefix(prefix): text for name, text in found.items() if name.startswith(prefix)}
    assert set(computed) == {"convolution, fp32", "allreduce, 2 ranks", "allreduce, 2 nodes"} | further
    states = {name: checks(done)[prefix + name]["state"] for name in computed}
    if "emulat" in computed.get("convolution, bf16", ""):  # a processor without instructions for bf16
        assert states.pop("convolution, bf16") == "note"
    assert set(states.values()) == {"ok"}, computed
    assert all(text.startswith("on the CPU, ") for text in computed.values()), computed
    # One machine, one clock.
    assert float(re.search(r"agree, to within ([\d.]+) s", found["probe: clock"])[1]) < 10  # type: ignore[index]
    assert left_behind(slurm, tmp_path) == []
    shape = slurm.run("scontrol", "--oneliner", "show", "job", job, check=True).stdout
    assert "TimeLimit=00:15:00" in shape
    assert "gres:gpu:2" in shape or "gres/gpu=4" in shape


def test_the_probe_finds_that_there_is_no_gpu_and_no_data_on_the_node(cli: Cli, slurm: Any, tmp_path: Path) -> None:
    data = tmp_path / "data" / "cifar10"
    data.mkdir(parents=True)
    for name in (*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin"):
        (data / name).touch()
    with hidden_from(slurm, "n1", data):
        done = cli(
            *("harness.doctor", "cluster=slurm", "dataset=cifar10", "+cluster.sbatch_args.nodelist=n1"),
            *("cluster.gpus_per_node=1", "--only=slurm,data", "--probe", "--json"),
            env=slurm.env,
        )
    assert checks(done)["data sets: cifar10"]["state"] == "ok"
    assert {"probe: GPUs", "probe: pytorch", "probe: data set cifar10"} <= set(missing(done))
    assert "nothing in" in checks(done)["probe: data set cifar10"]["found"]
    convolution = checks(done)["probe: pytorch: convolution, fp32"]
    assert "sees no GPU here" in convolution["found"]
    assert "use a CUDA build of it on a GPU node" in convolution["advice"]


def test_the_probe_finds_a_results_folder_that_the_node_does_not_share(cli: Cli, slurm: Any, tmp_path: Path) -> None:
    results = tmp_path / "results"
    results.mkdir()
    with hidden_from(slurm, "n1", results):
        done = cli(*SLURM_ALONE, *CPU, "+cluster.sbatch_args.nodelist=n1", "--probe", "--json", env=slurm.env)
    assert done.returncode == 1
    assert missing(done) == ["probe: results folder"]
    check = checks(done)["probe: results folder"]
    assert check["found"] == f"node n1 does not see {results}"
    assert "results=" in check["advice"]
    assert list(results.iterdir()) == []


def test_the_probe_finds_a_python_that_the_node_does_not_have(cli: Cli, slurm: Any) -> None:
    with hidden_from(slurm, "n1", Path(sys.executable).parent):
        done = cli(*SLURM_ALONE, *CPU, "+cluster.sbatch_args.nodelist=n1", "--probe", "--json", env=slurm.env)
    assert done.returncode == 1
    assert missing(done) == ["probe: harness"]
    assert "No such file" in checks(done)["probe: harness"]["found"]


def test_the_framework_is_asked_in_its_container(cli: Cli, slurm: Any, tmp_path: Path, environments: None) -> None:
    # Replaces Apptainer: runs what follows the image, without a container.
    runtime = tmp_path / "bin" / "apptainer"
    runtime.parent.mkdir()
    runtime.write_text(
        '#!/bin/bash\n[ "$1" = --version ] && echo apptainer version 1.3.4 && exit\n'
        f'echo "$@" >>{tmp_path}/said\nunset PYTHONPATH\n'
        'while [ "$1" != mxnet.sif ]; do shift; done\nshift\nexec "$@"\n'
    )
    runtime.chmod(0o755)
    (tmp_path / "mxnet.sif").touch()
    env = {**slurm.env, "PATH": f"{runtime.parent}{os.pathsep}{slurm.env['PATH']}"}
    asked = ("cluster.container.runtime=apptainer", "cluster.container.image=mxnet.sif")
    # MXNet has no compiler to try, which takes most of the probe's time.
    inside = ("framework=mxnet", f"framework.environment={PROJECT}/.envs/mxnet/bin/python")
    done = cli(*SLURM_ALONE, *CPU, *asked, *inside, "cluster.gpus_per_node=1", "--probe", "--json", env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "mxnet " in checks(done)["probe: mxnet"]["found"]
    said = (tmp_path / "said").read_text()
    assert said.startswith("exec --nv --bind=")
    assert f"--bind={tmp_path / 'results'}" in said


def test_a_probe_job_that_fails(cli: Cli, slurm: Any, tmp_path: Path) -> None:
    asked = ("cluster.setup=['echo no such module >&2; exit 3']", "--probe", "--json")
    done = cli(*SLURM_ALONE, *CPU, *asked, env=slurm.env)
    assert done.returncode == 1
    check = checks(done)["probe: job"]
    assert missing(done) == ["probe: job"]
    assert "ended as FAILED (NonZeroExitCode, exit code 3:0): no such module" in check["found"]
    assert left_behind(slurm, tmp_path) == []


def test_a_probe_job_that_slurm_refuses(cli: Cli, slurm: Any, tmp_path: Path) -> None:
    done = cli(*SLURM_ALONE, *CPU, "cluster.partition=gpu", "--probe", "--json", env=slurm.env)
    check = checks(done)["probe: job"]
    assert check["state"] == "missing"
    assert "invalid partition specified: gpu" in check["found"]
    assert "cluster.partition" in check["advice"]
    assert left_behind(slurm, tmp_path) == []


def test_a_probe_job_that_does_not_start_is_cancelled(
    slurm: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_probe, "WAIT_MINUTES", 0.2)
    monkeypatch.setenv("SLURM_CONF", slurm.env["SLURM_CONF"])
    composition.register()
    asked = (*CPU, "+cluster.sbatch_args.begin=now+1hour", f"results={tmp_path}/results")
    (point,) = composition.compose(asked, False, "config", None)
    (check,) = node_probe.probe(point, None, False, print)
    assert check.state == "missing"
    assert "did not start within 0.2 min: PENDING BeginTime; it is cancelled" in check.found
    wait_for(lambda: left_behind(slurm, tmp_path) == [], 60)


def test_an_allocation_is_looked_at_from_inside(cli: Cli, slurm: Any) -> None:
    asked = (*CPU, "cluster.scheduler=allocation", "--json")
    outside = cli(*SLURM_ALONE, *asked, env=slurm.env)
    assert missing(outside) == ["Slurm: allocation"]
    inside = slurm.run(*("salloc", "--quiet", "--nodes=2", "--no-shell", "--job-name=harness-doctor-test"), check=True)
    job = re.search(r"\d+", slurm.run("squeue", "--noheader", "--name=harness-doctor-test", "--format=%A").stdout)[0]  # type: ignore[index]
    try:
        done = cli(*SLURM_ALONE, *asked, env={**slurm.env, "SLURM_JOB_ID": job, "SLURM_JOB_NODELIST": "n[1-2]"})
    finally:
        slurm.run("scancel", job, check=True)
    assert done.returncode == 0, done.stdout + done.stderr + inside.stderr
    assert checks(done)["Slurm: allocation"]["found"] == f"job {job} on n[1-2]"


def test_ctrl_c_cancels_the_probe_job(slurm: Any, tmp_path: Path) -> None:
    arguments = (*CPU, "+cluster.sbatch_args.begin=now+1hour", "--probe")
    with started(slurm, tmp_path, *arguments, module="harness.doctor") as process:
        wait_for(lambda: any("doctor" in name for name in left_behind(slurm, tmp_path)), 240)
        printed_until(process, "PENDING BeginTime")  # the reason may come a moment after the state
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "Traceback" not in output
    assert left_behind(slurm, tmp_path) == []
