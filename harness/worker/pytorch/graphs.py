"""CUDA graphs: capture a whole training step once and replay it without launching each kernel from the host.

Follows PyTorch's notes on CUDA semantics ("CUDA Graphs": whole-network capture, usage with DistributedDataParallel).
With precision=fp16 the loss scaler is part of the graph: fused optimisers read the scale and the overflow flag from the
device and skip the step if it is set; the scale is updated in place. Planning rejects what cannot be captured
(harness/config/capabilities.py).
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from typing import Callable, Dict, Iterator, List, Optional, Tuple

import torch
from torch import nn

# (images, labels, synchronise) -> loss; zero_grad(set_to_none=True), forward, backward, exchange, optimiser.
Take = Callable[[torch.Tensor, torch.Tensor, bool], torch.Tensor]

# Eager training steps before capture: 11 with communication, as DistributedDataParallel requires; otherwise one, for
# allocations.
EAGER_STEPS = {True: 11, False: 1}


def prepare() -> None:
    """Stop the process group's watchdog from querying events of a capturing stream; call before creating the group."""
    os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "0"


@dataclass
class Captured:
    """A graph and the tensors that each replay reads and writes."""

    graph: torch.cuda.CUDAGraph
    batch: Tuple[torch.Tensor, torch.Tensor]
    loss: torch.Tensor
    gradients: List[Optional[torch.Tensor]]


class Graphs:
    """One graph for steps with communication and one for steps without.

    stream: everything captured, including the network's wrapper, must be created and warmed up on it.
    """

    def __init__(self, device: torch.device) -> None:
        self.stream = torch.cuda.Stream(device)
        self.eager = {True: 0, False: 0}
        self.captured: Dict[bool, Captured] = {}
        self.last: Optional[Captured] = None

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """Run on the stream, ordered after earlier and before later work of the current stream."""
        current = torch.cuda.current_stream()
        self.stream.wait_stream(current)
        with torch.cuda.stream(self.stream):
            yield
        current.wait_stream(self.stream)

    def step(
        self, take: Take, parameters: List[nn.Parameter], batch: Tuple[torch.Tensor, torch.Tensor], synchronise: bool
    ) -> torch.Tensor:
        """Take one training step; return its loss, which the next step overwrites."""
        captured = self.captured.get(synchronise)
        if captured is None:
            return self._eagerly(take, parameters, batch, synchronise)
        for held, values in zip(captured.batch, batch):
            held.copy_(values, non_blocking=True)
        captured.graph.replay()
        if self.last is not captured:
            # `.grad` belongs to the graph captured last.
            for parameter, gradient in zip(parameters, captured.gradients):
                parameter.grad = gradient
            self.last = captured
        return captured.loss

    def release(self, parameters: List[nn.Parameter]) -> None:
        """Destroy the graphs; no step may follow. Call before destroying the process group: a graph with a collective
        keeps NCCL's communicator in use, for which ncclCommDestroy waits (github.com/pytorch/pytorch/issues/115388)."""
        torch.cuda.synchronize()
        for parameter in parameters:
            parameter.grad = None  # gradients are in a graph's memory
        for captured in self.captured.values():
            captured.graph.reset()
        self.captured.clear()
        self.last = None
        # CUDA destroys a graph after its last replay and notifies NCCL from another thread.
        torch.cuda.synchronize()

    def _eagerly(
        self, take: Take, parameters: List[nn.Parameter], batch: Tuple[torch.Tensor, torch.Tensor], synchronise: bool
    ) -> torch.Tensor:
        with self.aside():
            loss = take(*batch, synchronise)
        self.last = None
        self.eager[synchronise] += 1
        if self.eager[synchronise] == EAGER_STEPS[synchronise]:
            loss = loss.clone()
            self.captured[synchronise] = self._capture(take, parameters, batch, synchronise)
        return loss

    def _capture(
        self, take: Take, parameters: List[nn.Parameter], batch: Tuple[torch.Tensor, torch.Tensor], synchronise: bool
    ) -> Captured:
        """Record a step without executing it."""
        images, labels = (values.clone() for values in batch)
        for parameter in parameters:
            # Let backward allocate the gradients in the graph's memory.
            parameter.grad = None
        graph = torch.cuda.CUDAGraph()
        # Other threads, e.g. those pinning a loader's batches, may continue.
        with torch.cuda.graph(graph, stream=self.stream, capture_error_mode="thread_local"):
            loss = take(images, labels, synchronise)
        return Captured(graph, (images, labels), loss, [parameter.grad for parameter in parameters])
