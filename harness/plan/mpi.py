"""What starts the ranks of a strategy over MPI: srun, or mpirun.

MPI learns only from its own launcher, or from an srun that speaks its protocol, which ranks there are. Without a word
each rank would be a world of its own (harness/worker/__main__.py looks).
"""

from __future__ import annotations

import os
import re
import shutil
from functools import cache
from pathlib import Path

from harness.config.schema import Cluster, Controller, Scheduler, Strategy
from harness.core import programs
from harness.core.errors import UserError
from harness.core.launchers import MPIRUN
from harness.core.programs import NoAnswer
from harness.core.strategies import info
from harness.slurm.client import Client, SlurmUnavailable


def needed(strategy: Strategy) -> bool:
    """Whether the strategy's ranks call MPI_Init."""
    return info(strategy.name).mpi or getattr(strategy.options, "controller", None) is Controller.mpi


def starter(cluster: Cluster) -> str:
    """Of such ranks: the name for `srun --mpi=`, or MPIRUN."""
    if cluster.mpi is not None:
        return cluster.mpi
    return "pmix" if cluster.scheduler is not Scheduler.local and _srun_has_pmix() else MPIRUN


def mpirun(python: str) -> str:
    """The mpirun of the MPI that the environment of this interpreter uses: its own, else the one on the PATH.

    Raises UserError.
    """
    beside = Path(python).with_name(MPIRUN)
    own = beside.is_absolute() and os.access(beside, os.X_OK)  # in a container, `python` is a name
    if (found := str(beside) if own else shutil.which(MPIRUN)) is None:
        raise UserError(
            f"there is no mpirun to start the ranks: neither at {beside} nor on the PATH; build the environment again "
            "(it brings Open MPI), load the module of the MPI that it uses, or set cluster.mpi to a name that "
            "`srun --mpi=list` has"
        )
    try:
        of_mpich = re.search("hydra|intel", programs.run(found, "--version", seconds=90).stdout, re.IGNORECASE)
    except NoAnswer:
        return found  # what is wrong with it, it says when it is to start ranks
    if of_mpich:
        raise UserError(
            f"{found} is not Open MPI's, the only one that is known here; for MPICH, and what is made of it, set "
            "cluster.mpi=pmi2 on Slurm"
        )
    return found


@cache
def _srun_has_pmix() -> bool:
    try:
        return any(kind.startswith("pmix") for kind in Client().mpi_kinds())
    except SlurmUnavailable:
        return False
