"""A parameter server beside no rank: `python -m harness.worker.servers.alone <run's folder> <attempt's folder>`.

Started like a rank (harness/rank.py), with a rank's environment and a number after theirs. It tells the ranks its
address where they tell each other theirs, and ends with exit code 0 when all workers have said goodbye.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from pathlib import Path
from typing import Sequence

from harness.spec import RunSpec, read_run
from harness.worker.exchange import gather, own_address
from harness.worker.rendezvous import from_environment
from harness.worker.servers.beside import FOR_THE_RANK, ServerBeside
from harness.worker.servers.parameters import ASYNCHRONOUS, BOUNDED, SYNCHRONOUS, Settings

MODES = {"ps_sync": SYNCHRONOUS, "ps_async": ASYNCHRONOUS, "ps_mixed": ASYNCHRONOUS, "ssp": BOUNDED}


def settings_of(spec: RunSpec) -> Settings:
    return Settings(
        mode=MODES[spec.strategy],
        workers=spec.placement.nodes if spec.strategy == "ps_mixed" else spec.gpus,
        staleness=spec.strategy_options.get("staleness", 0),
        momentum=spec.optimizer.momentum,
        weight_decay=spec.optimizer.weight_decay,
        nesterov=spec.optimizer.nesterov,
    )


def node_name() -> str:
    """As Slurm names this node, which on a virtual one is not its host's name."""
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname()


def where(nodes: Sequence[str]) -> str:
    """The servers' nodes in words, for a rank."""
    if node_name() in nodes:
        return "in processes of their own, on the ranks' one node"
    return f"on {len(nodes)} node{'s' * (len(nodes) > 1)} of their own ({', '.join(nodes)})"


def main(run_dir: Path) -> None:
    for number in FOR_THE_RANK:
        signal.signal(number, signal.SIG_IGN)  # it stays until the ranks have left
    spec, site = read_run(run_dir)
    rendezvous = from_environment(os.environ)
    server = ServerBeside(settings_of(spec), own_address(rendezvous))
    gather(rendezvous, [*server.address, node_name()], site.timeout_seconds)
    server.wait()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
