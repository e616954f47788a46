"""Starts Horovod without its launcher: the ranks are there already. For every framework that Horovod offers."""

from __future__ import annotations

import os
from typing import Any, Dict

import horovod
from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
from horovod.runner.http.http_server import RendezvousServer

from harness.spec import RunSpec, Site
from harness.worker.exchange import gather
from harness.worker.rendezvous import Rendezvous


def start(hvd: Any, spec: RunSpec, site: Site, rendezvous: Rendezvous) -> None:
    """hvd: horovod.torch, horovod.tensorflow, ... Returns when all ranks are connected.

    Over MPI, what started the ranks has told them who they are; over Gloo, this does (what `horovodrun --gloo` does on
    the first host, and would start the ranks by ssh for).
    """
    controller = spec.strategy_options["controller"]
    os.environ.update(
        HOROVOD_CONTROLLER=controller,
        HOROVOD_CPU_OPERATIONS=controller,
        # A peer that does not come, and one that is gone: the watcher's own deadline stands behind.
        HOROVOD_GLOO_TIMEOUT_SECONDS=str(int(site.timeout_seconds)),
    )
    if controller == "gloo":
        os.environ.update(_gloo(rendezvous, site))
    hvd.init()


def name(spec: RunSpec) -> str:
    return f"Horovod over {spec.strategy_options['controller']}"


def versions() -> Dict[str, str]:
    return {"horovod": str(horovod.__version__)}


def _gloo(rendezvous: Rendezvous, site: Site) -> Dict[str, str]:
    per_node = rendezvous.local_world_size
    # Ranks are placed evenly, node by node (harness/plan.py).
    node, nodes = rendezvous.rank // per_node, rendezvous.world_size // per_node
    server = None
    if rendezvous.rank == 0:
        server = RendezvousServer()  # its thread ends with the process
        port = server.start()
        hosts = ",".join(f"node{number}:{per_node}" for number in range(nodes))
        server.init(get_host_assignments(parse_hosts(hosts), rendezvous.world_size))
    told = gather(rendezvous, {"port": port if server else 0}, site.timeout_seconds)
    variables = {
        "HOROVOD_RANK": rendezvous.rank,
        "HOROVOD_SIZE": rendezvous.world_size,
        "HOROVOD_LOCAL_RANK": rendezvous.local_rank,
        "HOROVOD_LOCAL_SIZE": per_node,
        "HOROVOD_CROSS_RANK": node,
        "HOROVOD_CROSS_SIZE": nodes,
        "HOROVOD_HOSTNAME": f"node{node}",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": rendezvous.master_address,
        "HOROVOD_GLOO_RENDEZVOUS_PORT": told[0]["port"],
    }
    # One interface, by its name, as for gloo itself; else Horovod takes the one that its host's name leads to.
    interface = os.environ.get("HOROVOD_GLOO_IFACE") or os.environ.get("GLOO_SOCKET_IFNAME")
    if interface:
        variables["HOROVOD_GLOO_IFACE"] = interface
    return {key: str(value) for key, value in variables.items()}
