"""What a training step would take if the machine gave its nominal figures: an estimate before anything is measured.

Williams, Waterman and Patterson 2009 (Roofline: An Insightful Visual Performance Model, CACM 52(4)): a step takes at
least the larger of its operations at the peak rate and its bytes at the memory's. The allreduce of the gradients is
added: what of it the backward pass can hide, at best, or all of it, at worst.
"""

from __future__ import annotations

from dataclasses import dataclass

from analysis.scaling.communication import exposed_seconds, ring_seconds
from analysis.scaling.reference_errors import Share
from analysis.scaling.series import Size
from models import activations, catalog

NUMBER_BYTES = 4  # gradients and weights are kept in single precision, also in mixed precision
# Of what a step keeps for backward: written in forward, read in backward. The least traffic, as if the rest were fused.
ACTIVATION_PASSES = 2
# Of weights: read in forward, in backward and by the update, written by it; gradients and momentum written and read.
PARAMETER_PASSES = 8
BACKWARD = 2 / 3  # of a step's operations: two products of the forward pass' size


@dataclass(frozen=True)
class Machine:
    """Nominal rates. flops: of one GPU, per second. memory: of its memory; gpu_link: of a GPU to those of its node;
    link: of a node to the others; bytes per second, None: not known. gpus_per_node: None: all on one node."""

    gpus_per_node: int | None
    flops: float
    memory: float | None
    gpu_link: float | None
    link: float | None


@dataclass(frozen=True)
class Work:
    """Of one GPU. flops, activation_bytes: of a training step, per sample."""

    flops: float
    activation_bytes: float
    parameters: int
    batch: int

    @property
    def gradient_bytes(self) -> float:
        return float(NUMBER_BYTES * self.parameters)

    @property
    def memory_bytes(self) -> float:
        """That a step moves at least."""
        kept = ACTIVATION_PASSES * self.activation_bytes * self.batch
        return kept + PARAMETER_PASSES * NUMBER_BYTES * self.parameters


@dataclass(frozen=True)
class Roofline:
    """Of one size; seconds of a step, rates in samples per second. inside, between: of the gradients' allreduce on
    either link; None: its bandwidth is not known. bound: communication hidden behind backward as far as it can be, and
    links that are not known free; exposed: nothing hidden; None where a link is not known. low, high: between which
    the rate usually is, by `share`; None: not known."""

    size: Size
    compute: float
    memory: float | None
    inside: float | None
    between: float | None
    bound: float
    exposed: float | None
    low: float | None
    high: float | None

    @property
    def limit(self) -> str:
        """Of one GPU."""
        return "memory" if self.memory is not None and self.memory > self.compute else "compute"


def work_of(layers: catalog.Layers, flops: float, channels: int, size: int, half: bool, batch: int) -> Work:
    """channels, size: of the input (models/activations.py). half: whether it computes in half precision."""
    kept = activations.bytes_per_sample(layers, channels, size, 2 if half else activations.FLOAT)
    return Work(flops, kept, catalog.parameters(layers), batch)


def roofline(work: Work, machine: Machine, size: Size, share: Share | None) -> Roofline:
    """share: what one GPU usually reaches of its roofline; None: not known in this precision."""
    compute = work.flops * work.batch / machine.flops
    memory = None if machine.memory is None else work.memory_bytes / machine.memory
    alone = max(compute, memory or 0.0)
    inside = _ring(size.gpus / size.nodes, work.gradient_bytes, machine.gpu_link)
    # All GPUs of a node together send the message once over the node's link (a ring between nodes for each GPU).
    between = _ring(size.nodes, work.gradient_bytes, machine.link)
    communication = (inside or 0.0) + (between or 0.0)
    known = inside is not None and between is not None
    samples = size.gpus * work.batch

    def hidden(seconds: float) -> float:
        return samples / (seconds + exposed_seconds(communication, BACKWARD * seconds, overlap=1.0))

    exposed = samples / (alone + communication) if known else None
    low = samples / (alone / share.low + communication) if known and share is not None else None
    high = hidden(alone / share.high) if known and share is not None else None
    return Roofline(size, compute, memory, inside, between, hidden(alone), exposed, low, high)


def _ring(n: float, message_bytes: float, bytes_per_second: float | None) -> float | None:
    if n == 1:
        return 0.0
    return None if bytes_per_second is None else ring_seconds(n, message_bytes, bytes_per_second)
