"""Check for ranks that share a GPU, which NCCL rejects. Standard library only.

Runs on the node before a framework is loaded, because NCCL's own error ("Duplicate GPU detected") names neither cause
nor remedy. For the planning side see harness/plan/gpu_sharing.py.
"""

from __future__ import annotations

import os
import socket
from typing import Dict, List, Optional, Tuple

from harness.core.errors import RankError
from harness.core.measuring.environment import machine_id
from harness.core.rendezvous import Rendezvous
from harness.core.spec import RunSpec, Site
from harness.core.strategies import NCCL, info
from harness.worker.distributed.exchange import gather
from harness.worker.record import nvml


class SharedGpuError(RankError):
    """Ranks share a GPU, and the run's strategy needs NCCL."""


def check(spec: RunSpec, site: Site, rendezvous: Rendezvous) -> None:
    """Raise SharedGpuError on all ranks if some share a GPU; called by all ranks. Passes if the driver does not report
    a rank's GPU, or planning chose another library than NCCL."""
    over_nccl = info(spec.strategy).frameworks.get(spec.framework) == NCCL
    if spec.cluster.device == "cuda" and rendezvous.world_size > 1 and over_nccl and not site.shared_gpus:
        refuse_shared(spec, rendezvous, nvml.board(os.environ.get("CUDA_VISIBLE_DEVICES")), site.timeout_seconds)


def refuse_shared(spec: RunSpec, rendezvous: Rendezvous, board: Optional[str], timeout_seconds: float) -> None:
    """board: UUID of this rank's GPU, or of the one it has a part of."""
    told = gather(rendezvous, [machine_id(), socket.gethostname(), board], timeout_seconds)
    ranks: Dict[Tuple[str, str], List[int]] = {}
    for rank, (machine, _, found) in enumerate(told):
        if found is not None:
            ranks.setdefault((machine, found), []).append(rank)
    for (_, found), together in ranks.items():
        if len(together) > 1:
            first, second = together[:2]
            raise SharedGpuError(
                f"ranks {first} and {second} share one GPU of {told[first][1]} ({found}), or have parts of it (MIG), "
                f"and strategy '{spec.strategy}' of framework '{spec.framework}' needs NCCL, which rejects that: "
                "give each rank a whole GPU of its own (cluster.gpus_per_node, cluster.gpu_option), or use "
                "strategy=mpi or a parameter server"
            )
