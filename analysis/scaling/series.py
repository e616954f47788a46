"""A series of measurements: one training on different numbers of GPUs, all else equal."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from harness.core.spec import WEAK

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True, order=True)
class Size:
    """A number of GPUs, spread evenly over a number of nodes."""

    gpus: int
    nodes: int

    @property
    def gpus_per_node(self) -> float:
        return self.gpus / self.nodes

    def words(self, unit: str = "GPU") -> str:
        """Return e.g. '1 GPU' or '16 GPUs on 2 nodes'."""
        counted = f"{self.gpus} {unit}" + ("" if self.gpus == 1 else "s")
        return counted + (f" on {self.nodes} nodes" if self.nodes > 1 else "")


@dataclass(frozen=True)
class RateSeries:
    """Throughput at several sizes, from a study or elsewhere: what scaling laws are fitted to.

    sizes, rates: measurements in ascending order of distinct sizes; rates in samples per second.

    scaling: harness.core.spec.WEAK (constant batch per GPU) or STRONG (constant global batch). system, model,
    precision, batch_per_gpu: as far as known; a prediction from one node needs them. noise: relative standard deviation
    between repeated runs of a size; None without repeats. unit: 'GPU' or 'CPU rank'. counts:
    what rates count. remarks: sentences on omissions.
    """

    name: str
    sizes: tuple[Size, ...]
    rates: tuple[float, ...]
    scaling: str = WEAK
    system: str = ""
    model: str = ""
    precision: str = ""
    batch_per_gpu: float | None = None
    noise: float | None = None
    unit: str = "GPU"
    counts: str = "samples"
    remarks: tuple[str, ...] = field(default=())

    @property
    def costs(self) -> np.ndarray:
        """GPU-seconds per sample at each size, shape (sizes,): constant if scaling is ideal."""
        import numpy as np

        return np.array([size.gpus / rate for size, rate in zip(self.sizes, self.rates, strict=True)])

    def words(self, index: int) -> str:
        """Return one of the sizes as text, such as '16 GPUs on 2 nodes'."""
        return self.sizes[index].words(self.unit)

    @property
    def largest(self) -> Size:
        return self.sizes[-1]

    def only(self, keep: list[bool]) -> RateSeries:
        """Return the series with only the marked sizes."""
        import dataclasses

        sizes = tuple(size for size, kept in zip(self.sizes, keep, strict=True) if kept)
        rates = tuple(rate for rate, kept in zip(self.rates, keep, strict=True) if kept)
        return dataclasses.replace(self, sizes=sizes, rates=rates)

    def up_to_half(self) -> list[bool]:
        """Mark the sizes with at most half as many GPUs as the largest."""
        return [2 * size.gpus <= self.largest.gpus for size in self.sizes]

    def falls(self) -> str | None:
        """Return a sentence if a larger size is slower than a smaller one."""
        for i in range(1, len(self.sizes)):
            if self.rates[i] < self.rates[i - 1]:
                return (
                    f"throughput falls from {self.words(i - 1)} to {self.words(i)}: no law here has a maximum that it "
                    "would find in a few sizes, so what is beyond is little more than the last efficiency"
                )
        return None
