"""report.html from the findings. Jinja's autoescape escapes all text; Markup is only used for our own texts."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from jinja2 import Environment, FileSystemBytecodeCache, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from analysis.base import text
from analysis.base.constants import OWN_TRAININGS
from analysis.base.text import hours_unit
from analysis.measures import data_price, decisions, equal_work, learning, resources
from analysis.measures.comparisons import COMPARISON_NOTE
from analysis.measures.data_price import DATA_NOTE
from analysis.measures.decisions import front_sentences
from analysis.measures.equal_work import differs
from analysis.measures.network import BOUNDS
from analysis.measures.pop import EFFICIENCIES
from analysis.measures.resources import is_recorded
from analysis.read.columns.traces import TRACES_NOTE, traced
from analysis.read.row import Run
from analysis.read.study import statuses
from analysis.report import roofline, startup
from analysis.report.answers import answers_of
from analysis.report.charts.looks import looks_of
from analysis.report.charts.study import charts_of
from analysis.report.charts.vega import kept_vega_script
from analysis.report.data.document import command_of
from analysis.report.failures import FAILURES_NOTE
from analysis.report.html.differences import MOST_VALUES, configurations, environments, hosts
from analysis.report.html.drawings import by_section, one_theme
from analysis.report.html.folding import folded, json_script
from analysis.report.html.gists import gists_of
from analysis.report.html.glance import figures_at_a_glance
from analysis.report.html.printed import printed_of
from analysis.report.html.runs import attempts_cost, damages, details_block, other_runs
from analysis.report.html.tables import table_of
from analysis.report.html.terms import question_mark, used_terms, with_terms
from analysis.report.losses import (
    BREAKDOWN_NOTE,
    PART_COLUMNS,
    lacking_sentences,
    loss_sentences,
    network_text,
    part_text,
    parts_shown,
    share_text,
    traced_text,
)
from analysis.report.losses import COLUMNS as BREAKDOWN
from analysis.report.published import PUBLISHED_NOTE
from analysis.report.questions import replies_of
from analysis.report.roofline import ROOFLINE_NOTE
from analysis.report.sentences import (
    ENOUGH_SEEDS,
    LEARNING_NOTE,
    RESOURCES_NOTE,
    STEADINESS_NOTE,
    WORK_NOTE,
    accuracy_notes,
    baseline,
    compared_with,
    left_out,
    own_words,
    sample_notes,
    seeds_text,
    target_text,
)
from analysis.report.series_names import names_of
from analysis.report.startup import OWN_STARTUP_NOTE, STARTUP_NOTE, shown
from analysis.tables.columns import CONFIDENCE_INTERVAL, MESSAGE, POINT, WHAT
from analysis.tables.names import training_name
from analysis.tables.point import Point
from analysis.tables.series import by_series, rate_column, scaling_text
from analysis.tables.throughput import goodput
from analysis.tables.warnings import OVERSUBSCRIBED

if TYPE_CHECKING:
    from analysis.read.study import Study
    from analysis.report.findings import Findings

FOLDER = Path(__file__).parent
SCRIPTS = ("dom", "rows", "choice", "drawings", "run", "page")  # of script/, in this order
PLOTS = ("speedup", "efficiency")  # shown without unfolding
CPU_HEADINGS = {
    "gpus": replace(POINT["gpus"], heading="CPU ranks"),
    "batch_per_gpu": replace(POINT["batch_per_gpu"], heading="Batch per rank"),
}
# Columns of the points that a narrow window shows; the others on demand.
KEY_COLUMNS = ("gpus", "samples_per_second", "speedup", "efficiency")
BY_SPEEDUP, BY_CHOICE = "with the largest speedup", "that labels.yaml names first"
MOST_COMPARISONS = 200
FEW_COMPARISONS = 6
MOST_KEYS = 40  # differing settings listed beside a run without a figure
# Warnings that a figure is not what it seems; all others qualify its reliability.
WARNINGS = ("fault injected", "profiled", "emulated")
TABLES = {
    "MESSAGE": MESSAGE,
    "DATA": data_price.COLUMNS,
    "DECISIONS": decisions.COLUMNS,
    "LEARNED": learning.POINT_COLUMNS,
    "RESOURCES": resources.COLUMNS,
    "ROOFLINE": roofline.COLUMNS,
    "BREAKDOWN": BREAKDOWN,
    "STARTUP": startup.COLUMNS,
    "WORK": equal_work.COLUMNS,
}

_OF_RUNS = re.compile(r"\d+ runs\b")  # an interval from several runs, whose number has a column


def page_of(findings: Findings) -> dict[str, bytes]:
    """report.html"""
    return {"report.html": render_report(findings).encode("utf-8")}


def render_report(findings: Findings) -> str:
    """The report as HTML."""
    study, learning, losses, points = findings.study, findings.learning, findings.losses, findings.points
    runs = study.runs
    printed = printed_of(runs, study.folder)
    settings = configurations(runs), environments(runs, study.folder)
    details = details_block(runs, *settings, printed)
    reasons = {point.oversubscribed for point in points if OVERSUBSCRIBED in point.marks}
    answers = answers_of(points, losses)
    replies = replies_of(findings, answers)
    glance = figures_at_a_glance(findings, {answer.point.series: answer.name for answer in answers})
    charts = list(charts_of(findings))
    config, light, dark = one_theme()
    names = names_of(points)
    first = looks_of(points).first
    places = {point.series: i for i, point in enumerate(points)}
    facts = _facts(runs)
    completed = sorted((run for run in runs if run.completed), key=lambda run: _place(run, places))
    return (
        _environment()
        .get_template("report.html.j2")
        .render(
            study=study,
            invocations=[command_of(invocation) for invocation in study.invocations],
            facts=facts,
            about=_about(study, facts),
            answers=answers,
            replies=replies,
            glance=glance,
            gists=gists_of(findings, len(answers), glance, settings),
            points=points,
            plots=[chart for chart in charts if chart.name in PLOTS],
            further_plots=[chart for chart in charts if chart.section == "scaling" and chart.name not in PLOTS],
            shared_facts=_shared_facts(points, names),
            choices=_choices(runs),
            charts=by_section(charts),
            vega=Markup(kept_vega_script()) if charts else None,
            vega_config=config,
            drawn_light=Markup(light),
            drawn_dark=Markup(dark),
            labels={point.series: point for point in points},
            names=names,
            POINT=POINT if any(point.device != "cpu" for point in points) else POINT | CPU_HEADINGS,
            first=first,
            best_words=BY_CHOICE if any(point.shown for point in points) else BY_SPEEDUP,
            comparisons=findings.comparisons,
            most_comparisons=MOST_COMPARISONS,
            few_comparisons=FEW_COMPARISONS,
            comparison_note=COMPARISON_NOTE,
            failure_costs=findings.failure_costs,
            failures_note=FAILURES_NOTE,
            data=findings.prices,
            data_note=DATA_NOTE,
            published=findings.published,
            published_note=PUBLISHED_NOTE,
            oversubscribed=sorted(reason for reason in reasons if reason),
            series=by_series(points),
            RATE=rate_column(points),
            losses=by_series([loss for loss in losses.points if loss.parts is not None]),
            parts={part: PART_COLUMNS[part] for part in parts_shown(losses.points)},
            every_loss=by_series(losses.points if any(loss.is_known for loss in losses.points) else ()),
            loss_sentences=loss_sentences(losses),
            breakdown_note=BREAKDOWN_NOTE,
            lacking=lacking_sentences(losses, len(runs)),
            measured=_runs_by_series([run for run in completed if run.stopped is not None]),
            messages=by_series(point for point in points if point.allreduce),
            resources=by_series([row for row in findings.resources if is_recorded(row)]),
            resources_note=RESOURCES_NOTE,
            startup=by_series(findings.startup),
            startup_note=" ".join([STARTUP_NOTE, *([OWN_STARTUP_NOTE] * any(point.is_own for point in points))]),
            roofline=by_series(findings.roofline),
            roofline_note=ROOFLINE_NOTE,
            decisions=by_series(findings.decisions),
            front_sentences=front_sentences(findings.decisions),
            late=by_series(point for point in points if point.staleness_max is not None),
            steady=by_series(point for point in points if point.blocks),
            steadiness_note=STEADINESS_NOTE,
            learning=learning,
            learned=by_series(learning.points),
            learning_note=LEARNING_NOTE,
            sample_notes=[*sample_notes(points), *accuracy_notes(points)],
            work=findings.work.rows,
            work_note=WORK_NOTE,
            traced=[found for run in runs if (found := traced(run))],
            traces_note=TRACES_NOTE,
            left_out=left_out(study),
            problems=[*study.problems, *findings.work.problems],
            damages=damages(runs),
            statuses=sorted(statuses(study.runs).items()),
            completed=_runs_by_series(completed),
            n_completed=len(completed),
            others=other_runs(runs, *settings, printed),
            configuration=settings[0],
            environment=settings[1],
            hosts=hosts(runs),
            most_values=MOST_VALUES,
            most_keys=MOST_KEYS,
            details=details,
        )
    )


def source(name: str) -> Markup:
    """A file of this folder, included verbatim."""
    return Markup((FOLDER / name).read_text(encoding="utf-8"))


def page_script() -> Markup:
    """What the page does in a browser, as one module."""
    return Markup("\n").join(source(f"script/{name}.js") for name in SCRIPTS)


def is_warning(mark: str) -> bool:
    """Return whether figures with this warning are not what they seem."""
    return mark in WARNINGS or "oversubscribed" in mark or "work differs" in mark


@cache
def _environment() -> Environment:
    # Compiling the templates takes a fifth of a small report's time.
    compiled = None
    with suppress(OSError, RuntimeError):  # no folder of this user for temporary files
        compiled = FileSystemBytecodeCache()
    environment = Environment(
        loader=FileSystemLoader(FOLDER / "templates"),
        bytecode_cache=compiled,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    environment.filters |= {
        **{f.__name__: f for f in (text.number, text.count, text.percent, text.span, text.duration)},
        **{f.__name__: f for f in (text.moment, text.gpus_text, text.scientific)},
        **{f.__name__: f for f in (baseline, compared_with, hours_unit, seeds_text, target_text)},
        "training": lambda row: training_name(row["framework"], row["strategy"]),
        **{f.__name__: f for f in (part_text, share_text, traced_text, network_text)},
        "attempts_cost": attempts_cost,
        "run_goodput": lambda run: goodput([run.useful_seconds], [run.allocated_seconds]),
        "startup_cells": shown,
        "of_runs": lambda basis: _OF_RUNS.match(basis) is not None,
        "with_terms": with_terms,
        "used_terms": used_terms,
    }
    environment.globals |= {
        "DASH": text.DASH,
        "source": source,
        "page_script": page_script,
        "json_script": json_script,
        "folded": folded,
        "table_of": table_of,
        "question_mark": question_mark,
        "spec_script": lambda chart: json_script(f"spec-{chart.name}", chart.spec),
        "is_warning": is_warning,
        "series_facts": series_facts,
        "KEY_COLUMNS": KEY_COLUMNS,
        "BOUNDS": BOUNDS,
        **TABLES,
        "WHAT": WHAT,
        "POINT_STATUS": replace(POINT["marks"], heading="Status and warnings"),
        "INTERVAL": CONFIDENCE_INTERVAL,
        "efficiency_columns": [BREAKDOWN[name] for name in EFFICIENCIES],
        "startup_columns": startup.SHOWN_COLUMNS,
        "network_differences": [equal_work.COLUMNS[f"{name}_difference"] for name in BOUNDS],
        "differs": differs,
        "ENOUGH_SEEDS": ENOUGH_SEEDS,
    }
    return environment


def series_facts(group: Sequence[Point], names: Mapping[str, str]) -> list[str]:
    """Return everything that the points of a series ran on and that its name does not say."""

    def every(name: str, separator: str = " / ") -> str:
        return separator.join(dict.fromkeys(filter(None, (getattr(point, name) for point in group))))

    point = group[0]
    own = point.is_own
    parts = [
        "" if own else f"{point.model} on {point.dataset}",
        scaling_text(point),
        "" if own else every("precision"),
        every("cluster"),
        every("devices") or every("device"),
        "" if point.other_detail in names.get(point.series, "") else point.other_detail,
    ]
    return [
        *filter(None, (*parts, own_words(group[-1]))),
        f"communication: {every('communication') or text.DASH}",
        f"versions: {every('versions') or text.DASH}",
    ]


def _shared_facts(points: Sequence[Point], names: Mapping[str, str]) -> list[str]:
    """What all series ran on."""
    first, *others = [series_facts(group, names) for group in by_series(points)] or [[]]
    return [fact for fact in first if all(fact in facts for facts in others)]


def _runs_by_series(runs: Sequence[Run]) -> list[list[Run]]:
    return [list(group) for _, group in groupby(runs, key=lambda run: run.series)]


def _facts(runs: Sequence[Run]) -> list[tuple[str, str]]:
    """Return the clusters, devices, code and versions of the runs, each with all values that occur."""
    versions: dict[str, list[Mapping[str, str]]] = defaultdict(list)
    for run in runs:
        if run.versions:
            versions[str(run.framework)].append(run.versions)
    facts: list[tuple[str, set[str | None]]] = [
        ("Cluster", {run.cluster for run in runs}),
        ("Device", {name for run in runs for name in run.device_names}),
        ("Code version", {run.code_version for run in runs}),
    ]
    facts += [
        ("Versions" + (f", {framework}" if framework not in OWN_TRAININGS else ""), {text.versions_text(found)})
        for framework, found in sorted(versions.items())
    ]
    return [(name, ", ".join(sorted(v for v in values if v)) or text.DASH) for name, values in facts]


def _about(study: Study, facts: Sequence[tuple[str, str]]) -> list[str]:
    """Return what stands below the title: where and when the study was measured, as far as that is known."""
    where = [f"{name}: {value}" for name, value in facts if name in ("Cluster", "Device") and value != text.DASH]
    return [*where, *([text.moment(study.created)] if study.created is not None else [])]


def _choices(runs: Sequence[Run]) -> dict[str, list[str]]:
    """Filters of the page with all values that occur; filters with a single value are left out."""
    found = {name: sorted({run[name] for run in runs if run[name]}) for name in ("framework", "model", "strategy")}
    found["status"] = sorted({run.status for run in runs})
    return {name: values for name, values in found.items() if len(values) > 1}


def _place(run: Run, series: Mapping[str, int]) -> tuple[int, ...]:
    """Sort key of a run: by series as the points, then by size."""
    numbers = (run.gpus, run.nodes, run.seed, run.repeat)
    return series[str(run.series)], *(number or 0 for number in numbers)
