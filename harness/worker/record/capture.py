"""Describe what a run ran on. Standard library only; environment variables pass an allow-list to exclude secrets."""

from __future__ import annotations

import os
import platform
import re
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional

from harness.core import environment_variables
from harness.core.rendezvous import Rendezvous
from harness.core.spec import RunSpec, Site
from harness.worker.record.counters import text_of

ENV_VERSION = 1
ALLOWED_VARIABLES = re.compile(
    r"(SLURM_(JOB_ID|JOB_NAME|ARRAY_JOB_ID|ARRAY_TASK_ID|JOB_PARTITION|JOB_NODELIST|JOB_NUM_NODES|NTASKS|CPUS_ON_NODE"
    r"|CLUSTER_NAME|CPU_BIND_TYPE|CPU_BIND_LIST)|SLURMD_NODENAME"
    r"|(NCCL|HOROVOD|MXNET|OMPI_MCA|UCX)_\w+|GLOO_SOCKET_IFNAME|DMLC_INTERFACE|XLA_FLAGS|PJRT_NPROC"
    r"|CUDA_VISIBLE_DEVICES|(OMP|MKL|OPENBLAS)_NUM_THREADS|TF_NUM_INTRAOP_THREADS|OMP_PROC_BIND|OMP_PLACES|KMP_AFFINITY)"
)
# Names in /proc/cpuinfo of instructions that multiply bf16, on x86 and Arm.
BF16_FLAGS = frozenset({"avx512_bf16", "amx_bf16", "bf16"})
# Excluded from the allowed ones, as they may be secrets: anyone can define an NCCL_... variable, and Horovod does.
REFUSED_VARIABLES = re.compile(r"SECRET|TOKEN|PASS|KEY|CREDENTIAL|AUTH|PRIVATE", re.IGNORECASE)


def start_facts(spec: RunSpec, rendezvous: Rendezvous) -> Dict[str, Any]:
    """Return what a rank knows about its placement without its framework."""
    declared = os.environ.get(environment_variables.CORES_DECLARED, "")
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


def interpreter_seconds() -> Dict[str, float]:
    """Return {"interpreter": seconds since this process started}, to 10 ms; empty if Linux does not report it.

    Covers the start of the interpreter, imports of the harness and NumPy, and a profiler's or container's start before
    it.
    """
    try:
        with open("/proc/self/stat", encoding="ascii", errors="replace") as file:
            # Field 22 of proc(5), in clock ticks since boot; counted after the name, which may contain anything.
            ticks = int(file.read().rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return {}
    passed = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return {"interpreter": round(passed, 6)} if passed >= 0 else {}


def machine_id() -> str:
    """Return the kernel's boot id: equal on all virtual nodes and containers of one machine, unique otherwise."""
    return text_of(Path("/proc/sys/kernel/random/boot_id")) or socket.gethostname()


def environment(site: Site, versions: Dict[str, str]) -> Dict[str, Any]:
    """Return the document `env.json` (schemas/env.schema.json)."""
    return {
        "v": ENV_VERSION,
        "host": socket.gethostname(),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "interpreter": sys.executable,
        "versions": versions,
        "code_version": site.code_version,
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "gpus": lines("nvidia-smi", "--query-gpu=name,uuid,driver_version,memory.total", "--format=csv,noheader"),
        "topology": lines("nvidia-smi", "topo", "-m"),
        "nvlink": lines("nvidia-smi", "nvlink", "--status"),
        "numa": numa_nodes(Path("/sys/devices/system/node")),
        "variables": allowed_variables(os.environ),
    }


def allowed_variables(environ: Mapping[str, str]) -> Dict[str, str]:
    """Return the variables of the scheduler and of libraries that can affect a measurement, without secrets."""
    names = [name for name in environ if ALLOWED_VARIABLES.fullmatch(name) and not REFUSED_VARIABLES.search(name)]
    return {name: environ[name] for name in names}


def numa_nodes(folder: Path) -> Dict[str, str]:
    """Return the cores of each NUMA node as the kernel writes them, {"0": "0-15,32-47"}; empty if unknown."""
    cores = {path.name[len("node") :]: text_of(path / "cpulist") for path in folder.glob("node[0-9]*")}
    return {number: cores[number] or "" for number in sorted(cores, key=int)}


def emulated_precision(spec: RunSpec, cpuinfo: Optional[str] = None) -> List[str]:
    """Return a sentence if the CPU has no instructions for the run's precision, else nothing; nothing on GPUs.

    cpuinfo: contents of /proc/cpuinfo; None for this machine.
    """
    if spec.cluster.device != "cpu" or spec.precision != "bf16":
        return []
    told = (text_of(Path("/proc/cpuinfo")) or "") if cpuinfo is None else cpuinfo
    match = re.search(r"^(?:flags|Features)\s*:\s*(.+)$", told, re.MULTILINE)
    if match is None:
        return [f"precision=bf16: whether {cpu_model() or 'this processor'} has instructions for it is not known"]
    if BF16_FLAGS.intersection(match.group(1).split()):
        return []
    return [
        f"precision=bf16 was emulated: {cpu_model() or 'this processor'} has no instructions for it "
        f"({', '.join(sorted(BF16_FLAGS))})"
    ]


def gpu_uuid() -> Optional[str]:
    """Return the UUID of the GPU visible to this rank, for frameworks that do not report it."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    if not visible.isdigit():  # already the UUID of a GPU or MIG device
        return visible or None
    return next(iter(lines("nvidia-smi", f"--id={visible}", "--query-gpu=uuid", "--format=csv,noheader")), None)


def mig_device() -> Optional[str]:
    """Return the MIG device visible to this rank; None for a whole GPU."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0]
    return visible if visible.startswith("MIG-") else None


def cpu_model() -> Optional[str]:
    match = re.search(r"^model name\s*:\s*(.+)$", text_of(Path("/proc/cpuinfo")) or "", re.MULTILINE)
    return match.group(1).strip() if match else None


def lines(*command: str) -> List[str]:
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return done.stdout.decode("utf-8", errors="replace").splitlines() if done.returncode == 0 else []
