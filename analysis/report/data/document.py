"""report.json: all findings in one document that follows analysis/report/data/report.schema.json."""

from __future__ import annotations

import importlib.metadata
import json
import math
import platform
import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from analysis.base.text import printable
from analysis.measures.resources import is_recorded
from analysis.read.study import statuses
from analysis.report.data.schema import PARTS
from analysis.report.headline import headline_sentences
from analysis.report.losses import breakdown_row
from analysis.report.sentences import (
    GOODPUT_NOTE,
    LEARNING_NOTE,
    RESOURCES_NOTE,
    WORK_NOTE,
    accuracy_notes,
    compared_with,
    interval_note,
    sample_notes,
)
from analysis.stats.estimates import CONFIDENCE

if TYPE_CHECKING:
    from analysis.report.findings import Findings

VERSION = 1
DISTRIBUTION = "scaling-harness"
PACKAGES = ("numpy", "pandas", "scipy", "pyarrow")
# Reasons why figures of a point without a completed run are null.
WITHOUT_RUNS = ("samples_per_second_reason", "speedup_reason", "efficiency_reason")


def report_json(findings: Findings) -> bytes:
    """Serialise the document with one list element per line. Raises ValueError for numbers that JSON lacks."""
    lines = []
    for name, value in report(findings).items():
        text = _elements(value) if isinstance(value, list) else _compact(value)
        lines.append(f"{json.dumps(name)}: {text}")
    return ("{\n" + ",\n".join(lines) + "\n}\n").encode("utf-8")


def report(findings: Findings) -> dict[str, Any]:
    """Return the document as plain values."""
    study = findings.study
    index = {run_id: i for i, point in enumerate(findings.points) for run_id in point.run_ids}
    comparisons = findings.comparisons
    return {
        "v": VERSION,
        "study": {
            "name": study.name,
            "created": _finite(study.created),
            "target_accuracy": findings.learning.target,
            "commands": [command_of(invocation) for invocation in study.invocations],
            "left_out": list(study.skipped),
        },
        "program": _program(),
        "method": {"confidence": CONFIDENCE, "notes": _notes(findings)},
        "headlines": headline_sentences(findings),
        "points": _points(findings),
        "comparisons": [_part("comparison", row, row["marks"]) for row in comparisons.rows],
        "not_compared": list(comparisons.left_out),
        "data_prices": [_part("data_price", row, row["marks"]) for row in findings.prices],
        "failure_costs": list(findings.failure_costs),
        "published": [
            {"published": both.published, "own": both.own, "verdict": both.verdict} for both in findings.published
        ],
        "problems": [*study.problems, *findings.work.problems],
        "damage": [_part("damage", row, ()) for row in study.damage],
        "statuses": dict(sorted(statuses(study.runs).items())),
        "runs": [_part("run", {**run.columns(), "point": index.get(run.run_id)}, ()) for run in study.runs],
    }


def figure(
    value: float | None,
    unit: str,
    marks: Sequence[str],
    ends: tuple[float | None, float | None] = (None, None),
    basis: str | None = None,
    reason: str | None = None,
) -> dict[str, Any] | None:
    """Return a figure of the schema; None if there is neither a value, nor a range, nor a reason for its absence."""
    low, high = (_finite(end) for end in ends)
    known = _finite(value)
    if known is None and value is not None:
        reason = f"not finite: {value}"
    if known is None and low is None and reason is None:
        return None
    found: dict[str, Any] = {"value": known, "unit": unit, "marks": list(marks)}
    if low is not None and high is not None:
        found |= {"low": low, "high": high}
    if basis and (known is not None or low is not None):
        found["basis"] = basis
    if known is None:
        found["reason"] = reason or "low and high are those of the runs that have one"
    return found


def _part(name: str, row: Mapping[str, Any], marks: Sequence[str]) -> dict[str, Any]:
    """Return the columns of a row that the schema's definition `name` has, with units as figures."""
    found: dict[str, Any] = {}
    for column in sorted(PARTS[name], key=lambda column: bool(column.unit)):
        if not column.unit:
            value = row.get(column.name)
            found[column.name] = _finite(value) if isinstance(value, float) else value
            continue
        value, low, high, reason = (row.get(f"{column.name}{end}") for end in ("", "_low", "_high", "_reason"))
        if value is None and reason is None and low is None:
            continue
        made = figure(value, column.unit, marks, (low, high), row.get(column.basis_name), reason)
        if made is not None:
            found[column.name] = made
    return found


def _points(findings: Findings) -> list[dict[str, Any]]:
    losses = {loss.point: breakdown_row(loss) for loss in findings.losses.points if loss.parts is not None}
    decisions = {row["point"]: row for row in findings.decisions}
    learned = {row["point"]: {**row, **_learning_bases(row)} for row in findings.learning.points}
    resources = {row["point"]: row for row in findings.resources if is_recorded(row)}
    work = {run_id: row for row in findings.work.rows for run_id in row["run_ids"]}
    parts = {"breakdown": losses, "decisions": decisions, "learning": learned, "resources": resources}
    found = []
    for point in findings.points:
        row, marks = point.row(), point.marks
        equal = next((work[run_id] for run_id in point.run_ids if run_id in work), None)
        why = {} if point.completed else dict.fromkeys(WITHOUT_RUNS, point.reasons or point.status)
        named = {**row, "series": point.label, "detail": point.detail or None}
        found.append(
            {
                **_part("point", named, marks),
                "marks": list(marks),
                "figures": _part("figures", row | why, marks),
                **{part: _part(part, rows[point], marks) if point in rows else None for part, rows in parts.items()},
                "equal_work": equal and {"verdict": equal["verdict"], "compared_with": compared_with(equal)},
            }
        )
    return found


def _learning_bases(row: Mapping[str, Any]) -> dict[str, str]:
    n, reached = row["seeds"], row.get("reached")
    seeds = f"range of {n} seeds" if n > 1 else "one seed: no spread"
    return {"basis": seeds} | ({"to_basis": f"range of {reached} of {row['runs']} runs"} if reached else {})


def command_of(invocation: Mapping[str, Any]) -> dict[str, Any]:
    """Return one command of study.json; malformed parts become null."""
    command, runs, t = invocation.get("command"), invocation.get("runs"), invocation.get("t")
    said = {name: invocation.get(name) for name in ("code_version", "cluster")}
    return {
        "t": _finite(t) if isinstance(t, (int, float)) and not isinstance(t, bool) else None,
        "command": printable(shlex.join(map(str, command))) if isinstance(command, list) else None,
        **{name: printable(str(value)) if value else None for name, value in said.items()},
        "runs": len(runs) if isinstance(runs, list) else None,
    }


def _program() -> dict[str, Any]:
    try:
        version = importlib.metadata.version(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        version = None
    packages = {name: importlib.metadata.version(name) for name in PACKAGES}
    packages["python"] = platform.python_version()
    return {"name": DISTRIBUTION, "version": version, "packages": packages}


def _notes(findings: Findings) -> list[str]:
    from analysis.measures.comparisons import COMPARISON_NOTE
    from analysis.measures.decisions import DECISIONS_NOTE
    from analysis.report.losses import BREAKDOWN_NOTE
    from analysis.report.sentences import STEADINESS_NOTE

    notes = [
        interval_note(findings.points),
        GOODPUT_NOTE,
        STEADINESS_NOTE,
        COMPARISON_NOTE,
        BREAKDOWN_NOTE,
        DECISIONS_NOTE,
    ]
    return [
        *(*notes, LEARNING_NOTE, RESOURCES_NOTE, WORK_NOTE),
        *(*sample_notes(findings.points), *accuracy_notes(findings.points)),
    ]


def _finite(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else value


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _elements(values: list[Any]) -> str:
    return "[\n" + ",\n".join(map(_compact, values)) + "\n]" if values else "[]"
