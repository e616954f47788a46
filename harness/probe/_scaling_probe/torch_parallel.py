"""What in the script communicates, as far as PyTorch shows it, and the switch of DistributedDataParallel's."""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable, Sequence
from typing import Any

NO_TORCH = "no optimiser of PyTorch was seen, and only PyTorch's DistributedDataParallel can leave synchronisation out"
# Why steps cannot be taken without synchronisation, the most telling first. All ranks agree on one by its position.
FSDP = "FSDP gathers the parameters within a step, which cannot be taken without"
DIVIDED = "the parameters are divided among the ranks, and a step cannot be taken without communication"
NO_SYNC = "the script itself calls no_sync (gradient accumulation), so its steps are without synchronisation in part"
PROFILER = "the script runs a profiler of its own, which would be disturbed"
NO_DDP = "no DistributedDataParallel was seen, whose synchronisation could be left out"
REASONS = (FSDP, DIVIDED, NO_SYNC, PROFILER, NO_DDP)


class TorchParallel:
    """Attributes: `modules`, what to do when a module of the script has been loaded, by its name. `device`: of the
    parameters. `divided`: a parameter is. `profiler_seen`: the script has made one."""

    def __init__(self) -> None:
        self.modules: dict[str, Callable[[Any], None]] = {
            "torch.nn.parallel.distributed": self._hook_ddp,
            "torch.distributed.fsdp.fully_sharded_data_parallel": self._hook_fsdp,
            "torch.autograd.profiler": self._hook_profiler,
        }
        self.device: Any = None
        self.divided = False
        self.profiler_seen = False
        self._ddp: weakref.WeakSet[Any] = weakref.WeakSet()
        self._fsdp = self._no_sync = False

    def updates(self, parameters: Sequence[Any]) -> None:
        """The optimiser updates these tensors."""
        self.device = next((parameter.device for parameter in parameters), None)
        self.divided = any(type(parameter).__name__ == "DTensor" for parameter in parameters)

    def why_inseparable(self) -> str | None:
        """Why steps cannot be taken without synchronisation, the same on all ranks; None if they can."""
        found = (self._fsdp, self.divided, self._no_sync, self.profiler_seen, self.connected and not self._ddp)
        agreed = self.sum([float(reason) for reason in found])
        return next((reason for reason, ranks in zip(REASONS, agreed) if ranks), None)

    @property
    def known(self) -> bool:
        """PyTorch trains here: tensors that an optimiser or DistributedDataParallel updates were seen."""
        return "torch" in sys.modules and self.device is not None

    @property
    def connected(self) -> bool:
        """Several ranks are connected by torch.distributed."""
        torch = sys.modules.get("torch")
        if torch is None or not torch.distributed.is_available() or not torch.distributed.is_initialized():
            return False
        return bool(torch.distributed.get_world_size() > 1)

    def synchronise(self, on: bool) -> None:
        """Whether the next steps exchange gradients, and DDP's broadcast of buffers with them."""
        for module in self._ddp:
            module.require_backward_grad_sync = on

    def sum(self, values: Sequence[float]) -> list[float]:
        """Add over the ranks, which take the same steps; waits for all of them."""
        if not self.connected:
            return list(values)
        torch = sys.modules["torch"]
        tensor = torch.tensor(values, dtype=torch.float32, device=self.device)
        torch.distributed.all_reduce(tensor)
        return list(tensor.tolist())

    def _hook_ddp(self, module: Any) -> None:
        ddp, hooks = module.DistributedDataParallel, self
        init, no_sync = ddp.__init__, ddp.no_sync

        @functools.wraps(init)
        def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
            init(self, *args, **kwargs)
            hooks._ddp.add(self)
            if hooks.device is None:
                hooks.device = next((parameter.device for parameter in self.parameters()), None)

        @functools.wraps(no_sync)
        def wrapped(self: Any) -> Any:
            hooks._no_sync = True
            return no_sync(self)

        ddp.__init__, ddp.no_sync = __init__, wrapped

    def _hook_fsdp(self, module: Any) -> None:
        def seen() -> None:
            self._fsdp = True

        _before(module.FullyShardedDataParallel, "__init__", seen)

    def _hook_profiler(self, module: Any) -> None:
        def seen() -> None:
            self.profiler_seen = True

        _before(module.profile, "__init__", seen)


def _before(owner: Any, name: str, call: Callable[[], None]) -> None:
    original = getattr(owner, name)

    @functools.wraps(original)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        call()
        return original(*args, **kwargs)

    setattr(owner, name, wrapped)
