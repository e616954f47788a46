"""The report: one HTML file that needs nothing from outside itself and shows every run of the study.

All text goes through Jinja's autoescape; the two drawings are matplotlib's SVG, which escapes its texts itself.
"""

from __future__ import annotations

import json
import re
import shlex
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from analysis import text
from analysis.curves import CURVES
from analysis.equal_work import differs
from analysis.failures import FAILURES_NOTE, failure_costs
from analysis.figures import unnamed_series
from analysis.metrics import goodput
from analysis.network import BOUNDS
from analysis.points import OVERSUBSCRIBED
from analysis.published import PUBLISHED_NOTE, beside_published
from analysis.read import records, statuses
from analysis.run import COMPLETED
from analysis.sentences import (
    ENOUGH_SEEDS,
    GOODPUT_NOTE,
    LEARNING_NOTE,
    SPREAD_NOTE,
    WORK_NOTE,
    baseline,
    compared_with,
    headlines,
    hours_unit,
    left_out,
    marks_of,
    sample_notes,
    seeds_text,
    target_text,
)

if TYPE_CHECKING:
    import pandas as pd

    from analysis.equal_work import EqualWork
    from analysis.learning import Learning
    from analysis.read import Study

MOST_HEADLINES = 12
MOST_STDERR_LINES = 40


def render_report(
    study: Study, points: pd.DataFrame, work: EqualWork, learning: Learning, figures: Mapping[str, bytes]
) -> str:
    """The report as HTML. `figures` holds `speedup.svg` and `efficiency.svg`, and the curves if any."""
    rows, runs = records(points), records(study.runs)
    sentences = headlines(rows)
    reasons = {row["oversubscribed"] for row in rows if OVERSUBSCRIBED in marks_of(row)}
    return (
        _environment()
        .get_template("report.html.j2")
        .render(
            study=study,
            invocations=[_invocation(invocation) for invocation in study.invocations],
            facts=_facts(runs),
            headlines=sentences[:MOST_HEADLINES],
            further_headlines=len(sentences) - MOST_HEADLINES,
            failure_costs=failure_costs(study.runs, rows),
            failures_note=FAILURES_NOTE,
            published=beside_published(rows),
            published_note=PUBLISHED_NOTE,
            oversubscribed=sorted(reason for reason in reasons if reason),
            series=_by_series(rows),
            losses=_by_series([r for r in rows if r["cached_batch_seconds"] or r["no_sync_seconds"]]),
            messages=_by_series([row for row in rows if row["allreduce"]]),
            late=_by_series([row for row in rows if row["staleness_max"] is not None]),
            plots={name: inline_svg(figures[f"{name}.svg"], name) for name in ("speedup", "efficiency")},
            unnamed=unnamed_series(points),
            learning=learning,
            learned=_by_series(learning.points),
            curves={name: inline_svg(figures[f"{name}.svg"], name) for name in CURVES if f"{name}.svg" in figures},
            learning_note=LEARNING_NOTE,
            spread_note=SPREAD_NOTE,
            goodput_note=GOODPUT_NOTE,
            sample_notes=sample_notes(rows),
            work=work.rows,
            work_note=WORK_NOTE,
            left_out=left_out(study),
            problems=[*study.problems, *work.problems],
            statuses=sorted(statuses(study.runs).items()),
            completed=[run for run in runs if run["status"] == COMPLETED],
            others=[_with_tail(run) for run in runs if run["status"] != COMPLETED],
        )
    )


def inline_svg(svg: bytes, prefix: str) -> Markup:
    """The <svg> element, its ids and the references to them under a prefix, so that two can share a page."""
    element = svg[svg.index(b"<svg") :].decode("utf-8")
    element = re.sub(r"<metadata>.*?</metadata>", "", element, flags=re.DOTALL)

    def renamed(tag: re.Match[str]) -> str:
        return re.sub(r'( id="|href="#|url\(#)', rf"\g<1>{prefix}-", tag[0])

    # Only within tags: a text may hold such characters too. matplotlib writes '>' in attributes and texts as an entity.
    return Markup(re.sub(r"<[^>]*>", renamed, element))


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    environment.filters |= {
        **{f.__name__: f for f in (text.number, text.count, text.percent, text.times, text.span, text.duration)},
        **{f.__name__: f for f in (text.energy, text.size, text.moment, text.gpus_text, text.scientific)},
        **{f.__name__: f for f in (baseline, compared_with, series_facts, hours_unit, seeds_text, target_text)},
        "marks": marks_of,
        "run_goodput": lambda run: goodput([run["useful_seconds"]], [run["allocated_seconds"]]),
        "json": json.loads,
    }
    environment.globals |= {
        "DASH": text.DASH,
        "BOUNDS": BOUNDS,
        "differs": differs,
        "tenths": lambda f: text.percent(f, 1),
        "percents": text.percent,
        "durations": text.duration,
        "energies": text.energy,
        "ENOUGH_SEEDS": ENOUGH_SEEDS,
    }
    return environment


def series_facts(group: Sequence[Mapping[str, Any]]) -> list[str]:
    """What all points of a series ran on, and with; every value that occurs."""

    def every(name: str, separator: str = " / ") -> str:
        return separator.join(dict.fromkeys(row[name] for row in group if row[name]))

    parts = [every("precision"), every("cluster"), every("device_names") or every("device"), every("detail")]
    return [
        *filter(None, parts),
        f"communication: {every('communication') or text.DASH}",
        f"versions: {every('versions') or text.DASH}",
    ]


def _by_series(rows: Sequence[Mapping[str, Any]]) -> list[list[Mapping[str, Any]]]:
    return [list(group) for _, group in groupby(rows, key=lambda row: row["series"])]


def _invocation(invocation: Mapping[str, Any]) -> dict[str, Any]:
    """One command of study.json, as one would type it; parts of another form than ours are left out."""
    command = invocation.get("command")
    runs = invocation.get("runs")
    return {
        "t": invocation.get("t"),
        "command": text.printable(shlex.join(map(str, command))) if isinstance(command, list) else text.DASH,
        "code_version": text.printable(str(invocation.get("code_version") or text.DASH)),
        "cluster": text.printable(str(invocation.get("cluster") or text.DASH)),
        "runs": len(runs) if isinstance(runs, list) else None,
    }


def _facts(runs: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """What the runs ran on: clusters, devices, code and versions, each with every value that occurs."""
    versions: dict[str, list[dict[str, str]]] = defaultdict(list)
    for run in runs:
        if run["versions"]:
            versions[run["framework"]].append(json.loads(run["versions"]))
    facts = [
        ("Cluster", {run["cluster"] for run in runs}),
        ("Device", {name for run in runs for name in json.loads(run["device_names"] or "[]")}),
        ("Code version", {run["code_version"] for run in runs}),
    ]
    facts += [(f"Versions, {framework}", {text.versions_text(versions[framework])}) for framework in sorted(versions)]
    return [(name, ", ".join(sorted(v for v in values if v)) or text.DASH) for name, values in facts]


def _with_tail(run: dict[str, Any]) -> dict[str, Any]:
    lines = json.loads(run["stderr_tail"] or "[]")
    return {**run, "lines": lines[-MOST_STDERR_LINES:]}
