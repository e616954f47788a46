"""Estimates a training step from the machine's nominal rates, before anything is measured.

Williams, Waterman and Patterson 2009 (Roofline: An Insightful Visual Performance Model, CACM 52(4)): a step takes at
least the larger of its operations at the peak rate and its bytes at the memory bandwidth. The allreduce of the
gradients is added: at best what the backward pass cannot hide, at worst all of it.
"""

from __future__ import annotations

from dataclasses import dataclass

from analysis.scaling.communication import exposed_seconds, ring_seconds
from analysis.scaling.reference_errors import Share
from analysis.scaling.series import Size
from models import activations, catalog

NUMBER_BYTES = 4  # gradients and weights are kept in single precision, also in mixed precision
# Of kept activations: written in forward, read in backward. A lower bound, as if everything else were fused.
ACTIVATION_PASSES = 2
# Weights: read in forward, backward and the update, which writes them; gradients and momentum: written and read.
PARAMETER_PASSES = 8
BACKWARD = 2 / 3  # share of a step's operations: twice as many as in the forward pass


@dataclass(frozen=True)
class Machine:
    """Nominal rates. flops: per second and GPU. memory: GPU memory; gpu_link: between GPUs of a node; link: between
    nodes; in bytes per second, None: unknown. gpus_per_node: None: all on one node."""

    gpus_per_node: int | None
    flops: float
    memory: float | None
    gpu_link: float | None
    link: float | None


@dataclass(frozen=True)
class Work:
    """Work of one GPU. flops, activation_bytes: of a training step, per sample."""

    flops: float
    activation_bytes: float
    parameters: int
    batch: int

    @property
    def gradient_bytes(self) -> float:
        return float(NUMBER_BYTES * self.parameters)

    @property
    def memory_bytes(self) -> float:
        """Least bytes that a step moves."""
        kept = ACTIVATION_PASSES * self.activation_bytes * self.batch
        return kept + PARAMETER_PASSES * NUMBER_BYTES * self.parameters


@dataclass(frozen=True)
class Roofline:
    """Roofline of one size; seconds per step, rates in samples per second. inside, between: allreduce of the gradients
    within and between nodes; None: unknown bandwidth. bound: with communication hidden behind backward as far as
    possible and unknown links taken as free; exposed: with nothing hidden; None if a link is unknown. low, high: usual
    range of the rate by `share`; None: unknown."""

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
        """The resource that limits one GPU: 'memory' or 'compute'."""
        return "memory" if self.memory is not None and self.memory > self.compute else "compute"


def work_of(layers: catalog.Layers, flops: float, channels: int, size: int, half: bool, batch: int) -> Work:
    """Return the work of one GPU. channels, size: of the input (models/activations.py). half: in half precision."""
    kept = activations.bytes_per_sample(layers, channels, size, 2 if half else activations.FLOAT)
    return Work(flops, kept, catalog.parameters(layers), batch)


def roofline(work: Work, machine: Machine, size: Size, share: Share | None) -> Roofline:
    """Compute the roofline. share: usual fraction that one GPU reaches; None: unknown in this precision."""
    compute = work.flops * work.batch / machine.flops
    memory = None if machine.memory is None else work.memory_bytes / machine.memory
    alone = max(compute, memory or 0.0)
    inside = _ring(size.gpus / size.nodes, work.gradient_bytes, machine.gpu_link)
    # All GPUs of a node together send the message once over the node's link (one ring between nodes per GPU).
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
