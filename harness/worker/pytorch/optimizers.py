"""The optimisers of `OptimizerSpec` in PyTorch."""

from __future__ import annotations

from typing import Any, Callable, Dict, Iterable, List, Optional, Sequence, Tuple, Type, Union

import torch

from harness.core.spec import OptimizerSpec


def of(
    spec: OptimizerSpec, lr: Union[float, torch.Tensor], fused: bool = False
) -> Tuple[Type[torch.optim.Optimizer], Dict[str, Any]]:
    """The class, and its settings. lr: of the first step; the adapter sets that of each one after it; a tensor on the
    device, where the step is captured in a CUDA graph. fused: all parameters in one kernel; sgd and adam."""
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
    raise ValueError(f"optimizer.name={spec.name} is none that PyTorch has here: sgd, adam, lars")


def step_apart(optimizer: torch.optim.Optimizer, weights: Sequence[torch.nn.Parameter], factor: float) -> None:
    """These of its weights, a group of their own, take steps of so many times the learning rate, and the same weight
    decay."""
    [group] = optimizer.param_groups
    apart = {id(weight) for weight in weights}
    group["params"] = [weight for weight in group["params"] if id(weight) not in apart]
    own = {"lr": group["lr"] * factor, "weight_decay": group["weight_decay"] / factor, "factor": factor}
    optimizer.add_param_group({"params": list(weights), **own})


class FusedSgd(torch.optim.SGD):
    """SGD in one kernel, with momentum that begins at zero, as unfused SGD has it.

    torch's own allocates the momentum in the first step and leaves it to the kernel to fill it. The kernel writes
    nothing where the loss scaler skips that step, and the second step reads what the memory held before.
    """

    def add_param_group(self, param_group: Dict[str, Any]) -> None:
        super().add_param_group(param_group)
        self._allocate_momentum(self.param_groups[-1])

    def load_state_dict(self, state_dict: Dict[str, Any]) -> None:
        """Also of checkpoints whose momentum has another memory layout than the weights, or is missing."""
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
    """Before the first step of a fused optimiser, and no other: raises RuntimeError unless each gradient, and each
    state of the optimiser, lies in memory as its weight does. On the CPU the kernel pairs elements by their place in
    memory and ignores strides: it would train on permuted gradients."""

    checked = False

    def check(*_: Any) -> None:
        # Not by removing the hook: torch runs through its hooks meanwhile, and there may be others.
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
                            "their elements; take framework.options.fused=false, and report this as a bug"
                        )

    optimizer.register_step_pre_hook(check)


def same_layout(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Of two tensors of one shape: whether equal indices are equal places in memory."""
    strides = zip(one.shape, one.stride(), other.stride())
    return all(stride == of_other for size, stride, of_other in strides if size > 1)


class Lookahead:
    """Slow weights beside those that an optimiser trains (Zhang et al. 2019, arXiv 1907.08610, algorithm 1); with
    BatchNorm's running statistics among them, which fit them then."""

    def __init__(self, fast: Sequence[torch.Tensor]) -> None:
        self.fast = list(fast)
        self.slow = [tensor.detach().clone() for tensor in self.fast]
        # Of one type each: then a group is one kernel.
        self.groups: List[Tuple[List[torch.Tensor], List[torch.Tensor]]] = []
        for dtype in {tensor.dtype for tensor in self.fast}:
            pairs = [(slow, fast) for slow, fast in zip(self.slow, self.fast) if fast.dtype == dtype]
            self.groups.append(([slow for slow, _ in pairs], [fast for _, fast in pairs]))

    @torch.no_grad()
    def step(self, slow_share: float) -> None:
        """Of the slow weights so much stays, the rest is what was trained, which goes on from them."""
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

    For each array of weights w with gradient g: rate = trust * |w| / (|g| + weight_decay * |w|);
    v = momentum * v + lr * rate * (g + weight_decay * w); w -= v. Arrays of one dimension, which are biases and what
    BatchNorm has, and arrays whose weights or gradients are all zero, take rate = 1.
    """

    def __init__(
        self, parameters: Iterable[torch.nn.Parameter], lr: float, momentum: float, weight_decay: float, trust: float
    ) -> None:
        defaults = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "trust": trust}
        super().__init__(parameters, defaults)

    @torch.no_grad()
    def step(self, closure: Optional[Callable[[], float]] = None) -> None:
        """closure: unused, as the gradients are there."""
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
            # Chosen on the device: a look at the numbers would wait for it.
            update.mul_(torch.where((norm > 0) & (gradient_norm > 0), rate, torch.ones_like(rate)))
        state = self.state[weight]
        if "velocity" not in state:
            state["velocity"] = torch.zeros_like(weight)
        state["velocity"].mul_(group["momentum"]).add_(update, alpha=group["lr"])
        weight.sub_(state["velocity"])
