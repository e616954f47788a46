"""Start Horovod without its launcher, as the ranks are already running; for every framework that Horovod supports."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, Dict, Mapping, Optional

import horovod
from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
from horovod.runner.http.http_server import RendezvousServer

from harness.core.rendezvous import Rendezvous
from harness.core.spec import RunSpec, Site
from harness.worker.distributed.exchange import gather


@dataclass(frozen=True)
class Nodes:
    """Horovod's process sets for averaging node by node.

    inside: this rank's node. between: the nodes' first ranks, on these. Each is None if it has one rank only. first:
    the first rank of this node.
    """

    inside: Optional[Any]
    between: Optional[Any]
    first: int


def start(hvd: Any, spec: RunSpec, site: Site, rendezvous: Rendezvous) -> Optional[Nodes]:
    """Connect all ranks; return the process sets if the run is `hierarchical`.

    hvd: horovod.torch, horovod.tensorflow, ... With MPI, the launcher has numbered the ranks. With Gloo, this function
    does, as `horovodrun --gloo` does on the first host before starting the ranks by ssh.
    """
    controller = spec.strategy_options["controller"]
    os.environ.update(
        HOROVOD_CONTROLLER=controller,
        HOROVOD_CPU_OPERATIONS=controller,
        # Applies to missing and lost peers; the supervisor's own deadline is the fallback.
        HOROVOD_GLOO_TIMEOUT_SECONDS=str(int(site.timeout_seconds)),
    )
    os.environ.update(knobs(spec.strategy_options))
    if controller == "gloo":
        os.environ.update(_gloo(rendezvous, site))
    if not spec.strategy_options.get("hierarchical", False):
        hvd.init()
        return None
    # Ranks are placed evenly, node by node (harness/plan/plan.py). Horovod registers each set of ranks once; the set of
    # all ranks exists already.
    ranks, per_node = rendezvous.world_size, rendezvous.local_world_size
    first = rendezvous.rank - rendezvous.local_rank
    firsts = range(0, ranks, per_node)
    single, alone = per_node == ranks, per_node == 1
    nodes = {} if single or alone else {f: hvd.ProcessSet(list(range(f, f + per_node))) for f in firsts}
    between = None if single or alone else hvd.ProcessSet(list(firsts))
    hvd.init(process_sets=[*nodes.values(), *([between] if between else [])])
    everyone = hvd.global_process_set
    return Nodes(
        inside=None if alone else everyone if single else nodes[first],
        between=None if single or rendezvous.rank != first else everyone if alone else between,
        first=first,
    )


def knobs(options: Mapping[str, Any]) -> Dict[str, str]:
    """Return environment variables for the requested options; Horovod has defaults for the others."""
    variables = {}
    if options.get("fusion_mb") is not None:
        variables["HOROVOD_FUSION_THRESHOLD"] = str(int(options["fusion_mb"] * 2**20))
    if options.get("cycle_ms") is not None:
        variables["HOROVOD_CYCLE_TIME"] = str(options["cycle_ms"])
    if options.get("autotune", False):
        variables["HOROVOD_AUTOTUNE"] = "1"
    return variables


def name(hvd: Any, spec: RunSpec, nodes: Optional[Nodes] = None) -> str:
    by_node = f", {spec.placement}" if nodes else ""
    return f"Horovod over {carriers(spec, nccl=bool(hvd.nccl_built()))}{by_node}"


def carriers(spec: RunSpec, nccl: bool) -> str:
    """Return what carries gradients, and what carries control messages if that differs.

    nccl: Horovod was built with NCCL, which then sums tensors in GPU memory.
    """
    controller = spec.strategy_options["controller"]
    if spec.cluster.device == "cpu":
        return str(controller)
    return f"nccl, control over {controller}" if nccl else f"{controller}, through the host's memory"


def compression(hvd: Any, spec: RunSpec) -> Any:
    return getattr(hvd.Compression, spec.strategy_options.get("compress", "none"))


def versions() -> Dict[str, str]:
    return {"horovod": str(horovod.__version__)}


def _gloo(rendezvous: Rendezvous, site: Site) -> Dict[str, str]:
    per_node = rendezvous.local_world_size
    # Ranks are placed evenly, node by node (harness/plan/plan.py).
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
    # Use the same interface as gloo; otherwise Horovod uses the one its host name resolves to.
    interface = os.environ.get("HOROVOD_GLOO_IFACE") or os.environ.get("GLOO_SOCKET_IFNAME")
    if interface:
        variables["HOROVOD_GLOO_IFACE"] = interface
    return {key: str(value) for key, value in variables.items()}
