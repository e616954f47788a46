"""Answers of Slurm 23.11 and later to the commands that the harness runs; tests/cluster runs those of one version.

No such cluster was at hand. PRINTED ones stand in public manuals and questions of other sites' users, with names and
paths changed here. COMPOSED ones are put together from descriptions of the fields (man pages), as nobody prints what
`squeue` and `sacct` answer to just these formats. Only texts: `--json`, which changed in both versions (states became
lists in 23.11, `nodes` an object in 24.05), is not used.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from harness.slurm import client, inventory
from harness.slurm.client import Client, Job, Queued

Answer = Callable[..., None]

# Start of the answer to `scontrol --oneliner show job`, and what differs from its resources on.
RUNNING = (
    "JobId=407851 JobName=genotype UserId=user(236371) GroupId=users(100000) MCS_label=N/A Priority=10018522 Nice=0 "
    "Account=128x24 QOS=normal JobState=RUNNING Reason=None Dependency=(null) Requeue=1 Restarts=0 BatchFlag=1 "
    "Reboot=0 ExitCode=0:0 RunTime=5-21:51:00 TimeLimit=7-00:00:00 TimeMin=N/A SubmitTime=2025-01-21T15:46:41 "
    "EligibleTime=2025-01-21T15:46:41 AccrueTime=2025-01-21T15:46:41 StartTime=2025-01-21T16:47:16 "
    "EndTime=2025-01-28T16:47:16 Deadline=N/A {preempt}SuspendTime=None SecsPreSuspend=0 "
    "LastSchedEval=2025-01-21T16:47:16 Scheduler=Backfill Partition=128x24 AllocNode:Sid=hb-login:4134358 "
    "ReqNodeList=(null) ExcNodeList=(null) NodeList=hbnode-17 BatchHost=hbnode-17 NumNodes=1 NumCPUs=24 NumTasks=1 "
    "CPUs/Task=24 ReqB:S:C:T=0:0:*:* {tres} Socks/Node=* NtasksPerN:B:S:C=0:0:*:* CoreSpec=* MinCPUsNode=24 "
    "MinMemoryNode=0 MinTmpDiskNode=0 Features=(null) DelayBoot=00:00:00 OverSubscribe=NO Contiguous=0 "
    "Licenses=(null) {more}Network=(null) Command=/home/user/job.sh {line}WorkDir=/home/user StdErr=/home/user/err "
    "StdIn=/dev/null StdOut=/home/user/out {end}\n"
)
_PREEMPT = "PreemptEligibleTime=2025-01-21T16:47:16 PreemptTime=None "
_CPUS = "cpu=24,mem=120G,node=1,billing=24"
JOBS = {
    # COMPOSED: TRES before it was ReqTRES and AllocTRES, GPUs as gres:gpu.
    "22.05": RUNNING.format(
        preempt=_PREEMPT, tres=f"TRES={_CPUS}", more="", line="", end="Power= TresPerNode=gres:gpu:1"
    ),
    # PRINTED in a site's manual of January 2025 by a version that it does not name; only the GPU is added.
    "23.11": RUNNING.format(
        preempt=_PREEMPT,
        tres=f"ReqTRES={_CPUS} AllocTRES={_CPUS},gres/gpu=1",
        more="",
        line="",
        end="TresPerNode=gres/gpu:1",
    ),
    # PRINTED in a site's manual for an H100: these TRES, TresPerTask, no times of preemption, not yet LicensesAlloc.
    "24.05": RUNNING.format(
        preempt="",
        tres=f"ReqTRES={_CPUS},gres/gpu=1,gres/gpu:h100=1 AllocTRES={_CPUS},gres/gpu=1,gres/gpu:h100=1",
        more="",
        line="",
        end="TresPerNode=gres/gpu:H100:1 TresPerTask=cpu=24",
    ),
    # PRINTED by users of 25.05: LicensesAlloc, GPUs of a job, and SubmitLine, whose words may look like fields.
    "25.05": RUNNING.format(
        preempt="",
        tres=f"ReqTRES={_CPUS},gres/gpu=1 AllocTRES={_CPUS},gres/gpu=1,gres/gpu:rtx30=1",
        more="LicensesAlloc=(null) ",
        line="SubmitLine=sbatch --parsable --export=NONE --wrap echo JobId=1 JobState=FAILED StartTime=Unknown ",
        end="TresPerJob=gres/gpu:1 TresPerTask=cpu=24",
    ),
}
# `scontrol --oneliner show node`, PRINTED in a site's manual; CPUEfctv, there equal, is changed.
NODE = (
    "NodeName=cpu-a-1 Arch=x86_64 CoresPerSocket=64 CPUAlloc=0 CPUEfctv=126 CPUTot=128 CPULoad=0.02 "
    "AvailableFeatures=cpu,amd_7h12 ActiveFeatures=cpu,amd_7h12 Gres=(null) NodeAddr=cpu-a-1 NodeHostName=cpu-a-1 "
    "Version=24.05.4 OS=Linux 4.18.0-553.33.1.el8_10.x86_64 #1 SMP Thu Dec 19 14:28:01 UTC 2024 RealMemory=4096000 "
    "AllocMem=0 FreeMem=4028252 Sockets=2 Boards=1 State=IDLE ThreadsPerCore=1 TmpDisk=10000000 Weight=200 Owner=N/A "
    "MCS_label=N/A Partitions=cpu BootTime=2024-12-28T19:22:18 SlurmdStartTime=2025-01-23T12:56:46 "
    "LastBusyTime=2025-02-03T18:07:58 ResumeAfterTime=None CfgTRES=cpu=128,mem=4000G,billing=128 AllocTRES= "
    "CurrentWatts=0 AveWatts=0\n"
)
# `srun --mpi=list`, all PRINTED: without PMIx on stderr (22.05, tests/cluster), in the Open MPI manual ("Launching with
# Slurm"), and in manuals of sites with one PMIx and with two, whose line ends in a space.
_LISTED = "MPI plugin types are...\n\tnone\n\tcray_shasta\n\tpmi2\n\tpmix\nspecific pmix plugin versions available: "
MPI = {
    "no PMIx": ("", "MPI plugin types are...\n\tcray_shasta\n\tnone\n\tpmi2\n", ["cray_shasta", "pmi2"]),
    "pmix_v4": (
        "MPI plugin types are...\n\tnone\n\tpmi2\n\tpmix\nspecific pmix plugin versions available: pmix_v4\n",
        "",
        ["pmi2", "pmix", "pmix_v4"],
    ),
    "pmix_v5": (f"{_LISTED}pmix_v5\n", "", ["cray_shasta", "pmi2", "pmix", "pmix_v5"]),
    "two": (f"{_LISTED}pmix_v3,pmix_v4 \n", "", ["cray_shasta", "pmi2", "pmix", "pmix_v3", "pmix_v4"]),
}


@pytest.fixture
def answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Answer:
    """answers(program, stdout, stderr): a program of this name that prints a recorded answer, first on the PATH."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    def write(program: str, stdout: str, stderr: str = "", code: int = 0) -> None:
        for name, text in (("out", stdout), ("err", stderr)):
            (tmp_path / f"{program}.{name}").write_text(text)
        path = tmp_path / program
        path.write_text(f'#!/bin/sh\necho "$@" > {path}.asked\ncat {path}.out\ncat {path}.err >&2\nexit {code}\n')
        path.chmod(0o755)

    return write


@pytest.mark.parametrize("version", JOBS)
def test_a_job_is_read_from_scontrol(answers: Answer, version: str) -> None:
    answers("scontrol", JOBS[version])
    assert Client().job("407851") == Job(
        state="RUNNING",
        reason="None",
        exit_code="0:0",
        batch_host="hbnode-17",
        submit_time="2025-01-21T15:46:41",
        start_time="2025-01-21T16:47:16",
        preempt_time=None,
    )
    assert Client().job("407850") is None


def test_the_processors_of_a_node_are_read_from_scontrol(answers: Answer) -> None:
    answers("scontrol", NODE)
    assert Client().node_cpus("cpu-a-1") == 128


@pytest.mark.parametrize("built", MPI)
def test_kinds_of_mpi_are_read_from_srun(answers: Answer, built: str) -> None:
    stdout, stderr, kinds = MPI[built]
    answers("srun", stdout, stderr)
    assert Client().mpi_kinds() == kinds


@pytest.mark.parametrize(
    ("gres", "gpus", "of_type"),
    [
        # COMPOSED of gres that sites' manuals print.
        ("gpu:a100:4(S:0-1)", 4, 4),  # sinfo(1): sockets in parentheses, since 20.11
        ("gpu:a100:4(S:0,1),shard:a100:16", 4, 4),
        ("gpu:amd_instinct_mi300x_oam:8(S:0-1)", 8, 0),
        ("gpu:a100_3g.20gb:2(S:0),gpu:a100:2(S:1)", 4, 2),  # MIG devices have types of their own
        ("gpu:4", 4, 0),
        ("(null)", 0, 0),
    ],
)
@pytest.mark.parametrize("state", ["idle", "mixed", "planned", "drained*", "idle~", "mixed-"])
def test_nodes_are_read_from_sinfo(answers: Answer, state: str, gres: str, gpus: int, of_type: int) -> None:
    answers("sinfo", f"gpu001|{state}|64|512000|{gres}\n")
    (node,) = inventory.nodes(Client(), ["gpu"])
    assert (node.name, node.state, node.cpus, node.megabytes) == ("gpu001", state, 64, 512000)
    assert (node.count("gpu", None), node.count("gpu", "a100")) == (gpus, of_type)


def test_the_queue_is_read_from_squeue(answers: Answer) -> None:
    # COMPOSED, as squeue(1) describes the fields: a reason is one word, or (null).
    lines = (
        "17_1|run-4gpu|PENDING|2025-01-22T06:00:00|Priority\n17_2|run-4gpu|PENDING|N/A|MaxGRESPerAccount\n"
        "18|a|b|RUNNING|N/A|None\n19|x|CONFIGURING|N/A|(null)\n"
    )
    answers("squeue", lines.replace("a|b", "a_b"))
    assert Client().queue() == {
        "17_1": Queued("17_1", "run-4gpu", "PENDING", "Priority", "2025-01-22T06:00:00"),
        "17_2": Queued("17_2", "run-4gpu", "PENDING", "MaxGRESPerAccount", "N/A"),
        "18": Queued("18", "a_b", "RUNNING", "None", "N/A"),
        "19": Queued("19", "x", "CONFIGURING", "(null)", "N/A"),
    }


def test_states_are_read_from_sacct(answers: Answer) -> None:
    # COMPOSED of the states that sacct(1) lists under JOB STATE CODES.
    answers(
        "sacct",
        "17_1|COMPLETED|0:0\n17_2|FAILED|28:0\n17_3|CANCELLED by 1000|0:15\n17_4|OUT_OF_MEMORY|0:125\n"
        "17_5|NODE_FAIL|1:0\n"
        "17_[6-7%2]|PENDING|0:0\n17_8|LAUNCH_FAILED|0:0\n17_9|RECONFIG_FAIL|0:0\n",
    )
    states = Client().accounting(["17_1", "17_6"])
    assert states["17_2"] == "FAILED with exit code 28:0"
    assert (states["17_3"], states["17_4"], states["17_7"]) == ("CANCELLED by 1000", "OUT_OF_MEMORY", "PENDING")
    assert len(states) == 9


@pytest.mark.parametrize("text", ["slurm 23.11.10\n", "slurm 24.05.8\n"])
def test_the_version_and_ping_are_read(answers: Answer, text: str) -> None:
    answers("sbatch", text)
    assert inventory.version(Client()) == text.strip()
    # COMPOSED from scontrol(1), ping: of 20.11 and later.
    answers("scontrol", "Slurmctld(primary) at head1 is UP\nSlurmctld(backup) at head2 is DOWN\n")
    assert inventory.ping(Client()) == (
        *(True, "Slurmctld(primary) at head1 is UP; Slurmctld(backup) at head2 is DOWN"),
    )


@pytest.mark.parametrize(
    ("stdout", "job"), [("4711\n", "4711"), ("4711;cluster2\n", "4711"), ("note: charged to x\n4711\n", "4711")]
)
def test_the_id_of_a_submitted_job_is_read_from_sbatch(answers: Answer, stdout: str, job: str) -> None:
    answers("sbatch", stdout)
    assert Client().submit("#!/bin/sh\n") == job


@pytest.mark.parametrize(
    "said",
    [
        "squeue: error: Unable to contact slurm controller (connect failure)",
        "slurm_load_jobs error: Unable to contact slurm controller (connect failure)",
        "sacct: error: slurm_persist_conn_open_without_init: failed to open persistent connection to host:db:6819: "
        "Connection refused\nsacct: error: Sending PersistInit msg: Connection refused",
        "srun: error: Slurm temporarily unable to accept job, sleeping and retrying",
    ],
)
def test_a_controller_or_database_that_is_away_is_known_in_their_words(said: str) -> None:
    assert client.is_unavailable(said)
