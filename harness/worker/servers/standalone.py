"""A parameter server without a rank: `python -m harness.worker.servers.standalone <run's folder> <attempt's folder>`.

Started like a rank (harness/node/rank_supervisor.py), with a rank's environment and a number after theirs. Exchanges
its address with the ranks, and exits with 0 when all workers have signed off.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from harness.core.rendezvous import from_environment, with_token
from harness.core.spec import read_run
from harness.core.strategies import info
from harness.worker.checks.capability import PackageError, check_packages


def main(run_dir: Path, attempt_dir: Path) -> None:
    spec, site = read_run(run_dir)
    try:
        check_packages(spec.framework, spec.strategy, spec.environment)
    except PackageError as error:
        sys.exit(f"error: {error}")
    # Only now, as in harness/worker/__main__.py.
    from harness.worker.distributed.exchange import gather, own_address
    from harness.worker.servers.colocated import RANK_SIGNALS, ColocatedServer
    from harness.worker.servers.topology import node_name, settings

    for number in RANK_SIGNALS:
        signal.signal(number, signal.SIG_IGN)  # runs until the ranks have left
    rendezvous = with_token(from_environment(os.environ), attempt_dir)
    workers = spec.placement.nodes if info(spec.strategy).servers_per_node else spec.gpus
    server = ColocatedServer(settings(spec, workers), own_address(rendezvous))
    gather(rendezvous, [*server.address, node_name()], site.timeout_seconds)
    server.wait()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
