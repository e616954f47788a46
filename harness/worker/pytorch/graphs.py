"""A whole training step as a CUDA graph: captured once, then handed to the GPU in one piece, without the host's work
for each of its kernels.

As PyTorch's notes on CUDA semantics have it ("CUDA Graphs": whole-network capture, usage with DistributedDataParallel).
With precision=fp16 the loss scaler is part of the graph: the fused optimisers read its scale and whether a gradient is
infinite from the device and leave the weights alone where one is, and the scale is updated in place.
What cannot be captured is refused when the run is planned (harness/config/capabilities.py).
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from typing import Callable, Dict, Iterator, List, Optional, Tuple

import torch
from torch import nn

# (images, labels, synchronise) -> loss: zero_grad(set_to_none=True), forward, backward, exchange, optimiser.
Take = Callable[[torch.Tensor, torch.Tensor, bool], torch.Tensor]

# Steps that are taken without a graph before one is captured: with the exchange 11, as DistributedDataParallel wants;
# without it one, by whose time all else is there. They are steps of the training like any other.
EAGER_STEPS = {True: 11, False: 1}


def prepare() -> None:
    """Before the process group is made: its watchdog must not ask for events of a stream that is being captured."""
    os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "0"


@dataclass
class Captured:
    """A graph, and the memory that it reads and writes in every replay."""

    graph: torch.cuda.CUDAGraph
    batch: Tuple[torch.Tensor, torch.Tensor]
    loss: torch.Tensor
    gradients: List[Optional[torch.Tensor]]


class Graphs:
    """One graph for steps with the exchange, one for steps without it.

    stream: on which all that is captured has to be made and warmed up, the network's wrapper included.
    """

    def __init__(self, device: torch.device) -> None:
        self.stream = torch.cuda.Stream(device)
        self.eager = {True: 0, False: 0}
        self.captured: Dict[bool, Captured] = {}
        self.last: Optional[Captured] = None

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """On the stream, after all that was given to the current one, and before all that it is given next."""
        current = torch.cuda.current_stream()
        self.stream.wait_stream(current)
        with torch.cuda.stream(self.stream):
            yield
        current.wait_stream(self.stream)

    def step(
        self, take: Take, parameters: List[nn.Parameter], batch: Tuple[torch.Tensor, torch.Tensor], synchronise: bool
    ) -> torch.Tensor:
        """One training step; gives the loss of the batch, which the next step overwrites."""
        captured = self.captured.get(synchronise)
        if captured is None:
            return self._eagerly(take, parameters, batch, synchronise)
        for held, values in zip(captured.batch, batch):
            held.copy_(values, non_blocking=True)
        captured.graph.replay()
        if self.last is not captured:
            # `.grad` is of the graph that was captured last.
            for parameter, gradient in zip(parameters, captured.gradients):
                parameter.grad = gradient
            self.last = captured
        return captured.loss

    def release(self, parameters: List[nn.Parameter]) -> None:
        """Destroys the graphs; no step comes after it. Before the process group is left: each graph that holds a
        collective keeps NCCL's communicator in use, and ncclCommDestroy waits until none does
        (github.com/pytorch/pytorch/issues/115388)."""
        torch.cuda.synchronize()
        for parameter in parameters:
            parameter.grad = None  # they lie in the memory of a graph
        for captured in self.captured.values():
            captured.graph.reset()
        self.captured.clear()
        self.last = None
        # CUDA destroys a graph once its last replay has ended, and tells NCCL from a thread of its own.
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
        """Records a step, and takes none."""
        images, labels = (values.clone() for values in batch)
        for parameter in parameters:
            # So that backward makes the gradients in the graph's own memory.
            parameter.grad = None
        graph = torch.cuda.CUDAGraph()
        # Other threads, such as those that pin a loader's batches, may go on.
        with torch.cuda.graph(graph, stream=self.stream, capture_error_mode="thread_local"):
            loss = take(images, labels, synchronise)
        return Captured(graph, (images, labels), loss, [parameter.grad for parameter in parameters])
