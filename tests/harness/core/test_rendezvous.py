from __future__ import annotations

import pytest

from harness.core.rendezvous import Rendezvous, first_host, from_environment, from_launcher
from harness.core.system.ports import JOB_PORTS

SLURM = {
    # As seen in a step of `srun --nodes=3 --ntasks-per-node=4`, task 6.
    "SLURM_PROCID": "6",
    "SLURM_NTASKS": "12",
    "SLURM_STEP_NUM_TASKS": "12",
    "SLURM_LOCALID": "2",
    "SLURM_STEP_TASKS_PER_NODE": "4(x3)",
    "SLURM_STEP_NODELIST": "gpu[03-05]",
    "SLURM_JOB_NODELIST": "gpu[03-05]",
    "SLURM_JOB_ID": "356583",
}


def test_slurm_step() -> None:
    found = from_launcher(SLURM)
    assert found == Rendezvous(6, 12, 2, 4, "gpu03", JOB_PORTS[356583 % 6384])


def test_jobs_that_follow_one_another_do_not_share_a_port() -> None:
    ports = {from_launcher({**SLURM, "SLURM_JOB_ID": str(356583 + i)}).master_port for i in range(1000)}
    assert len(ports) == 1000


def test_submitit_local_goes_before_slurm_as_inside_an_allocation() -> None:
    local = {
        "SUBMITIT_LOCAL_GLOBALID": "1", "SUBMITIT_LOCAL_LOCALID": "1", "SUBMITIT_LOCAL_NTASKS": "2",
        "SUBMITIT_LOCAL_JOB_ID": "77", "HARNESS_MASTER_PORT": "23456",
    }  # fmt: skip
    assert from_launcher({**SLURM, **local}) == Rendezvous(1, 2, 1, 2, "127.0.0.1", 23456)


def test_open_mpi() -> None:
    mpi = {
        "OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4",
        "OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
        "MASTER_ADDR": "n1", "MASTER_PORT": "21000",
    }  # fmt: skip
    found = from_launcher(mpi)
    assert (found.rank, found.world_size, found.local_rank, found.local_world_size) == (3, 4, 1, 2)
    assert found.master_address == "n1"
    # As seen in a supervisor started on the second of two nodes by mpirun's daemon, which is a task of srun.
    of_daemon = {**SLURM, "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2", "SLURM_JOB_NODELIST": "gpu[03-04]"}
    del mpi["MASTER_ADDR"]
    found = from_launcher({**of_daemon, **mpi, "HARNESS_MASTER_PORT": "23456"})
    assert found == Rendezvous(3, 4, 1, 2, "gpu03", 23456)


def test_a_rank_reads_back_what_its_supervisor_wrote() -> None:
    given = from_launcher(SLURM)
    assert from_environment({**SLURM, **given.environment()}) == given


def test_no_launcher_is_an_error_that_says_how_to_start() -> None:
    with pytest.raises(ValueError, match="python -m harness"):
        from_environment({"RANK": "0"})


@pytest.mark.parametrize(
    ("nodelist", "host"),
    [
        ("n1", "n1"), ("n[1-3]", "n1"), ("gpu[03-05,09],login1", "gpu03"), ("gpu[007,100]", "gpu007"),
        ("a1,b[2-3]", "a1"), ("rack[1-2]n[4-6]", "rack1n4"), ("c[5]-ib", "c5-ib"),
    ],
)  # fmt: skip
def test_first_host_of_a_compressed_list(nodelist: str, host: str) -> None:
    assert first_host(nodelist) == host
