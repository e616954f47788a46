"""Weights in fp16: the half of tests that runs in the PyTorch environment."""

from __future__ import annotations

from typing import Any, Dict, List, Optional

import numpy as np
import torch
from speed_side import BATCH, adapter

from harness.core.spec import OptimizerSpec
from harness.worker.pytorch.optimizers import of
from harness.worker.pytorch.strategies.base import cross_entropy
from models import catalog
from models import pytorch as networks


def parts() -> Dict[str, Any]:
    """Test the parts of half_weights=true that work on CPUs: passes through a halved network against autocast from the
    same values, and the fused step on arrays too short for the blocks of its CPU kernel."""
    given = torch.randn(BATCH, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    halved, own = (networks.build(catalog.network("resnet20").layers(3, 10, 32), 0) for _ in range(2))
    networks.halve(halved)
    own.load_state_dict(halved.state_dict())
    for network in (halved, own):
        with torch.autocast("cpu", torch.float16):
            loss = cross_entropy(network(given), torch.arange(BATCH))
        (256 * loss).backward()
    pairs = list(zip(halved.parameters(), own.parameters()))
    norms = [p for module in halved.modules() if isinstance(module, torch.nn.BatchNorm2d) for p in module.parameters()]
    rule = OptimizerSpec(nesterov=True, weight_decay=0.01)
    weights = [torch.nn.Parameter(torch.linspace(0.5, 1.0, 7).half() * number) for number in (1, 3)]
    kind, settings = of(rule, 0.1, fused=True)
    optimizer, scaler = kind(weights, **settings), torch.amp.GradScaler("cpu", init_scale=4.0)
    units = []
    for step in range(3):
        before = _state(optimizer, weights)
        for number, weight in enumerate(weights):
            weight.grad = (4 * torch.linspace(-1, 1, 7) / (step + number + 1)).half()
        if step == 1:
            weights[0].grad[3] = float("inf")
        gradients = [_fp32(weight.grad) / 4 for weight in weights]
        scaler.scale(torch.zeros(()))
        scaler.step(optimizer)
        after = _state(optimizer, weights)
        units.append(-1.0 if all(map(np.array_equal, before, after)) else _units(before, gradients, after, rule, 0.1))
        # Keep the scale for the next step.
        scaler.update(4.0)
    return {
        "dtypes": sorted({str(p.dtype) for p in halved.parameters()}),
        "norms": sorted({str(p.dtype) for p in norms}),
        "as_autocast": all(torch.equal(one.grad.float(), other.grad) for one, other in pairs),
        "gradients": all(one.grad.dtype == one.dtype for one, _ in pairs),
        "units": units,
    }


def on_a_gpu() -> Optional[float]:
    """Return the largest `_units` of three steps; None without a GPU."""
    if not torch.cuda.is_available():
        return None
    trained = adapter("sgd", "fp16", {"fused": True, "half_weights": True}, device="cuda")
    trained.scaler._init_scale = 256.0
    trained.step()
    halved = [weight for weight in trained.parameters if weight.dtype == torch.float16]
    seen: List[List[np.ndarray]] = []

    def look(*_: Any) -> None:
        scale = float(trained.optimizer.grad_scale)
        seen.append([_fp32(weight.grad) / scale for weight in halved])

    trained.optimizer.register_step_pre_hook(look)
    rate, units = float(trained.optimizer.param_groups[0]["lr"]), []
    for _ in range(3):
        before = _state(trained.optimizer, halved)
        trained.step()
        units.append(_units(before, seen[-1], _state(trained.optimizer, halved), trained.spec.optimizer, rate))
    return max(units)


def _state(optimizer: torch.optim.Optimizer, weights: List[Any]) -> List[np.ndarray]:
    """Return each weight and its momentum."""
    return [_fp32(t) for weight in weights for t in (weight, optimizer.state[weight]["momentum_buffer"])]


def _units(
    before: List[np.ndarray], gradients: List[np.ndarray], after: List[np.ndarray], rule: OptimizerSpec, rate: float
) -> float:
    """Return the largest distance of weights and momentum from the formula of SGD with Nesterov's momentum in fp32, in
    units in the last place of fp16."""
    largest = 0.0
    for number, gradient in enumerate(gradients):
        start, velocity = before[2 * number : 2 * number + 2]
        gradient = gradient + np.float32(rule.weight_decay) * start
        velocity = np.float32(rule.momentum) * velocity + gradient
        expected = start - np.float32(rate) * (gradient + np.float32(rule.momentum) * velocity)
        for own, wanted in zip(after[2 * number : 2 * number + 2], (expected, velocity)):
            unit = np.spacing(np.abs(wanted).astype(np.float16)).astype(np.float32)
            largest = max(largest, float((np.abs(own - wanted) / unit).max()))
    return largest


def on_a_cpu() -> str:
    try:
        adapter("sgd", "fp16", {"fused": True, "half_weights": True})
    except RuntimeError as error:
        return str(error)
    return "accepted"


def _fp32(tensor: torch.Tensor) -> np.ndarray:
    return tensor.detach().float().cpu().numpy().copy()
