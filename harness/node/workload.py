"""Builds the command line, environment and probe settings of a process of the user's own training. Pure functions but
for the files that they read and write.

Such a process sees nothing of the harness but the folder of the probe: all GPUs of its node, its own working directory,
and the variables that torchrun sets.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.core import environment_variables, run_files
from harness.core.launchers import MPIRUN, NODE
from harness.core.rendezvous import Rendezvous
from harness.core.serialization import write_json
from harness.core.spec import MeasureSpec, RunSpec, Site
from harness.core.system import secret_names
from harness.core.workload import code_identity, launchers, templates
from harness.core.workload.spec import OWN, PLAIN, SCRIPT, WorkloadSpec
from harness.node.command import (
    KEPT_SLURM_VARIABLES,
    THREAD_VARIABLES,
    container_command,
    exports,
    mpi_prefix,
    without_login_environment,
)
from harness.node.stop_channel import Address

PROBE = Path("harness", "probe")
# Names the file that `write_probe_files` writes. The probe puts in the variable RANK for the braces.
PROBE_VARIABLE = "SCALING_PROBE"
RUNNER = PROBE / "scaling_probe_run.py"
# Variables of the launchers that set them; a process must get them from us or not at all.
RANK_VARIABLES = (*environment_variables.TORCHRUN, "GROUP_RANK", "NNODES", "NODE_RANK")
IN_CONTAINER = ("sh", "-c", f'eval "${environment_variables.CONTAINER_ENVIRONMENT}" && exec "$@"', "sh")


def command(
    spec: RunSpec, site: Site, run_dir: Path, attempt_dir: Path, rendezvous: Rendezvous, environ: Mapping[str, str]
) -> list[str]:
    """Build a process's command line. Raises UnknownPlaceholder."""
    workload = _workload(spec)
    values = placeholder_values(spec, site, run_dir.absolute(), rendezvous) | secret_names.placeholder_values(environ)
    resumed = workload.resume_args if run_files.attempt_number(attempt_dir) > 1 else ()
    words = [templates.expand(text, values) for text in (*workload.command, *resumed)]
    if workload.shell:
        words = ["sh", "-c", " ".join(words)]
    if workload.kind == SCRIPT:
        runner = [] if workload.pattern or _names_ranks(spec) else [str(Path(site.project, RUNNER))]
        starter = workload.starter(spec.gpus)
        if starter in launchers.PER_NODE:
            words = launchers.command(starter, site.python, _node(spec, site, rendezvous, environ), [*runner, *words])
        else:
            words = [site.python, "-u", *runner, *words]
    elif workload.pattern and not site.container and shutil.which("stdbuf"):
        # The C library would keep the output of a program back until some kilobytes are there.
        words = ["stdbuf", "-oL", "-eL", *words]
    return container_command(site, environ, IN_CONTAINER, words) if site.container else words


def placeholder_values(spec: RunSpec, site: Site, run_dir: Path, rendezvous: Rendezvous) -> dict[str, Any]:
    """Return the value of every placeholder for one process of a run; without `data_root` if the run has none."""
    known = {
        **spec.placeholder_values,
        "data_root": site.data_root,
        "run_dir": str(run_dir),
        "node_rank": rendezvous.rank // rendezvous.local_world_size,
        "master_addr": rendezvous.master_address,
        "master_port": rendezvous.master_port,
    }
    assert tuple(known) == templates.NAMES
    if site.data_root is None:
        del known["data_root"]
    return {**known, **(spec.workload.params if spec.workload else {})}


def environment(
    spec: RunSpec, site: Site, attempt_dir: Path, rendezvous: Rendezvous, environ: Mapping[str, str]
) -> dict[str, str]:
    """Build the environment of a process. Later entries win: the job's, the rendezvous, thread pools, cluster.env."""
    workload = _workload(spec)
    env = {k: v for k, v in without_login_environment(environ).items() if not secret_names.is_of_command(k)}
    secrets = {k: v for k, v in secret_names.variables(environ).items() if not secret_names.is_of_command(k)}
    for name in RANK_VARIABLES:
        env.pop(name, None)
    if "SUBMITIT_LOCAL_JOB_ID" in environ:
        # This shell may be part of an allocation, whose tasks are not the ranks.
        env = {name: value for name, value in env.items() if not name.startswith("SLURM_")}
    if workload.starts_ranks:
        # The task of the supervisor is not a rank.
        env = {name: value for name, value in env.items() if name not in launchers.RANKS}
    # Other launchers hand them to their ranks.
    ranks = 1 if workload.starts_ranks else spec.placement.ranks_per_node // spec.processes.ranks_per_node
    threads = spec.cluster.cpus_per_gpu * ranks
    own = {**rank_variables(spec, rendezvous), **dict.fromkeys(THREAD_VARIABLES, str(threads))}
    if (devices := visible_gpus(spec, site, environ)) is not None:
        own["CUDA_VISIBLE_DEVICES"] = devices
    if workload.pattern:
        own["PYTHONUNBUFFERED"] = "1"
    else:
        rank = "{rank}" if _names_ranks(spec) else rendezvous.rank
        own[PROBE_VARIABLE] = str(attempt_dir.absolute() / run_files.probe(rank))
    if spec.placement.nodes == 1:
        # As for the built-in networks: host names of laptops and containers often do not resolve.
        own["GLOO_SOCKET_IFNAME"] = environ.get("GLOO_SOCKET_IFNAME", "lo")
    probe = str(Path(site.project, PROBE))
    if site.container:
        own.update({**spec.env, **secrets})
        env.pop("PYTHONPATH", None)
        # What an image sets; and pyxis makes the process a task of its own.
        unset = [*RANK_VARIABLES, *(launchers.RANKS[1:] if workload.starts_ranks else ())]
        own[environment_variables.CONTAINER_ENVIRONMENT] = f"unset {' '.join(unset)}\n{exports(own, probe, site.cwd)}"
        if NODE in site.container:
            env = {k: v for k, v in env.items() if not k.startswith("SLURM") or k.startswith(KEPT_SLURM_VARIABLES)}
        return {**env, **own}
    if site.python:
        own.update(mpi_prefix(site.python))
    own["PATH"] = os.pathsep.join([*_folder_of(site.python), *_without_ours(environ.get("PATH", os.defpath))])
    paths = environ.get("PYTHONPATH", "").split(os.pathsep)
    own["PYTHONPATH"] = os.pathsep.join([probe, *(path for path in paths if path and path != site.project)])
    return {**env, **own, **spec.env, **secrets}


def rank_variables(spec: RunSpec, rendezvous: Rendezvous) -> dict[str, str]:
    """Return the variables from which a process knows its place: torchrun's, or for one per node those of nodes.

    The user's launchers set their own.
    """
    workload = _workload(spec)
    node = str(rendezvous.rank // rendezvous.local_world_size)
    master = {"MASTER_ADDR": rendezvous.master_address, "MASTER_PORT": str(rendezvous.master_port)}
    if (spec.gpus == 1 and workload.single == PLAIN) or workload.launcher in launchers.PER_NODE:
        return {}
    if workload.launcher == MPIRUN:
        return master
    if workload.one_process_per_node:
        return {"NNODES": str(spec.placement.nodes), "NODE_RANK": node, "GROUP_RANK": node, **master}
    return {**rendezvous.environment(), "GROUP_RANK": node}


def visible_gpus(spec: RunSpec, site: Site, environ: Mapping[str, str]) -> str | None:
    """Return CUDA_VISIBLE_DEVICES: the run's GPUs on this node, '' on the CPU."""
    if spec.cluster.device == "cpu":
        return ""
    on_node = spec.placement.ranks_per_node
    given = environ.get("CUDA_VISIBLE_DEVICES", "")
    devices = site.visible_gpus or tuple(filter(None, given.split(","))) or tuple(map(str, range(on_node)))
    return ",".join(devices[:on_node])


def write_probe_files(
    spec: RunSpec, attempt_dir: Path, rendezvous: Rendezvous, start: Mapping[str, Any], channel: Address | None
) -> None:
    """Write what the probe needs to know: a file for this process, or for each rank that it starts.

    start: what the supervisor knows of the event `start`.
    """
    workload, measure = _workload(spec), spec.measure
    ranks = ranks_of(spec, rendezvous.rank)
    world_size = spec.gpus if workload.starts_ranks else rendezvous.world_size
    for rank in ranks:
        document = {
            "v": 1,
            "rank": rank,
            "world_size": world_size,
            "events": str(attempt_dir.absolute() / run_files.events(rank)),
            "steps": {
                "warmup": measure.warmup_steps,
                "block": measure.block_steps,
                "last": measure.most_steps if workload.stop else None,
            },
            "precision": measure.precision,
            "samples_per_step": workload.samples_per_step,
            "batch_per_gpu": spec.batch_per_gpu,
            "unit": workload.unit,
            "step": workload.step,
            "stop": workload.stop,
            "stop_channel": [channel.host, channel.port] if channel else None,
            "token": channel.token if channel else None,
            "code": workload.code,
            "further": _further(workload, measure),
            "start": {**start, "local_rank": rank - ranks[0] if workload.starts_ranks else rendezvous.local_rank},
        }
        write_json(attempt_dir / run_files.probe(rank), document, private=True)


def ranks_of(spec: RunSpec, process: int) -> range:
    """Return the ranks of a process that the harness starts: its own, or those that it starts on its node."""
    on_node = spec.placement.ranks_per_node if _workload(spec).starts_ranks else 1
    return range(process * on_node, (process + 1) * on_node)


def changed_code(spec: RunSpec, site: Site) -> dict[str, str] | None:
    """Return the identity of the code in the plan and now; None if they are equal, or unknown."""
    workload = spec.workload
    if workload is None or not workload.code or site.cwd is None:
        return None
    found = code_identity.of_command(workload.kind, workload.command, workload.shell, Path(site.cwd), site.python)
    return None if found == workload.code else {"planned": workload.code, "found": found}


def _further(workload: WorkloadSpec, measure: MeasureSpec) -> dict[str, Any] | None:
    """Return the steps after the timed ones; None: none. They change the weights."""
    if not workload.stop or not (workload.probe_steps or workload.trace):
        return None
    return {
        "trace": workload.trace,
        "steps": workload.probe_steps,
        "limit": workload.probe_limit,
        "rounds": measure.probe_rounds,
    }


def _workload(spec: RunSpec) -> WorkloadSpec:
    assert spec.workload is not None
    return spec.workload


def _names_ranks(spec: RunSpec) -> bool:
    """Return whether the processes that train are told by a variable of another launcher which rank they are."""
    starter = _workload(spec).starter(spec.gpus)
    if starter == launchers.ACCELERATE and spec.gpus == 1:
        return False  # which accelerate does not tell
    return starter == OWN or starter in launchers.PER_NODE


def _node(spec: RunSpec, site: Site, rendezvous: Rendezvous, environ: Mapping[str, str]) -> launchers.Node:
    return launchers.Node(
        nodes=spec.placement.nodes,
        rank=rendezvous.rank,
        processes=spec.placement.ranks_per_node,
        address=rendezvous.master_address,
        port=rendezvous.master_port,
        devices=visible_gpus(spec, site, environ) or "",
    )


def _folder_of(python: str) -> list[str]:
    """The folder of the environment's programs, such as torchrun."""
    return [str(Path(python).parent)] if os.sep in python else []


def _without_ours(path: str) -> list[str]:
    """Leave out the harness's own environment, in case it is activated."""
    ours = str(Path(sys.prefix, "bin")) if sys.prefix != sys.base_prefix else None
    return [folder for folder in path.split(os.pathsep) if folder != ours]
