"""The strategies of TensorFlow and Keras: how ranks are joined, and how gradients are averaged.

To add one, write a subclass of `Strategy`, list it in STRATEGIES, and add a row to harness/core/strategies.py and
conf/strategy/<name>.yaml; its options, if any, are a class in harness/config/schema.py.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, Dict, List, Sequence, Tuple, Type

import numpy as np
import tensorflow as tf

from harness.core.rendezvous import Rendezvous
from harness.core.spec import RunSpec, Site
from harness.worker import data_parallel
from harness.worker.distributed.exchange import gather, own_address, own_port


class Strategy(data_parallel.Strategy):
    """Constructed as Strategy(spec, site, rendezvous); joins the other ranks.

    replicas: TensorFlow's strategy, in whose scope variables are created; the default one if something else carries the
    gradients.
    """

    replicas: tf.distribute.Strategy
    # Of the next step.
    learning_rate = 0.0

    def __init__(self, spec: RunSpec, site: Site, rendezvous: Rendezvous) -> None:
        self.rank = rendezvous.rank
        self.replicas = tf.distribute.get_strategy()
        self.messages: Dict[int, tf.Tensor] = {}
        self.sums: Dict[Tuple[Any, int], Any] = {}

    @abstractmethod
    def sum(self, tensor: tf.Tensor) -> tf.Tensor:
        """Return the sum over the ranks. Called while a `tf.function` is traced, in `replicas.run`."""

    def sync_gradients(self, gradients: List[tf.Tensor]) -> List[tf.Tensor]:
        """Return the gradients averaged over the ranks. Called like `sum`."""
        return gradients

    def server_step(self, gradients: Sequence[tf.Tensor], variables: Sequence[tf.Variable]) -> bool:
        """Let servers take the step with this rank's gradients and copy their weights into the variables; return False
        if there is no server optimiser. Called like `sum`."""
        return False

    def allreduce(self, nbytes: int) -> None:
        if nbytes not in self.messages:
            self.messages[nbytes] = tf.zeros(max(1, nbytes // 4))
        self._summed(self.messages[nbytes])

    def allreduce_sum(self, values: np.ndarray) -> np.ndarray:
        return np.asarray(self._summed(tf.constant(values)).numpy())

    def _summed(self, tensor: tf.Tensor) -> tf.Tensor:
        kind = tensor.dtype, len(tensor)
        if kind not in self.sums:
            function = tf.function(lambda own: self.replicas.run(self.sum, args=(own,)), autograph=False)
            self.sums[kind] = function.get_concrete_function(tensor)
        return self.sums[kind](tensor)


class Plain(Strategy):
    """One rank without any wrapper, as in a plain TensorFlow script."""

    world_size, communication = 1, "none"

    def sum(self, tensor: tf.Tensor) -> tf.Tensor:
        return tensor

    def close(self) -> None:
        pass


class Allreduce(Strategy):
    """MultiWorkerMirroredStrategy: TensorFlow's collectives average gradients in one message, or in packs of
    `bucket_mb`.

    BatchNorm's running statistics stay local during training. TensorFlow would average them if read outside a step
    (`SyncOnRead`), which does not happen here.
    """

    def __init__(self, spec: RunSpec, site: Site, rendezvous: Rendezvous) -> None:
        super().__init__(spec, site, rendezvous)
        self.rendezvous, self.timeout_seconds = rendezvous, site.timeout_seconds
        cuda = spec.cluster.device == "cuda"
        library = tf.distribute.experimental.CommunicationImplementation
        bucket_mb = spec.strategy_options["bucket_mb"]
        address = f"{own_address(rendezvous)}:{own_port()}"
        self.replicas = tf.distribute.MultiWorkerMirroredStrategy(
            tf.distribute.cluster_resolver.SimpleClusterResolver(
                tf.train.ClusterSpec({"worker": gather(rendezvous, address, site.timeout_seconds)}),
                task_type="worker",
                task_id=rendezvous.rank,
                num_accelerators={"GPU": 1} if cuda else {},
                rpc_layer="grpc",
            ),
            tf.distribute.experimental.CommunicationOptions(
                bytes_per_pack=int(bucket_mb * 2**20) if bucket_mb else 0,  # 0: TensorFlow's default
                implementation=library.NCCL if cuda else library.RING,
            ),
        )
        self.communication = "nccl" if cuda else "ring over grpc"
        self.world_size = self.replicas.num_replicas_in_sync

    def sync_gradients(self, gradients: List[tf.Tensor]) -> List[tf.Tensor]:
        ranks = tf.distribute.get_replica_context()
        return list(ranks.all_reduce(tf.distribute.ReduceOp.MEAN, gradients))

    def sum(self, tensor: tf.Tensor) -> tf.Tensor:
        # The identity is placed on this rank's device; arguments of a `tf.function` need not be.
        return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, tf.identity(tensor))

    def close(self) -> None:
        # The last collective is complete here, but another rank may still request this one's part of it.
        gather(self.rendezvous, None, self.timeout_seconds)


class Horovod(data_parallel.ByHorovod, Strategy):
    """Horovod receives each gradient when it is ready; its background thread fuses them into messages (Sergeev and Del
    Balso 2018, arXiv 1802.05799)."""

    library = "horovod.tensorflow"

    def sync_gradients(self, gradients: List[tf.Tensor]) -> List[tf.Tensor]:
        mean = self._mean_by_node if self.nodes else self._mean
        return [mean(gradient, f"gradient.{number}") for number, gradient in enumerate(gradients)]

    def sum(self, tensor: tf.Tensor) -> tf.Tensor:
        name = f"sum.{tensor.dtype.name}.{tensor.shape.num_elements()}"
        return self.hvd.allreduce(tensor, op=self.hvd.Sum, name=name, ignore_name_scope=True)

    def _mean(self, tensor: tf.Tensor, name: str) -> tf.Tensor:
        # Ranks match their tensors by name.
        average, how = self.hvd.Average, self.compression
        return self.hvd.allreduce(tensor, op=average, name=name, compression=how, ignore_name_scope=True)

    def _mean_by_node(self, tensor: tf.Tensor, name: str) -> tf.Tensor:
        """Average over the node, then over nodes, which all have equally many ranks."""
        hvd, nodes = self.hvd, self.nodes
        assert nodes is not None
        mean, kind = self.compression.compress(tensor)
        same = {"op": hvd.Average, "ignore_name_scope": True}
        if nodes.inside:
            mean = hvd.allreduce(mean, name=f"{name}.inside", process_set=nodes.inside, **same)
        if nodes.between:
            mean = hvd.allreduce(mean, name=f"{name}.between", process_set=nodes.between, **same)
        if nodes.inside:
            mean = hvd.broadcast(
                mean, nodes.first, name=f"{name}.out", process_set=nodes.inside, ignore_name_scope=True
            )
        return self.compression.decompress(mean, kind)


class Mpi(data_parallel.ByMpi, Strategy):
    """Copy all gradients into one flat buffer that MPI sums in host memory after backward."""

    def __init__(self, spec: RunSpec, site: Site, rendezvous: Rendezvous) -> None:
        super().__init__(spec, site, rendezvous)
        self.buffers: Dict[Tuple[int, Any], np.ndarray] = {}

    def sync_gradients(self, gradients: List[tf.Tensor]) -> List[tf.Tensor]:
        flat = self.sum(tf.concat([tf.reshape(g, [-1]) for g in gradients], axis=0)) / self.world_size
        parts = tf.split(flat, [g.shape.num_elements() for g in gradients])
        return [tf.reshape(part, g.shape) for part, g in zip(parts, gradients)]

    def sum(self, tensor: tf.Tensor) -> tf.Tensor:
        return tf.ensure_shape(tf.numpy_function(self._sum, [tensor], tensor.dtype), tensor.shape)

    def _sum(self, values: np.ndarray) -> np.ndarray:
        # Reuse the memory in every step; TensorFlow's array is read-only.
        buffer = self.buffers.setdefault((values.size, values.dtype), np.empty_like(values))
        np.copyto(buffer, values)
        self.ranks.sum(buffer)
        return buffer


STRATEGIES: Dict[str, Type[Strategy]] = {"plain": Plain, "allreduce": Allreduce, "horovod": Horovod, "mpi": Mpi}
