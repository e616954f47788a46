"""Checks this machine for two defects that silently gave wrong weights, with fresh memory filled with NaN.

Fused SGD and a skipped first step: PyTorch makes fused momentum with `empty_like`, so that it holds whatever the memory
held if the loss scaler skips the first step. Fused SGD and gradients whose strides are not their weight's: a fused
kernel may pair raw memory. Both compare the weights with those of the unfused step, |fused - unfused| / |unfused|; a
fused kernel may round each product and sum once where the other rounds twice.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from benchmarks.gpu_check import runs
from benchmarks.gpu_check.figures import Figure
from benchmarks.gpu_check.sections import Ask, Report
from harness.core.spec import RunSpec
from harness.worker.pytorch import adapter as worker
from harness.worker.pytorch.strategies.base import Strategy
from harness.worker.pytorch.strategies.mpi import Mpi

STEPS = 8
# Too large: fp16 overflows, the scaler skips the step and halves it, a few times.
LOSS_SCALE = 2.0**20
SKIPS = 12
# Training magnifies the rounding of its first steps: gradients of networks with ReLU are off by some 2.4 sqrt(2^-24),
# as in numerics.py, and weights after STEPS steps by a part of that. What is wrong is off by 0.1 and more, or NaN.
BOUND = 0.01


def run(ask: Ask, report: Report) -> None:
    for channels_last in (True,) if ask.reduced else (True, False):
        form = "NHWC" if channels_last else "NCHW"
        (plain, _), (fused, skipped) = (after_skips(spec, ask) for spec in arms(ask, "fp16", channels_last))
        report(Figure(f"first steps that the loss scaler skipped, {form}", skipped, bound="≥ 1"))
        apart = runs.difference(fused, plain)
        report(Figure(f"fused against unfused after them, {form}", apart, "of norm", bound=f"≤ {BOUND:g}"))
        unfused, fused_flat = arms(ask, "fp32", channels_last)
        plain = weights(unfused, ask)
        with flat_gradients():
            fused = weights(fused_flat, ask)
        apart = runs.difference(fused, plain)
        report(Figure(f"fused, gradients in a flat buffer, {form}", apart, "of norm", bound=f"≤ {BOUND:g}"))


def arms(ask: Ask, precision: str, channels_last: bool) -> list[RunSpec]:
    """Unfused and fused."""
    size, batch = (8, 4) if ask.reduced else (32, 128)
    data = runs.images(size, samples=256 if ask.reduced else 2048)
    rest = {"channels_last": channels_last, "deterministic": True}
    return [runs.spec_of(ask, "resnet20", data, batch, precision, **rest, fused=fused) for fused in (False, True)]


def after_skips(spec: RunSpec, ask: Ask) -> tuple[Any, int]:
    """The weights after steps of which the first are skipped, and how many were."""
    with runs.adapter_of(spec, ask) as adapter:
        scaler = torch.amp.GradScaler(ask.device, init_scale=LOSS_SCALE)
        adapter.scaler = scaler  # type: ignore[attr-defined]
        runs.train(adapter, SKIPS)
        skipped = round(torch.log2(torch.tensor(LOSS_SCALE / scaler.get_scale())).item())
        runs.train(adapter, STEPS)
        return adapter.weights(), skipped


def weights(spec: RunSpec, ask: Ask) -> Any:
    with runs.adapter_of(spec, ask) as adapter:
        runs.train(adapter, STEPS)
        return adapter.weights()


class WithoutMpi(Mpi):
    """Strategy `mpi` of one rank, whose sums are those of nobody else: the gradients lie where MPI has them."""

    def __init__(self, *arguments: Any) -> None:
        Strategy.__init__(self, *arguments)
        self.world_size, self.communication = 1, "none"

    def sum(self, tensor: torch.Tensor) -> None:
        pass

    def broadcast(self, tensor: torch.Tensor) -> None:
        pass

    def close(self) -> None:
        pass


@contextlib.contextmanager
def flat_gradients() -> Iterator[None]:
    """Adapters that are built inside lay their gradients out as strategy `mpi` does."""
    found = worker.strategy
    worker.strategy = lambda _: WithoutMpi
    try:
        yield
    finally:
        worker.strategy = found
