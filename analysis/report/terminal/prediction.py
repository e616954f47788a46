"""Predictions of a study's series as tables for the terminal and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from analysis.base.text import DASH, number, percent, printable, span
from analysis.scaling.budget import Cost, best_plan, costs, plan_sentence
from analysis.scaling.prediction import LawFit, Predicted, SeriesPrediction, efficiency_of
from analysis.tables.warnings import OVERSUBSCRIBED

if TYPE_CHECKING:
    from rich.console import Console

    from analysis.scaling.request import Request

NOTE = (
    "Medians, and the 50 % and 90 % intervals of one more measurement at that size, by the pooled law. Efficiency: "
    "throughput per {unit} relative to the smallest measured size. linear: the throughput per {unit} of the smallest "
    "measured size; flat: that of the largest. Hours are those of training steps, without start-up and evaluation."
)
MARK_WORDS = {OVERSUBSCRIBED: "oversubscribed: no scaling result"}


def print_predictions(console: Console, study: str, predictions: Sequence[SeriesPrediction], request: Request) -> None:
    from rich.text import Text

    for prediction in predictions:
        console.print(Text(f"{printable(study)}: {prediction.source.series.name}", style="bold"))
        if prediction.why_not is not None:
            console.print(Text(prediction.why_not))
        else:
            _print_series(console, prediction, request)
        for line in _remarks(prediction):
            console.print(Text(line))
        console.print()
    if predictions:
        unit = "rank" if all(prediction.source.device == "cpu" for prediction in predictions) else "GPU"
        console.print(Text(NOTE.format(unit=unit), style="dim"))


def predictions_json(study: str, predictions: Sequence[SeriesPrediction], request: Request) -> dict[str, Any]:
    """Rates are samples per second, efficiencies and errors fractions."""
    return {"study": study, "series": [_series_json(prediction, request) for prediction in predictions]}


def _print_series(console: Console, prediction: SeriesPrediction, request: Request) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    samples = _samples(prediction, request)
    by_size = {cost.predicted.size: cost for cost in _costs(prediction, samples)}
    table = Table(box=box.HORIZONTALS, padding=(0, 1, 0, 0), show_edge=False)
    unit = "ranks" if prediction.source.device == "cpu" else "GPUs"
    for heading in (
        f"{unit}\nnodes",
        f"{prediction.source.series.counts}/s\nmeasured",
        "50 %\n90 %",
        "efficiency\n90 %",
    ):
        table.add_column(heading, justify="right", overflow="fold")
    if by_size:
        table.add_column(f"hours\n{unit[:-1]}-hours", justify="right", overflow="fold")
        table.add_column("node-hours\n90 %", justify="right", overflow="fold")
    for heading in ("linear", "flat"):
        table.add_column(heading, justify="right", overflow="fold")
    table.add_column("warnings", overflow="fold", ratio=1)
    marks = [MARK_WORDS.get(mark, mark) for mark in prediction.source.marks]
    for one in prediction.predicted:
        efficiency = efficiency_of(prediction, one)
        cells = [f"{one.size.gpus}\n{one.size.nodes}"]
        if one.rate is None:
            cells += [DASH] * (5 if by_size else 3)
        else:
            assert efficiency is not None
            rate = one.rate
            cells += [
                f"{number(rate.median)}\n{number(one.measured)}",
                f"{span(*rate.central50.ends)}\n{span(*rate.central90.ends)}",
                f"{percent(efficiency.estimate)}\n{span(*efficiency.ends, percent)}",
            ]
            cells += _cost_cells(by_size[one.size]) if by_size else []
        cells += [number(one.linear), number(one.flat), "; ".join([*one.caveats, *marks])]
        table.add_row(*(Text(cell) for cell in cells))
    console.print(table)
    if line := _plan(prediction, list(by_size.values()), request):
        console.print(Text(line))


def _cost_cells(cost: Cost) -> list[str]:
    node_hours = cost.node_hours
    ends = span(*node_hours.ends)
    return [f"{number(cost.hours)}\n{number(cost.gpu_hours)}", f"{number(node_hours.estimate)}\n{ends}"]


def _samples(prediction: SeriesPrediction, request: Request) -> float | None:
    if request.samples is not None:
        return request.samples
    if request.epochs is None or prediction.source.train_samples is None:
        return None
    return request.epochs * prediction.source.train_samples


def _costs(prediction: SeriesPrediction, samples: float | None) -> list[Cost]:
    return [] if samples is None else costs(prediction, samples)


def _plan(prediction: SeriesPrediction, found: list[Cost], request: Request) -> str | None:
    """Return what the budget allows, with the series' warnings, or why hours are unknown; None without a budget."""
    if not found and request.epochs is not None:
        return "Hours are not known: the runs do not say how many samples an epoch has; give samples=."
    if not found or request.limits is None:
        return None
    sentence = plan_sentence(found, request.limits, prediction.source.device)
    marks = "; ".join(MARK_WORDS.get(mark, mark) for mark in prediction.source.marks)
    return f"{sentence} [{marks}]" if marks else sentence


def _remarks(prediction: SeriesPrediction) -> list[str]:
    series = prediction.source.series
    lines = [*prediction.basis, *series.remarks]
    if prediction.why_not is None:
        lines.append(prediction.why)
        fitted = [_law_text(law) for law in prediction.laws if law.fit is not None and law.leave_one_out is not None]
        if fitted:
            lines.append(f"laws of the textbooks, with 90 % intervals: {'; '.join(fitted)}")
        if prediction.own_test is not None:
            own = prediction.own_test
            lines.append(
                f"from the sizes up to half of it, {own.size.words(series.unit)} would have been predicted as "
                f"{number(own.predicted.median)} {series.counts}/s ({span(*own.predicted.central90.ends)}): "
                f"measured {number(own.measured)}, {percent(own.error, 1)} off"
            )
        if series.sizes[0].gpus > 1:
            lines.append(f"nothing was measured on one: all is relative to {series.words(0)}")
        if series.noise is not None:
            lines.append(f"runs of the same size differ by {percent(series.noise, 1)} (standard deviation)")
        if falls := series.falls():
            lines.append(falls)
    return [printable(line) for line in lines]


def _law_text(law: LawFit) -> str:
    """Return e.g. 'amdahl: serial 0.0108 (0.0072–0.0144), 0.8 % off'."""
    assert law.fit is not None
    fitted = law.fit
    words = []
    for i, (name, value) in enumerate(zip(fitted.law.parameters, fitted.values, strict=True)):
        interval = "" if fitted.intervals is None else f" ({span(*fitted.intervals[i], _share)})"
        if fitted.known[i]:
            words.append(f"{name} {_share(value)}{interval}")
    return f"{law.name}: {', '.join([*words, f'{percent(law.leave_one_out, 1)} off'])}"


def _share(value: float | None) -> str:
    """Format a fitted share of a step; less than 1e-6 is '0'."""
    return number(value) if value is None or value >= 1e-6 else "0"


def _series_json(prediction: SeriesPrediction, request: Request) -> dict[str, Any]:
    source = prediction.source
    samples = _samples(prediction, request)
    found = _costs(prediction, samples)
    by_size = {cost.predicted.size: cost for cost in found}
    best = None if request.limits is None else best_plan(found, request.limits)
    return {
        "series": source.series.name,
        "cluster": source.cluster,
        "scaling": source.series.scaling,
        "marks": list(source.marks),
        "measured": [
            {"gpus": size.gpus, "nodes": size.nodes, "samples_per_second": rate}
            for size, rate in zip(source.series.sizes, source.series.rates, strict=True)
        ],
        "why_not": prediction.why_not,
        "law": None if prediction.why_not else "pooled",
        "why": prediction.why or None,
        "laws": [_law_json(law) for law in prediction.laws],
        "samples": samples,
        "predictions": [_predicted_json(prediction, one, by_size.get(one.size)) for one in prediction.predicted],
        "best_plan_gpus": None if best is None else best.predicted.size.gpus,
        "plan": _plan(prediction, found, request),
        "remarks": _remarks(prediction),
    }


def _law_json(law: LawFit) -> dict[str, Any]:
    fitted, intervals = None, None
    if law.fit is not None:
        names = [(i, name) for i, name in enumerate(law.fit.law.parameters) if law.fit.known[i]]
        fitted = {name: law.fit.values[i] for i, name in names}
        if law.fit.intervals is not None:
            intervals = {name: list(law.fit.intervals[i]) for i, name in names}
    return {
        "law": law.name,
        "formula": law.formula,
        "parameters": fitted,
        "intervals_90": intervals,
        "leave_one_out_error": law.leave_one_out,
    }


def _predicted_json(prediction: SeriesPrediction, one: Predicted, cost: Cost | None) -> dict[str, Any]:
    efficiency = efficiency_of(prediction, one)
    return {
        "gpus": one.size.gpus,
        "nodes": one.size.nodes,
        "samples_per_second": one.rate and one.rate.document(),
        "measured": one.measured,
        "efficiency": efficiency
        and {"low90": efficiency.low, "median": efficiency.estimate, "high90": efficiency.high},
        "linear": one.linear,
        "flat": one.flat,
        "hours": cost and {"median": cost.hours, "low90": cost.clock.low, "high90": cost.clock.high},
        "gpu_hours": None if cost is None else cost.gpu_hours,
        "node_hours": None if cost is None else cost.node_hours.estimate,
        "marks": [*one.caveats, *prediction.source.marks],
    }
