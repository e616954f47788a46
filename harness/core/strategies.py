"""The registry of strategies: one row each, with all facts that do not depend on a run's options.

Validity checks, bandwidths, resources, the roofline, the report's names and the performance options all derive from
these rows. To add a strategy: a row here, conf/strategy/<name>.yaml, and a class in each adapter that offers it.
Standard library only.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Callable, Dict, Mapping, Optional, Tuple

# One rank without any communication. Every framework offers it.
PLAIN = "plain"

# Transport of messages between GPUs: NCCL; MXNet's key-value store; host memory (gloo, MPI, sockets).
NCCL, KVSTORE, HOST = "nccl", "kvstore", "host"

# When servers apply a gradient: together with those of all workers; on arrival; on arrival with bounded staleness.
SYNCHRONOUS, ASYNCHRONOUS, BOUNDED = "synchronous", "asynchronous", "bounded"

# What is divided between ranks instead of replicated on all of them.
NETWORK, WEIGHTS, OPTIMIZER_STATE = "network", "weights", "optimizer_state"

# What a step sends: an allreduce of all gradients; the same number of bytes as reduce-scatter and allgather; all
# gradients to servers and all weights back.
ALLREDUCE, REDUCE_SCATTER, PUSH_PULL = "allreduce", "reduce_scatter", "push_pull"


@dataclass(frozen=True)
class StrategyInfo:
    """Facts about a strategy. The defaults are used for strategies outside the registry."""

    name: str
    # Publication.
    source: str = ""
    # Display name; empty: the name with spaces.
    label: str = ""
    # Display names in frameworks that call it differently.
    labels: Mapping[str, str] = field(default_factory=dict)
    # Frameworks that offer it -> transport on GPUs.
    frameworks: Mapping[str, str] = field(default_factory=dict)
    # Whether all ranks have the same gradients, and so the same weights, after every step.
    synchronous: bool = False
    # What is divided between ranks; None: every rank holds all weights and performs the whole optimiser step.
    divides: Optional[str] = None
    # For strategies that divide the network: the option with the number of ranks that share one copy.
    ranks_option: Optional[str] = None
    # When parameter servers apply a gradient; None: no servers.
    servers: Optional[str] = None
    # Whether the ranks of a node average their gradients and act as one worker of the servers.
    servers_per_node: bool = False
    # What a step sends; None: something else, or it depends on the layers.
    message: Optional[str] = None
    # Python package needed besides the framework.
    package: Optional[str] = None
    # Whether its ranks call MPI_Init.
    mpi: bool = False
    # PyTorch: whether it uses only broadcast and sum, which gloo supports for tensors on GPUs
    # (pytorch.org/docs/stable/distributed.html, "Backends").
    gloo_on_gpus: bool = False
    # PyTorch: whether only the optimiser writes to weights, which a CUDA graph requires.
    cuda_graph: bool = False
    # PyTorch: whether it accepts fp16 gradients; others have fp32 buffers.
    fp16_gradients: bool = False

    @property
    def own_step(self) -> bool:
        """Return whether each rank performs the optimiser step on whole parameters itself."""
        return self.divides is None and self.servers is None

    @property
    def asynchronous(self) -> bool:
        """Return whether parameter servers apply updates in order of arrival."""
        return self.servers in (ASYNCHRONOUS, BOUNDED)

    @property
    def sums_all_gradients(self) -> bool:
        """Return whether a step sums all gradients once over all ranks, as the allreduce probe does."""
        return self.message in (ALLREDUCE, PUSH_PULL)

    @property
    def sends_allreduce_bytes(self) -> bool:
        """Return whether a step sends as many bytes as an allreduce of all gradients."""
        return self.message in (ALLREDUCE, REDUCE_SCATTER)

    def label_in(self, framework: str) -> str:
        return self.labels.get(framework) or self.label or self.name.replace("_", " ")


# Package of each framework.
PACKAGES = {"pytorch": "torch", "tensorflow": "tensorflow", "keras": "tensorflow", "mxnet": "mxnet", "jax": "jax"}
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
    """Look up a strategy. Unknown ones, as in results from elsewhere, get the defaults."""
    return STRATEGIES.get(name) or StrategyInfo(name)


def packages_of(framework: str, strategy: Optional[str] = None) -> Tuple[str, ...]:
    """Return what a rank imports: NumPy, the framework, and what the strategy, if given, needs besides them."""
    carrier = info(strategy).package if strategy else None
    return tuple(filter(None, ("numpy", PACKAGES.get(framework), carrier)))


def offered_by(framework: str) -> Tuple[str, ...]:
    return names(lambda row: framework in row.frameworks)


def served_by(framework: str) -> Tuple[str, ...]:
    """The framework's strategies with parameter servers."""
    return names(lambda row: framework in row.frameworks and row.servers is not None)


def names(holds: Callable[[StrategyInfo], bool]) -> Tuple[str, ...]:
    """Names of the strategies for which `holds` is true, in registry order."""
    return tuple(row.name for row in STRATEGIES.values() if holds(row))
