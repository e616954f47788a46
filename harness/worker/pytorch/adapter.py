"""The loop's verbs in PyTorch."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

import numpy as np
import torch
import torch.distributed as dist

from harness.spec import RunSpec, Site
from harness.worker import adapter as worker
from harness.worker import capture
from harness.worker.pytorch import optimizers
from harness.worker.pytorch.strategies import strategy
from harness.worker.pytorch.strategies.base import Parts, autocast
from harness.worker.rendezvous import Rendezvous
from models import catalog
from models import pytorch as networks

Batch = Tuple[torch.Tensor, torch.Tensor]


def versions() -> Dict[str, str]:
    """Of torch, and of what its build brings along. Needs neither a GPU nor a process group: "cuda" says that the build
    has it, not that there is a GPU."""
    found = {"torch": str(torch.__version__), "numpy": np.__version__}
    if torch.version.cuda is not None:
        found["cuda"] = torch.version.cuda
        if dist.is_nccl_available():
            found["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
        if torch.backends.cudnn.is_available():
            found["cudnn"] = str(torch.backends.cudnn.version())
    return found


def gpus() -> List[str]:
    """The names of the GPUs that torch can use here."""
    if not torch.cuda.is_available():  # with a driver that is too old, torch counts them, and cannot use them
        return []
    return [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]


class Adapter(worker.Adapter):
    def __init__(
        self, spec: RunSpec, site: Site, rendezvous: Rendezvous, batches: Iterator[Tuple[np.ndarray, np.ndarray]]
    ) -> None:
        """Raises RuntimeError where the run asks for a GPU that torch does not see: never falls back to the CPU."""
        super().__init__(batches)
        self.spec = spec
        self.rank = rendezvous.rank
        self.device = _device(spec)
        torch.set_num_threads(spec.cluster.cpus_per_gpu)
        self.strategy = strategy(spec.strategy)(spec, site, rendezvous, self.device)
        torch.manual_seed(spec.seed)
        data = spec.dataset
        layers = catalog.network(spec.model).layers(data.channels, data.classes, data.size)
        network = self.strategy.to_device(networks.build(layers, spec.seed))
        self.memory_format = torch.channels_last if spec.framework_options["channels_last"] else torch.contiguous_format
        network = network.to(memory_format=self.memory_format)
        self.plain_network = network
        self.size = sum(p.numel() for p in network.parameters())
        wrapped = self.strategy.wrap(network)
        self.separable = self.strategy.separable
        self.parameters = list(network.parameters())  # now, since a strategy may have divided them; of a stage, its own
        self.network = torch.compile(wrapped) if spec.framework_options["compile"] else wrapped
        first_rate = spec.optimizer.learning_rate(spec.global_batch, 0)
        self.optimizer = self.strategy.optimizer(self.parameters, *optimizers.of(spec.optimizer, first_rate))
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
            "device_id": str(torch.cuda.get_device_properties(self.device).uuid) if cuda else None,
            "threads": torch.get_num_threads(),
            "parameters": self.size,
            "gradient_bytes": self.strategy.gradient_bytes(self.parameters),
            "versions": {**versions(), **self.strategy.carrier},
        }

    def to_device(self, images: np.ndarray, labels: np.ndarray) -> Batch:
        values, targets = torch.from_numpy(images), torch.from_numpy(labels)
        if self.device.type == "cuda":
            # Pinned, so that the copy does not hold up the host.
            values = values.pin_memory().to(self.device, non_blocking=True)
            targets = targets.pin_memory().to(self.device, non_blocking=True)
        if self.spec.dataset.context:
            return values.long(), targets
        normalised = values.permute(0, 3, 1, 2).float().sub_(self.mean).div_(self.std)
        return normalised.contiguous(memory_format=self.memory_format), targets

    def train(self, batch: Batch, synchronise: bool) -> None:
        images, labels = batch
        self.optimizer.param_groups[0]["lr"] = self.spec.optimizer.learning_rate(self.spec.global_batch, self.steps)
        self.optimizer.zero_grad(set_to_none=self.strategy.new_gradients)
        with self.strategy.exchange(synchronise):
            self.last_loss = self.strategy.learn(self.network, self.scaler, images, labels)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.steps += 1
        self.strategy.stepped(self.steps, synchronise)

    def gradients(self) -> List[np.ndarray]:
        self.strategy.means()
        return [*map(_whole, self.strategy.whole([p.grad for p in self.parameters if p.grad is not None]))]

    def weights(self) -> List[np.ndarray]:
        return [*map(_whole, self.strategy.whole([p.detach() for p in self.parameters]))]

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

    def share_statistics(self) -> None:
        for buffer in self.plain_network.buffers():
            self.strategy.share(buffer)

    def allreduce(self, nbytes: int) -> None:
        self.strategy.allreduce(nbytes)

    def updates(self) -> Optional[Dict[str, Any]]:
        return self.strategy.updates()

    def total(self, values: Sequence[float]) -> List[float]:
        return self.strategy.total(values)

    def save(self, folder: Path) -> None:
        # BatchNorm's statistics count only on rank 0, where the replicas are equal; random numbers are each rank's own.
        if self.rank == 0:
            state = {"scaler": self.scaler.state_dict(), "steps": self.steps, **_states(self._common())}
            torch.save(state, folder / "replica.pt")
        torch.save({"random": self._random_state(), **_states(self._own())}, folder / f"own.rank{self.rank}.pt")

    def load(self, folder: Path) -> None:
        self._rebuild_buckets()
        state = torch.load(folder / "replica.pt", map_location=self.device, weights_only=True)
        self.scaler.load_state_dict(state["scaler"])
        self.steps = state["steps"]
        own = torch.load(folder / f"own.rank{self.rank}.pt", map_location=self.device, weights_only=True)
        for name, part in self._common().items():
            part.load_state_dict(state[name])
        for name, part in self._own().items():
            part.load_state_dict(own[name])
        torch.set_rng_state(own["random"]["cpu"].cpu())
        if self.device.type == "cuda":
            torch.cuda.set_rng_state(own["random"]["cuda"].cpu(), self.device)

    def fence(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def loss(self) -> float:
        assert self.last_loss is not None
        return self.strategy.loss(self.last_loss)

    def close(self) -> None:
        self.strategy.close()

    def _common(self) -> Parts:
        return self.strategy.common(self.plain_network, self.optimizer)

    def _own(self) -> Parts:
        return self.strategy.own(self.plain_network, self.optimizer)

    def _random_state(self) -> Dict[str, torch.Tensor]:
        state = {"cpu": torch.get_rng_state()}
        if self.device.type == "cuda":
            state["cuda"] = torch.cuda.get_rng_state(self.device)
        return state

    def _rebuild_buckets(self) -> None:
        """A backward pass whose gradients nobody uses. DDP orders its buckets anew after the first one, and sums of
        more than two ranks depend on the order: without this, the step after a restart would differ in the last bit."""
        of_text, count = self.spec.dataset.context, self.spec.batch_per_replica
        samples = np.zeros((count, *self.spec.dataset.sample_shape), np.uint8)
        images, labels = self.to_device(samples, np.zeros((count, of_text) if of_text else count, np.int64))
        with self.strategy.exchange(synchronise=True):
            self.strategy.learn(self.network, self.scaler, images, labels)
        self.optimizer.zero_grad(set_to_none=self.strategy.new_gradients)


def _whole(tensor: torch.Tensor) -> np.ndarray:
    """On the host; of what is divided over the ranks, all of it."""
    # Not asked by its class, torch.distributed.tensor.DTensor: that alone takes a second to load.
    whole = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return np.asarray(whole.float().cpu().numpy())


def _states(parts: Parts) -> Dict[str, Any]:
    return {name: part.state_dict() for name, part in parts.items()}


def _device(spec: RunSpec) -> torch.device:
    if spec.cluster.device == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise RuntimeError(
            f"the run asks for device cuda, but torch {torch.__version__} sees no GPU here; "
            "use a CUDA build of torch on a GPU node, or set cluster.device=cpu"
        )
    # The launcher makes one GPU visible to each rank.
    torch.cuda.set_device(0)
    torch.backends.cudnn.benchmark = True
    # fp32 means fp32: TF32 would be another precision, and V100s do not have it.
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    return torch.device("cuda", 0)
