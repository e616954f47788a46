"""Programs of the user's environment that start the ranks of one node: how each is called.

Standard library only, Python 3.8 syntax.
"""

from __future__ import annotations

import base64
import json
from typing import Callable, Dict, List, NamedTuple, Sequence, Union

HARNESS, ACCELERATE = "harness", "accelerate"
# Variables from which the probe learns the rank of a process that something else has started.
RANKS = ("RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID")


class Node(NamedTuple):
    """What a launcher must know of the node it runs on.

    Attributes:
        nodes: number of nodes of the run.
        rank: of this node.
        processes: ranks to start on each node.
        address, port: where rank 0 listens; like `rank`, a placeholder in a plan.
        devices: CUDA_VISIBLE_DEVICES; empty on the CPU.
    """

    nodes: int
    rank: Union[int, str]
    processes: int
    address: str
    port: Union[int, str]
    devices: str


def _torchrun(node: Node) -> List[str]:
    return [
        "torch.distributed.run",
        f"--nnodes={node.nodes}",
        f"--node-rank={node.rank}",
        f"--nproc-per-node={node.processes}",
        f"--master-addr={node.address}",
        f"--master-port={node.port}",
    ]


def _accelerate(node: Node) -> List[str]:
    ranks = node.nodes * node.processes
    return [
        "accelerate.commands.launch",
        # Also on the CPU: with --cpu it would start one process, or mpirun. It refuses the option for a single rank.
        *(["--multi_gpu"] if ranks > 1 else []),
        f"--num_processes={ranks}",
        f"--num_machines={node.nodes}",
        f"--machine_rank={node.rank}",
        f"--main_process_ip={node.address}",
        f"--main_process_port={node.port}",
        "--same_network",
    ]


def _deepspeed(node: Node) -> List[str]:
    # What `deepspeed` starts on each node through ssh. It makes the list CUDA_VISIBLE_DEVICES, where -1 is no GPU.
    devices = node.devices.split(",") if node.devices else ["-1"] * node.processes
    world = {f"node{number}": devices for number in range(node.nodes)}
    return [
        "deepspeed.launcher.launch",
        f"--world_info={base64.urlsafe_b64encode(json.dumps(world).encode()).decode()}",
        f"--node_rank={node.rank}",
        f"--master_addr={node.address}",
        f"--master_port={node.port}",
    ]


# Each is a module, and takes --module before one that is to be run.
PER_NODE: Dict[str, Callable[[Node], List[str]]] = {
    "torchrun": _torchrun,
    ACCELERATE: _accelerate,
    "deepspeed": _deepspeed,
}


def command(name: str, python: str, node: Node, script: Sequence[str]) -> List[str]:
    """Build the command that starts the ranks of a node. script: with its arguments, or '-m' and a module."""
    words = ["--module", *script[1:]] if script[0] == "-m" else list(script)
    return [python, "-u", "-m", *PER_NODE[name](node), *words]
