"""One class per strategy that MXNet offers: how the ranks are joined, and how gradients are summed.

To add one: write a class of the form of `Strategy` and name it in STRATEGIES, add its row to
harness/core/strategies.py, and conf/strategy/<name>.yaml. Options of its own have a class in harness/config/schema.py.
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
    """Built as Strategy(spec, site, rendezvous, context): joins the other ranks."""

    # In which it sums what is no gradient.
    precision = "float64"

    def __init__(self, spec: RunSpec, site: Site, rendezvous: Rendezvous, context: mx.Context) -> None:
        self.rank, self.context = rendezvous.rank, context
        self.messages: Dict[int, mx.nd.NDArray] = {}

    @abstractmethod
    def sum(self, array: mx.nd.NDArray) -> None:
        """Over the ranks, in place."""

    def sync_gradients(self, gradients: Gradients) -> Gradients:
        """Their sums over the ranks, in place or in arrays of its own. Always the same arrays."""
        return gradients

    def server_step(self, gradients: Gradients) -> bool:
        """Whether servers take the step, in the place of an exchange and of the rank's own optimiser, with the
        gradients of this rank; the network then has the servers' weights."""
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
    """One rank, and nothing around the network: what a user runs without any of this."""

    world_size, communication = 1, "none"

    def sum(self, array: mx.nd.NDArray) -> None:
        pass

    def close(self) -> None:
        pass


class Allreduce(Strategy):
    """KVStore `dist_sync`: each gradient goes to a server as soon as it is there, which sends the sum back
    (Li et al. 2014, Scaling Distributed Machine Learning with the Parameter Server, OSDI). As `gluon.Trainer` does it
    where it updates the weights itself.

    One rank has one server too: the same way that gradients go at more, so that its cost is in the baseline.
    A server sums as gradients arrive: with more than two ranks, two runs differ in the last bits. Its own numbers of
    ranks are those of arrival, and used nowhere here. As many servers as workers, as MXNet's own launcher has it.
    """

    # With other types a server looks at a flag that nothing has set, and may sum in float32 all the same.
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
            # What the next forward pass needs first goes first.
            self.store.pushpull(key, gradient, priority=-key)
        return gradients

    def sum(self, array: mx.nd.NDArray) -> None:
        assert self.store is not None
        kind = (np.dtype(array.dtype).name, array.size)
        if kind not in self.keys:
            # Beyond those of the gradients, of whose number nothing is known yet. All ranks ask in the same order.
            self.keys[kind] = FIRST_KEY + len(self.keys)
            self.store.init(self.keys[kind], array)
        self.store.pushpull(self.keys[kind], array)

    def close(self) -> None:
        self.servers.close(self._leave)

    def _leave(self) -> None:
        self.store = None


class Horovod(Strategy):
    """Each gradient goes to Horovod's background thread as soon as it is there, fused into messages
    (Sergeev and Del Balso 2018, arXiv 1802.05799)."""

    def __init__(self, spec: RunSpec, site: Site, rendezvous: Rendezvous, context: mx.Context) -> None:
        super().__init__(spec, site, rendezvous, context)
        import horovod.mxnet as hvd

        from harness.worker.distributed import horovod

        self.hvd = hvd
        self.nodes = horovod.start(hvd, spec, site, rendezvous)
        self.compression = horovod.compression(hvd, spec)
        self.communication = horovod.name(hvd, spec, self.nodes)
        self.world_size = hvd.size()

    def sync_gradients(self, gradients: Gradients) -> Gradients:
        # Horovod, like KVStore, refuses oneDNN's own layouts. Weights have them after an evaluation, gradients never:
        # oneDNN's backward writes them plainly (MXNet's CreateMKLDNNWeightGrad).
        for number, gradient in enumerate(gradients):
            message, kind = self.compression.compress(gradient)
            if self.nodes:
                self._mean_by_node(self.nodes, message, number)
            else:
                # In fp16 the mean: a sum may be too large.
                how = self.hvd.Sum if message is gradient else self.hvd.Average
                self.hvd.allreduce_(message, op=how, name=f"gradient.{number}", priority=-number)
            if message is not gradient:
                gradient[:] = self.compression.decompress(message, kind)
            if self.nodes or message is not gradient:
                gradient *= self.world_size
        return gradients

    def _mean_by_node(self, nodes: Any, message: mx.nd.NDArray, number: int) -> None:
        """In place, the mean of the nodes' means: all have as many ranks."""
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

    def versions(self) -> Dict[str, str]:
        from harness.worker.distributed import horovod

        return horovod.versions()

    def close(self) -> None:
        self.hvd.shutdown()


class Mpi(Strategy):
    """After backward all gradients are copied into one flat buffer in the host's memory, which MPI sums."""

    def __init__(self, spec: RunSpec, site: Site, rendezvous: Rendezvous, context: mx.Context) -> None:
        super().__init__(spec, site, rendezvous, context)
        from harness.worker.distributed.mpi import MpiRanks

        self.ranks = MpiRanks()
        self.world_size = self.ranks.world_size
        through = ", through the host's memory" if context.device_type == "gpu" else ""
        self.communication = self.ranks.name + through
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

    def versions(self) -> Dict[str, str]:
        from harness.worker.distributed import mpi

        return mpi.versions()

    def close(self) -> None:
        self.ranks.close()


STRATEGIES: Dict[str, Type[Strategy]] = {"plain": Plain, "allreduce": Allreduce, "horovod": Horovod, "mpi": Mpi}
