"""DistributedDataParallel: average gradients in buckets, overlapped with backward."""

from __future__ import annotations

import contextlib
import inspect
from typing import Any, Callable, Container, Dict, Iterator, List, Mapping, Optional, Tuple

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from harness.worker.checks.capability import VersionError
from harness.worker.pytorch.strategies.base import Collectives, Stateful

# Maps a bucket of gradients to its mean over the ranks.
Reduction = Callable[[dist.GradBucket], Future]
# DistributedDataParallel's default bucket size.
BUCKET_MB = 25
# Number of initial steps with uncompressed gradients; a warm start needs two.
POWERSGD_FROM = 2


class Allreduce(Collectives):
    """Data parallelism after Li et al. 2020, PyTorch Distributed, VLDB 13(12)."""

    # A step sends all gradients in DDP's buckets, and nothing else.
    only_buckets = True

    def wrap(self, network: nn.Module) -> nn.Module:
        self.wrapped = DistributedDataParallel(
            network,
            device_ids=[self.device.index] if self.device.type == "cuda" else None,
            **no_broadcast(),
            **buckets(self.spec.strategy_options),
        )
        self.alone: Optional[dist.ProcessGroup] = None
        self.power: Optional[PowerSGDState] = None
        self.delayed: Optional[DelayedReduction] = None
        self.bucket_bytes = self.gradient_bytes(list(network.parameters())) if self.only_buckets else None
        self.bucketed: List[torch.Tensor] = []
        reduction = self.reduction()
        if reduction is not None:
            # DDP rejects annotations that are strings; a lambda has none.
            self.wrapped.register_comm_hook(reduction, lambda hook, bucket: hook(bucket))
        # Hooks name their process group themselves, and CUDA graphs replay the one that they were captured with.
        self.has_one_rank_step = (
            self.only_buckets
            and reduction is None
            and hasattr(self.wrapped.reducer, "_update_process_group")
            and not self.spec.framework_options.get("cuda_graph", False)
        )
        return self.wrapped

    def exchange_with_peers(self, present: bool) -> None:
        if self.alone is None:
            self.alone = dist.new_group([dist.get_rank()], use_local_synchronization=True)
        self.wrapped.reducer._update_process_group(dist.group.WORLD if present else self.alone)

    def allreduce(self, nbytes: int) -> None:
        """A message as large as the gradients is sent in the buckets of a step."""
        if nbytes != self.bucket_bytes:
            super().allreduce(nbytes)
            return
        if not self.bucketed:
            self.bucketed = [bucket.buffer() for bucket in self.wrapped.reducer._get_zeros_like_grad_buckets()]
        for message in [self.begin_sum(tensor) for tensor in self.bucketed]:
            message.wait()

    def begin_sum(self, tensor: torch.Tensor) -> Any:
        """Begin to sum over the ranks, in place; wait() of the result ends it."""
        return dist.all_reduce(tensor, async_op=True)

    def reduction(self) -> Optional[Reduction]:
        """Return the hook that replaces DDP's own reduction, or None."""
        # A spec.json from before these options lacks them.
        options = {"overlap": True, "compress": "none", "powersgd_rank": 4, **self.spec.strategy_options}
        if options["overlap"] and options["compress"] == "none":
            return None
        reduction = self._compressed(options["compress"], options["powersgd_rank"])
        if not options["overlap"]:
            reduction = self.delayed = DelayedReduction(reduction, self.device, options.get("static_graph", False))
        return reduction

    def _compressed(self, compress: str, powersgd_rank: int) -> Reduction:
        if compress != "none":
            self.communication += f", gradients by {compress}"
        if compress == "powersgd":
            self.power = PowerSGDState(None, powersgd_rank, start_powerSGD_iter=POWERSGD_FROM)
            return self._by_powersgd
        hooks = {
            "none": default_hooks.allreduce_hook,
            "fp16": default_hooks.fp16_compress_hook,
            "bf16": default_hooks.bf16_compress_hook,
        }
        return lambda bucket: hooks[compress](dist.group.WORLD, bucket)

    def _by_powersgd(self, bucket: dist.GradBucket) -> Future:
        future = powerSGD_hook(self.power, bucket)
        if self.device.type == "cpu":
            # Gloo's threads send PowerSGD's later messages, in an order that can differ between ranks if several
            # buckets are in flight. Process one at a time.
            future.wait()
        return future

    @contextlib.contextmanager
    def sync_gradients(self, synchronise: bool) -> Iterator[None]:
        with contextlib.nullcontext() if synchronise else self.wrapped.no_sync():
            yield
        if self.delayed:
            self.delayed.complete = False

    def rank_state(self, network: nn.Module, optimizer: Optimizer) -> Mapping[str, Stateful]:
        return {"powersgd": PowerSgdPart(self.power)} if self.power else {}


def no_broadcast() -> Dict[str, bool]:
    """Return the argument that stops DistributedDataParallel from broadcasting BatchNorm's statistics before every
    forward pass. Results do not change: training does not read them, evaluation takes rank 0's (`share_statistics`),
    and rank 0 saves its own. torch 2.13 renamed the argument."""
    known = inspect.signature(DistributedDataParallel.__init__).parameters
    return {"forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers": False}


def buckets(options: Mapping[str, Any], known: Optional[Container[str]] = None) -> Dict[str, Any]:
    """Return DistributedDataParallel's arguments, without defaults that older versions of torch do not know.

    known: the arguments it accepts; None for those of this torch. Raises VersionError if a required one is missing.
    """
    if known is None:
        known = inspect.signature(DistributedDataParallel.__init__).parameters
    arguments: Dict[str, Any] = {
        "bucket_cap_mb": options["bucket_mb"],
        "gradient_as_bucket_view": options.get("bucket_view", True),
        "static_graph": options.get("static_graph", False),
    }
    if options.get("first_bucket_mb") is not None:
        if "bucket_cap_mb_list" not in known:
            raise VersionError(
                f"strategy.options.first_bucket_mb={options['first_bucket_mb']:g} needs torch 2.13 or newer, and this "
                f"environment has {torch.__version__}; leave it at null, or use a newer torch"
            )
        # The last size applies to all further buckets.
        arguments["bucket_cap_mb_list"] = [options["first_bucket_mb"], options["bucket_mb"] or BUCKET_MB]
    return arguments


class DelayedReduction:
    """overlap=false: reduce the same buckets in the same order, but only after the last gradient is ready. The added
    time is what overlapping hides (wait-free back-propagation: Zhang et al. 2017, Poseidon, USENIX ATC)."""

    def __init__(self, reduction: Reduction, device: torch.device, static_graph: bool) -> None:
        self.reduction = reduction
        # With static_graph=true, DDP learns the graph in the first step: it hands out the buckets after the last
        # gradient and marks none of them as last.
        self.complete = static_graph
        self.devices = [device] if device.type == "cuda" else []
        self.held: List[Tuple[dist.GradBucket, Future]] = []

    def __call__(self, bucket: dist.GradBucket) -> Future:
        if self.complete:
            return self.reduction(bucket)
        future: Future = Future(devices=self.devices)
        self.held.append((bucket, future))
        if bucket.is_last():
            for earlier, promised in self.held:
                promised.set_result(self.reduction(earlier).wait())
            self.held.clear()
        return future


class PowerSgdPart:
    """PowerSGD's state between steps: the accumulated errors and each bucket's last factors."""

    NAMES = ("error_dict", "p_memory_dict", "q_memory_dict", "iter")

    def __init__(self, power: PowerSGDState) -> None:
        self.power = power

    def state_dict(self) -> Dict[str, Any]:
        return {name: getattr(self.power, name) for name in self.NAMES}

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        for name in self.NAMES:
            setattr(self.power, name, state[name])
