"""The optimisers of `OptimizerSpec` in PyTorch."""

from __future__ import annotations

from typing import Any, Callable, Dict, Iterable, List, Optional, Sequence, Tuple, Type, Union

import torch

from harness.core.spec import OptimizerSpec


def of(
    spec: OptimizerSpec, lr: Union[float, torch.Tensor], fused: bool = False
) -> Tuple[Type[torch.optim.Optimizer], Dict[str, Any]]:
    """Return (class, settings) of the optimiser.

    lr: of the first step, later set by the adapter; a tensor on the device if the step is captured in a CUDA graph.
    fused: update all parameters in one kernel; sgd and adam only.
    """
    settings: Dict[str, Any] = {"lr": lr, "weight_decay": spec.weight_decay}
    if fused:
        settings["fused"] = True
    if spec.name == "sgd":
        sgd = FusedSgd if fused else torch.optim.SGD
        return sgd, {**settings, "momentum": spec.momentum, "nesterov": spec.nesterov}
    if spec.name == "adam":
        if isinstance(lr, torch.Tensor):
            settings["capturable"] = True
        return torch.optim.Adam, {**settings, "betas": (spec.beta1, spec.beta2), "eps": spec.epsilon}
    if spec.name == "lars":
        return Lars, {**settings, "momentum": spec.momentum, "trust": spec.trust}
    raise ValueError(f"optimizer.name={spec.name} is not available in PyTorch; valid are sgd, adam, lars")


def step_apart(optimizer: torch.optim.Optimizer, weights: Sequence[torch.nn.Parameter], factor: float) -> None:
    """Move these weights to a parameter group with `factor` times the learning rate and the same weight decay."""
    [group] = optimizer.param_groups
    apart = {id(weight) for weight in weights}
    group["params"] = [weight for weight in group["params"] if id(weight) not in apart]
    own = {"lr": group["lr"] * factor, "weight_decay": group["weight_decay"] / factor, "factor": factor}
    optimizer.add_param_group({"params": list(weights), **own})


class FusedSgd(torch.optim.SGD):
    """Single-kernel SGD whose momentum starts at zero, as in unfused SGD.

    torch allocates the momentum in the first step and leaves it to the kernel to initialise. If the loss scaler skips
    that step, the kernel writes nothing, and the second step reads uninitialised memory.
    """

    def add_param_group(self, param_group: Dict[str, Any]) -> None:
        super().add_param_group(param_group)
        self._allocate_momentum(self.param_groups[-1])

    def load_state_dict(self, state_dict: Dict[str, Any]) -> None:
        """Accept checkpoints whose momentum is missing or has another memory layout than the weights."""
        super().load_state_dict(state_dict)
        for group in self.param_groups:
            self._allocate_momentum(group)

    @torch.no_grad()
    def _allocate_momentum(self, group: Dict[str, Any]) -> None:
        for weight in group["params"] if group["momentum"] else ():
            saved = self.state[weight].get("momentum_buffer")
            if saved is None or not same_layout(saved, weight):
                momentum = torch.zeros_like(weight)
                self.state[weight]["momentum_buffer"] = momentum if saved is None else momentum.copy_(saved)


def check_layouts_once(optimizer: torch.optim.Optimizer) -> None:
    """Check a fused optimiser once, before its first step: raise RuntimeError unless gradients and optimiser state have
    the strides of their weights. The CPU kernel ignores strides and would train on permuted gradients."""

    checked = False

    def check(*_: Any) -> None:
        # Do not remove the hook: torch is iterating over its hooks, and there may be others.
        nonlocal checked
        if checked:
            return
        checked = True
        for group in optimizer.param_groups:
            for number, weight in enumerate(group["params"]):
                beside = {"gradient": weight.grad, **optimizer.state[weight]}
                for name, tensor in beside.items():
                    of_its_shape = isinstance(tensor, torch.Tensor) and tensor.shape == weight.shape
                    if of_its_shape and not same_layout(tensor, weight):
                        raise RuntimeError(
                            f"framework.options.fused=true: the {name} of parameter {number} has strides "
                            f"{tensor.stride()} and its weight {weight.stride()}, so that the fused step would mix up "
                            "their elements; use framework.options.fused=false, and report this as a bug"
                        )

    optimizer.register_step_pre_hook(check)


def same_layout(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return True if equal indices of two tensors of one shape have equal offsets in memory."""
    strides = zip(one.shape, one.stride(), other.stride())
    return all(stride == of_other for size, stride, of_other in strides if size > 1)


class Lookahead:
    """Slow copies of the trained weights and of BatchNorm's running statistics (Zhang et al. 2019, arXiv 1907.08610,
    algorithm 1)."""

    def __init__(self, fast: Sequence[torch.Tensor]) -> None:
        self.fast = list(fast)
        self.slow = [tensor.detach().clone() for tensor in self.fast]
        # One type per group, so that each group is one kernel.
        self.groups: List[Tuple[List[torch.Tensor], List[torch.Tensor]]] = []
        for dtype in {tensor.dtype for tensor in self.fast}:
            pairs = [(slow, fast) for slow, fast in zip(self.slow, self.fast) if fast.dtype == dtype]
            self.groups.append(([slow for slow, _ in pairs], [fast for _, fast in pairs]))

    @torch.no_grad()
    def step(self, slow_share: float) -> None:
        """Keep this share of the slow weights, add the rest from the fast ones, and continue training from the
        result."""
        for slow, fast in self.groups:
            torch._foreach_lerp_(slow, fast, 1 - slow_share)
            torch._foreach_copy_(fast, slow)

    def state_dict(self) -> Dict[str, Any]:
        return {"slow": self.slow}

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        for slow, saved in zip(self.slow, state["slow"]):
            slow.copy_(saved)


class Lars(torch.optim.Optimizer):
    """Layer-wise adaptive rate scaling (You, Gitman, Ginsburg 2017, arXiv 1708.03888, algorithm 1).

    For each array of weights w with gradient g: rate = trust * |w| / (|g| + weight_decay * |w|); v = momentum * v + lr
    * rate * (g + weight_decay * w); w -= v. One-dimensional arrays (biases, BatchNorm) and arrays whose weights or
    gradients are all zero use rate = 1.
    """

    def __init__(
        self, parameters: Iterable[torch.nn.Parameter], lr: float, momentum: float, weight_decay: float, trust: float
    ) -> None:
        defaults = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "trust": trust}
        super().__init__(parameters, defaults)

    @torch.no_grad()
    def step(self, closure: Optional[Callable[[], float]] = None) -> None:
        """closure: ignored; gradients have been computed."""
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    self._update(weight, group)

    def _update(self, weight: torch.Tensor, group: Any) -> None:
        gradient = weight.grad
        assert gradient is not None
        update = gradient.add(weight, alpha=group["weight_decay"])
        if weight.dim() > 1:
            norm, gradient_norm = weight.norm(), gradient.norm()
            rate = group["trust"] * norm / (gradient_norm + group["weight_decay"] * norm)
            # Select on the device: reading the norms would wait for it.
            update.mul_(torch.where((norm > 0) & (gradient_norm > 0), rate, torch.ones_like(rate)))
        state = self.state[weight]
        if "velocity" not in state:
            state["velocity"] = torch.zeros_like(weight)
        state["velocity"].mul_(group["momentum"]).add_(update, alpha=group["lr"])
        weight.sub_(state["velocity"])
