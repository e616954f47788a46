"""Cost of a training at each size, and the size that a budget allows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from analysis.base.text import gpus_text, number, percent
from analysis.scaling.prediction import Predicted
from analysis.stats.intervals import Interval


@dataclass(frozen=True)
class Cost:
    """Cost of training on so many samples at one size: wall-clock hours without start-up and evaluation, with the 90
    % interval."""

    predicted: Predicted
    clock: Interval

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


def costs(predicted: Sequence[Predicted], samples: float) -> list[Cost]:
    """Return the cost at every size with a prediction."""
    return [
        Cost(one, one.rate.central90.mapped(lambda rate: samples / rate / 3600, falling=True))
        for one in predicted
        if one.rate is not None
    ]


def best_plan(found: Sequence[Cost], budget_gpu_hours: float) -> Cost | None:
    """Return the fastest size whose GPU-hours stay within budget even at the upper end of the 90 % interval."""
    within = [cost for cost in found if cost.gpu_hours_high <= budget_gpu_hours]
    return min(within, key=lambda cost: cost.hours, default=None)


def cost_sentence(cost: Cost, efficiency: float, device: str) -> str:
    """Return e.g. '8 GPUs: 91 % efficiency, 14 h, 112 GPU-h'."""
    unit = "rank-h" if device == "cpu" else "GPU-h"
    caveats = f" ({'; '.join(cost.predicted.caveats)})" if cost.predicted.caveats else ""
    return (
        f"{gpus_text(cost.predicted.size.gpus, device)}: {percent(efficiency)} efficiency, "
        f"{number(cost.hours)} h, {number(cost.gpu_hours)} {unit}{caveats}"
    )


def plan_sentence(found: Sequence[Cost], budget: float, device: str) -> str:
    """Return a sentence on which size the budget, in GPU-hours, allows."""
    unit = "rank-h" if device == "cpu" else "GPU-h"
    best = best_plan(found, budget)
    if best is None:
        cheapest = min(found, key=lambda cost: cost.gpu_hours_high)
        return (
            f"No size is sure to stay within {number(budget)} {unit}: the cheapest, "
            f"{gpus_text(cheapest.predicted.size.gpus, device)}, takes {number(cheapest.gpu_hours)} {unit}, "
            f"up to {number(cheapest.gpu_hours_high)}."
        )
    text = (
        f"Within {number(budget)} {unit}: {gpus_text(best.predicted.size.gpus, device)}, {number(best.hours)} h and "
        f"{number(best.gpu_hours)} {unit}, up to {number(best.gpu_hours_high)}."
    )
    faster = [cost for cost in found if cost.hours < best.hours and cost.gpu_hours <= budget]
    if faster:
        bold = min(faster, key=lambda cost: cost.hours)
        text += (
            f" {gpus_text(bold.predicted.size.gpus, device)} would take {number(bold.hours)} h and rather fit than "
            f"not: {number(bold.gpu_hours)} {unit}, up to {number(bold.gpu_hours_high)}."
        )
    return text
