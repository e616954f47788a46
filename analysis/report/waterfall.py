"""From 100 % efficiency to the measured one: of which points it is drawn what each part of a step took away."""

from __future__ import annotations

from itertools import groupby

from analysis.measures.losses import Loss, Losses

WATERFALL = "waterfall"
MOST_PANELS = 8  # the series with the most GPUs; the others are in the table


def waterfall_points(losses: Losses) -> list[Loss]:
    """Of each series the largest point that has losses."""
    largest = []
    for _, group in groupby(losses.points, key=lambda loss: loss.point["series"]):
        with_losses = [loss for loss in group if loss.shares]
        largest += with_losses[-1:]
    largest.sort(key=lambda loss: -loss.point["gpus"])
    return largest[:MOST_PANELS]
