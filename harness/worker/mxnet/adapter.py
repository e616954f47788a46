"""The adapter in MXNet: hybridised Gluon."""

from __future__ import annotations

import contextlib
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple, Type, Union

import mxnet as mx
import numpy as np
from mxnet import gluon

from harness.core.rendezvous import Rendezvous
from harness.core.spec import RunSpec, Site
from harness.worker import data_parallel
from harness.worker.adapter import OPERAND_SEEDS
from harness.worker.data.batches import Pipeline
from harness.worker.mxnet import machine, parameter_servers, strategies
from harness.worker.mxnet.optimizer import Sgd
from harness.worker.mxnet.scaled_sgd import ScaledSgd
from harness.worker.mxnet.strategies import Strategy
from harness.worker.profiler_ranges import span
from harness.worker.record import capture
from models import catalog
from models import mxnet as networks

STRATEGIES: Dict[str, Type[Strategy]] = {**strategies.STRATEGIES, **parameter_servers.STRATEGIES}
Batch = Tuple[mx.nd.NDArray, mx.nd.NDArray]


class Adapter(data_parallel.Adapter):
    strategy: Strategy

    def __init__(self, spec: RunSpec, site: Site, rendezvous: Rendezvous, batches: Pipeline) -> None:
        """Raises GpuError if the requested GPU cannot be used; never falls back to the CPU."""
        super().__init__(spec, rendezvous, batches)
        self.context = machine.context(spec)
        self.strategy = STRATEGIES[spec.strategy](spec, site, rendezvous, self.context)
        self.joined()
        data = spec.dataset
        layers = catalog.network(spec.model).layers(data.channels, data.classes, data.image_size)
        self.network = networks.build(layers, spec.seed, self.context, half=spec.precision == "fp16")
        self.parameters = [parameter.data() for parameter in networks.parameters(self.network)]
        self.statistics = [parameter.data() for parameter in networks.statistics(self.network)]
        sides, _ = networks.normalised_sides(layers, spec.dataset.image_size)
        self.normalised = [spec.batch_per_gpu * side**2 for side in sides]
        # Gluon's backward reuses these arrays in every step.
        self.own_gradients = [parameter.grad() for parameter in networks.parameters(self.network)]
        self.used: Tuple[Sequence[mx.nd.NDArray], float] = (self.own_gradients, 1.0)
        # In fp16, the scale of the last step's loss and gradients.
        self.scale: Optional[mx.nd.NDArray] = None
        self.strategy.register_weights(self.parameters)
        self.criterion = gluon.loss.SoftmaxCrossEntropyLoss()
        self.criterion.hybridize(static_alloc=True, static_shape=True)
        self.optimizer: Union[Sgd, ScaledSgd] = (
            ScaledSgd(spec.optimizer, self.parameters)
            if spec.precision == "fp16"
            else Sgd(spec.optimizer, self.parameters)
        )
        shape = (1, spec.dataset.channels, 1, 1)
        self.mean = mx.nd.array(np.array(spec.dataset.mean).reshape(shape) * 255, self.context)
        self.std = mx.nd.array(np.array(spec.dataset.std).reshape(shape) * 255, self.context)
        self.last_loss: Optional[mx.nd.NDArray] = None

    def facts(self) -> Dict[str, Any]:
        cuda = self.context.device_type == "gpu"
        return {
            "world_size": self.strategy.world_size,
            "communication": self.strategy.communication,
            "device": self.spec.cluster.device,
            "device_name": machine.gpu_name() if cuda else capture.cpu_model() or "CPU",
            "device_id": capture.gpu_uuid() if cuda else None,
            "threads": machine.threads(),
            "parameters": sum(array.size for array in self.parameters),
            "gradient_bytes": sum(array.size * np.dtype(array.dtype).itemsize for array in self.own_gradients),
            "versions": {**machine.versions(), **self.strategy.carrier},
        }

    def to_device(self, images: np.ndarray, labels: np.ndarray) -> Batch:
        pixels = mx.nd.array(images, self.context, np.uint8).astype(np.float32).transpose((0, 3, 1, 2))
        return (pixels - self.mean) / self.std, mx.nd.array(labels, self.context, np.float32)

    def train(self, batch: Batch, synchronise: bool) -> None:
        images, labels = batch
        with span("forward"), mx.autograd.record():
            loss = self.criterion(self.network(images), labels).mean()
        if isinstance(self.optimizer, ScaledSgd):
            self.scale = self.optimizer.scale
        with span("backward"):
            loss.backward(self.scale)
        self.used, self.synchronised = (self.own_gradients, 1.0), synchronise
        if not (synchronise and self.strategy.server_step(self.own_gradients)):
            if synchronise:
                # The optimiser scales sums to means.
                self.used = self.strategy.sync_gradients(self.own_gradients), 1 / self.strategy.world_size
            self.optimizer.step(*self.used, self.spec.optimizer.learning_rate(self.spec.global_batch, self.steps))
        self.steps += 1
        self.last_loss = loss

    def gradients(self) -> List[np.ndarray]:
        gradients, scale = self.used
        if self.synchronised:
            gradients = self.strategy.means(gradients)
        if self.scale is not None:
            scale /= float(self.scale.asscalar())
        return [gradient.asnumpy() * np.float32(scale) for gradient in gradients]

    def weights(self) -> List[np.ndarray]:
        return [array.asnumpy() for array in self.parameters]

    def logits(self, images: np.ndarray) -> np.ndarray:
        pixels, _ = self.to_device(images, np.zeros(len(images), np.int64))
        with self._unbiased_variances():
            return np.asarray(self.network(pixels).asnumpy())

    def own_weights(self) -> List[mx.nd.NDArray]:
        return [array.copy() for array in self.parameters]

    def take_weights(self, weights: Sequence[Any]) -> None:
        for array, values in zip(self.parameters, weights):
            array[:] = values

    def own_statistics(self) -> List[np.ndarray]:
        return [array.asnumpy() for array in self.settled_statistics()]

    def take_statistics(self, statistics: List[np.ndarray]) -> None:
        for array, values in zip(self.statistics, statistics):
            array[:] = values

    def checkpoint_arrays(self) -> Dict[str, np.ndarray]:
        arrays = {name: array.asnumpy() for name, array in self._state().items()}
        return {**arrays, "learning_rate": np.array(self.optimizer.learning_rate)}

    def load_arrays(self, saved: Mapping[str, np.ndarray]) -> None:
        for name, array in self._state().items():
            array[:] = saved[name]
        self.optimizer.learning_rate = float(saved["learning_rate"])

    def product(self, side: int) -> Callable[[int], Any]:
        kind = networks.HALF if self.spec.precision == "fp16" else "float32"
        a, b = (self._random((side, side), seed).astype(kind) for seed in OPERAND_SEEDS)
        out = mx.nd.empty((side, side), self.context, kind)
        return self._repeated(lambda: mx.nd.dot(a, b, out=out))

    def copy(self, nbytes: int) -> Callable[[int], Any]:
        source = self._random((nbytes // 4,), OPERAND_SEEDS[0])
        target = mx.nd.empty((nbytes // 4,), self.context)
        return self._repeated(lambda: source.copyto(target))

    def _random(self, shape: Sequence[int], seed: int) -> mx.nd.NDArray:
        mx.random.seed(seed, self.context)  # training uses no random numbers of MXNet
        return mx.nd.random.normal(shape=shape, ctx=self.context)

    def _repeated(self, call: Callable[[], Any]) -> Callable[[int], Any]:
        def repeat(n: int) -> Any:
            for _ in range(n):
                last = call()
            self.fence()
            return last

        return repeat

    def fence(self) -> None:
        # Raises errors of earlier asynchronous operations.
        mx.nd.waitall()

    def loss(self) -> float:
        assert self.last_loss is not None
        return float(self.last_loss.asscalar())

    def settled_statistics(self) -> List[mx.nd.NDArray]:
        """Return the statistics once all work is done: MXNet's engine does not know that a network of static shape
        writes them, and would let others read them earlier."""
        self.fence()
        return self.statistics

    @contextlib.contextmanager
    def _unbiased_variances(self) -> Iterator[None]:
        """Convert MXNet's running variances, which divide by a batch's n values, to those of PyTorch and TensorFlow,
        which divide by n - 1. The initial value, 1, is not scaled."""
        variances = self.settled_statistics()[1::2]
        kept = [variance.copy() for variance in variances]
        start = (1 - catalog.BATCHNORM_MOMENTUM) ** self.steps
        for variance, n in zip(variances, self.normalised):
            variance[:] = (variance - start) * (n / max(1, n - 1)) + start
        yield
        for variance, before in zip(variances, kept):
            before.copyto(variance)

    def _state(self) -> Dict[str, mx.nd.NDArray]:
        """Return everything that training changes."""
        statistics = self.settled_statistics()
        momenta = [] if self.strategy.server_optimizer else self.optimizer.momenta  # else the servers have them
        scaling = self.optimizer.scaling
        kinds = {"weight": self.parameters, "momentum": momenta, "statistic": statistics, "scaling": scaling}
        return {f"{kind}{number}": array for kind, arrays in kinds.items() for number, array in enumerate(arrays)}
