"""Describes what a run is measured on. Standard library only, Python 3.8 syntax.

Environment variables pass an allow-list to exclude secrets.
"""

from __future__ import annotations

import os
import platform
import re
import socket
import subprocess
from pathlib import Path
from typing import Any, Dict, Iterable, List, Mapping, Optional

from harness.core import environment_variables
from harness.core.rendezvous import Rendezvous
from harness.core.spec import RunSpec

ENV_VERSION = 1
ALLOWED_VARIABLES = re.compile(
    r"(SLURM_(JOB_ID|JOB_NAME|ARRAY_JOB_ID|ARRAY_TASK_ID|JOB_PARTITION|JOB_NODELIST|JOB_NUM_NODES|NTASKS|CPUS_ON_NODE"
    r"|CLUSTER_NAME|CPU_BIND_TYPE|CPU_BIND_LIST)|SLURMD_NODENAME"
    r"|(NCCL|HOROVOD|MXNET|OMPI_MCA|UCX)_\w+|GLOO_SOCKET_IFNAME|DMLC_INTERFACE|XLA_FLAGS|PJRT_NPROC"
    r"|CUDA_VISIBLE_DEVICES|(OMP|MKL|OPENBLAS)_NUM_THREADS|TF_NUM_INTRAOP_THREADS|OMP_PROC_BIND|OMP_PLACES|KMP_AFFINITY)"
)
# Excluded from the allowed ones, as they may be secrets: anyone can define an NCCL_... variable, and Horovod does.
REFUSED_VARIABLES = re.compile(r"SECRET|TOKEN|PASS|KEY|CREDENTIAL|AUTH|PRIVATE", re.IGNORECASE)


def environment(
    code_version: str,
    python: Optional[str],
    interpreter: Optional[str],
    versions: Dict[str, str],
    environ: Mapping[str, str],
) -> Dict[str, Any]:
    """Return the document `env.json` (schemas/env.schema.json).

    Args:
        code_version: of the harness.
        python, interpreter: version and path of the interpreter; None if unknown.
        versions: of the framework and its libraries, by name.
        environ: variables of the rank.
    """
    return {
        "v": ENV_VERSION,
        "host": socket.gethostname(),
        "platform": platform.platform(),
        "python": python,
        "interpreter": interpreter,
        "versions": versions,
        "code_version": code_version,
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "gpus": lines("nvidia-smi", "--query-gpu=name,uuid,driver_version,memory.total", "--format=csv,noheader"),
        "topology": lines("nvidia-smi", "topo", "-m"),
        "nvlink": lines("nvidia-smi", "nvlink", "--status"),
        "numa": numa_nodes(Path("/sys/devices/system/node")),
        "variables": allowed_variables(environ),
    }


def allowed_variables(environ: Mapping[str, str]) -> Dict[str, str]:
    """Return the variables of the scheduler and of libraries that can affect a measurement, without secrets."""
    names = [name for name in environ if ALLOWED_VARIABLES.fullmatch(name) and not REFUSED_VARIABLES.search(name)]
    return {name: environ[name] for name in names}


def numa_nodes(folder: Path) -> Dict[str, str]:
    """Return the cores of each NUMA node as the kernel writes them, {"0": "0-15,32-47"}; empty if unknown."""
    cores = {path.name[len("node") :]: text_of(path / "cpulist") for path in folder.glob("node[0-9]*")}
    return {number: cores[number] or "" for number in sorted(cores, key=int)}


def start_facts(
    spec: RunSpec, rendezvous: Rendezvous, cpus: Iterable[int], environ: Mapping[str, str]
) -> Dict[str, Any]:
    """Return what is known of a process's placement without its framework (the event `start`).

    Args:
        cpus: on which it may run.
        environ: variables of the process or its supervisor.
    """
    declared = environ.get(environment_variables.CORES_DECLARED, "")
    return {
        "local_rank": rendezvous.local_rank,
        "host": socket.gethostname(),
        "machine": machine_id(),
        "cores": os.cpu_count() or 1,
        "cpus": sorted(cpus),
        "cores_declared": int(declared) if declared.isdigit() else None,
        "global_batch": spec.global_batch,
        "batch_per_gpu": spec.batch_per_gpu,
    }


def machine_id() -> str:
    """Return the kernel's boot id: equal on all virtual nodes and containers of one machine, unique otherwise."""
    return text_of(Path("/proc/sys/kernel/random/boot_id")) or socket.gethostname()


def cpu_model() -> Optional[str]:
    match = re.search(r"^model name\s*:\s*(.+)$", text_of(Path("/proc/cpuinfo")) or "", re.MULTILINE)
    return match.group(1).strip() if match else None


def lines(*command: str) -> List[str]:
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return done.stdout.decode("utf-8", errors="replace").splitlines() if done.returncode == 0 else []


def text_of(path: Path) -> Optional[str]:
    """Return the text of a file, stripped; None if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except (OSError, ValueError):
        return None
