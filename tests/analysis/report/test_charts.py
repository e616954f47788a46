"""The charts of the page: what they show and omit, and that Vega-Lite accepts them."""

from __future__ import annotations

import dataclasses
import json
import re
from typing import Any

import altair as alt
import pytest
import vl_convert
from study_builder import SPEC, Logs, StudyBuilder, spec_of

from analysis.base.text import number, times
from analysis.measures.decisions import decisions_of
from analysis.measures.learning import learning_of
from analysis.measures.losses import losses_of
from analysis.measures.speedup import points_of
from analysis.read.row import Run
from analysis.read.study import read_study
from analysis.report.charts.chart import CHOICES, HEIGHT, LOG_X, LOG_Y, Chart
from analysis.report.charts.names import marks_text
from analysis.report.charts.prediction import not_looked_into
from analysis.report.charts.study import charts_of
from analysis.report.charts.theme import themes
from analysis.report.charts.vega import VEGA_LITE
from analysis.report.findings import Findings, findings_of
from analysis.report.palette import LOOKS, is_hollow
from analysis.tables.point import Point
from harness.core.spec import STRONG, Placement

SECTIONS = ("scaling", "breakdown", "learning", "cost", "prediction", "steadiness")
CONTROLLED = {"speedup": 5, "efficiency": 5, "throughput": 5, "cost-epoch": 5, "cost-target": 5, "prediction": 4}


def some_series(study: StudyBuilder, **changes: Any) -> None:
    """Add two runs each on one and two GPUs, and one oversubscribed run on four; with probes and accuracies."""
    for gpus in (1, 2, 4):
        for repeat in range(2 if gpus < 4 else 1):
            step = 0.1 * (1 + 0.03 * (gpus - 1)) * (1 + 0.01 * repeat)
            rounds = {"full": [step] * 6, "cached_batch": [0.97 * step] * 6, "no_sync": [(1 - 0.03 * gpus) * step] * 6}
            blocks = [10 * step * (1 + 0.002 * (block % 3)) for block in range(8)]
            logs = Logs(blocks, rounds=rounds, accuracy=0.8, evaluations={40: 0.4 + 0.05 * repeat, 60: 0.7})
            spec = spec_of(gpus, repeat=repeat, seed=repeat + 1, **changes)
            study.add(spec, logs, result={"oversubscribed": "4 ranks on 2 GPUs"} if gpus == 4 else None)


def drawn(study: StudyBuilder, target: float | None = 0.6) -> tuple[Findings, dict[str, Chart]]:
    findings = findings_of(read_study(study.folder), target)
    return findings, {chart.name: chart for chart in charts_of(findings)}


def rows_in(chart: Chart, dataset: str) -> list[dict[str, Any]]:
    return chart.spec["datasets"][dataset]


def compiled(chart: Chart, theme: str = "light") -> str:
    """Render as SVG with the page's version of Vega-Lite; a fixed width replaces the page's."""
    spec = {**chart.spec, "width": 360}
    return vl_convert.vegalite_to_svg(spec, vl_version=VEGA_LITE, config=themes()[theme])


def validate(spec: dict[str, Any]) -> None:
    """Validate against Vega-Lite's schema, except for a Vega setting that Vega-Lite passes on without a schema."""
    config = spec["config"]
    legend = {key: value for key, value in config["legend"].items() if key != "layout"}
    alt.Chart.from_dict({**spec, "config": {**config, "legend": legend}}, validate=True)


def test_every_kind_of_drawing_holds_its_figures_and_compiles(study: StudyBuilder) -> None:
    some_series(study, strategy="allreduce")
    some_series(study, strategy="horovod", scaling=STRONG, batch_per_gpu=64)
    findings, charts = drawn(study)
    assert {chart.section for chart in charts.values()} == set(SECTIONS)
    for i, chart in enumerate(charts.values()):
        json.dumps(chart.spec, allow_nan=False)
        validate(chart.spec)
        assert "url" not in json.dumps(chart.spec["datasets"])
        assert compiled(chart, ("light", "dark")[i % 2]).count("<path") > 4, chart.name
        names = [param["name"] for param in chart.spec.get("params", [])]
        if chart.name in CONTROLLED:
            assert names[:3] == list(CHOICES)
            assert len(names) == CONTROLLED[chart.name]
    # Speedup, efficiency and throughput equal the table of points, with intervals and warnings.
    for name, column in (("speedup",) * 2, ("efficiency",) * 2, ("throughput", "samples_per_second")):
        rows = rows_in(charts[name], "points")
        assert len(rows) == len(findings.points) == 6
        for point in findings.points:
            (own,) = (r for r in rows if same_point(r, point))
            assert (own["value"], own["value_low"], own["value_high"]) == (
                getattr(point, column),
                getattr(point, f"{column}_low"),
                getattr(point, f"{column}_high"),
            )
            assert own["hollow"] == is_hollow(point.marks) == (point.gpus == 4)
            assert own["marks"] == marks_text(point)
            assert own["batches"].split()[0] == str(point.global_batch)
    assert "oversubscribed" in str(charts["speedup"].note)
    assert charts["prediction"].note is not None
    for row in findings.decisions:
        (own,) = (r for r in rows_in(charts["cost-epoch"], "costs") if r["name"] and same_point(r, row["point"]))
        assert (own["seconds"], own["hours"]) == (row["epoch_seconds"], row["epoch_gpu_hours"])
        assert own["front"] is row["epoch_front"]
    measured = [loss for loss in findings.losses.points if loss.shares]
    ends = {row["point"]: row["end"] for row in rows_in(charts["waterfall"], "bars") if row["label"] == "measured"}
    assert sorted(ends.values()) == pytest.approx(sorted(loss.point.efficiency for loss in measured))
    assert rows_in(charts["accuracy-by-samples"], "target")[0]["y"] == 0.6


def same_point(own: dict[str, Any], point: Point) -> bool:
    return own["gpus"] == point.gpus and own["strategy"] == point.strategy


def test_the_outlook_is_what_the_command_predicts(study: StudyBuilder, analyse: Any) -> None:
    for gpus in (1, 2, 4):
        study.completed(gpus, seconds=1 + 0.02 * gpus, placement=Placement(1, gpus))
    study.completed(8, seconds=3.0, model="alone")
    findings = findings_of(read_study(study.folder))
    series, alone = findings.outlook
    said = json.loads(analyse("predict", study.folder, "gpus=8,16,32", "--json").stdout)["series"]
    (own,) = (s for s in said if len(s["predictions"]) == len(series.forecasts))
    for forecast, one in zip(series.forecasts, own["predictions"], strict=True):
        assert (forecast.gpus, forecast.nodes) == (one["gpus"], one["nodes"])
        assert forecast.rate is not None
        assert forecast.rate.median == pytest.approx(one["samples_per_second"]["median"])
        assert (forecast.linear, forecast.flat, forecast.measured) == (one["linear"], one["flat"], one["measured"])
    assert "single run" in series.marks
    assert alone.refusals
    assert "measure a second size" in alone.refusals[0]
    (chart,) = (chart for chart in charts_of(findings) if chart.section == "prediction")
    assert "measure a second size" in str(chart.note)


def test_nothing_is_drawn_of_nothing(study: StudyBuilder) -> None:
    study.add(spec_of(2), None, result={"status": "failed", "reason": "killed"})
    assert drawn(study)[1] == {}
    study.completed(1, dataset=dataclasses.replace(SPEC.dataset, name="other"))
    charts = drawn(study)[1]
    assert {"prediction", "accuracy-by-samples", "cost-target", "waterfall"}.isdisjoint(charts)
    assert compiled(charts["speedup"])


@pytest.mark.parametrize("name", ["speedup", "throughput", "cost-epoch"])
def test_a_linear_axis_begins_at_zero(study: StudyBuilder, name: str) -> None:
    # With a wide range of values, the smallest are so close to 0 that padding would extend below 0.
    for gpus, seconds in ((1, 50.0), (2, 10.0), (4, 0.1)):
        for repeat in (0, 1):
            study.completed(gpus, seconds=seconds * (1 + repeat), repeat=repeat)
    chart = drawn(study)[1][name]
    for row in chart.spec["datasets"].get("points", ()):
        if row["value_low"] is not None:
            assert row["interval"].startswith(number(row["value_low"]))
    for param in chart.spec["params"]:
        if param["name"] in (LOG_X, LOG_Y):
            param["value"] = False
    places = dict(re.findall(r'transform="translate\(-5,([0-9.]+)\)"[^>]*>([^<]+)<', compiled(chart)))
    labels = {label: float(place) for place, label in places.items()}
    assert labels["0"] == HEIGHT + 3  # a digit's middle is at the lower edge of the plot
    assert max(labels.values()) == labels["0"]


def of_two_unequal_runs(study: StudyBuilder, ratio: float) -> tuple[dict[str, Any], Chart]:
    """Return the row of two GPUs and the chart of speedups; the step times of its two runs have this ratio."""
    for gpus, factors in ((1, (1.0, 1.01)), (2, (1.0, ratio))):
        for repeat, factor in enumerate(factors):
            study.completed(gpus, seconds=factor, repeat=repeat)
    chart = drawn(study)[1]["speedup"]
    return next(row for row in rows_in(chart, "points") if row["gpus"] == 2), chart


def test_intervals_are_drawn_whole(study: StudyBuilder) -> None:
    row, chart = of_two_unequal_runs(study, 1.04)
    assert row["value_low"] < 0.8 * row["value"]
    assert (row["drawn_low"], row["drawn_high"]) == (row["value_low"], row["value_high"])
    assert "arrowhead" not in str(chart.note)
    svg = compiled(chart)
    places = {label: float(y) for y, label in re.findall(r'transform="translate\(-5,([0-9.]+)\)"[^>]*>([^<]+)<', svg)}
    pixels = (places["0"] - places["1"]) * (row["value_high"] - row["value_low"])
    lengths = [abs(float(y)) for y in re.findall(r'<line [^>]*x2="0" y2="(-?[0-9.]+)"', svg)]
    assert any(length == pytest.approx(pixels, abs=0.1) for length in lengths)


def test_an_interval_beyond_the_chart_has_an_arrowhead_and_its_number(study: StudyBuilder) -> None:
    row, chart = of_two_unequal_runs(study, 2.0)
    assert row["value_high"] > 3  # 1.5 times ideal
    assert (row["drawn_high"], row["cut_high"]) == (3, times(row["value_high"]))
    assert row["cut_high"] in compiled(chart)
    assert "arrowhead with a number" in str(chart.note)
    # A linear axis from 0 has room for the lower end; a logarithmic one would go down without limit.
    low = times(row["value_low"])
    assert row["cut_low"] == low
    assert low not in compiled(chart)
    for param in chart.spec["params"]:
        if param["name"] == LOG_Y:
            param["value"] = True
    assert low in compiled(chart)


@pytest.mark.parametrize("seconds", [5e-324, 1e308])
def test_absurd_durations_are_drawn_or_left_out(study: StudyBuilder, seconds: float) -> None:
    study.add(spec_of(2), Logs([seconds] * 2, cached_batch_seconds=seconds))
    study.add(spec_of(3), Logs([1.0, 2.0], cached_batch_seconds=1e12))
    for chart in drawn(study)[1].values():
        json.dumps(chart.spec, allow_nan=False)
        assert compiled(chart)


def test_ten_thousand_runs_make_a_page_of_points(study: StudyBuilder) -> None:
    findings = many(study, models=250, repeats=8)
    assert len(findings.study.runs) == 10_000
    charts = {chart.name: chart for chart in charts_of(findings)}
    # Measured: 1.8 MB.
    assert sum(len(json.dumps(chart.spec)) for chart in charts.values()) < 3_000_000
    rest = 250 - len(LOOKS)
    assert str(not_looked_into(findings)).startswith(f"{rest} further series are not predicted here")
    assert "of 250 series have no room here" in str(charts["speedup"].note)
    assert "of 10,000 runs are drawn" in str(charts["block-times"].note)
    assert rows_in(charts["speedup"], "points")[-1]["name"] == f"{rest} further series"


def many(study: StudyBuilder, models: int, repeats: int) -> Findings:
    """Make the findings, as far as charts use them, of a study with this many copies of `some_series` per model."""
    some_series(study)
    small = read_study(study.folder)
    copies = []
    for n in range(models):
        for i, run in enumerate(small.runs * repeats):
            key = {name: run[name].replace(f'"{SPEC.model}"', f'"net{n}"') for name in ("point", "series")}
            copies.append(Run.of({**run.columns(), **key, "model": f"net{n}", "run_id": f"{n}-{i}"}))
    runs = tuple(copies)
    points = points_of(runs)
    learning = learning_of(points, None)
    return dataclasses.replace(
        findings_of(small),
        study=dataclasses.replace(small, runs=runs),
        points=points,
        learning=learning,
        losses=losses_of(points),
        decisions=decisions_of(points, learning, []),
    )
