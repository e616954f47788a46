"""A machine's description on a real Slurm: every key takes effect, texts stay verbatim, mistakes are rejected first."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from builders import make_request
from processes import wait_for
from project import Cli
from slurm_study import SHORT, in_queue
from studies import described, read_json, run_dirs

from harness.config import cluster_checks
from harness.config.schema import Cluster, Scheduler
from harness.core.spec import Placement
from harness.launch.options import batch_script, trial_options
from harness.plan import site_resources
from harness.plan.plan import Array

pytestmark = [pytest.mark.cluster, pytest.mark.torch, pytest.mark.timeout(1200)]

NASTY = 'a b; $(touch {made}) `touch {made}` & c | d > {made} it\'s "q" \\ \\\\ \\n # e é→ %j $HOME ~ * !x -f'

TEXTS = (
    "a b", "it's", 'say "x"', "'", '"', "`id`", "$(id)", "$HOME", "a # b", "#x", "a;b|c&d>e", "!x", "~", "*", "%j",
    "\\", "\\\\", "a\\", "a\\b", "\\'", '\\"', "\\n", "'\\''", "-x", "--nodes=9", "a=b", "é→😀", "a\tb", " a ",
    "a\xa0b",
)  # fmt: skip


@pytest.fixture(autouse=True)
def _environment(torch_python: Path) -> None:
    """Every test here needs the PyTorch environment."""


@pytest.fixture
def features(slurm: Any) -> Iterator[None]:
    """Give the nodes features: n1 ib,rack1; n2 ib,rack2; n3 rack2."""
    for node, has in (("n1", "ib,rack1"), ("n2", "ib,rack2"), ("n3", "rack2")):
        slurm.run("scontrol", "update", f"nodename={node}", f"features={has}", check=True)
    yield
    slurm.run("scontrol", "update", "nodename=n[1-3]", "activefeatures=", "features=", check=True)


@pytest.fixture
def reservation(slurm: Any) -> Iterator[str]:
    slurm.run(
        *("scontrol", "create", "reservation=ours", "starttime=now", "duration=60", "users=root", "nodes=n2"),
        check=True,
    )
    yield "ours"
    wait_for(lambda: not in_queue(slurm), 120)  # Slurm keeps features that a job uses
    slurm.run("scontrol", "delete", "reservation=ours", check=True)


def shown(slurm: Any, job: str) -> dict[str, str]:
    """Return the fields of `scontrol show job`, which ends each line with a space."""
    text = slurm.run("scontrol", "show", "job", job, check=True).stdout
    fields = dict(re.findall(r"(\S+?)=(\S*)", text))
    fields["Comment"] = match[1] if (match := re.search(r"^   Comment=(.*) $", text, re.MULTILINE)) else ""
    return fields


def job_of(run_dir: Path) -> str:
    return str(read_json(run_dir / "result.json")["job_id"])


def sentence(done: Any) -> str:
    assert done.returncode == 2, done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    return str(line)


# --- what is text stays text ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", TEXTS)
def test_an_option_of_sbatch_arrives_as_it_is(slurm: Any, text: str) -> None:
    """The validation beforehand, which passes options as arguments rather than in a script, sees the same text."""
    cluster = Cluster(
        name="mine", scheduler=Scheduler.slurm, sbatch_args={"comment": text, "hold": True, "output": "/dev/null"}
    )
    cluster_checks.check(dataclasses.replace(cluster, sbatch_args={"comment": text, "hold": True}))
    resources = site_resources.resources(cluster, Placement(1, 1), 1)
    array = Array(resources, ((dataclasses.replace(make_request(), resources=resources),),))
    script = batch_script(array, "token", Path("/nowhere"))
    from_script = slurm.run("sbatch", "--parsable", input=script, check=True).stdout.strip()
    from_arguments = slurm.run(
        "sbatch", "--parsable", *trial_options(resources), input="#!/bin/sh\n", check=True
    ).stdout.strip()
    try:
        for job in (from_script, from_arguments):
            assert shown(slurm, job)["Comment"] == text
            assert shown(slurm, job)["NumNodes"] in ("1", "1-1"), "no other option was read"
    finally:
        slurm.run("scancel", from_script, from_arguments)


def test_every_key_reaches_the_job_and_its_ranks(
    cli: Cli, slurm: Any, tmp_path: Path, features: None, reservation: str
) -> None:
    made, order = tmp_path / "pwned", tmp_path / "order"
    nasty = NASTY.format(made=made)
    description = described(
        tmp_path,
        partition="high",
        constraint="[rack1|rack2]&ib",
        reservation=reservation,
        gpu_option="gpus_per_node",
        gpu_type="v100",
        memory_per_node="1500M",
        exclusive=True,
        modules=["lang/Python/3.11", "system/CUDA"],
        setup=[f'echo "setup $LOADED" >> {order}', "export NCCL_FROM_SETUP='a  b'"],
        srun_args=["--wait=77", f"--comment={nasty}"],
        sbatch_args={"comment": nasty, "nice": 3},
        env={"NCCL_NASTY": f"{nasty}\n\t'second' line\n", "NCCL_EMPTY": ""},
    )
    # Like real module systems: a bash function that jobs inherit.
    module = '() {  echo "module $*" >> ' + str(order) + "; export LOADED=yes; }"
    environ = {**slurm.env, "BASH_FUNC_module%%": module}
    done = cli("harness", "gpus=2", *SHORT, *description, env=environ)
    assert done.returncode == 0, done.stdout + done.stderr
    assert not made.exists()

    (run_dir,) = run_dirs(tmp_path)
    job = shown(slurm, job_of(run_dir))
    assert job["Comment"] == nasty
    expected = {
        "Partition": "high",
        "Features": "[rack1|rack2]&ib",
        "Reservation": "ours",
        "NodeList": "n2",
        "TresPerNode": "gres:gpu:v100:2",
        "MinMemoryNode": "1500M",
        "OverSubscribe": "NO",  # exclusive
        "NumCPUs": "8",
        "Nice": "3",
        "TimeLimit": "00:30:00",
    }
    assert {name: job[name] for name in expected} == expected
    variables = read_json(run_dir / "attempt-1" / "env.json")["variables"]
    assert variables["NCCL_NASTY"] == f"{nasty}\n\t'second' line\n"
    assert variables["NCCL_EMPTY"] == ""
    assert variables["NCCL_FROM_SETUP"] == "a  b"
    assert order.read_text().splitlines() == ["module load lang/Python/3.11 system/CUDA", "setup yes"]


def test_text_on_the_command_line_stays_text_too(cli: Cli, slurm: Any, tmp_path: Path) -> None:
    text = f"a b; $(touch {tmp_path}/pwned) & c"
    done = cli(
        *("harness", "gpus=1", *SHORT, "wait=false", f"+cluster.sbatch_args.comment='{text}'"),
        *("+cluster.sbatch_args.hold=true", "+cluster.sbatch_args.nice=null"),
        env=slurm.env,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (queued,) = in_queue(slurm)
    job = queued.split()[0]
    assert shown(slurm, job)["Comment"] == text
    assert shown(slurm, job)["Reason"] == "JobHeldUser"
    assert not (tmp_path / "pwned").exists()


def test_a_module_that_cannot_be_loaded_ends_the_job(cli: Cli, slurm: Any, tmp_path: Path) -> None:
    description = described(tmp_path, modules=["absent"], setup=[f"touch {tmp_path}/went-on"])
    environ = {**slurm.env, "BASH_FUNC_module%%": '() {  echo "no module $2" >&2; return 1; }'}
    done = cli("harness", "gpus=1", *SHORT, *description, "wait=false", env=environ)
    assert done.returncode == 0, done.stdout + done.stderr
    wait_for(lambda: not in_queue(slurm), 120)
    assert not (tmp_path / "went-on").exists()
    assert [path.read_text() for path in tmp_path.glob("results/scaling/submitit/*/*.err")] == ["no module absent\n"]


@pytest.mark.parametrize("asked", ["rack1&ib", "[rack1|rack2]", "rack1|rack2", "[rack1|rack2]&ib"])
def test_a_constraint_arrives_whatever_its_form(slurm: Any, features: None, asked: str) -> None:
    resources = site_resources.resources(
        Cluster(name="mine", scheduler=Scheduler.slurm, constraint=asked), Placement(1, 1), 1
    )
    done = slurm.run("sbatch", "--test-only", *trial_options(resources), input="#!/bin/sh\n")
    assert done.returncode == 0, done.stderr


# --- a mistake is refused before anything is submitted ----------------------------------------------------------------


def check_nothing_is_left(slurm: Any, tmp_path: Path) -> None:
    assert in_queue(slurm) == []
    assert list(tmp_path.glob("results/*/runs/*/attempt-*")) == []


@pytest.mark.parametrize(
    ("arguments", "said", "advice"),
    [
        (["cluster.partition=nowhere"], "invalid partition specified: nowhere", "set cluster.partition to one"),
        (["cluster.partition='a b'"], "invalid partition specified: a b", "set cluster.partition to one"),
        (["cluster.gpu_type=h100"], "node configuration is not available", "set cluster.gpu_type"),
        (["cluster.gres=fpga"], "Invalid generic resource", "set cluster.gres"),
        (["cluster.gpus_per_node=8", "gpus=1,8"], "node configuration is not available", "cluster.gpus_per_node"),
        (
            ["cluster.gpus_per_node=8", "gpus=1,8", "cluster.gpu_option=gpus_per_node"],
            "node configuration is not available",
            "cluster.gpus_per_node",
        ),
        (["cluster.cpus_per_gpu=7"], "More processors requested than permitted", "cluster.cpus_per_gpu"),
        (["gpus=1,16"], "Node count specification invalid", "take fewer gpus"),
        (["cluster.reservation=absent"], "Requested reservation is invalid", "set cluster.reservation"),
        (["cluster.constraint=absent"], "Invalid feature specification", "set cluster.constraint"),
        (["cluster.constraint='[a|b'"], "Invalid feature specification", "set cluster.constraint"),
        (["cluster.memory_per_node=900G"], "node configuration is not available", "cluster.memory_per_node"),
        (["cluster.memory_per_node=much"], "Invalid --mem specification", "set cluster.memory_per_node"),
        (["+cluster.sbatch_args.nosuch=1"], "unrecognized option '--nosuch=1'", "correct cluster.sbatch_args"),
        (["+cluster.sbatch_args.comment=true"], "option '--comment' requires an argument", "cluster.sbatch_args"),
        (["+cluster.sbatch_args.mail-type=NOPE"], "Invalid --mail-type specification", "cluster.sbatch_args"),
        (["+cluster.sbatch_args.licenses=absent"], "Invalid license specification", "cluster.sbatch_args"),
    ],
    ids=str,
)
def test_a_mistake_is_refused_with_slurms_words(
    cli: Cli, slurm: Any, tmp_path: Path, arguments: list[str], said: str, advice: str
) -> None:
    # One of the counts is valid, but nothing may be submitted before the mistake is found.
    gpus = [] if any(argument.startswith("gpus=") for argument in arguments) else ["gpus=1,4"]
    done = cli("harness", "-m", *gpus, *SHORT, *arguments, env=slurm.env)
    told = sentence(done)
    assert said in told
    assert advice in told
    assert "nothing was submitted" in told
    check_nothing_is_left(slurm, tmp_path)


def test_a_wall_limit_that_the_partition_does_not_allow(cli: Cli, slurm: Any, tmp_path: Path) -> None:
    slurm.run("scontrol", "update", "partition=main", "MaxTime=5", check=True)
    try:
        told = sentence(cli("harness", "gpus=1", *SHORT, "cluster.timeout_minutes=6", env=slurm.env))
        assert "Requested time limit is invalid" in told
        assert "set cluster.timeout_minutes" in told
        check_nothing_is_left(slurm, tmp_path)
    finally:
        slurm.run("scontrol", "update", "partition=main", "MaxTime=INFINITE", check=True)


def test_somebody_elses_reservation(cli: Cli, slurm: Any, tmp_path: Path) -> None:
    slurm.run(
        *("scontrol", "create", "reservation=theirs", "starttime=now", "duration=60", "users=daemon", "nodes=n3"),
        check=True,
    )
    try:
        told = sentence(cli("harness", "gpus=1", *SHORT, "cluster.reservation=theirs", env=slurm.env))
        assert "Access denied to requested reservation" in told
        assert "set cluster.reservation" in told
        check_nothing_is_left(slurm, tmp_path)
    finally:
        slurm.run("scontrol", "delete", "reservation=theirs", check=True)


def test_a_strict_site_with_accounts_limits_and_small_arrays(
    cli: Cli, another_slurm: Callable[..., AbstractContextManager[Any]], tmp_path: Path
) -> None:
    strict = "MaxArraySize=4\nAccountingStorageEnforce=limits,qos"
    with another_slurm(nodes=1, gpus_per_node=4, extra_conf=strict) as cluster:
        cluster.run("sacctmgr", "-i", "add", "account", "proj", check=True)
        cluster.run("sacctmgr", "-i", "add", "user", "root", "account=proj", check=True)
        for argument, said, advice in (
            ("cluster.account=nobody", "Invalid account or account/partition combination", "set cluster.account"),
            ("cluster.qos=absent", "Invalid qos specification", "set cluster.qos"),
        ):
            told = sentence(cli("harness", "gpus=1", *SHORT, argument, env=cluster.env))
            assert said in told
            assert advice in told
            check_nothing_is_left(cluster, tmp_path)

        limit = ("sacctmgr", "-i", "modify", "user", "root", "where", "account=proj", "set")
        cluster.run(*limit, "maxsubmitjobs=1", check=True)
        told = sentence(cli("harness", "-m", "gpus=1", "seed=0,1", *SHORT, "cluster.account=proj", env=cluster.env))
        assert "AssocMaxSubmitJobLimit" in told
        assert "set cluster.max_submit" in told
        assert in_queue(cluster) == []
        cluster.run(*limit, "maxsubmitjobs=-1", check=True)

        done = cli(
            *("harness", "-m", "gpus=1", "seed=range(0,6)", *SHORT, "cluster.account=proj"),
            env=cluster.env,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        submitted = [line for line in done.stdout.splitlines() if line.startswith("submitted job")]
        assert [line.split(": ")[1] for line in submitted] == ["4 runs on 1 x 1 ranks", "2 runs on 1 x 1 ranks"]
        assert "6 completed, 0 failed" in done.stdout
        assert {shown(cluster, job_of(run_dir))["Account"] for run_dir in run_dirs(tmp_path)} == {"proj"}


def test_a_variable_of_the_shell_does_not_overrule_the_configuration(slurm: Any, cli: Cli, tmp_path: Path) -> None:
    """For sbatch, SBATCH_PARTITION takes precedence over the script."""
    environ = {**slurm.env, "SBATCH_PARTITION": "high", "SBATCH_TIMELIMIT": "59", "SBATCH_MEM_PER_CPU": "123"}
    slurm.run("scontrol", "update", "partition=main", "state=down", check=True)
    try:
        arguments = ("cluster.partition=main", "cluster.timeout_minutes=7", "wait=false")
        done = cli("harness", "gpus=1", *SHORT, *arguments, env=environ)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "SBATCH_PARTITION=high in the environment is ignored" in done.stdout
        shown = slurm.run("scontrol", "show", "job").stdout
        assert "Partition=main" in shown
        assert "TimeLimit=00:07:00" in shown
        assert "MinMemoryCPU=123M" in shown, "what the configuration leaves open stays the default of the shell"
    finally:
        slurm.run("scancel", "--me")
        slurm.run("scontrol", "update", "partition=main", "state=up", check=True)
