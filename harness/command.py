"""A rank's command line and environment: pure functions."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from harness.spec import RunSpec, Site
from harness.worker.rendezvous import Rendezvous

# Every framework's thread pool gets the same size: their defaults differ by an order of magnitude on shared cores.
THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "TF_NUM_INTRAOP_THREADS",
)


def rank_command(site: Site, run_dir: Path, attempt_dir: Path) -> list[str]:
    return [site.python, "-u", "-m", "harness.worker", str(run_dir), str(attempt_dir)]


def rank_environment(spec: RunSpec, site: Site, rendezvous: Rendezvous, environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of one rank: the job's own, the rendezvous, one GPU visible, equal thread pools, and last what
    the configuration sets (cluster.env)."""
    env = dict(environ)
    # The login node's environment must not reach into the framework's.
    for name in ("PYTHONHOME", "VIRTUAL_ENV", "__PYVENV_LAUNCHER__"):
        env.pop(name, None)
    # Behind it what modules of the site put there: that is where their frameworks are.
    env["PYTHONPATH"] = os.pathsep.join(filter(None, (site.project, environ.get("PYTHONPATH"))))
    env.update(rendezvous.environment())
    env.update(dict.fromkeys(THREAD_VARIABLES, str(spec.cluster.cpus_per_gpu)))
    env["CUDA_VISIBLE_DEVICES"] = visible_gpu(spec, site, rendezvous.local_rank, environ)
    if spec.cluster.name == "local" or spec.placement.nodes == 1:
        # Host names of laptops and containers often do not resolve; one node needs none.
        env.setdefault("GLOO_SOCKET_IFNAME", "lo")
    env.update(spec.env)
    return env


def visible_gpu(spec: RunSpec, site: Site, local_rank: int, environ: Mapping[str, str]) -> str:
    """The one entry of CUDA_VISIBLE_DEVICES for this rank; '' on CPU.

    Ranks beyond the number of GPUs share them in turn; such runs are marked oversubscribed.
    """
    if spec.cluster.device == "cpu":
        return ""
    given = environ.get("CUDA_VISIBLE_DEVICES", "")
    devices = site.visible_gpus or tuple(filter(None, given.split(",")))
    return devices[local_rank % len(devices)] if devices else str(local_rank)
