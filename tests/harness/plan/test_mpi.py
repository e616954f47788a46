"""The choice of launcher for MPI ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.config.schema import AllreduceOptions, Cluster, Controller, HorovodOptions, NoOptions, Scheduler, Strategy
from harness.core.errors import UserError
from harness.plan import mpi
from harness.slurm.client import Client

SLURM = Cluster(name="site", scheduler=Scheduler.slurm)
# Output of srun 22.05; 21.08 and earlier wrote it to stderr, each line prefixed with its name.
LISTED = """MPI plugin types are...
\tpmix
\tnone
\tcray_shasta
\tpmi2
specific pmix plugin versions available: pmix_v4
"""


@pytest.fixture
def srun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Path for a fake srun, alone on the PATH; tests/cluster uses the real one."""
    monkeypatch.setenv("PATH", str(tmp_path))
    mpi._srun_has_pmix.cache_clear()
    return tmp_path / "srun"


def says(program: Path, text: str, stream: int = 1) -> None:
    program.write_text(f"#!/bin/sh\n/bin/cat >&{stream} <<'END'\n{text}END\n")
    program.chmod(0o755)
    mpi._srun_has_pmix.cache_clear()


def test_which_strategies_need_mpi() -> None:
    assert mpi.needed(Strategy("mpi", NoOptions()))
    assert mpi.needed(Strategy("horovod", HorovodOptions(Controller.mpi)))
    assert not mpi.needed(Strategy("horovod", HorovodOptions(Controller.gloo)))
    assert not mpi.needed(Strategy("allreduce", AllreduceOptions()))


def test_srun_starts_them_where_it_can_and_mpirun_elsewhere(srun: Path) -> None:
    assert mpi.starter(SLURM) == "mpirun", "no srun here"
    says(srun, LISTED)
    assert mpi.starter(SLURM) == "pmix"
    assert Client().mpi_kinds() == ["pmix", "cray_shasta", "pmi2", "pmix_v4"]
    assert mpi.starter(Cluster(name="local", scheduler=Scheduler.local)) == "mpirun"
    assert mpi.starter(Cluster(name="site", scheduler=Scheduler.slurm, mpi="pmi2")) == "pmi2"
    says(srun, "".join(f"srun: {line}\n" for line in ("MPI types are...", "none", "openmpi", "pmi2")), stream=2)
    assert mpi.starter(SLURM) == "mpirun"


def test_the_environments_own_mpirun_goes_before_the_one_on_the_path(srun: Path) -> None:
    environment = srun.parent / "env" / "bin"
    environment.mkdir(parents=True)
    python = str(environment / "python")
    with pytest.raises(UserError, match=r"neither at .*/env/bin/mpirun nor on the PATH"):
        mpi.mpirun(python)
    says(srun.with_name("mpirun"), "")
    assert mpi.mpirun(python) == mpi.mpirun("python3") == str(srun.with_name("mpirun"))
    says(environment / "mpirun", "mpirun (Open MPI) 4.1.8\n")
    assert mpi.mpirun(python) == str(environment / "mpirun")
    says(environment / "mpirun", "HYDRA build details:\n    Version:                                 5.0.2\n")
    with pytest.raises(UserError, match="is not Open MPI's"):
        mpi.mpirun(python)
