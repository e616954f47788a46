"""framework=emulated in a report: always marked, and never compared with real frameworks."""

from __future__ import annotations

import dataclasses

from seen import Seen, words
from study_builder import DATASET, Logs, StudyBuilder, spec_of

from analysis.measures.comparisons import comparisons_of
from analysis.measures.speedup import points_of
from analysis.read.study import read_study
from analysis.report.published import beside_published


def test_it_is_marked_in_table_report_and_csv(study: StudyBuilder) -> None:
    for gpus, seconds in ((1, 1.0), (2, 1.1)):
        study.add(spec_of(gpus, framework="emulated"), Logs(block_seconds=[seconds] * 4))
        study.add(spec_of(gpus), Logs(block_seconds=[seconds] * 4))
    seen = Seen(study)
    marks = {(row["framework"], row["gpus"]): row["marks"] for row in seen.csv}
    assert all(("emulated" in (marks or "")) == (framework == "emulated") for (framework, _), marks in marks.items())
    assert "emulated: its costs were set, not found" in words(seen.table)
    for text in (seen.table, seen.html):
        assert "Emulated: its costs were set, and nothing was computed" in words(text)
    assert seen.html.count('<span class="mark warn">emulated</span>') == 7  # headline, points, costs, POP
    assert "emulated" in seen.svg


def test_emulated_runs_are_not_compared_with_real_ones(study: StudyBuilder) -> None:
    for repeat in (0, 1, 2):
        for framework, strategy in (("emulated", "allreduce"), ("emulated", "mpi"), ("pytorch", "allreduce")):
            spec = spec_of(2, framework=framework, strategy=strategy, repeat=repeat)
            # Other parameters and gradients, which would be a difference between real frameworks.
            own = {"parameters": 10, "gradients": (1.0, 1.0)} if framework == "emulated" else {}
            study.add(spec, Logs(block_seconds=[1.0 + repeat / 100] * 4, **own))
    seen, read = Seen(study), read_study(study.folder)
    work = {(row["framework"], row["strategy"]): row for row in seen.work}
    assert ("pytorch", "allreduce") not in work  # there is nothing to compare it with
    assert work["emulated", "mpi"]["reference_framework"] == "emulated"
    assert not any("work differs" in row["marks"] for row in seen.csv)
    compared = comparisons_of(points_of(read.runs)).rows
    assert [{row["faster"].split()[0], row["slower"].split()[0]} for row in compared] == [{"Emulated"}]


def test_no_published_figure_stands_beside_it(study: StudyBuilder) -> None:
    """Nurnoby et al. do not name their framework (analysis/report/published.json), so any real one is compared."""
    indoor = dataclasses.replace(DATASET, name="indoor67")
    for framework in ("pytorch", "emulated"):
        for gpus, seconds in ((1, 1.0), (2, 1.25)):
            study.add(spec_of(gpus, framework=framework, dataset=indoor), Logs(block_seconds=[seconds] * 4))
    [beside] = beside_published(points_of(read_study(study.folder).runs))
    assert "PyTorch DDP" in beside.own
