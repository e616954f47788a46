"""Figure of `compare`: the throughputs of two studies or tables over the number of GPUs, in one plot."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

from analysis.base.text import printable
from analysis.read.study import Study
from analysis.report.charts.looks import Looks
from analysis.report.charts.names import further
from analysis.report.charts.scaling import throughput_chart
from analysis.report.palette import LOOKS
from analysis.report.print.drawing import FORMATS, rendered
from analysis.report.print.figure_spec import figure_spec
from analysis.report.print.figures import SYMBOL
from analysis.report.print.paper import Paper
from analysis.report.series_names import short_names
from analysis.tables.pairing import spec_of
from analysis.tables.point import Point
from analysis.tables.series import series_in_order

NAME = "comparison"


def comparison_figures(
    first: tuple[Study, Sequence[Point]], second: tuple[Study, Sequence[Point]], unit: str, paper: Paper
) -> dict[str, bytes]:
    """Return the figure in every format, by file name. unit: what the compared throughputs count."""
    titles = [first[0].name, second[0].name]
    if titles[0] == titles[1]:
        titles = [f"{title} ({n})" for n, title in enumerate(titles, start=1)]
    drawn: list[Point] = []
    own: dict[str, str] = {}
    for title, points in zip(titles, (first[1], second[1]), strict=True):
        # A series of both studies is drawn once for each.
        apart = [
            replace(point, series=json.dumps({**spec_of(point.series), "study": title}, sort_keys=True))
            for point in points
            if point.measured and point.unit == unit
        ]
        names = short_names(series_in_order(apart))
        own |= {key: printable(f"{title}: {name}" if len(names) > 1 else title) for key, name in names.items()}
        drawn += apart
    order = [series.key for series in series_in_order(drawn)]
    legend = {
        key: "\n".join(paper.wrapped(own[key], beside=SYMBOL)) if n < len(LOOKS) else further(len(own) - len(LOOKS))
        for n, key in enumerate(order)
    }
    looks = Looks(legend, list(dict.fromkeys(legend.values())), own, paper.letters())
    spec = figure_spec(throughput_chart(drawn, looks), paper)
    return {f"{NAME}.{kind}": content for kind, content in rendered(spec, FORMATS, paper.width_mm).items()}
