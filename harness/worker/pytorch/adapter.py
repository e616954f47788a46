"""The adapter in PyTorch."""

from __future__ import annotations

import contextlib
import copy
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple, Union

import numpy as np
import torch
import torch.distributed as dist

from harness.core.rendezvous import Rendezvous
from harness.core.spec import RunSpec, Site
from harness.worker import adapter as worker
from harness.worker.data.batches import Pipeline
from harness.worker.profiler_ranges import span
from harness.worker.pytorch import compiling, dali, device, graphs, optimizers
from harness.worker.pytorch.strategies import strategy
from harness.worker.pytorch.strategies.base import AUTOCAST, Stateful, autocast
from harness.worker.record import capture
from models import catalog
from models import pytorch as networks

Batch = Tuple[torch.Tensor, torch.Tensor]
# Of the loss, where compiled and eager gradients are compared in fp16: neither overflows nor underflows.
CHECK_SCALE = 2.0**10


def versions() -> Dict[str, str]:
    """Return the versions of torch, of what it was built with and of NVIDIA DALI if installed; "cuda" does not imply a
    GPU."""
    found = {"torch": str(torch.__version__), "numpy": np.__version__}
    if with_dali := dali.version():
        found["dali"] = with_dali
    if torch.version.cuda is not None:
        found["cuda"] = torch.version.cuda
        if dist.is_nccl_available():
            found["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
        if number := device.cudnn_number():
            found["cudnn"] = str(number)
    return found


def gpus() -> List[str]:
    """Return the names of the GPUs that torch can use here."""
    if not torch.cuda.is_available():  # with an outdated driver, torch counts GPUs that it cannot use
        return []
    return [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]


class Adapter(worker.Adapter):
    def __init__(self, spec: RunSpec, site: Site, rendezvous: Rendezvous, batches: Pipeline) -> None:
        """Raises GpuError if the requested GPU cannot be used; never falls back to the CPU."""
        super().__init__(batches)
        self.spec = spec
        self.rank = rendezvous.rank
        self.device = device.of(spec)
        options = spec.framework_options
        self.graphs = graphs.Graphs(self.device) if options.get("cuda_graph", False) else None
        if self.graphs:
            graphs.prepare()
        torch.set_num_threads(spec.cluster.cpus_per_gpu)
        self.strategy = strategy(spec.strategy)(spec, site, rendezvous, self.device)
        self.joined()
        torch.manual_seed(spec.seed)
        data = spec.dataset
        layers = catalog.network(spec.model).layers(data.channels, data.classes, data.size)
        network = self.strategy.to_device(networks.build(layers, spec.seed))
        if options.get("half_weights", False):
            if self.device.type == "cpu":
                # Skips whole blocks of elements: github.com/pytorch/pytorch/issues/191763.
                raise RuntimeError(
                    "framework.options.half_weights=true needs a GPU: torch's fused step on CPUs is wrong"
                )
            networks.halve(network)
        self.memory_format = torch.channels_last if options["channels_last"] else torch.contiguous_format
        network = network.to(memory_format=self.memory_format)
        self.plain_network = network
        self.size = sum(p.numel() for p in network.parameters())
        with self.graphs.aside() if self.graphs else contextlib.nullcontext():
            wrapped = self.strategy.wrap(network)
        self.separable, self.has_one_rank_step = self.strategy.separable, self.strategy.has_one_rank_step
        self.trace_has_parts = self.strategy.trace_has_parts
        self.compiles = bool(options["compile"]) or self.graphs is not None
        self.parameters = list(network.parameters())  # after a strategy may have split them
        mode = options.get("compile_mode", "default")
        self.network = compiling.compiled(wrapped, mode, options["channels_last"]) if options["compile"] else wrapped
        # Until the first batch, the network with which the compiled one is compared.
        self.eager_network: Optional[torch.nn.Module] = wrapped if options["compile"] else None
        rate: Union[float, torch.Tensor] = spec.optimizer.learning_rate(spec.global_batch, 0)
        if self.graphs:  # graphs read it from the device
            rate = torch.tensor(rate, device=self.device)
        fused = options.get("fused", False)
        self.optimizer = self.strategy.optimizer(self.parameters, *optimizers.of(spec.optimizer, rate, fused))
        if fused:
            optimizers.check_layouts_once(self.optimizer)
        if spec.optimizer.norm_bias_factor != 1:
            optimizers.step_apart(self.optimizer, networks.norm_biases(network), spec.optimizer.norm_bias_factor)
        # One per parameter group, read by graphs.
        self.rates = [group["lr"] for group in self.optimizer.param_groups] if self.graphs else []
        self.lookahead: Optional[optimizers.Lookahead] = None
        if spec.optimizer.lookahead_steps:
            self.lookahead = optimizers.Lookahead([*self.parameters, *networks.statistics(network)])
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=spec.precision == "fp16")
        per_channel = (1, data.channels, 1, 1)
        self.mean = torch.tensor(data.mean, device=self.device).view(per_channel) * 255
        self.std = torch.tensor(data.std, device=self.device).view(per_channel) * 255
        self.steps = 0
        self.last_loss: Optional[torch.Tensor] = None

    def facts(self) -> Dict[str, Any]:
        cuda = self.device.type == "cuda"
        return {
            "world_size": self.strategy.world_size,
            "communication": self.strategy.communication,
            "device": self.device.type,
            "device_name": torch.cuda.get_device_name(self.device) if cuda else capture.cpu_model() or "CPU",
            "device_id": self._device_id() if cuda else None,
            "threads": torch.get_num_threads(),
            "parameters": self.size,
            "gradient_bytes": self.strategy.gradient_bytes(self.parameters),
            "versions": {**versions(), **self.strategy.carrier},
        }

    def to_device(self, images: np.ndarray, labels: np.ndarray) -> Batch:
        values, targets = self._moved(torch.as_tensor(images)), self._moved(torch.as_tensor(labels))
        if self.spec.dataset.context:
            return values.long(), targets
        pixels = values.permute(0, 3, 1, 2)
        if pixels.dtype == torch.uint8:  # data.pipeline=dali normalises itself
            pixels = pixels.float().sub_(self.mean).div_(self.std)
        return pixels.contiguous(memory_format=self.memory_format), targets

    def train(self, batch: Batch, synchronise: bool) -> None:
        if self.eager_network is not None:
            self._check_compiled(self.eager_network, batch)
            self.eager_network = None
        self._set_rate(self.spec.optimizer.learning_rate(self.spec.global_batch, self.steps))
        if self.graphs:
            self.last_loss = self.graphs.step(self._take, self.parameters, batch, synchronise)
        else:
            self.last_loss = self._take(*batch, synchronise)
        share = self.spec.optimizer.slow_share(self.spec.global_batch, self.steps)
        if self.lookahead and share is not None:
            with span("lookahead"):
                self.lookahead.step(share)
        self.steps += 1
        self.strategy.after_step(self.steps, synchronise)

    def one_rank_step(self) -> None:
        self.strategy.exchange_with_peers(False)
        self.step_on_cached_batch()
        self.strategy.exchange_with_peers(True)

    @torch.no_grad()
    def whiten(self, kernel: np.ndarray) -> None:
        for module in self.plain_network.modules():  # a pipeline stage may lack the layer
            if isinstance(module, networks.Whitening):
                # Use rank 0's kernel: other processors may round the last bit differently.
                shared = torch.tensor(kernel, device=self.device)
                self.strategy.broadcast(shared)
                module.kernel.copy_(shared)

    def gradients(self) -> List[np.ndarray]:
        self.strategy.means()
        return [*map(_whole, self.strategy.full_tensors([p.grad for p in self.parameters if p.grad is not None]))]

    def weights(self) -> List[np.ndarray]:
        return [*map(_whole, self.strategy.full_tensors([p.detach() for p in self.parameters]))]

    @torch.no_grad()
    def logits(self, images: np.ndarray) -> np.ndarray:
        self.plain_network.eval()
        pixels, _ = self.to_device(images, np.zeros(len(images), np.int64))
        with autocast(self.spec, self.device):
            logits = self.strategy.logits(self.plain_network, pixels)
        self.plain_network.train()
        return np.asarray(logits.float().cpu().numpy())

    @contextlib.contextmanager
    def evaluation(self) -> Iterator[None]:
        with super().evaluation(), self.strategy.evaluation():
            yield

    def product(self, side: int) -> Callable[[int], Any]:
        kind = AUTOCAST[self.spec.precision] or torch.float32
        a, b = (self._random((side, side), seed).to(kind) for seed in worker.OPERAND_SEEDS)
        out = torch.empty_like(a)
        return self._repeated(lambda: torch.mm(a, b, out=out))

    def copy(self, nbytes: int) -> Callable[[int], Any]:
        source = self._random((nbytes // 4,), worker.OPERAND_SEEDS[0])
        target = torch.empty_like(source)
        return self._repeated(lambda: target.copy_(source))

    def _random(self, shape: Sequence[int], seed: int) -> torch.Tensor:
        generator = torch.Generator(self.device).manual_seed(seed)  # separate from training's random state
        return torch.randn(shape, device=self.device, generator=generator)

    def _repeated(self, call: Callable[[], Any]) -> Callable[[int], Any]:
        @torch.no_grad()
        def repeat(n: int) -> Any:
            for _ in range(n):
                last = call()
            self.fence()
            return last

        return repeat

    def share_statistics(self) -> None:
        for tensor in networks.statistics(self.plain_network):
            self.strategy.broadcast(tensor)

    def allreduce(self, nbytes: int) -> None:
        self.strategy.allreduce(nbytes)

    def updates(self) -> Optional[Dict[str, Any]]:
        return self.strategy.updates()

    def fallbacks(self) -> List[str]:
        return compiling.fallbacks() if self.spec.framework_options["compile"] else []

    def servers_back(self) -> List[Dict[str, Any]]:
        return self.strategy.servers_back()

    def allreduce_sum(self, values: Sequence[float]) -> List[float]:
        return self.strategy.allreduce_sum(values)

    def reset_peak_memory(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)

    def device_memory(self) -> Dict[str, Any]:
        return {
            "device_peak_bytes": torch.cuda.max_memory_allocated(self.device),
            "device_reserved_peak_bytes": torch.cuda.max_memory_reserved(self.device),
            "device_peak_source": "torch.cuda.max_memory_allocated, after the first step",
        }

    def save(self, folder: Path) -> None:
        # Only rank 0's statistics of BatchNorm count; random states are each rank's own.
        if self.rank == 0:
            state = {"scaler": self.scaler.state_dict(), "steps": self.steps, **_states(self._replicated_state())}
            torch.save(state, folder / "replica.pt")
        torch.save({"random": self._random_state(), **_states(self._rank_state())}, folder / f"own.rank{self.rank}.pt")

    def load(self, folder: Path) -> None:
        self._rebuild_buckets()
        state = torch.load(folder / "replica.pt", map_location=self.device, weights_only=True)
        self.scaler.load_state_dict(state["scaler"])
        self.steps = state["steps"]
        own = torch.load(folder / f"own.rank{self.rank}.pt", map_location=self.device, weights_only=True)
        for name, part in self._replicated_state().items():
            part.load_state_dict(state[name])
        for name, part in self._rank_state().items():
            part.load_state_dict(own[name])
        self._set_random_state(own["random"])

    def fence(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def loss(self) -> float:
        assert self.last_loss is not None
        return self.strategy.loss(self.last_loss)

    def close(self) -> None:
        if self.graphs:
            self.last_loss = None  # it is in a graph's memory
            self.graphs.release(self.parameters)
        self.strategy.close()

    def _take(self, images: torch.Tensor, labels: torch.Tensor, synchronise: bool) -> torch.Tensor:
        """Take one step without waiting for the device."""
        self.optimizer.zero_grad(set_to_none=self.strategy.new_gradients)
        with self.strategy.sync_gradients(synchronise):
            loss = self.strategy.forward_backward(self.network, self.scaler, images, labels)
        with span("optimizer"):
            self.scaler.step(self.optimizer)
            self.scaler.update()
        return loss

    def _check_compiled(self, eager: torch.nn.Module, batch: Batch) -> None:
        """Raise CompileError if the compiled network's gradients are wrong; leave all state as it was."""
        buffers = [(buffer, buffer.clone()) for buffer in self.plain_network.buffers()]
        random = self._random_state()
        scaler = torch.amp.GradScaler(self.device.type, init_scale=CHECK_SCALE, enabled=self.scaler.is_enabled())
        # With static_graph, DDP learns the graph in its first backward pass, which it must reduce.
        learns = bool(self.spec.strategy_options.get("static_graph"))
        parts = self.strategy.rank_state(self.plain_network, self.optimizer) if learns else {}
        states = copy.deepcopy(_states(parts))
        found = []
        for network in (self.network, eager):
            self.optimizer.zero_grad(set_to_none=self.strategy.new_gradients)
            with self.strategy.sync_gradients(synchronise=learns or not self.separable):
                self.strategy.forward_backward(network, scaler, *batch)
            gradients = [p.grad.detach().clone() for p in self.parameters if p.grad is not None]
            found.append(self.strategy.full_tensors(gradients))
            for buffer, before in buffers:
                buffer.copy_(before)
            self._set_random_state(random)
        self.optimizer.zero_grad(set_to_none=self.strategy.new_gradients)
        for name, part in parts.items():
            part.load_state_dict(states[name])
        exact = compiling.is_exact(self.plain_network, self.spec.precision)
        compiling.check_gradients(found[0], found[1], exact)

    def _set_rate(self, rate: float) -> None:
        for number, group in enumerate(self.optimizer.param_groups):
            own = rate * group.get("factor", 1.0)
            if self.rates:
                self.rates[number].fill_(own)
            group["lr"] = self.rates[number] if self.rates else own

    def _moved(self, values: torch.Tensor) -> torch.Tensor:
        """Return the values on the device, where those of data.pipeline=device already are."""
        if self.device.type == "cuda" and values.device.type == "cpu" and self.spec.data.pin:
            values = values.pin_memory()  # so that the copy does not block the host; loaders pin earlier
        return values.to(self.device, non_blocking=True)

    def _replicated_state(self) -> Mapping[str, Stateful]:
        parts = self.strategy.replicated_state(self.plain_network, self.optimizer)
        return {**parts, "lookahead": self.lookahead} if self.lookahead else parts

    def _rank_state(self) -> Mapping[str, Stateful]:
        return self.strategy.rank_state(self.plain_network, self.optimizer)

    def _device_id(self) -> str:
        return capture.mig_device() or str(torch.cuda.get_device_properties(self.device).uuid)

    def _random_state(self) -> Dict[str, torch.Tensor]:
        state = {"cpu": torch.get_rng_state()}
        if self.device.type == "cuda":
            state["cuda"] = torch.cuda.get_rng_state(self.device)
        return state

    def _set_random_state(self, state: Mapping[str, torch.Tensor]) -> None:
        torch.set_rng_state(state["cpu"].cpu())
        if self.device.type == "cuda":
            torch.cuda.set_rng_state(state["cuda"].cpu(), self.device)

    def _rebuild_buckets(self) -> None:
        """Run a backward pass and discard its gradients, so that DDP reorders its buckets, as it does after its first
        backward. Sums over more than two ranks depend on the order: a resumed run would differ in the last bit."""
        of_text, count = self.spec.dataset.context, self.spec.batch_per_replica
        samples = np.zeros((count, *self.spec.dataset.sample_shape), np.uint8)
        images, labels = self.to_device(samples, np.zeros((count, of_text) if of_text else count, np.int64))
        with self.strategy.sync_gradients(synchronise=True):
            self.strategy.forward_backward(self.network, self.scaler, images, labels)
        self.optimizer.zero_grad(set_to_none=self.strategy.new_gradients)


def _whole(tensor: torch.Tensor) -> np.ndarray:
    """Return the tensor on the host; a sharded one completely."""
    # Duck-typed, since loading torch.distributed.tensor.DTensor takes a second.
    whole = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return np.asarray(whole.float().cpu().numpy())


def _states(parts: Mapping[str, Stateful]) -> Dict[str, Any]:
    return {name: part.state_dict() for name, part in parts.items()}
