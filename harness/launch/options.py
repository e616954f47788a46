"""Builds sbatch options from a plan's array, and advice on what to change when Slurm refuses them."""

from __future__ import annotations

import math
import re
import shlex
import sys
from pathlib import Path
from typing import Any

from submitit.slurm.slurm import _make_sbatch_string

from harness.config import cluster_checks
from harness.core import environment_variables
from harness.core.system import disk
from harness.node import broadcast, stage
from harness.plan import site_resources
from harness.plan.plan import Array, Resources
from harness.study import submissions


def batch_script(array: Array, token: str, study_folder: Path, archive: Path | None = None) -> str:
    """Build an array's sbatch script. Tests compare it with golden files.

    Args:
        array: the array to submit.
        token: identifies the submission; part of the job name.
        study_folder: the study's folder.
        archive: packed environment to unpack on the nodes, if it is staged.
    """
    resources = array.resources
    placement = resources.placement
    # In a folder known before the job id is: a job may start before sbatch has answered.
    logs = submissions.log_folder(study_folder, token)
    job = "%A_%a" if len(array.jobs) > 1 else "%j"
    options = {
        "job_name": submissions.name_of(token, f"{placement.world_size}gpu"),
        "nodes": resources.nodes,
        "ntasks_per_node": resources.tasks_per_node,
        "cpus_per_task": resources.cpus_per_task,
        "time": math.ceil(resources.timeout_minutes),
        "signal_delay_s": resources.signal_seconds,
        # Overrides submitit's default limit of 256.
        "array_parallelism": resources.array_parallelism or len(array.jobs),
        "wckey": None,
        # After a preemption, node failure or time limit, the run resumes from its last checkpoint.
        "additional_parameters": {
            "requeue": True,
            "output": f"{logs}/{job}_0_log.out",
            "error": f"{logs}/{job}_0_log.err",
            **{k: v if v is True else site_resources.escaped(v) for k, v in site_options(resources).items()},
        },
    }
    setup = site_resources.setup_lines(resources)
    if array.in_batch_step:
        module, starter = "harness.launch.allocation", (resources.mpi or "", *resources.srun_args)
        return _script(array, options, _command(module, study_folder, token, *starter), setup or None)
    # First, because loading modules can take long.
    unpack = [] if archive is None else _staging(resources, archive, study_folder, token)
    setup = [f"export {environment_variables.JOB_STARTED}=$(date +%s.%N)", *setup, *unpack]
    srun = [
        *("srun", "--unbuffered", "--output", f"{logs}/{job}_%t_log.out", "--error", f"{logs}/{job}_%t_log.err"),
        # Kill the other supervisors as soon as one fails.
        "--kill-on-bad-exit=1",
        # Since Slurm 22.05 srun does not inherit this from sbatch and would bind each rank to one core.
        f"--cpus-per-task={resources.cpus_per_task}",
        # Server nodes need only one task; a site's WaitTime must not kill the others when the surplus tasks exit.
        *(["--wait=0"] if resources.server_nodes else []),
        *site_resources.srun_args(resources.mpi, resources.srun_args),
    ]
    command = f"{shlex.join(srun)} {_command('harness.node.array_task', study_folder, token)}"
    return _script(array, options, command, setup, _teardown(study_folder, token))


def _script(
    array: Array, options: dict[str, Any], command: str, setup: list[str] | None, teardown: list[str] | None = None
) -> str:
    map_count = len(array.jobs) if len(array.jobs) > 1 else None
    # The options name the logs, so submitit's own folder is not used.
    steps: dict[str, Any] = {"use_srun": False, "setup": setup, "teardown": teardown, "map_count": map_count}
    return str(_make_sbatch_string(command=command, folder=".", **options, **steps))


def _command(module: str, study_folder: Path, token: str, *more: str) -> str:
    return shlex.join((sys.executable, "-u", "-m", module, str(study_folder), token, *more))


def _staging(resources: Resources, archive: Path, study_folder: Path, token: str) -> list[str]:
    """Shell lines that unpack the environment with one task per node and clean up when the script exits."""
    nodes = resources.nodes
    step = f"srun --nodes={nodes} --ntasks={nodes} --ntasks-per-node=1"
    step += f" --cpus-per-task={resources.cpus_per_gpu * resources.placement.ranks_per_node}"
    folder = shlex.quote(resources.stage_folder) if resources.stage_folder else "${SLURM_TMPDIR:-${TMPDIR:-/tmp}}"
    # Includes the restart count: an earlier, killed start may have left a folder behind.
    own = "harness-$SLURM_JOB_ID-${SLURM_RESTART_COUNT:-0}"
    left = f'"${stage.STAGED}-$SLURMD_NODENAME"'
    failed = f"{{ {_epilogue(study_folder, token)}; exit 1; }}"
    python = shlex.quote(sys.executable)
    if resources.stage_environment == stage.SBCAST:
        left += f' "${stage.STAGED}{broadcast.COPY_FOLDER}"'
        unpack = [
            f"{stage.BROADCAST}=$({python} -m harness.node.broadcast {step}) || {failed}",
            f"export {stage.BROADCAST}",
        ]
    else:
        unpack = [f"{step} {python} -m harness.node.stage || {failed}"]
    return [
        f"export {stage.STAGED}={folder}/{own}",
        f"export {stage.ARCHIVE}={shlex.quote(str(archive))}",
        # Normally a no-op: the supervisors have deleted the folder.
        f"harness_unstage() {{ {step} sh -c 'rm -rf -- {left}' 2>/dev/null; }}",
        "trap harness_unstage EXIT",
        f"export {stage.BEGAN}=$(date +%s.%N)",
        *unpack,
        f"export {stage.ENDED}=$(date +%s.%N)",
    ]


def _teardown(study_folder: Path, token: str) -> list[str]:
    """Shell lines after srun: if it failed, check whether the ranks' supervisors could report why."""
    epilogue = f"{_epilogue(study_folder, token)} $srun_exit"
    # The job's exit code may be all that can be said on a full disk.
    full = f"[ $? -ne {disk.FULL} ] || srun_exit={disk.FULL}"
    return ["srun_exit=$?", f"[ $srun_exit -eq 0 ] || {epilogue} || {full}", "exit $srun_exit"]


def _epilogue(study_folder: Path, token: str) -> str:
    return " ".join(map(shlex.quote, (sys.executable, "-m", "harness.node.batch_epilogue", str(study_folder), token)))


def site_options(resources: Resources) -> dict[str, Any]:
    """The site's sbatch options; True for an option without a value."""
    options: dict[str, Any] = {}
    for name in ("partition", "account", "qos", "constraint", "reservation"):
        if value := getattr(resources, name):
            options[name] = value
    if resources.memory_per_node:
        options["mem"] = resources.memory_per_node
    if resources.exclusive:
        options["exclusive"] = True
    if resources.gres:
        count = str(resources.placement.ranks_per_node)
        if resources.gpu_option == "gpus_per_node":
            options["gpus-per-node"] = ":".join(filter(None, (resources.gpu_type, count)))
        else:
            options["gres"] = ":".join(filter(None, (resources.gres, resources.gpu_type, count)))
    for name, value in resources.sbatch_args:
        options[name] = True if value == cluster_checks.SWITCH else value
    return options


def trial_options(resources: Resources) -> list[str]:
    """Options for trying the same job with `sbatch --test-only`."""
    options = {
        "nodes": resources.nodes,
        "ntasks-per-node": resources.tasks_per_node,
        "cpus-per-task": resources.cpus_per_task,
        "time": math.ceil(resources.timeout_minutes),
        **site_options(resources),
    }
    return [f"--{name}" if value is True else f"--{name}={value}" for name, value in options.items()]


def advice(message: str) -> str:
    """Suggest what to change, given Slurm's error message."""
    for pattern, key in _ADVICE:
        if re.search(pattern, message, re.IGNORECASE):
            return key
    return "correct the keys of `cluster`, or take cluster=local to run on this machine"


# Order matters: messages about an account also name the partition, and messages about a limit name everything.
_ADVICE = (
    (r"MaxSubmit", "set cluster.max_submit to the site's limit on jobs in the queue"),
    (
        r"MaxWall|time limit|time-min",
        "set cluster.timeout_minutes within the limit (`sinfo -o '%P %l'`, `sacctmgr show qos format=name,maxwall`)",
    ),
    (
        r"accounting/QOS policy",
        "ask for what the account and the QOS allow (`sacctmgr show qos format=name,maxtres,maxwall,maxsubmitpu`), or "
        "set cluster.qos or cluster.account to others",
    ),
    (r"account", "set cluster.account to one that `sacctmgr show assoc user=$USER` lists"),
    (r"qos", "set cluster.qos to one that `sacctmgr show assoc user=$USER format=account,qos` lists"),
    (r"partition", "set cluster.partition to one that `sinfo` lists as up"),
    (r"reservation", "set cluster.reservation to one that `scontrol show reservation` lists for you"),
    (r"feature|--constraint", "set cluster.constraint to features that the nodes have (`sinfo -o '%P %f'`)"),
    (
        r"generic resource|gres|--gpus-per-node",
        "set cluster.gres, cluster.gpu_type and cluster.gpu_option to what the site has (`sinfo -o '%P %G'`)",
    ),
    (r"node count", "take fewer gpus, or a cluster.partition with more nodes (`sinfo -o '%P %D nodes'`)"),
    (
        r"--mem\b|memory",
        "set cluster.memory_per_node to what a node has, such as 64000M (`sinfo -o '%P %m MB'`)",
    ),
    (
        r"more processors|cpu count",
        "set cluster.gpus_per_node x cluster.cpus_per_gpu to at most the cores of a node (`sinfo -o '%P %c cores'`)",
    ),
    (
        r"node configuration|too many",
        "set cluster.gpu_type, cluster.gpus_per_node, cluster.cpus_per_gpu and cluster.memory_per_node to what a node "
        "of the partition has (`sinfo -o '%P %D nodes, %c cores, %m MB, %G, %T'`)",
    ),
    (
        r"option|--[a-z]|specification|license|dependency|node name",
        "correct cluster.sbatch_args, where what has no key of its own is set",
    ),
)
