"""What a run ran on. Standard library only; no secrets: environment variables pass an allow-list."""

from __future__ import annotations

import os
import platform
import re
import socket
import subprocess
from typing import Any, Dict, List, Optional

from harness.spec import RunSpec, Site
from harness.worker.rendezvous import Rendezvous

ENV_VERSION = 1
DECLARED_CORES_VARIABLE = "HARNESS_CORES_DECLARED"
ALLOWED_VARIABLES = re.compile(
    r"(SLURM_(JOB_ID|ARRAY_JOB_ID|ARRAY_TASK_ID|JOB_PARTITION|JOB_NODELIST|JOB_NUM_NODES|NTASKS|CPUS_ON_NODE|CLUSTER_NAME)"
    r"|(NCCL|HOROVOD(?!_SECRET)|MXNET|OMPI_MCA|UCX)_\w+|GLOO_SOCKET_IFNAME|DMLC_INTERFACE|XLA_FLAGS|PJRT_NPROC"
    r"|CUDA_VISIBLE_DEVICES|(OMP|MKL|OPENBLAS)_NUM_THREADS|TF_NUM_INTRAOP_THREADS|OMP_PROC_BIND|OMP_PLACES|KMP_AFFINITY)"
)


def start_facts(spec: RunSpec, rendezvous: Rendezvous) -> Dict[str, Any]:
    """What a rank knows of its place without its framework."""
    declared = os.environ.get(DECLARED_CORES_VARIABLE, "")
    return {
        "local_rank": rendezvous.local_rank,
        "host": socket.gethostname(),
        "machine": machine_id(),
        "cores": os.cpu_count() or 1,
        "cpus": sorted(os.sched_getaffinity(0)),
        "cores_declared": int(declared) if declared.isdigit() else None,
        "global_batch": spec.global_batch,
        "batch_per_gpu": spec.batch_per_gpu,
    }


def machine_id() -> str:
    """The kernel's boot id: the same on all virtual nodes and containers of one machine, other on every other."""
    return _read("/proc/sys/kernel/random/boot_id") or socket.gethostname()


def environment(site: Site, versions: Dict[str, str]) -> Dict[str, Any]:
    """The document `env.json` (schemas/env.schema.json)."""
    return {
        "v": ENV_VERSION,
        "host": socket.gethostname(),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "interpreter": site.python,
        "versions": versions,
        "code_version": site.code_version,
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "gpus": _lines("nvidia-smi", "--query-gpu=name,uuid,driver_version,memory.total", "--format=csv,noheader"),
        "topology": _lines("nvidia-smi", "topo", "-m"),
        "variables": {name: value for name, value in os.environ.items() if ALLOWED_VARIABLES.fullmatch(name)},
    }


def gpu_uuid() -> Optional[str]:
    """Of the GPU that the launcher made visible to this rank, for frameworks that do not tell."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    if not visible.isdigit():  # a UUID already, of a GPU or of a part of one
        return visible or None
    return next(iter(_lines("nvidia-smi", f"--id={visible}", "--query-gpu=uuid", "--format=csv,noheader")), None)


def cpu_model() -> Optional[str]:
    match = re.search(r"^model name\s*:\s*(.+)$", _read("/proc/cpuinfo") or "", re.MULTILINE)
    return match.group(1).strip() if match else None


def _read(path: str) -> Optional[str]:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return None


def _lines(*command: str) -> List[str]:
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return done.stdout.decode("utf-8", errors="replace").splitlines() if done.returncode == 0 else []
