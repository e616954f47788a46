"""Cost of a plan: the worst case from wall limits, the expected case from earlier runs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from harness.core import events, run_files
from harness.core.errors import UserError
from harness.core.serialization import from_plain, to_plain
from harness.core.spec import MeasureSpec, RunSpec
from harness.plan.plan import Array, Request, node_hours


@dataclass(frozen=True)
class Expected:
    """Expected cost of a plan."""

    hours: float  # node-hours
    same: int  # runs estimated from earlier runs of the same point
    alike: int  # runs estimated from the same model at other sizes or lengths
    unknown: int  # runs without any basis, counted at their wall limit

    @property
    def sentence(self) -> str:
        parts = []
        if self.same:
            parts.append(f"{self.same} from earlier runs of the same point")
        if self.alike:
            parts.append(f"{self.alike} estimated from the same model at other sizes or lengths")
        if not parts:
            return "expected: unknown, no earlier run of these models in this results folder"
        if self.unknown:
            parts.append(f"{self.unknown} unknown, counted at their wall limit")
        return f"expected: {self.hours:.2f} node-hours ({'; '.join(parts)})"


def expected(arrays: Sequence[Array], study_folder: Path) -> Expected:
    """Estimate from completed runs of the same model and framework, in this study and in its siblings."""
    wanted = {_kind(request.spec) for array in arrays for request in array.requests}
    earlier = list(_earlier(study_folder, wanted)) if wanted else []
    counts = {"same": 0, "alike": 0, "unknown": 0}
    hours = 0.0
    for array in arrays:
        for request in array.requests:
            seconds, how = _seconds(request, earlier)
            counts[how] += 1
            hours += array.resources.nodes * seconds / 3600
    return Expected(hours, **counts)


def check_budget(arrays: Sequence[Array], budget: float | None, known: Expected) -> None:
    """Raise UserError if the worst case exceeds the budget. Only the worst case is guaranteed."""
    worst = node_hours(arrays)
    if budget is not None and worst > budget:
        raise UserError(
            f"the plan can take {worst:.2f} node-hours, more than budget_node_hours={budget:g}; {known.sentence}; "
            "use fewer runs, a shorter cluster.timeout_minutes, or a lower checkpoint.max_requeues; nothing was "
            "submitted"
        )


@dataclass(frozen=True)
class _Earlier:
    point: dict[str, Any]
    kind: tuple[str, str, str]
    seconds: float
    startup: float  # of these, until its first step; 0 if that is unknown
    steps: int


def _earlier(study_folder: Path, wanted: set[tuple[str, str, str]]) -> Iterator[_Earlier]:
    folders = [study_folder, *(f for f in _folders(study_folder.parent) if f != study_folder)]
    for folder in folders:
        for run_dir in _folders(folder / run_files.RUNS):
            # Folder names start with framework, strategy and model, so unrelated runs are not opened.
            if not any(run_dir.name.startswith("-".join(kind)) for kind in wanted):
                continue
            try:
                result = events.read_result(run_dir)
                if result is None or result["status"] != events.COMPLETED or result["attempt"] != 1:
                    continue
                plain = json.loads((run_dir / run_files.SPEC).read_text(encoding="utf-8"))["spec"]
                spec = to_plain(from_plain(RunSpec, plain))  # adds fields introduced after the run
                kind = (spec["framework"], spec["strategy"], spec["model"])
                steps = from_plain(MeasureSpec, spec["measure"]).most_steps
                took = float(result["ended"]) - float(result["started"])
                yield _Earlier(_point(spec), kind, took, min(took, _startup(run_dir)), int(steps))
            except (OSError, ValueError, KeyError, TypeError):
                continue


def _startup(run_dir: Path) -> float:
    """Seconds from the start of rank 0's process to its first step, from the first line of its log."""
    with open(run_files.attempt_dir(run_dir, 1) / run_files.events(0), encoding="utf-8") as log:
        start = json.loads(log.readline())
    return sum(map(float, start.get("startup_seconds", {}).values()))


def _seconds(request: Request, earlier: Iterable[_Earlier]) -> tuple[float, str]:
    limit = 60 * request.resources.timeout_minutes
    alike = [run for run in earlier if run.kind == _kind(request.spec)]
    if not alike:
        return limit, "unknown"
    asked = _point(to_plain(request.spec))
    if same := [run.seconds for run in alike if run.point == asked]:
        return min(median(same), limit), "same"
    # After start-up, proportional to steps and samples per GPU. An upper estimate: probes and evaluation do not grow.
    measure = request.spec.measure
    steps = measure.most_steps
    scaled = [
        run.startup
        + (run.seconds - run.startup)
        * max(1.0, steps / run.steps)
        * max(1.0, request.spec.batch_per_gpu / run.point["batch_per_gpu"])
        for run in alike
    ]
    return min(median(scaled), limit), "alike"


def _kind(spec: RunSpec) -> tuple[str, str, str]:
    return spec.framework, spec.strategy, spec.model


def _point(spec: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in spec.items() if key not in ("seed", "repeat")}


def _folders(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if path.is_dir())
    except OSError:
        return []
