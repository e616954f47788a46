"""The adapter in JAX."""

from __future__ import annotations

import os
import re
from importlib import metadata
from typing import Any, Callable, Dict, List, Mapping, Tuple

import jax
import jax.numpy as jnp
import numpy as np

from harness.core.gpu_types import Build
from harness.core.rendezvous import Rendezvous
from harness.core.spec import RunSpec, Site
from harness.worker import data_parallel
from harness.worker.adapter import OPERAND_SEEDS
from harness.worker.checks import capability
from harness.worker.data.batches import Pipeline
from harness.worker.jax import parameter_servers, scaling, strategies
from harness.worker.jax.strategies import Batch, Rates, State, Strategy
from harness.worker.record import capture
from models import catalog
from models import jax as networks

STRATEGIES = {**strategies.STRATEGIES, **parameter_servers.STRATEGIES}
COMPUTE_TYPES = {"fp32": jnp.float32, "tf32": jnp.float32, "bf16": jnp.bfloat16, "fp16": jnp.float16}
CUDA_PACKAGES = {
    "cuda": ("jax-cuda12-plugin", "jax-cuda13-plugin"),
    "nccl": ("nvidia-nccl-cu12", "nvidia-nccl-cu13"),
    "cudnn": ("nvidia-cudnn-cu12", "nvidia-cudnn-cu13"),
}


def versions() -> Dict[str, str]:
    """Return the versions of JAX and of its installed GPU packages; "cuda" does not imply a GPU."""
    found = {"jax": jax.__version__, "jaxlib": metadata.version("jaxlib"), "numpy": np.__version__}
    for name, packages in CUDA_PACKAGES.items():
        for package in filter(_installed, packages):
            found[name] = metadata.version(package)
    return found


def build() -> Build:
    """Return what this JAX was built for; works without a GPU. XLA compiles for any GPU; its libraries set the
    limits."""
    found = versions()
    plugin = next((name for name in CUDA_PACKAGES["cuda"] if _installed(name)), None)
    cuda = re.sub(r"\D", "", plugin) if plugin else None
    return Build(f"jax {jax.__version__}", cuda, found.get("cudnn"))


def gpus() -> List[str]:
    """Return the names of the GPUs that JAX can use here."""
    try:
        return [device.device_kind for device in jax.devices("gpu")]
    except RuntimeError:  # no GPU, or no plugin
        return []


def _installed(package: str) -> bool:
    return any(True for _ in metadata.distributions(name=package))


class Adapter(data_parallel.Adapter):
    compiles = True
    strategy: Strategy

    def __init__(self, spec: RunSpec, site: Site, rendezvous: Rendezvous, batches: Pipeline) -> None:
        """Raises GpuError if the requested GPU cannot be used; never falls back to the CPU."""
        super().__init__(spec, rendezvous, batches)
        _configure(spec, site)
        self.strategy = STRATEGIES[spec.strategy](spec, site, rendezvous)
        self.joined()
        self.device = _device(spec)
        self.strategy.use(self.device)
        data = spec.dataset
        self.layers = catalog.network(spec.model).layers(data.channels, data.classes, data.image_size)
        params, statistics = networks.build(self.layers, spec.seed)
        self.strategy.register_weights(params)
        self.state: Any = None
        self._set_state(State(params, [np.zeros_like(array) for array in params], statistics, scaling.fresh(spec)))
        self.run_step = self.strategy.step(self._gradient, self._update)
        self.evaluate = jax.jit(self._evaluate)
        # The learning rate, and it as the step takes it.
        self._rates: Tuple[Any, Any] = (None, None)
        self.last_gradients: Any = None
        # If the step does not return its gradients: what it took, as arguments of `_gradients_again`.
        self._taken: Any = None
        self.last_loss: Any = None

    def facts(self) -> Dict[str, Any]:
        cuda = self.spec.cluster.device == "cuda"
        parameters = sum(array.size for array in self.state.params)
        return {
            "world_size": self.strategy.world_size,
            "communication": self.strategy.communication,
            "device": self.spec.cluster.device,
            "device_name": self.device.device_kind if cuda else capture.cpu_model() or "CPU",
            "device_id": capture.gpu_uuid() if cuda else None,
            "threads": int(os.environ["PJRT_NPROC"]),
            "parameters": parameters,
            "gradient_bytes": parameters * 4,
            "versions": {**versions(), **self.strategy.carrier},
        }

    def to_device(self, images: np.ndarray, labels: np.ndarray) -> Batch:
        return self.strategy.batch(images, labels.astype(np.int32))

    def cached_batch(self) -> Batch:
        batch: Batch = super().cached_batch()
        if isinstance(batch[0], np.ndarray):
            self.cached = batch = self.strategy.place(batch, own=True)
        return batch

    def train(self, batch: Batch, synchronise: bool) -> None:
        self._taken = None
        is_asked = self.wants_gradients or self.first_gradients is None
        if is_asked and not self.strategy.returns_gradients:  # copied, since the step takes the state's memory
            self._taken = jax.tree.map(np.array, self.strategy.local(self.state)), batch, synchronise
        self.state, self.last_gradients, self.last_loss = self.run_step(
            self.state, batch, self._current_rates(), synchronise
        )
        self.steps, self.synchronised = self.steps + 1, synchronise

    def gradients(self) -> List[np.ndarray]:
        if self.last_gradients is None:
            assert self._taken is not None, "of steps other than the first, only with wants_gradients"
            return networks.from_layout(self._gradients_again(*self._taken))
        gradients = self.strategy.gradients(self.last_gradients, [array.shape for array in self.state.params])
        return networks.from_layout(self.strategy.means(gradients) if self.synchronised else gradients)

    def weights(self) -> List[np.ndarray]:
        return networks.from_layout(self.strategy.local(self.state.params))

    def logits(self, images: np.ndarray) -> np.ndarray:
        # Pad to a constant size: JAX would recompile the network for every other one.
        size = self.spec.batch_per_gpu
        params, _, statistics, _ = self.strategy.local(self.state)
        parts = [np.zeros((0, self.spec.dataset.classes), np.float32)]
        for start in range(0, len(images), size):
            part = images[start : start + size]
            filled = np.concatenate([part, np.zeros((size - len(part), *part.shape[1:]), part.dtype)])
            pixels = jax.device_put(filled, self.device)
            parts.append(np.asarray(self.evaluate(params, statistics, pixels))[: len(part)])
        return np.concatenate(parts)

    def own_weights(self) -> Any:
        return self.state.params

    def take_weights(self, weights: Any) -> None:
        self.state = self.state._replace(params=self.strategy.place(weights, own=False))

    def own_statistics(self) -> List[np.ndarray]:
        return [np.asarray(array) for array in jax.tree.leaves(self.strategy.local(self.state.statistics))]

    def take_statistics(self, statistics: List[np.ndarray]) -> None:
        tree = jax.tree.unflatten(jax.tree.structure(self.state.statistics), statistics)
        self.state = self.state._replace(statistics=self.strategy.place(tree, own=True))

    def device_memory(self) -> Dict[str, Any]:
        told = self.device.memory_stats() or {}
        return {
            "device_peak_bytes": told.get("peak_bytes_in_use"),
            # The pool is three quarters of the GPU's memory if JAX preallocates; `bytes_reserved` is always 0.
            "device_reserved_peak_bytes": told.get("peak_pool_bytes"),
            "device_peak_source": "jax.Device.memory_stats, trial workspaces of the first step included",
        }

    def checkpoint_arrays(self) -> Dict[str, np.ndarray]:
        arrays = jax.tree.leaves(self.strategy.local(self.state))
        return {f"arr_{number}": np.asarray(array) for number, array in enumerate(arrays)}

    def load_arrays(self, saved: Mapping[str, np.ndarray]) -> None:
        structure = jax.tree.structure(self.state)
        self._set_state(jax.tree.unflatten(structure, [saved[f"arr_{n}"] for n in range(structure.num_leaves)]))

    def product(self, side: int) -> Callable[[int], Any]:
        compiled = jax.jit(jnp.matmul)
        kind = self._compute_type
        a, b = (self._random((side, side), seed).astype(kind) for seed in OPERAND_SEEDS)

        def repeat(n: int) -> Any:
            for _ in range(n):
                last = compiled(a, b)
            return last.block_until_ready()  # the device computes in order

        return repeat

    def copy(self, nbytes: int) -> Callable[[int], Any]:
        # In place: allocating new memory costs more than writing to it.
        compiled = jax.jit(jnp.negative, donate_argnums=0)
        state = [self._random((nbytes // 4,), OPERAND_SEEDS[0])]

        def repeat(n: int) -> Any:
            for _ in range(n):
                state[0] = compiled(state[0])
            return state[0].block_until_ready()

        return repeat

    def _random(self, shape: Tuple[int, ...], seed: int) -> Any:
        with jax.default_device(self.device):
            return jax.random.normal(jax.random.PRNGKey(seed), shape)

    def fence(self) -> None:
        jax.block_until_ready((self.state, self.last_gradients, self.strategy.messages))

    def loss(self) -> float:
        return float(np.asarray(self.strategy.local(self.last_loss))[0])

    def _current_rates(self) -> Rates:
        """The step's rates, copied to the device only when they change."""
        value = self.spec.optimizer.learning_rate(self.spec.global_batch, self.steps)
        if value != self._rates[0]:
            self._rates = value, self._placed_rates(value, self.spec.optimizer.weight_decay)
        rates: Rates = self._rates[1]
        return rates

    def _placed_rates(self, *rates: float) -> Rates:
        placed: Rates = self.strategy.place(Rates(*map(np.float32, rates)), own=False)
        return placed

    def _gradients_again(self, state: State, batch: Batch, synchronise: bool) -> List[np.ndarray]:
        """Compute a step's gradients once more, by the same program: without weight decay, they are what a velocity of
        zero becomes. NaN if one is not finite, as such steps are skipped."""
        fresh = state._replace(velocity=[np.zeros_like(array) for array in state.velocity])
        after, _, _ = self.run_step(self._placed(fresh), batch, self._placed_rates(0.0, 0.0), synchronise)
        gradients = [np.array(array) for array in self.strategy.local(after.velocity)]
        if scaling.skipped(state.scaling, self.strategy.local(after.scaling)):
            return [np.full_like(gradient, np.nan) for gradient in gradients]
        return gradients

    def _set_state(self, state: State) -> None:
        self.state = self._placed(state)

    def _placed(self, state: State) -> State:
        place = self.strategy.place
        params, velocity, known = place((state.params, state.velocity, state.scaling), own=False)
        return State(params, velocity, place(state.statistics, own=True), known)

    def _gradient(
        self, params: Any, statistics: Any, known: scaling.Scaling, images: Any, labels: Any
    ) -> Tuple[Any, Any, Any]:
        def loss(params: Any) -> Tuple[Any, Any]:
            logits, new = networks.forward(
                self.layers, params, statistics, self._normalised(images), train=True, compute_type=self._compute_type
            )
            mean = -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], axis=1).mean()
            return scaling.scaled(mean, known), (mean, new)

        (_, (value, new)), gradients = jax.value_and_grad(loss, has_aux=True)(params)
        return scaling.unscaled(gradients, known), new, value[None]

    def _update(
        self, params: Any, velocity: Any, known: scaling.Scaling, gradients: Any, rates: Rates
    ) -> Tuple[Any, Any, scaling.Scaling]:
        optimizer = self.spec.optimizer

        def update(w: Any, v: Any, g: Any) -> Tuple[Any, Any]:
            g = g + rates.weight_decay * w
            v = optimizer.momentum * v + g
            return w - rates.learning_rate * (g + optimizer.momentum * v if optimizer.nesterov else v), v

        updated = [update(w, v, g) for w, v, g in zip(params, velocity, gradients)]
        new = [w for w, _ in updated], [v for _, v in updated]
        (new_params, new_velocity), known = scaling.applied((params, velocity), new, gradients, known)
        return new_params, new_velocity, known

    def _normalised(self, pixels: Any) -> Any:
        """Part of the compiled step, since a second dispatch costs host time, which limits small networks on GPUs."""
        mean = np.array(self.spec.dataset.mean, np.float32) * 255
        return (pixels.astype(jnp.float32) - mean) / (np.array(self.spec.dataset.std, np.float32) * 255)

    def _evaluate(self, params: Any, statistics: Any, images: Any) -> Any:
        x = self._normalised(images)
        return networks.forward(self.layers, params, statistics, x, train=False, compute_type=self._compute_type)[0]

    @property
    def _compute_type(self) -> Any:
        return COMPUTE_TYPES[self.spec.precision]


def _configure(spec: RunSpec, site: Site) -> None:
    """Set what JAX reads when it first looks for devices."""
    # Otherwise the pool has a thread per core of the node.
    os.environ["PJRT_NPROC"] = str(spec.cluster.cpus_per_gpu)
    if site.oversubscribed:
        # JAX preallocates three quarters of a GPU's memory, which ranks may have to share.
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    if spec.cluster.device == "cpu":
        jax.config.update("jax_platforms", "cpu")
    if spec.precision == "fp32":
        # fp32 excludes TF32, a precision of its own that V100s lack.
        jax.config.update("jax_default_matmul_precision", "highest")
    if spec.precision == "tf32":
        jax.config.update("jax_default_matmul_precision", "tensorfloat32")


def _device(spec: RunSpec) -> Any:
    if spec.cluster.device == "cpu":
        return jax.local_devices()[0]
    try:
        # The launcher makes one GPU visible to each rank.
        device = jax.local_devices(backend="gpu")[0]
    except RuntimeError as error:
        raise capability.no_gpu(build(), spec.environment, str(error).splitlines()[0]) from None
    # Such as '7.0'; missing on other accelerators.
    told = getattr(device, "compute_capability", None)
    major, _, minor = str(told or "").partition(".")
    found = (int(major), int(minor)) if major.isdigit() and minor.isdigit() else None
    capability.check(build(), spec.environment, spec.precision, device.device_kind, found)
    return device
