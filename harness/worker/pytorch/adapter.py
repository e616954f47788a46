"""The loop's verbs in PyTorch."""

from __future__ import annotations

import contextlib
import datetime
from pathlib import Path
from typing import Any, Callable, ContextManager, Dict, Iterator, List, Optional, Tuple

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from harness.spec import RunSpec, Site
from harness.worker import capture, loop
from harness.worker.pytorch.strategies import STRATEGIES
from harness.worker.rendezvous import Rendezvous
from models import pytorch as networks

AUTOCAST = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}
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


class Adapter(loop.Adapter):
    def __init__(
        self, spec: RunSpec, site: Site, rendezvous: Rendezvous, batches: Iterator[Tuple[np.ndarray, np.ndarray]]
    ) -> None:
        """Raises RuntimeError where the run asks for a GPU that torch does not see: never falls back to the CPU."""
        self.spec = spec
        self.batches = batches
        self.device = _device(spec)
        torch.set_num_threads(spec.cluster.cpus_per_gpu)
        dist.init_process_group(
            "nccl" if self.device.type == "cuda" else "gloo",
            init_method=f"tcp://{rendezvous.master_address}:{rendezvous.master_port}",
            rank=rendezvous.rank,
            world_size=rendezvous.world_size,
            timeout=datetime.timedelta(seconds=site.timeout_seconds),
        )
        # The same on every rank: DDP starts from rank 0's weights anyway.
        torch.manual_seed(spec.seed)
        network = networks.build(spec.model, spec.dataset.channels, spec.dataset.classes).to(self.device)
        self.memory_format = torch.channels_last if spec.framework_options["channels_last"] else torch.contiguous_format
        network = network.to(memory_format=self.memory_format)
        self.weights = list(network.parameters())
        self.plain_network = network
        wrapped = STRATEGIES[spec.strategy](network, spec, self.device)
        self.without_sync = wrapped.without_sync
        self.network = torch.compile(wrapped.network) if spec.framework_options["compile"] else wrapped.network
        self.optimizer = torch.optim.SGD(
            self.weights,
            lr=spec.optimizer.learning_rate(spec.global_batch, 0),
            momentum=spec.optimizer.momentum,
            weight_decay=spec.optimizer.weight_decay,
            nesterov=spec.optimizer.nesterov,
        )
        self.criterion = nn.CrossEntropyLoss()
        self.autocast_type = AUTOCAST[spec.precision]
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=spec.precision == "fp16")
        self.mean = torch.tensor(spec.dataset.mean, device=self.device).view(1, -1, 1, 1) * 255
        self.std = torch.tensor(spec.dataset.std, device=self.device).view(1, -1, 1, 1) * 255
        self.steps = 0
        self.last_loss: Optional[torch.Tensor] = None
        self.cached: Optional[Batch] = None
        self.messages: Dict[int, torch.Tensor] = {}

    def facts(self) -> Dict[str, Any]:
        cuda = self.device.type == "cuda"
        return {
            "world_size": dist.get_world_size(),
            "device": self.device.type,
            "device_name": torch.cuda.get_device_name(self.device) if cuda else capture.cpu_model() or "CPU",
            "device_id": str(torch.cuda.get_device_properties(self.device).uuid) if cuda else None,
            "threads": torch.get_num_threads(),
            "parameters": sum(p.numel() for p in self.weights),
            "gradient_bytes": sum(p.numel() * p.element_size() for p in self.weights),
            "versions": versions(),
        }

    def step(self) -> None:
        images, labels = next(self.batches)
        self.cached = self._to_device(images, labels)
        self._train(self.cached, contextlib.nullcontext)

    def step_on_cached_batch(self) -> None:
        assert self.cached is not None
        self._train(self.cached, contextlib.nullcontext)

    def step_without_sync(self) -> None:
        assert self.cached is not None
        self._train(self.cached, self.without_sync)

    def allreduce(self, nbytes: int) -> None:
        if nbytes not in self.messages:
            self.messages[nbytes] = torch.zeros(max(1, nbytes // 4), device=self.device)
        dist.all_reduce(self.messages[nbytes])

    def maximum(self, value: float) -> float:
        largest = torch.tensor(value, dtype=torch.float64, device=self.device)
        dist.all_reduce(largest, dist.ReduceOp.MAX)
        return float(largest.item())

    def save(self, folder: Path) -> None:
        # The replicas are equal, and BatchNorm's statistics count only on rank 0; random numbers are each rank's own.
        if dist.get_rank() == 0:
            state = {
                "network": self.plain_network.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "scaler": self.scaler.state_dict(),
                "steps": self.steps,
            }
            torch.save(state, folder / "replica.pt")
        torch.save(self._random_state(), folder / f"random.rank{dist.get_rank()}.pt")

    def load(self, folder: Path) -> None:
        self._rebuild_buckets()
        state = torch.load(folder / "replica.pt", map_location=self.device, weights_only=True)
        self.plain_network.load_state_dict(state["network"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.scaler.load_state_dict(state["scaler"])
        self.steps = state["steps"]
        random = torch.load(folder / f"random.rank{dist.get_rank()}.pt", map_location="cpu", weights_only=True)
        torch.set_rng_state(random["cpu"])
        if self.device.type == "cuda":
            torch.cuda.set_rng_state(random["cuda"], self.device)

    def _random_state(self) -> Dict[str, torch.Tensor]:
        state = {"cpu": torch.get_rng_state()}
        if self.device.type == "cuda":
            state["cuda"] = torch.cuda.get_rng_state(self.device)
        return state

    def _rebuild_buckets(self) -> None:
        """A backward pass whose gradients nobody uses. DDP orders its buckets anew after the first one, and sums of
        more than two ranks depend on the order: without this, the step after a restart would differ in the last bit."""
        image = (self.spec.dataset.channels, self.spec.dataset.image_size, self.spec.dataset.image_size)
        images = torch.zeros(self.spec.batch_per_gpu, *image, device=self.device)
        labels = torch.zeros(self.spec.batch_per_gpu, dtype=torch.int64, device=self.device)
        with self._autocast():
            loss = self.criterion(self.network(images.contiguous(memory_format=self.memory_format)), labels)
        loss.backward()
        self.optimizer.zero_grad(set_to_none=True)

    def fence(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def loss(self) -> float:
        assert self.last_loss is not None
        return float(self.last_loss.item())

    @torch.no_grad()
    def evaluate(self, batches: Iterator[Tuple[np.ndarray, np.ndarray]]) -> Tuple[int, int, float]:
        # BatchNorm's running statistics are each rank's own: score with rank 0's everywhere.
        for buffer in self.plain_network.buffers():
            dist.broadcast(buffer, 0)
        self.plain_network.eval()
        totals = torch.zeros(3, dtype=torch.float64, device=self.device)
        for arrays in batches:
            images, labels = self._to_device(*arrays)
            with self._autocast():
                logits = self.plain_network(images)
            loss = nn.functional.cross_entropy(logits.float(), labels, reduction="sum")
            correct = (logits.argmax(1) == labels).sum()
            totals += torch.stack([torch.tensor(len(labels), device=self.device), correct, loss.double()])
        self.plain_network.train()
        dist.all_reduce(totals)
        samples, correct, loss = totals.tolist()
        return int(samples), int(correct), loss

    def weights_checksum(self) -> float:
        with torch.no_grad():
            return float(sum(weight.double().sum().item() for weight in self.weights))

    def close(self) -> None:
        dist.destroy_process_group()

    def _train(self, batch: Batch, gradient_context: Callable[[], ContextManager[Any]]) -> None:
        images, labels = batch
        self.optimizer.param_groups[0]["lr"] = self.spec.optimizer.learning_rate(self.spec.global_batch, self.steps)
        self.optimizer.zero_grad(set_to_none=True)
        with gradient_context():
            with self._autocast():
                loss = self.criterion(self.network(images), labels)
            self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.steps += 1
        self.last_loss = loss.detach()

    def _to_device(self, images: np.ndarray, labels: np.ndarray) -> Batch:
        """uint8 [n, height, width, channels] -> normalised float32 [n, channels, height, width] on the device."""
        pixels, targets = torch.from_numpy(images), torch.from_numpy(labels)
        if self.device.type == "cuda":
            # Pinned, so that the copy does not hold up the host.
            pixels = pixels.pin_memory().to(self.device, non_blocking=True)
            targets = targets.pin_memory().to(self.device, non_blocking=True)
        normalised = pixels.permute(0, 3, 1, 2).float().sub_(self.mean).div_(self.std)
        return normalised.contiguous(memory_format=self.memory_format), targets

    def _autocast(self) -> ContextManager[Any]:
        if self.autocast_type is None:
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, self.autocast_type)


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
