"""Series: the points of one training at several sizes."""

from __future__ import annotations

from study_builder import Logs, StudyBuilder, spec_of

from analysis.measures.speedup import points_of
from analysis.read.study import read_study
from analysis.tables.series import Series, apart_from_alone, series_of


def series_in(study: StudyBuilder) -> list[Series]:
    return series_of(points_of(read_study(study.folder).runs))


def test_sizes_without_a_figure_are_named_with_their_status(study: StudyBuilder) -> None:
    study.completed(1)
    study.add(spec_of(2), Logs(), result={"status": "failed", "reason": "rank 1: out of memory"})
    (series,) = series_in(study)
    assert [point.gpus for point in series.measured] == [1]
    assert series.gaps == "2 GPUs (failed)"


def test_framework_alone_is_a_series_only_where_nothing_is_relative_to_it(study: StudyBuilder) -> None:
    study.completed(1, strategy="plain")
    assert [series.first.strategy for series in apart_from_alone(series_in(study))] == ["plain"]
    study.completed(2)
    study.completed(1, framework="jax", strategy="plain")
    left = apart_from_alone(series_in(study))
    assert [(series.first.framework, series.first.strategy) for series in left] == [
        ("jax", "plain"),
        ("pytorch", "allreduce"),
    ]
