"""The registry of strategies: one row for each, with everything that is true of it whatever the run's options are.

Validity checks, bandwidths, resources, the roofline, the report's names and the performance options all derive from
these rows. To add a strategy: a row here, conf/strategy/<name>.yaml, and a class in each adapter that offers it.
Standard library only.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Callable, Dict, Mapping, Optional, Tuple

# The strategy of one rank with nothing around the network. Every framework offers it.
PLAIN = "plain"

# What carries messages on GPUs: NCCL; the key-value store of MXNet; the memory of hosts (gloo, MPI, sockets).
NCCL, KVSTORE, HOST = "nccl", "kvstore", "host"

# When parameter servers apply a gradient: with those of all workers; on arrival; on arrival, with bounded staleness.
SYNCHRONOUS, ASYNCHRONOUS, BOUNDED = "synchronous", "asynchronous", "bounded"

# What is divided between ranks instead of replicated on all of them.
NETWORK, WEIGHTS, OPTIMIZER_STATE = "network", "weights", "optimizer_state"

# What a step sends: a sum of all gradients over all ranks; as many bytes in a reduce-scatter and an allgather; all
# gradients to servers and all weights back.
ALLREDUCE, REDUCE_SCATTER, PUSH_PULL = "allreduce", "reduce_scatter", "push_pull"


@dataclass(frozen=True)
class StrategyInfo:
    """What is true of a strategy. The defaults are those of a strategy that this program does not know."""

    name: str
    # Where it was published.
    source: str = ""
    # As its makers write it; empty: the name with spaces.
    label: str = ""
    # The same in frameworks that have a name of their own for it.
    labels: Mapping[str, str] = field(default_factory=dict)
    # The frameworks that offer it, and what carries its messages on GPUs there.
    frameworks: Mapping[str, str] = field(default_factory=dict)
    # Whether all ranks have the same gradients after each step, and so the same weights.
    synchronous: bool = False
    # What is divided between ranks; None: every rank has all of the weights and takes the whole optimiser step.
    divides: Optional[str] = None
    # Of strategies that divide the network: the option that says how many ranks hold one copy of it.
    ranks_option: Optional[str] = None
    # When parameter servers apply a gradient; None: there are no servers.
    servers: Optional[str] = None
    # Whether one worker of the servers speaks for all ranks of a node, which average their gradients first.
    servers_per_node: bool = False
    # What a step sends; None: something else, or it depends on the layers.
    message: Optional[str] = None
    # The Python package that carries it, beside the framework.
    package: Optional[str] = None
    # Whether its ranks call MPI_Init.
    mpi: bool = False
    # PyTorch: whether it sends broadcasts and sums only, which gloo carries between tensors on GPUs
    # (pytorch.org/docs/stable/distributed.html, "Backends").
    gloo_on_gpus: bool = False
    # PyTorch: whether nothing but the optimiser writes to weights, so that a CUDA graph finds them where they were.
    cuda_graph: bool = False
    # PyTorch: whether it takes gradients in fp16 as they are; the buffers of others are in fp32.
    fp16_gradients: bool = False

    @property
    def own_step(self) -> bool:
        """Whether each rank's own optimiser takes the step, of whole parameters."""
        return self.divides is None and self.servers is None

    @property
    def asynchronous(self) -> bool:
        """Whether parameter servers apply updates in the order in which they arrive."""
        return self.servers in (ASYNCHRONOUS, BOUNDED)

    @property
    def sums_all_gradients(self) -> bool:
        """Whether a step exchanges what the allreduce probe sends: all gradients, once, summed over all ranks alike."""
        return self.message in (ALLREDUCE, PUSH_PULL)

    @property
    def sends_allreduce_bytes(self) -> bool:
        """Whether a step sends as many bytes as an allreduce of all gradients."""
        return self.message in (ALLREDUCE, REDUCE_SCATTER)

    def label_in(self, framework: str) -> str:
        return self.labels.get(framework) or self.label or self.name.replace("_", " ")


_TENSORFLOW, _WITH_SERVERS = ("tensorflow", "keras"), ("pytorch", "tensorflow", "keras", "jax")
_ROWS = (
    StrategyInfo(
        PLAIN,
        label="alone",
        frameworks=dict.fromkeys(("pytorch", "tensorflow", "keras", "mxnet", "jax", "emulated"), HOST),
        synchronous=True,
        cuda_graph=True,
        fp16_gradients=True,
    ),
    StrategyInfo(
        "allreduce",
        source="Li et al. 2020, PyTorch Distributed (arXiv 2006.15704)",
        labels={"pytorch": "DDP", **dict.fromkeys(_TENSORFLOW, "MultiWorkerMirroredStrategy"), "mxnet": "KVStore"},
        frameworks={
            **dict.fromkeys(("pytorch", *_TENSORFLOW, "jax"), NCCL),
            "mxnet": KVSTORE,
            "emulated": HOST,
        },
        synchronous=True,
        message=ALLREDUCE,
        gloo_on_gpus=True,
        cuda_graph=True,
        fp16_gradients=True,
    ),
    StrategyInfo(
        "hierarchical",
        source="Goyal et al. 2017, Accurate, Large Minibatch SGD (arXiv 1706.02677), section 4.1",
        frameworks={"pytorch": NCCL},
        synchronous=True,
        message=ALLREDUCE,
    ),
    StrategyInfo(
        "hybrid",
        source="Zhang et al. 2017, Poseidon (arXiv 1706.03292)",
        frameworks={"pytorch": NCCL},
        synchronous=True,
    ),
    StrategyInfo(
        "zero1",
        source="Rajbhandari et al. 2020, ZeRO (arXiv 1910.02054)",
        label="ZeRO-1",
        frameworks={"pytorch": NCCL},
        synchronous=True,
        divides=OPTIMIZER_STATE,
        message=REDUCE_SCATTER,
    ),
    StrategyInfo(
        "fsdp",
        source="Zhao et al. 2023, PyTorch FSDP (arXiv 2304.11277)",
        label="FSDP",
        frameworks={"pytorch": NCCL},
        synchronous=True,
        divides=WEIGHTS,
    ),
    StrategyInfo(
        "local_sgd",
        source="Stich 2019, Local SGD Converges Fast and Communicates Little (arXiv 1805.09767)",
        label="local SGD",
        frameworks={"pytorch": NCCL},
        gloo_on_gpus=True,
    ),
    StrategyInfo(
        "pipeline",
        source="Huang et al. 2019, GPipe (arXiv 1811.06965); Narayanan et al. 2021, 1F1B (arXiv 2104.04473)",
        frameworks={"pytorch": NCCL},
        synchronous=True,
        divides=NETWORK,
        ranks_option="stages",
    ),
    StrategyInfo(
        "tensor",
        source="Shoeybi et al. 2019, Megatron-LM (arXiv 1909.08053)",
        frameworks={"pytorch": NCCL},
        synchronous=True,
        divides=NETWORK,
        ranks_option="degree",
    ),
    StrategyInfo(
        "horovod",
        source="Sergeev and Del Balso 2018, Horovod (arXiv 1802.05799)",
        label="Horovod",
        frameworks=dict.fromkeys(("pytorch", *_TENSORFLOW, "mxnet"), NCCL),
        synchronous=True,
        message=ALLREDUCE,
        package="horovod",
    ),
    StrategyInfo(
        "mpi",
        source="Dalcin and Fang 2021, mpi4py (doi:10.1109/MCSE.2021.3083216)",
        label="MPI",
        frameworks=dict.fromkeys(("pytorch", *_TENSORFLOW, "mxnet", "jax", "emulated"), HOST),
        synchronous=True,
        message=ALLREDUCE,
        package="mpi4py",
        mpi=True,
    ),
    StrategyInfo(
        "ps_sync",
        source="Li et al. 2014, Scaling Distributed Machine Learning with the Parameter Server (OSDI)",
        label="parameter server, synchronous",
        frameworks={**dict.fromkeys(_WITH_SERVERS, HOST), "mxnet": KVSTORE},
        synchronous=True,
        servers=SYNCHRONOUS,
        message=PUSH_PULL,
    ),
    StrategyInfo(
        "ps_async",
        source="Dean et al. 2012, Large Scale Distributed Deep Networks (NIPS)",
        label="parameter server, asynchronous",
        frameworks={**dict.fromkeys(_WITH_SERVERS, HOST), "mxnet": KVSTORE},
        servers=ASYNCHRONOUS,
    ),
    StrategyInfo(
        "ps_mixed",
        source="Campos et al. 2017, Distributed Training Strategies for a Computer Vision Deep Learning Algorithm",
        frameworks={**dict.fromkeys(_WITH_SERVERS, HOST), "mxnet": KVSTORE},
        servers=ASYNCHRONOUS,
        servers_per_node=True,
    ),
    StrategyInfo(
        "ssp",
        source="Ho et al. 2013, More Effective Distributed ML via a Stale Synchronous Parallel Parameter Server (NIPS)",
        label="parameter server, stale synchronous",
        frameworks=dict.fromkeys(_WITH_SERVERS, HOST),
        servers=BOUNDED,
    ),
)
STRATEGIES: Dict[str, StrategyInfo] = {row.name: row for row in _ROWS}


def info(name: str) -> StrategyInfo:
    """Also of a strategy that is not in the registry, as results from elsewhere may have: nothing is true of it."""
    return STRATEGIES.get(name) or StrategyInfo(name)


def offered_by(framework: str) -> Tuple[str, ...]:
    return names(lambda row: framework in row.frameworks)


def served_by(framework: str) -> Tuple[str, ...]:
    """Those of the framework that have parameter servers."""
    return names(lambda row: framework in row.frameworks and row.servers is not None)


def names(holds: Callable[[StrategyInfo], bool]) -> Tuple[str, ...]:
    """The strategies of which it holds, in the order of the registry."""
    return tuple(row.name for row in STRATEGIES.values() if holds(row))
