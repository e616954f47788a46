"""Placement of a run's ranks on nodes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

from harness.core.errors import UserError


@dataclass(frozen=True)
class Placement:
    """Placement of a run's ranks. One rank drives one GPU, or one share of the cores on a CPU machine."""

    nodes: int
    ranks_per_node: int

    @property
    def world_size(self) -> int:
        return self.nodes * self.ranks_per_node

    def __str__(self) -> str:
        return f"{self.nodes} x {self.ranks_per_node}"


def place(gpus: int, gpus_per_node: Optional[int]) -> Placement:
    """Spread `gpus` ranks evenly over as few nodes as possible. gpus_per_node=None: one node holds any number.

    Raises UserError naming the nearest valid counts if they do not divide evenly.
    """
    if gpus < 1:
        raise UserError(f"gpus={gpus}: give a whole number of at least 1")
    if gpus_per_node is None:
        return Placement(1, gpus)
    if gpus_per_node < 1:
        raise UserError(
            f"cluster.gpus_per_node={gpus_per_node}: give a whole number of at least 1, or null for no limit"
        )
    if not _fits(gpus, gpus_per_node):
        below = next(n for n in range(gpus - 1, 0, -1) if _fits(n, gpus_per_node))
        above = next(n for n in range(gpus + 1, 2 * gpus + gpus_per_node) if _fits(n, gpus_per_node))
        raise UserError(
            f"gpus={gpus} cannot be placed evenly on nodes with {gpus_per_node} GPUs each; "
            f"the nearest counts that can are {below} and {above}"
        )
    nodes = -(-gpus // gpus_per_node)
    return Placement(nodes, gpus // nodes)


def _fits(gpus: int, gpus_per_node: int) -> bool:
    return gpus % -(-gpus // gpus_per_node) == 0
