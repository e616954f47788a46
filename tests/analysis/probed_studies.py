"""Studies whose steps have known parts, and what is found of them."""

from __future__ import annotations

from collections.abc import Sequence

from study_builder import StudyBuilder

from analysis.measures.breakdown import (
    Parts,
)
from analysis.measures.losses import Loss, Losses, losses_of
from analysis.measures.speedup import points_of
from analysis.read.study import read_study
from analysis.stats.intervals import Interval

COST = {"rounds": 8, "seconds": 3.0, "share": 0.0612, "limit": 0.1, "skipped": None}


def rounds(
    stall: float = 0.0,
    exposed: float = 0.0,
    computing: Sequence[float] = (0.1,),
    n: int = 8,
    drift: float = 0.0,
    without: Sequence[str] = (),
) -> dict[str, list[list[float]]]:
    """Make the probes of ranks that compute for this many seconds each. drift: additional seconds per round."""
    found: dict[str, list[list[float]]] = {name: [] for name in ("full", "cached_batch", "no_sync")}
    for number in range(n):
        own = [seconds + number * drift for seconds in computing]
        found["no_sync"].append(own)
        found["cached_batch"].append([max(own) + exposed] * len(own))
        found["full"].append([max(own) + exposed + stall] * len(own))
    return {name: values for name, values in found.items() if name not in without}


def steps(seconds: float) -> list[float]:
    """Return the durations of eight timed blocks of ten steps."""
    return [10 * seconds] * 8


def losses(study: StudyBuilder) -> Losses:
    runs = read_study(study.folder).runs
    return losses_of(points_of(runs))


def of(found: Losses, gpus: int, strategy: str = "allreduce") -> Loss:
    (loss,) = [loss for loss in found.points if (loss.point.gpus, loss.point.strategy) == (gpus, strategy)]
    return loss


def values(parts: Parts | dict[str, Interval]) -> dict[str, float]:
    return {name: part.estimate for name, part in (parts.seconds if isinstance(parts, Parts) else parts).items()}


def levels(seconds: float) -> dict[str, dict[str, list[float]]]:
    """Make the probes of a step with 80 % compute, 10 % messages and 10 % waiting for data."""
    return {
        "full": {"slowest": [seconds] * 6},
        "cached_batch": {"slowest": [0.9 * seconds] * 6},
        "no_sync": {"slowest": [0.8 * seconds] * 6, "mean": [0.8 * seconds] * 6},
    }
