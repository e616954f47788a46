"""JAX's strategies: how ranks are joined, and how gradients are averaged.

To add one, write a subclass of `Strategy`, list it in STRATEGIES, and add a row to harness/core/strategies.py and
conf/strategy/<name>.yaml; its options, if any, are a class in harness/config/schema.py.
"""

from __future__ import annotations

import functools
import os
from abc import abstractmethod
from typing import Any, Callable, Dict, List, NamedTuple, Sequence, Tuple, Type

import jax
import numpy as np
from jax import lax
from jax._src import distributed, xla_bridge
from jax._src.lib import _jax
from jax.flatten_util import ravel_pytree
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from harness.core.rendezvous import Rendezvous
from harness.core.spec import RunSpec, Site
from harness.worker import data_parallel
from harness.worker.distributed.exchange import own_address

# The mesh's only axis.
RANKS = "ranks"


class State(NamedTuple):
    """State that a step replaces. params, velocity, scaling: equal on all ranks. statistics: BatchNorm's, per rank.
    scaling: of the loss with precision=fp16 (harness/worker/jax/scaling.py), else empty."""

    params: Any
    velocity: Any
    statistics: Any
    scaling: Any


class Rates(NamedTuple):
    """The optimiser's numbers that are arguments of the compiled step, as scalars on the device."""

    learning_rate: Any
    weight_decay: Any


Batch = Tuple[Any, Any]
# (params, statistics, scaling, images, labels) -> (gradients, new statistics, loss [1])
Gradient = Callable[..., Tuple[Any, Any, Any]]
# (params, velocity, scaling, gradients, rates) -> (params, velocity, scaling)
Update = Callable[..., Tuple[Any, Any, Any]]
# (state, batch, rates, synchronise) -> (state, argument of `gradients` or None, loss [1]); invalidates its state.
Step = Callable[[State, Batch, Rates, bool], Tuple[State, Any, Any]]


class Strategy(data_parallel.Strategy):
    """Constructed as Strategy(spec, site, rendezvous) before JAX is first used; joins the other ranks.

    in_one_program: gradients and their exchange are compiled together with the update.
    """

    device: Any
    in_one_program = False

    def __init__(self, spec: RunSpec, site: Site, rendezvous: Rendezvous) -> None:
        self.spec, self.rank = spec, rendezvous.rank
        # Communication apart from the steps, for which `fence` waits.
        self.messages: Dict[int, Any] = {}

    @property
    def returns_gradients(self) -> bool:
        """A single program returns its gradients only for the check of the first step, which must not take them from
        what the program made of them: that costs 8 % of a small network's step on an H200, even as one vector."""
        return not self.in_one_program or self.spec.verify

    def use(self, device: Any) -> None:
        """Set the rank's device, once JAX has found it."""
        self.device = device

    def place(self, arrays: Any, own: bool) -> Any:
        """Return a tree of this rank's arrays as a step takes them. own: they differ between ranks."""
        return jax.device_put(arrays, self.device)

    def batch(self, images: np.ndarray, labels: np.ndarray) -> Batch:
        """Return this rank's part of a batch as a step takes it."""
        placed: Batch = self.place((images, labels), own=True)
        return placed

    def local(self, arrays: Any) -> Any:
        """Invert `place`: return arrays on this rank's device."""
        return arrays

    @abstractmethod
    def step(self, gradient: Gradient, update: Update) -> Step:
        """Return the compiled training step."""

    def gradients(self, kept: Any, shapes: Sequence[Tuple[int, ...]]) -> List[np.ndarray]:
        """Return the gradients of a step: the mean over the ranks, or the rank's own if not synchronised.

        kept: what the step returned, here all in one vector. shapes: of the parameters.
        """
        ends = np.cumsum([int(np.prod(shape)) for shape in shapes])
        return [part.reshape(shape) for part, shape in zip(np.split(np.asarray(self.local(kept)), ends[:-1]), shapes)]


class Plain(Strategy):
    """One rank without any wrapper, as in a plain JAX script."""

    world_size, communication = 1, "none"
    in_one_program = True

    def step(self, gradient: Gradient, update: Update) -> Step:
        compiled = jax.jit(_combined_step(gradient, update, self.returns_gradients), donate_argnums=0)
        return lambda state, batch, rates, synchronise: compiled(state, batch, rates)

    def batch(self, images: np.ndarray, labels: np.ndarray) -> Batch:
        """Return them unchanged: the compiled step copies NumPy arrays faster than `jax.device_put` does."""
        return images, labels

    def allreduce(self, nbytes: int) -> None:
        pass

    def allreduce_sum(self, values: np.ndarray) -> np.ndarray:
        return values

    def close(self) -> None:
        pass


class Allreduce(Strategy):
    """JAX's collectives: the step is one program over a mesh of all ranks' devices that averages the gradients
    (jax.shard_map and lax.pmean). XLA decides when; on CPUs after the last gradient."""

    in_one_program = True

    def __init__(self, spec: RunSpec, site: Site, rendezvous: Rendezvous) -> None:
        super().__init__(spec, site, rendezvous)
        self.communication = "nccl" if spec.cluster.device == "cuda" else "gloo"
        # It would catch SIGTERM, which then would not end the rank.
        jax.config.update("jax_enable_preemption_service", False)
        jax.distributed.initialize(
            f"{rendezvous.master_address}:{rendezvous.master_port}",
            num_processes=rendezvous.world_size,
            process_id=rendezvous.rank,
            # Otherwise it selects a device by Slurm's or MPI's local rank, although the launcher makes only one
            # visible.
            cluster_detection_method="deactivate",
            initialization_timeout=int(site.timeout_seconds),
        )
        _use_gloo(rendezvous)
        self.world_size = jax.process_count()

    def use(self, device: Any) -> None:
        super().use(device)
        devices = sorted(jax.devices(), key=lambda device: device.process_index)
        self.mesh = Mesh(np.array(devices), (RANKS,))
        self.sum = self._over_ranks(lambda x: lax.psum(x, RANKS), P(RANKS), P(RANKS))

    def place(self, arrays: Any, own: bool) -> Any:
        """Return arrays over all ranks; those that differ between ranks are concatenated along the first axis."""
        sharding = NamedSharding(self.mesh, P(RANKS) if own else P())

        def placed(array: Any) -> Any:
            array = jax.device_put(array, self.device)
            shape = (array.shape[0] * self.world_size, *array.shape[1:]) if own else array.shape
            return jax.make_array_from_single_device_arrays(shape, sharding, [array])

        return jax.tree.map(placed, arrays)

    def local(self, arrays: Any) -> Any:
        return jax.tree.map(lambda array: array.addressable_data(0), arrays)

    def step(self, gradient: Gradient, update: Update) -> Step:
        state, batch = State(P(), P(), P(RANKS), P()), P(RANKS)

        def compiled(exchange: Callable[[Any], Any]) -> Any:
            combined = _combined_step(gradient, update, self.returns_gradients, exchange)
            return self._over_ranks(combined, (state, batch, P()), (state, P(), P(RANKS)), donate_argnums=0)

        both = compiled(lambda gradients: gradients), compiled(lambda gradients: lax.pmean(gradients, RANKS))
        return lambda state, batch, rates, synchronise: both[synchronise](state, batch, rates)

    def allreduce(self, nbytes: int) -> None:
        if nbytes not in self.messages:
            self.messages[nbytes] = self.place(np.zeros(max(1, nbytes // 4), np.float32), own=True)
        self.messages[nbytes] = self.sum(self.messages[nbytes])

    def allreduce_sum(self, values: np.ndarray) -> np.ndarray:
        with jax.enable_x64(True):
            return np.asarray(self.local(self.sum(self.place(values, own=True))))

    def close(self) -> None:
        jax.distributed.shutdown()

    def _over_ranks(self, function: Callable[..., Any], in_specs: Any, out_specs: Any, **options: Any) -> Any:
        # Unchecked: without communication, arrays declared equal on all ranks are not.
        mapped = jax.shard_map(function, mesh=self.mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)
        return jax.jit(mapped, **options)


class Mpi(data_parallel.ByMpi, Strategy):
    """Average all gradients in one flat vector by MPI in host memory after backward."""

    def step(self, gradient: Gradient, update: Update) -> Step:
        @functools.partial(jax.jit, donate_argnums=1)
        def backward(params: Any, statistics: Any, scaling: Any, batch: Batch) -> Any:
            gradients, statistics, loss = gradient(params, statistics, scaling, *batch)
            return ravel_pytree(gradients)[0], statistics, loss

        @functools.partial(jax.jit, donate_argnums=(0, 1, 2))
        def apply(params: Any, velocity: Any, scaling: Any, flat: Any, rates: Rates) -> Any:
            return update(params, velocity, scaling, ravel_pytree(params)[1](flat), rates)

        def step(state: State, batch: Batch, rates: Rates, synchronise: bool) -> Tuple[State, Any, Any]:
            flat, statistics, loss = backward(state.params, state.statistics, state.scaling, batch)
            if synchronise:
                flat = np.array(flat)
                self.ranks.average(flat)
            params, velocity, scaling = apply(state.params, state.velocity, state.scaling, flat, rates)
            return State(params, velocity, statistics, scaling), flat, loss

        return step

    def allreduce(self, nbytes: int) -> None:
        self.ranks.allreduce(nbytes)

    def allreduce_sum(self, values: np.ndarray) -> np.ndarray:
        sums = values.copy()
        self.ranks.sum(sums)
        return sums


def _combined_step(
    gradient: Gradient,
    update: Update,
    returns_gradients: bool,
    exchange: Callable[[Any], Any] = lambda gradients: gradients,
) -> Any:
    """Return a step as one function. Its gradients are one vector, or None: each array that a call returns costs host
    time."""

    def step(state: State, batch: Batch, rates: Rates) -> Tuple[State, Any, Any]:
        gradients, statistics, loss = gradient(state.params, state.statistics, state.scaling, *batch)
        gradients = exchange(gradients)
        params, velocity, scaling = update(state.params, state.velocity, state.scaling, gradients, rates)
        kept = ravel_pytree(gradients)[0] if returns_gradients else None
        return State(params, velocity, statistics, scaling), kept, loss

    return step


def _use_gloo(rendezvous: Rendezvous) -> None:
    """Use gloo with an explicit address. JAX would use that of the host name, which on laptops and in containers often
    does not resolve, and elsewhere may be loopback; there is no public option for it."""
    interface = os.environ.get("GLOO_SOCKET_IFNAME")
    gloo = _jax.make_gloo_tcp_collectives(
        distributed.global_state.client,
        hostname=None if interface else own_address(rendezvous),
        interface=interface,
    )
    client = functools.partial(xla_bridge.make_cpu_client, gloo)
    xla_bridge.register_backend_factory("cpu", client, priority=0, fail_quietly=False)


STRATEGIES: Dict[str, Type[Strategy]] = {"plain": Plain, "allreduce": Allreduce, "mpi": Mpi}
