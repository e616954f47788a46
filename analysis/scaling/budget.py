"""Cost of a training at each size, and the size that a budget and a least efficiency allow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from analysis.base.text import gpus_text, number, percent
from analysis.scaling.prediction import FAR, Predicted, SeriesPrediction, efficiency_of, node_size, usual_sizes
from analysis.scaling.request import Limits
from analysis.scaling.study_series import StudySeries
from analysis.stats.intervals import Interval


@dataclass(frozen=True)
class Cost:
    """Cost of training on so many samples at one size: wall-clock hours without start-up and evaluation, and efficiency
    relative to the smallest measured size, with 90 % intervals."""

    predicted: Predicted
    clock: Interval
    efficiency: Interval

    @property
    def hours(self) -> float:
        return self.clock.estimate

    @property
    def gpu_hours(self) -> float:
        return self.hours * self.predicted.size.gpus

    @property
    def gpu_hours_high(self) -> float:
        assert self.clock.high is not None
        return self.clock.high * self.predicted.size.gpus

    @property
    def node_hours(self) -> Interval:
        return self.clock.times(self.predicted.size.nodes)


def sizes_to_consider(source: StudySeries, gpus_per_node: int | None) -> tuple[int, ...]:
    """Return numbers of GPUs from the smallest measured to FAR times the largest. gpus_per_node: None: as measured."""
    sizes = source.series.sizes
    if not sizes:
        return ()
    per_node = node_size(source)[0] if gpus_per_node is None else gpus_per_node
    return tuple(size.gpus for size in usual_sizes(FAR * sizes[-1].gpus, per_node) if size.gpus >= sizes[0].gpus)


def costs(prediction: SeriesPrediction, samples: float) -> list[Cost]:
    """Return the cost at every size with a prediction."""
    found = []
    for one in prediction.predicted:
        efficiency = efficiency_of(prediction, one)
        if one.rate is not None and efficiency is not None:
            clock = one.rate.central90.mapped(lambda rate: samples / rate / 3600, falling=True)
            found.append(Cost(one, clock, efficiency))
    return found


def best_plan(found: Sequence[Cost], limits: Limits) -> Cost | None:
    """Return the fastest size that is within the limits even at the worse ends of the 90 % intervals."""
    within = [
        cost
        for cost in found
        if cost.gpu_hours_high <= limits.gpu_hours
        and (cost.efficiency.estimate if cost.efficiency.low is None else cost.efficiency.low) >= limits.efficiency
    ]
    return min(within, key=lambda cost: cost.hours, default=None)


def plan_sentence(found: Sequence[Cost], limits: Limits, device: str) -> str:
    """Return a sentence on which size the limits allow."""
    unit = "rank-h" if device == "cpu" else "GPU-h"
    within = f"within {number(limits.gpu_hours)} {unit}"
    if limits.efficiency:
        within += f" at {percent(limits.efficiency)} efficiency or more"
    best = best_plan(found, limits)
    if best is None:
        cheapest = min(found, key=lambda cost: cost.gpu_hours_high)
        return (
            f"No size is sure to stay {within}: the cheapest, "
            f"{gpus_text(cheapest.predicted.size.gpus, device)}, takes {number(cheapest.gpu_hours)} {unit}, "
            f"up to {number(cheapest.gpu_hours_high)}."
        )
    text = (
        f"W{within[1:]}: {gpus_text(best.predicted.size.gpus, device)}, {number(best.hours)} h and "
        f"{number(best.gpu_hours)} {unit}, up to {number(best.gpu_hours_high)}."
    )
    faster = [
        cost
        for cost in found
        if cost.hours < best.hours
        and cost.gpu_hours <= limits.gpu_hours
        and cost.efficiency.estimate >= limits.efficiency
    ]
    if faster:
        bold = min(faster, key=lambda cost: cost.hours)
        text += (
            f" {gpus_text(bold.predicted.size.gpus, device)} would take {number(bold.hours)} h and rather fit than "
            f"not: {number(bold.gpu_hours)} {unit}, up to {number(bold.gpu_hours_high)}."
        )
    return text
