"""The list of traces in the report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from markupsafe import escape
from seen import Seen, words
from study_builder import StudyBuilder

from analysis.measures.speedup import points_of
from analysis.read.columns.traces import traced
from analysis.read.study import read_study
from harness.core.events import EventWriter


def log_trace(run_dir: Path, rank: int, there: bool = True, **event: Any) -> str:
    """Log a trace like a rank; return the file's path relative to the study's folder."""
    attempt = run_dir / "attempt-1"
    values = {"file": f"trace.rank{rank}.json.gz", "steps": 3, "profiler": "torch.profiler", "reason": None, **event}
    writer = EventWriter(attempt / f"events.rank{rank}.jsonl", rank)
    writer.write("trace", **values)
    writer.close()
    if there:
        (attempt / str(values["file"])).touch()
    return f"runs/{run_dir.name}/attempt-1/{values['file']}"


def test_the_report_lists_what_there_is_and_says_what_is_missing_and_how_to_open_it(study: StudyBuilder) -> None:
    run_dir = study.completed(3, trace="chrome")
    whole = log_trace(run_dir, 0)
    poor = log_trace(run_dir, 1, profiler=None, reason="the profiler of pytorch could not start: <busy>")
    gone = log_trace(run_dir, 2, there=False)
    [run] = read_study(study.folder).runs
    found = traced(run)
    assert found is not None
    assert found.paths == (whole, poor)
    assert found.how == "torch.profiler, 3 steps, the harness's own ranges alone, 3 steps"
    assert found.missing == (
        "rank 1: the profiler of pytorch could not start: <busy>",
        "rank 2: its file is not there",
    )
    page = words(Seen(study).html)
    for text in (whole, poor, "ui.perfetto.dev", "chrome://tracing", *map(escape, found.missing)):
        assert text in page
    assert gone not in page
    assert run["status"] == "completed"


def test_chrome_trace_keeps_the_point_and_nsys_changes_it(study: StudyBuilder) -> None:
    study.completed(1, trace="none", seed=0)
    study.completed(1, trace="chrome", trace_steps=7, seed=1)
    profiled = study.completed(1, trace="nsys", seed=2)
    log_trace(profiled, 0, file="trace.rank0.nsys-rep", profiler="nsys", steps=None)
    points = points_of(read_study(study.folder).runs)
    by_runs = {point.runs_all: point.marks for point in points}
    assert sorted(by_runs) == [1, 2]
    assert "profiled" in by_runs[1]
    assert "profiled" not in by_runs[2]
    runs = {run["seed"]: run for run in read_study(study.folder).runs}
    of = {seed: traced(run) for seed, run in runs.items()}
    assert of[0] is None, "nobody asked for any"
    assert of[1] is not None
    assert of[1].missing == ("none: the run did not come so far",)
    assert of[2] is not None
    assert of[2].paths == (f"runs/{profiled.name}/attempt-1/trace.rank0.nsys-rep",)
    assert of[2].how == "nsys, the whole attempt"


def test_an_event_whose_values_make_no_sense_is_counted_and_left_out(study: StudyBuilder) -> None:
    run_dir = study.completed(1, trace="chrome")
    log_trace(run_dir, 0, file=["../../etc/passwd"], there=False)
    [run] = read_study(study.folder).runs
    assert run["unreadable_lines"] == 1
    # A file name cannot point outside the attempt's folder.
    other = study.completed(1, trace="chrome", seed=1)
    log_trace(other, 0, file="../../spec.json", there=False)
    found = traced(next(run for run in read_study(study.folder).runs if run["seed"] == 1))
    assert found is not None
    assert found.paths == ()
    assert found.missing == ("rank 0: its file is not there",)
