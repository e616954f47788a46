"""The adapter's methods that TensorFlow and Keras share: all but the training step."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple, Type

import numpy as np
import tensorflow as tf

from harness.core.rendezvous import Rendezvous
from harness.core.spec import RunSpec, Site
from harness.worker import data_parallel
from harness.worker.adapter import OPERAND_SEEDS
from harness.worker.data.batches import Pipeline
from harness.worker.record import capture
from harness.worker.tensorflow import machine, parameter_servers, strategies
from harness.worker.tensorflow.loss_scale import LossScaling
from harness.worker.tensorflow.optimizer import Sgd
from harness.worker.tensorflow.strategies import Strategy
from models import catalog
from models import tensorflow as networks

POLICIES = {"fp32": "float32", "tf32": "float32", "bf16": "mixed_bfloat16", "fp16": "mixed_float16"}
STRATEGIES: Dict[str, Type[Strategy]] = {**strategies.STRATEGIES, **parameter_servers.STRATEGIES}
Batch = Tuple[tf.Tensor, tf.Tensor]
# (images, labels) -> (loss of the rank's batch, gradients in the order of `models.initial`, their scale)
Stepped = Tuple[tf.Tensor, List[tf.Tensor], Optional[tf.Tensor]]
Step = Callable[[tf.Tensor, tf.Tensor], Stepped]


class Replica(data_parallel.Adapter):
    compiles = True
    strategy: Strategy

    def __init__(self, spec: RunSpec, site: Site, rendezvous: Rendezvous, batches: Pipeline) -> None:
        """Raises GpuError if the requested GPU cannot be used."""
        super().__init__(spec, rendezvous, batches)
        machine.configure(spec)
        self.strategy = STRATEGIES[spec.strategy](spec, site, rendezvous)
        self.joined()
        data = spec.dataset
        layers = catalog.network(spec.model).layers(data.channels, data.classes, data.image_size)
        self.scaling = LossScaling() if spec.precision == "fp16" else None
        with self.strategy.replicas.scope():
            tf.keras.mixed_precision.set_global_policy(POLICIES[spec.precision])
            self.network = networks.build(layers, spec.seed, data.channels, data.image_size)
            # The policy is for the layers only: with fp16, a Keras model would add Keras's own loss scaling.
            tf.keras.mixed_precision.set_global_policy("float32")
            self.parameters = networks.parameters(self.network)
            self.optimizer = self.make_optimizer()
            self.optimizer.build(self.parameters)
            self.prepare()
        self.strategy.register_weights(self.parameters)
        self.learning_rate: Optional[float] = None
        self.mean = tf.constant(data.mean, tf.float32) * 255
        self.std = tf.constant(data.std, tf.float32) * 255
        self.last: Optional[Stepped] = None
        self.functions = {synchronise: self._function(synchronise) for synchronise in (True, False)}
        pixels = tf.TensorSpec([None, data.image_size, data.image_size, data.channels])
        # In `run`, where each rank reads its own running statistics.
        self.infer = tf.function(
            lambda images: self.strategy.replicas.run(self.network, args=(images,), kwargs={"training": False}),
            input_signature=[pixels],
            autograph=False,
        )

    @abstractmethod
    def training_step(self, images: tf.Tensor, labels: tf.Tensor, synchronise: bool) -> Any:
        """Run forward, backward, exchange and optimiser; return (loss, gradients) as in `Step`. Traced into a
        `tf.function`, in `replicas.run`."""

    def make_optimizer(self) -> Sgd:
        return Sgd(self.spec.optimizer, self.scaling)

    def prepare(self) -> None:
        """Create other objects with variables, in the strategy's scope."""

    def facts(self) -> Dict[str, Any]:
        return {
            "world_size": self.strategy.world_size,
            "communication": self.strategy.communication,
            "device": self.spec.cluster.device,
            "device_name": machine.device_name(self.spec),
            "device_id": capture.gpu_uuid() if self.spec.cluster.device == "cuda" else None,
            "threads": tf.config.threading.get_intra_op_parallelism_threads(),
            "parameters": sum(p.shape.num_elements() for p in self.parameters),
            "gradient_bytes": sum(p.shape.num_elements() * p.dtype.size for p in self.parameters),
            "versions": {**machine.versions(), **self.strategy.carrier},
        }

    def to_device(self, images: np.ndarray, labels: np.ndarray) -> Batch:
        return (tf.cast(images, tf.float32) - self.mean) / self.std, tf.convert_to_tensor(labels)

    def train(self, batch: Batch, synchronise: bool) -> None:
        learning_rate = self.spec.optimizer.learning_rate(self.spec.global_batch, self.steps)
        if learning_rate != self.learning_rate:
            self.optimizer.learning_rate = self.learning_rate = learning_rate
            self.strategy.learning_rate = learning_rate
        self.synchronised = synchronise
        self.last = self.functions[synchronise](*batch)
        self.steps += 1

    def gradients(self) -> List[np.ndarray]:
        assert self.last is not None
        _, scaled, scale = self.last
        gradients = [gradient.numpy() if scale is None else (gradient / scale).numpy() for gradient in scaled]
        if self.synchronised:
            gradients = self.strategy.means(gradients)
        return [networks.from_own_layout(gradient) for gradient in gradients]

    def weights(self) -> List[np.ndarray]:
        return [networks.from_own_layout(self._own(variable).numpy()) for variable in self.parameters]

    def logits(self, images: np.ndarray) -> np.ndarray:
        pixels, _ = self.to_device(images, np.zeros(len(images), np.int64))
        return np.asarray(self.infer(pixels).numpy())

    def own_weights(self) -> List[np.ndarray]:
        return [variable.numpy() for variable in self.parameters]

    def take_weights(self, weights: List[np.ndarray]) -> None:
        for variable, values in zip(self.parameters, weights):
            variable.assign(values)

    def own_statistics(self) -> List[np.ndarray]:
        return [self._own(variable).numpy() for variable in networks.statistics(self.network)]

    def take_statistics(self, statistics: List[np.ndarray]) -> None:
        for variable, values in zip(networks.statistics(self.network), statistics):
            self._own(variable).assign(values)

    def reset_peak_memory(self) -> None:
        if self.spec.cluster.device == "cuda":
            tf.config.experimental.reset_memory_stats("GPU:0")

    def device_memory(self) -> Dict[str, Any]:
        return {
            "device_peak_bytes": int(tf.config.experimental.get_memory_info("GPU:0")["peak"]),
            "device_reserved_peak_bytes": None,
            "device_peak_source": "tf.config.experimental.get_memory_info, after the first step",
        }

    def checkpoint_arrays(self) -> Dict[str, np.ndarray]:
        return {name: self._own(variable).numpy() for name, variable in self._state().items()}

    def load_arrays(self, saved: Mapping[str, np.ndarray]) -> None:
        for name, variable in self._state().items():
            self._own(variable).assign(saved[name])

    def product(self, side: int) -> Callable[[int], Any]:
        kind = {"bf16": tf.bfloat16, "fp16": tf.float16}.get(self.spec.precision, tf.float32)
        a, b = (tf.cast(_random([side, side], seed), kind) for seed in OPERAND_SEEDS)
        return self._repeated(lambda: tf.linalg.matmul(a, b))

    def copy(self, nbytes: int) -> Callable[[int], Any]:
        source = _random([nbytes // 4], OPERAND_SEEDS[0])
        return self._repeated(lambda: tf.negative(source))  # tf.identity would not copy

    def _repeated(self, call: Callable[[], tf.Tensor]) -> Callable[[int], Any]:
        def repeat(n: int) -> Any:
            for _ in range(n):
                last = call()
            float(tf.reshape(last, [-1])[0])  # the device computes in order
            self.fence()
            return last

        return repeat

    def fence(self) -> None:
        if self.spec.cluster.device == "cuda":
            tf.test.experimental.sync_devices()

    def loss(self) -> float:
        assert self.last is not None
        return float(self.last[0].numpy())

    def _function(self, synchronise: bool) -> Step:
        def step(images: tf.Tensor, labels: tf.Tensor) -> Any:
            scale = self.scaling.scale.read_value() if self.scaling else None
            return (*self.training_step(images, labels, synchronise), scale)

        run = self.strategy.replicas.run
        return tf.function(lambda images, labels: run(step, args=(images, labels)), autograph=False)

    def _own(self, variable: tf.Variable) -> tf.Variable:
        """Return this rank's copy: reading a variable of MultiWorkerMirroredStrategy itself may involve other ranks."""
        return self.strategy.replicas.experimental_local_results(variable)[0]

    def _state(self) -> Dict[str, tf.Variable]:
        """Return everything that training changes."""
        kinds = {
            "weight": self.parameters,
            # With a server optimiser, the servers hold it.
            "velocity": [] if self.strategy.server_optimizer else self.optimizer.momentums,
            "statistic": networks.statistics(self.network),
        }
        state = {f"{kind}{number}": v for kind, variables in kinds.items() for number, v in enumerate(variables)}
        return {**state, **self.scaling.state()} if self.scaling else state


def _random(shape: Sequence[int], seed: int) -> tf.Tensor:
    return tf.random.stateless_normal(shape, seed=(seed, 0))
