"""Checks for two defects that silently produced wrong weights, with fresh memory filled with NaN.

Fused SGD with a skipped first step: PyTorch allocates fused momentum with `empty_like`, so it keeps arbitrary memory if
the loss scaler skips the first step. Fused SGD with gradients whose strides differ from their weight's: a fused kernel
may pair raw memory. Both compare the weights with those of unfused steps, |fused - unfused| / |unfused|; a fused kernel
may round product and sum once instead of twice.
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
# Deliberately too large: fp16 overflows, and the scaler skips a few steps, halving the scale.
LOSS_SCALE = 2.0**20
SKIPS = 12
# Training amplifies the rounding of its first steps: gradients of ReLU networks are off by about 2.4 sqrt(2^-24), as in
# numerics.py, and weights after STEPS steps by a fraction of that. A real error is 0.1 or more, or NaN.
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
    """The unfused and the fused variant."""
    size, batch = (8, 4) if ask.reduced else (32, 128)
    data = runs.images(size, samples=256 if ask.reduced else 2048)
    rest = {"channels_last": channels_last, "deterministic": True}
    return [runs.spec_of(ask, "resnet20", data, batch, precision, **rest, fused=fused) for fused in (False, True)]


def after_skips(spec: RunSpec, ask: Ask) -> tuple[Any, int]:
    """Train with the first steps skipped; return the weights and the number of skipped steps."""
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
    """Strategy `mpi` with one rank and no communication, to get MPI's gradient layout."""

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
    """Adapters built inside use strategy `mpi`'s gradient layout."""
    found = worker.strategy
    worker.strategy = lambda _: WithoutMpi
    try:
        yield
    finally:
        worker.strategy = found
