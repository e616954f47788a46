"""A task's rank and the address of rank 0, from the variables of Slurm, submitit, MPI or torchrun.

Standard library only, Python 3.8 syntax.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from harness.core import environment_variables, run_files
from harness.core.system.ports import JOB_PORTS


@dataclass(frozen=True)
class Rendezvous:
    """A rank's place among all ranks, and the address on which rank 0 listens."""

    rank: int  # over all nodes, from 0
    world_size: int
    local_rank: int  # on this node
    local_world_size: int
    master_address: str
    master_port: int
    token: str = field(default="", repr=False)  # known to this attempt's ranks only; empty before `with_token`

    def environment(self) -> dict[str, str]:
        """Return torchrun's variables, which every framework's launcher understands."""
        return {
            "RANK": str(self.rank),
            "WORLD_SIZE": str(self.world_size),
            "LOCAL_RANK": str(self.local_rank),
            "LOCAL_WORLD_SIZE": str(self.local_world_size),
            "MASTER_ADDR": self.master_address,
            "MASTER_PORT": str(self.master_port),
        }


def from_environment(environ: Mapping[str, str]) -> Rendezvous:
    """Read a rank's rendezvous from torchrun's variables if complete, else from the launcher's.

    Raises ValueError if neither is set.
    """
    if all(name in environ for name in environment_variables.TORCHRUN):
        return Rendezvous(
            rank=int(environ["RANK"]),
            world_size=int(environ["WORLD_SIZE"]),
            local_rank=int(environ["LOCAL_RANK"]),
            local_world_size=int(environ["LOCAL_WORLD_SIZE"]),
            master_address=environ["MASTER_ADDR"],
            master_port=int(environ["MASTER_PORT"]),
        )
    return from_launcher(environ)


def from_launcher(environ: Mapping[str, str]) -> Rendezvous:
    """Read the rendezvous of a task started by submitit's local executor, `srun` or Open MPI's `mpirun`. Raises
    ValueError."""
    if "SUBMITIT_LOCAL_GLOBALID" in environ:
        ranks = int(environ["SUBMITIT_LOCAL_NTASKS"])
        return Rendezvous(
            rank=int(environ["SUBMITIT_LOCAL_GLOBALID"]),
            world_size=ranks,
            local_rank=int(environ["SUBMITIT_LOCAL_LOCALID"]),
            local_world_size=ranks,
            master_address="127.0.0.1",
            master_port=_port(environ, environ.get("SUBMITIT_LOCAL_JOB_ID", "0")),
        )
    if "OMPI_COMM_WORLD_RANK" in environ:  # before Slurm's, which describe mpirun or its daemon on the node
        ranks, on_node = int(environ["OMPI_COMM_WORLD_SIZE"]), int(environ["OMPI_COMM_WORLD_LOCAL_SIZE"])
        address = environ.get("MASTER_ADDR", "127.0.0.1")
        if "SLURM_JOB_NODELIST" in environ and ranks > on_node:
            address = first_host(environ["SLURM_JOB_NODELIST"])
        return Rendezvous(
            rank=int(environ["OMPI_COMM_WORLD_RANK"]),
            world_size=ranks,
            local_rank=int(environ["OMPI_COMM_WORLD_LOCAL_RANK"]),
            local_world_size=on_node,
            master_address=address,
            master_port=_port(environ, environ.get("MASTER_PORT", "0")),
        )
    if "SLURM_PROCID" in environ:
        tasks_per_node = environ.get("SLURM_STEP_TASKS_PER_NODE") or environ.get("SLURM_TASKS_PER_NODE", "1")
        return Rendezvous(
            rank=int(environ["SLURM_PROCID"]),
            world_size=int(environ.get("SLURM_STEP_NUM_TASKS") or environ["SLURM_NTASKS"]),
            local_rank=int(environ["SLURM_LOCALID"]),
            # '4(x3)': placement is even, so the first number holds for all nodes.
            local_world_size=int(tasks_per_node.split("(")[0].split(",")[0]),
            master_address=first_host(environ.get("SLURM_STEP_NODELIST") or environ["SLURM_JOB_NODELIST"]),
            master_port=_port(environ, environ["SLURM_JOB_ID"]),
        )
    raise ValueError(
        "rank unknown: none of the variables of submitit, Slurm, Open MPI and torchrun are set; "
        "start ranks with `python -m harness`"
    )


def make_token(attempt_dir: Path) -> None:
    """Make the file from which the attempt's ranks read their token, for this user only. The first supervisor does."""
    path = attempt_dir / run_files.TOKEN
    if path.exists():
        return
    temporary = attempt_dir / f".{run_files.TOKEN}.{os.uname().nodename}.{os.getpid()}.tmp"
    try:
        with open(os.open(temporary, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600), "w", encoding="ascii") as file:
            file.write(f"{secrets.token_hex(16)}\n")
        try:
            os.link(temporary, path)
        except FileExistsError:
            pass
        except OSError:  # a file system without hard links, which leaves a small race
            if not path.exists():
                temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def with_token(rendezvous: Rendezvous, attempt_dir: Path) -> Rendezvous:
    """Add the attempt's token. Raises OSError."""
    return replace(rendezvous, token=(attempt_dir / run_files.TOKEN).read_text(encoding="ascii").strip())


def meeting_host(rendezvous: Rendezvous) -> str:
    """Return the host at which the ranks meet."""
    return "127.0.0.1" if rendezvous.world_size == rendezvous.local_world_size else rendezvous.master_address


def first_host(nodelist: str) -> str:
    """The first host in Slurm's compressed notation, on which task 0 runs: 'gpu[03-05,9],login' -> 'gpu03'."""
    depth = 0
    for end, character in enumerate(nodelist):
        depth += {"[": 1, "]": -1}.get(character, 0)
        if character == "," and depth == 0:
            nodelist = nodelist[:end]
            break
    return re.sub(r"\[([0-9]+)[^\]]*\]", r"\1", nodelist)


def _port(environ: Mapping[str, str], job_id: str) -> int:
    """The port chosen by the launcher, or one derived from the job id.

    Consecutive jobs may share a node and get different ports this way.
    """
    if environment_variables.MASTER_PORT in environ:
        return int(environ[environment_variables.MASTER_PORT])
    return JOB_PORTS[int(job_id) % len(JOB_PORTS)]
