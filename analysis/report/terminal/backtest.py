"""The backtest as a table for the terminal and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from analysis.base.text import DASH, number, percent, shortened, span, tenths
from analysis.scaling.backtest import Fold, SeriesBacktest, Summary, all_folds, coverage, summary, summary_of
from analysis.scaling.extra_p import ALL_PEERS
from analysis.scaling.measurements import MeasurementTable
from analysis.scaling.series import RateSeries

if TYPE_CHECKING:
    from rich.console import Console

    from analysis.stats.intervals import Interval

POOLED = "pooled law"
MOST_SERIES = 60  # in the terminal; --json has every one
NOTE = (
    "Errors are |predicted / measured - 1| of the largest size, predicted from all sizes up to half of it. Intervals "
    "are of one more measurement; how often they hold, with 95 % intervals (Wilson) that take predictions as "
    "independent. best law: the law of the textbooks with the smallest leave-one-out error. –: cannot predict it."
)


def print_backtest(
    console: Console, table: MeasurementTable, tests: Sequence[SeriesBacktest], extrap_note: str
) -> None:
    """Print one row per series, then all together."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    tested = [test for test in tests if test.largest is not None]
    if tested:
        shown = Table(
            title="Largest size of each series", title_justify="left", box=box.HORIZONTALS, padding=(0, 1, 0, 0)
        )
        shown.add_column("series", overflow="fold", ratio=1)
        for heading in ("predicted\nfrom", "measured\nsamples/s", "predicted\n50 %\n90 %", POOLED):
            shown.add_column(heading, justify="right", overflow="fold")
        for name in ALL_PEERS:
            shown.add_column(name.replace(" ", "\n"), justify="right")
        for test in tested[:MOST_SERIES]:
            shown.add_row(*_cells(test))
        console.print(shown)
        if len(tested) > MOST_SERIES:
            console.print(Text(f"and {len(tested) - MOST_SERIES:,} more series, with --json"))
        console.print(_summaries(tests, extrap_note))
    for line in _sentences(table, tests, extrap_note):
        console.print(Text(line))
    if tested:
        console.print(Text(NOTE, style="dim"))


def backtest_json(table: MeasurementTable, tests: Sequence[SeriesBacktest], extrap_note: str) -> dict[str, Any]:
    """Errors are fractions, rates are samples per second."""
    folds = all_folds(tests)
    one_node = [test.one_node for test in tests if test.one_node is not None]
    return {
        "rows": table.rows,
        "series_count": len(tests),
        "remarks": list(table.remarks),
        "extra_p": extrap_note,
        "all": {
            "pooled law": {**_summary_json(summary(tests)), "coverage": _coverage_json(folds)},
            **{name: _summary_json(summary(tests, name)) for name in ALL_PEERS},
            "pooled law from one node": {
                **_summary_json(summary_of([fold.error for fold in one_node])),
                "coverage": _coverage_json(one_node),
            },
        },
        "series": [_series_json(test) for test in tests],
    }


def _series_json(test: SeriesBacktest) -> dict[str, Any]:
    return {
        "series": test.series.name,
        "scaling": test.series.scaling,
        "sizes": [
            {"gpus": size.gpus, "nodes": size.nodes, "samples_per_second": rate}
            for size, rate in zip(test.series.sizes, test.series.rates, strict=True)
        ],
        "used_gpus": [size.gpus for size in test.used],
        "largest": None if test.largest is None else _fold_json(test.largest),
        "why_not": test.why_not,
        "peers": {name: test.peers.get(name) for name in ALL_PEERS},
        "left_out": [_fold_json(fold) for fold in test.left_out],
        "one_node": None if test.one_node is None else _fold_json(test.one_node),
        "remarks": _remarks(test.series),
    }


def _fold_json(fold: Fold) -> dict[str, Any]:
    predicted = fold.predicted
    return {
        "gpus": fold.size.gpus,
        "nodes": fold.size.nodes,
        "measured": fold.measured,
        "predicted": predicted.median,
        "interval_50": list(predicted.central50.ends),
        "interval_90": list(predicted.central90.ends),
        "error": fold.error,
    }


def _summary_json(result: Summary) -> dict[str, Any]:
    return {"series": result.count, "mean_error": result.mean, "worst_error": result.worst}


def _coverage_json(folds: Sequence[Fold]) -> dict[str, Any]:
    shares = coverage(folds)
    return {
        "predictions": len(folds),
        "in_50": None if shares is None else shares[0].estimate,
        "in_50_interval": None if shares is None else list(shares[0].ends),
        "in_90": None if shares is None else shares[1].estimate,
        "in_90_interval": None if shares is None else list(shares[1].ends),
    }


def _cells(test: SeriesBacktest) -> list[str]:
    assert test.largest is not None
    predicted, measured = test.largest.predicted, test.largest.measured
    intervals = [span(*each.ends) for each in (predicted.central50, predicted.central90)]
    rates = [test.peers.get(name) for name in ALL_PEERS]
    return [
        shortened(test.series.name, 110),
        f"{', '.join(str(size.gpus) for size in test.used)}\nfor {test.largest.size.gpus}",
        number(measured, 4),
        f"{number(predicted.median, 4)}\n" + "\n".join(intervals),
        percent(test.largest.error, 1),
        *(DASH if rate is None else percent(abs(rate / measured - 1), 1) for rate in rates),
    ]


def _summaries(tests: Sequence[SeriesBacktest], extrap_note: str) -> Any:
    from rich import box
    from rich.table import Table

    shown = Table(title="All series", title_justify="left", box=box.HORIZONTALS, padding=(0, 1, 0, 0))
    for heading in ("", "series", "mean error", "worst", "90 % interval holds", "50 % interval holds"):
        shown.add_column(heading, justify="left" if not heading else "right")
    largest = [test.largest for test in tests if test.largest is not None]
    one_node = [test.one_node for test in tests if test.one_node is not None]
    rows = [
        (POOLED, summary(tests), largest),
        (
            "… each size from all others",
            summary_of([f.error for t in tests for f in t.left_out]),
            [f for t in tests for f in t.left_out],
        ),
        ("… both together", summary_of([fold.error for fold in all_folds(tests)]), all_folds(tests)),
    ]
    if one_node:
        rows.append(("… from one node and a bandwidth", summary_of([fold.error for fold in one_node]), one_node))
    for name, result, folds in rows:
        shares = coverage(folds)
        held = [DASH, DASH] if shares is None else [_held(shares[1], len(folds)), _held(shares[0], len(folds))]
        shown.add_row(name, str(result.count), percent(result.mean, 1), percent(result.worst, 1), *held)
    for name in ALL_PEERS:
        result = summary(tests, name)
        shown.add_row(name, str(result.count), percent(result.mean, 1), percent(result.worst, 1), DASH, DASH)
    return shown


def _held(share: Interval, total: int) -> str:
    """Format as '31 of 36 (71.3–93.9 %)'."""
    return f"{round(share.estimate * total)} of {total} ({span(*share.ends, tenths)})"


def _sentences(table: MeasurementTable, tests: Sequence[SeriesBacktest], extrap_note: str) -> list[str]:
    """Return sentences on series without a result, and on rows left out."""
    lines = [*table.remarks, extrap_note]
    said = [f"{test.series.name}: {why}" for test in tests for why in [test.why_not, *_remarks(test.series)] if why]
    if said and not any(test.largest for test in tests):
        said.append(
            "No series of this file says how well it could be predicted: that takes two sizes, one at most half of the "
            "other."
        )
    if len(said) > MOST_SERIES:
        said = [*said[:MOST_SERIES], f"and {len(said) - MOST_SERIES:,} more remarks, with --json"]
    return lines + said


def _remarks(series: RateSeries) -> list[str]:
    remarks = list(series.remarks)
    if len(series.sizes) > 1:
        if series.sizes[0].gpus > 1:
            remarks.append(f"no one-GPU run: everything is relative to {series.words(0)}")
        if len(series.sizes) == 2:
            remarks.append("two sizes: the larger one is predicted from one size, so from what is usual alone")
        if falls := series.falls():
            remarks.append(falls)
    return remarks
