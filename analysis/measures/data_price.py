"""The cost of real data: step time with the data set, less step time with synthetic samples in its place.

A pair of points differs in nothing else (DatasetSpec.stands_for). The two are measured in separate runs, so the
interval of the difference comes from the runs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from analysis.base.column import COUNT, RANGE, TEXT, Column, figure, table
from analysis.base.text import DASH, duration, gpus_text, percent, tenths
from analysis.stats.estimates import mean_difference
from analysis.tables.bases import columns_of
from analysis.tables.columns import SERIES, of_point
from analysis.tables.names import training_name
from analysis.tables.pairing import pairing, spec_of
from analysis.tables.point import Point

SHAPE = ("gpus", "nodes", "ranks_per_node", "global_batch", "batch_per_gpu")
# Fields in which the specs of the two data sets differ.
OF_THE_SOURCE = ("name", "reader", "train_samples", "test_samples", "shuffle_buffer", "stands_for")

DATA_NOTE = (
    "Price of real data: seconds per step with the data set, less those with made samples of the same shape and number "
    "in its place; positive where real data is slower. Interval: 95 %, Welch's t over runs, where both have two or "
    "more. Pipeline and augmentation are the same: it is the price of reading and decoding."
)

COLUMNS = table(
    *SERIES,
    *of_point("device", *SHAPE),
    figure("real_step_seconds", "s", "step time with the data set", "Step, real", duration),
    figure("synthetic_step_seconds", "s", "step time with synthetic samples", "Step, synthetic", duration),
    figure("price_seconds", "s", "difference of the two step times", "Difference", duration, RANGE, "price_basis"),
    figure("price_fraction", "1", "difference / step time with synthetic samples", show=tenths),
    Column("real_runs", COUNT, "runs with the data set"),
    Column("synthetic_runs", COUNT, "runs with synthetic samples"),
    Column("price_basis", TEXT, heading="Runs"),
    *of_point("marks", "oversubscribed"),
)


def prices(points: Sequence[Point]) -> list[dict[str, Any]]:
    """One row (keys of COLUMNS) per pair of points with completed runs, in the order of the points.

    price_fraction: relative to the step time with synthetic samples. price_basis: '3 and 3 runs', or that a single run
    has no interval; low and high are None then. marks: warnings of both points.
    """
    measured = [point for point in points if point.completed and not point.is_own]
    rows = []
    for members in pairing(measured, ("dataset",), SHAPE, also=_data).values():
        halves = {bool(_stands_for(point)): point for point in members}
        if len(halves) == 2:
            rows.append(_price(halves[False], halves[True]))
    return rows


def price_sentences(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """One sentence per pair, with its warnings."""
    return [_sentence(row) for row in rows]


def _stands_for(point: Point) -> str:
    """The data set that synthetic samples replace; empty for a data set of its own."""
    return spec_of(point.series)["dataset"].get("stands_for") or ""


def _data(point: Point) -> str:
    """Facts of the data set that both points of a pair share."""
    data = spec_of(point.series)["dataset"]
    shared = {name: value for name, value in data.items() if name not in OF_THE_SOURCE}
    return json.dumps([_stands_for(point) or data["name"], shared], sort_keys=True)


def _price(real: Point, synthetic: Point) -> dict[str, Any]:
    real_steps, synthetic_steps = ([run.step_seconds for run in point.completed] for point in (real, synthetic))
    price = mean_difference(real_steps, synthetic_steps)
    marks = [*real.marks, *synthetic.marks]
    reasons = [point.oversubscribed for point in (real, synthetic) if point.oversubscribed]
    return {
        **real.row(),
        "real_step_seconds": fmean(real_steps),
        "synthetic_step_seconds": fmean(synthetic_steps),
        **columns_of("price_seconds", price),
        "price_fraction": price.estimate / fmean(synthetic_steps),
        "real_runs": len(real_steps),
        "synthetic_runs": len(synthetic_steps),
        "price_basis": f"{len(real_steps)} and {len(synthetic_steps)} runs" if price.low is not None else "single run",
        "marks": tuple(dict.fromkeys(marks)),
        "oversubscribed": "; ".join(dict.fromkeys(reasons)) or None,
    }


def _sentence(row: Mapping[str, Any]) -> str:
    what = f"{training_name(row['framework'], row['strategy'])}, {row['model']} on {row['dataset']}"
    what += f" [{row['detail']}]" if row["detail"] else ""
    low, high = row["price_seconds_low"], row["price_seconds_high"]
    steps = f"{duration(row['real_step_seconds'])} per step instead of {duration(row['synthetic_step_seconds'])}"
    if low is None:
        basis = "a single run: no interval" if 1 in (row["real_runs"], row["synthetic_runs"]) else DASH
    else:
        basis = f"95 % interval {COLUMNS['price_seconds'].interval(row)}, from {row['price_basis']}"
        if low <= 0 <= high:
            basis += ": no difference shown"
    remarks = "; ".join([steps, basis, *row["marks"]])
    text = f"real data, {what} on {gpus_text(row['gpus'], row['device'])}: {duration(row['price_seconds'])} per step"
    return f"{text}, {percent(row['price_fraction'], 1)} ({remarks})."
