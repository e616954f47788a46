"""MXNet's strategies: how ranks are joined, and how gradients are summed.

To add one, write a subclass of `Strategy`, list it in STRATEGIES, and add a row to harness/core/strategies.py and
conf/strategy/<name>.yaml; its options, if any, are a class in harness/config/schema.py.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, Dict, List, Optional, Sequence, Tuple, Type

import mxnet as mx
import numpy as np

from harness.core.rendezvous import Rendezvous
from harness.core.spec import RunSpec, Site
from harness.worker import data_parallel
from harness.worker.mxnet.servers import Servers

Gradients = Sequence[mx.nd.NDArray]
# MXNet multiplies keys by 9973, as 32-bit integers.
FIRST_KEY = 10**5


class Strategy(data_parallel.Strategy):
    """Constructed as Strategy(spec, site, rendezvous, context); joins the other ranks."""

    # Type of sums other than gradients.
    precision = "float64"

    def __init__(self, spec: RunSpec, site: Site, rendezvous: Rendezvous, context: mx.Context) -> None:
        self.rank, self.context = rendezvous.rank, context
        self.messages: Dict[int, mx.nd.NDArray] = {}

    @abstractmethod
    def sum(self, array: mx.nd.NDArray) -> None:
        """Sum over the ranks, in place."""

    def sync_gradients(self, gradients: Gradients) -> Gradients:
        """Return the gradients summed over the ranks, in place or in other arrays; the same arrays in every step."""
        return gradients

    def server_step(self, gradients: Gradients) -> bool:
        """Let servers take the step with this rank's gradients and copy their weights into the network; return False if
        there is no server optimiser."""
        return False

    def allreduce(self, nbytes: int) -> None:
        if nbytes not in self.messages:
            self.messages[nbytes] = mx.nd.zeros(max(1, nbytes // 4), self.context)
        self.sum(self.messages[nbytes])

    def allreduce_sum(self, values: np.ndarray) -> np.ndarray:
        array = mx.nd.array(values, self.context, self.precision)
        self.sum(array)
        return np.asarray(array.asnumpy())


class Plain(Strategy):
    """One rank without any wrapper, as in a plain MXNet script."""

    world_size, communication = 1, "none"

    def sum(self, array: mx.nd.NDArray) -> None:
        pass

    def close(self) -> None:
        pass


class Allreduce(Strategy):
    """KVStore `dist_sync`: each gradient goes to a server when it is ready, which returns the sum (Li et al. 2014,
    Scaling Distributed Machine Learning with the Parameter Server, OSDI), as in `gluon.Trainer` without
    update_on_kvstore.

    A single rank has a server too, so that the baseline includes the cost of the same path. Servers sum in order of
    arrival, so with more than two ranks runs differ in the last bits. KVStore numbers ranks by arrival; these numbers
    are not used. There are as many servers as workers, as with MXNet's own launcher.
    """

    # For other types, servers test an uninitialised flag and may sum in float32 anyway.
    precision = "float32"

    def __init__(self, spec: RunSpec, site: Site, rendezvous: Rendezvous, context: mx.Context) -> None:
        super().__init__(spec, site, rendezvous, context)
        kind = "dist_sync" if context.device_type == "cpu" else "dist_device_sync"
        ranks = rendezvous.world_size
        self.servers = Servers(rendezvous, site.timeout_seconds, workers=ranks, servers=ranks)
        self.servers.worker()
        self.store: Optional[mx.kvstore.KVStore] = mx.kvstore.create(kind)
        self.communication = f"KVStore {kind}"
        self.world_size = int(self.store.num_workers)
        self.keys: Dict[Tuple[str, int], int] = {}
        self.gradient_keys: List[int] = []

    def sync_gradients(self, gradients: Gradients) -> Gradients:
        assert self.store is not None
        if not self.gradient_keys:
            self.gradient_keys = list(range(len(gradients)))
            self.store.init(self.gradient_keys, list(gradients))
        for key, gradient in zip(self.gradient_keys, gradients):
            # What the next forward pass needs first has priority.
            self.store.pushpull(key, gradient, priority=-key)
        return gradients

    def sum(self, array: mx.nd.NDArray) -> None:
        assert self.store is not None
        kind = (np.dtype(array.dtype).name, array.size)
        if kind not in self.keys:
            # Beyond the gradients' keys, whose number is not known yet. All ranks create them in the same order.
            self.keys[kind] = FIRST_KEY + len(self.keys)
            self.store.init(self.keys[kind], array)
        self.store.pushpull(self.keys[kind], array)

    def close(self) -> None:
        self.servers.close(self._leave)

    def _leave(self) -> None:
        self.store = None


class Horovod(data_parallel.ByHorovod, Strategy):
    """Horovod receives each gradient when it is ready; its background thread fuses them into messages (Sergeev and Del
    Balso 2018, arXiv 1802.05799)."""

    library = "horovod.mxnet"

    def sync_gradients(self, gradients: Gradients) -> Gradients:
        # Horovod, like KVStore, rejects oneDNN's layouts. Weights have them after an evaluation, gradients never:
        # oneDNN's backward writes plain layouts (MXNet's CreateMKLDNNWeightGrad).
        for number, gradient in enumerate(gradients):
            message, kind = self.compression.compress(gradient)
            if self.nodes:
                self._mean_by_node(self.nodes, message, number)
            else:
                # Average in fp16, where a sum may overflow.
                how = self.hvd.Sum if message is gradient else self.hvd.Average
                self.hvd.allreduce_(message, op=how, name=f"gradient.{number}", priority=-number)
            if message is not gradient:
                gradient[:] = self.compression.decompress(message, kind)
            if self.nodes or message is not gradient:
                gradient *= self.world_size
        return gradients

    def _mean_by_node(self, nodes: Any, message: mx.nd.NDArray, number: int) -> None:
        """Average in place over the node, then over nodes, which all have equally many ranks."""
        hvd, name = self.hvd, f"gradient.{number}"
        same = {"op": hvd.Average, "priority": -number}
        if nodes.inside:
            hvd.allreduce_(message, name=f"{name}.inside", process_set=nodes.inside, **same)
        if nodes.between:
            hvd.allreduce_(message, name=f"{name}.between", process_set=nodes.between, **same)
        if nodes.inside:
            hvd.broadcast_(message, nodes.first, name=f"{name}.out", priority=-number, process_set=nodes.inside)

    def sum(self, array: mx.nd.NDArray) -> None:
        self.hvd.allreduce_(array, op=self.hvd.Sum, name=f"sum.{np.dtype(array.dtype).name}.{array.size}")


class Mpi(data_parallel.ByMpi, Strategy):
    """Copy all gradients into one flat buffer that MPI sums in host memory after backward."""

    def __init__(self, spec: RunSpec, site: Site, rendezvous: Rendezvous, context: mx.Context) -> None:
        super().__init__(spec, site, rendezvous, context)
        self.flat: Optional[mx.nd.NDArray] = None
        self.parts: List[mx.nd.NDArray] = []

    def sync_gradients(self, gradients: Gradients) -> Gradients:
        if self.flat is None:
            ends = np.cumsum([gradient.size for gradient in gradients]).tolist()
            self.flat = mx.nd.zeros(ends[-1], self.context)
            starts = [0, *ends[:-1]]
            self.parts = [self.flat[a:b].reshape(g.shape) for a, b, g in zip(starts, ends, gradients)]
        mx.nd.concat(*[gradient.reshape(-1) for gradient in gradients], dim=0, out=self.flat)
        self.sum(self.flat)
        return self.parts

    def sum(self, array: mx.nd.NDArray) -> None:
        host = array.asnumpy()
        self.ranks.sum(host)
        array[:] = host


STRATEGIES: Dict[str, Type[Strategy]] = {"plain": Plain, "allreduce": Allreduce, "horovod": Horovod, "mpi": Mpi}
