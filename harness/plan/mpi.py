"""Chooses what starts the ranks of an MPI strategy: srun or mpirun.

MPI learns its ranks only from its own launcher or from an srun that speaks its protocol. Otherwise each rank would be a
world of size one (checked in harness/worker/rank.py).
"""

from __future__ import annotations

import os
import re
import shutil
from functools import cache
from pathlib import Path

from harness.config.schema import Cluster, Controller, Scheduler, Strategy
from harness.core.errors import UserError
from harness.core.launchers import MPIRUN
from harness.core.strategies import info
from harness.core.system import programs
from harness.core.system.programs import NoAnswer
from harness.slurm.client import Client, SlurmUnavailable


def needed(strategy: Strategy) -> bool:
    """Return whether the strategy's ranks call MPI_Init."""
    return info(strategy.name).mpi or getattr(strategy.options, "controller", None) is Controller.mpi


def starter(cluster: Cluster) -> str:
    """The value for `srun --mpi=`, or MPIRUN."""
    if cluster.mpi is not None:
        return cluster.mpi
    return "pmix" if cluster.scheduler is not Scheduler.local and _srun_has_pmix() else MPIRUN


def mpirun(python: str) -> str:
    """Find the mpirun that matches the environment's MPI: its own, or the one on the PATH. Raises UserError.

    python: the environment's; empty if there is none.
    """
    beside = Path(python or "python").with_name(MPIRUN)
    own = beside.is_absolute() and os.access(beside, os.X_OK)  # in a container, `python` is a bare name
    if (found := str(beside) if own else shutil.which(MPIRUN)) is None:
        raise UserError(
            f"there is no mpirun to start the ranks: neither at {beside} nor on the PATH; rebuild the environment "
            "(it includes Open MPI), load the module of the MPI that it uses, or set cluster.mpi to a name from "
            "`srun --mpi=list`"
        )
    try:
        of_mpich = re.search("hydra|intel", programs.run(found, "--version", seconds=90).stdout, re.IGNORECASE)
    except NoAnswer:
        return found  # it will report the problem when it starts ranks
    if of_mpich:
        raise UserError(
            f"{found} is not Open MPI's, the only supported one; for MPICH and its derivatives, set "
            "cluster.mpi=pmi2 on Slurm"
        )
    return found


@cache
def _srun_has_pmix() -> bool:
    try:
        return any(kind.startswith("pmix") for kind in Client().mpi_kinds())
    except SlurmUnavailable:
        return False
