"""All findings of a study, computed once; report, terminal and files show parts of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from analysis.measures.comparisons import Comparisons, comparisons_of
from analysis.measures.data_price import prices
from analysis.measures.decisions import decisions_of
from analysis.measures.equal_work import EqualWork, equal_work
from analysis.measures.learning import Learning, learning_of
from analysis.measures.losses import Losses, losses_of
from analysis.measures.resources import resources_of
from analysis.measures.speedup import points_of
from analysis.read.study import Study
from analysis.report.best import named_series
from analysis.report.failures import failure_costs
from analysis.report.published import Beside, beside_published
from analysis.report.roofline import roofline_of
from analysis.report.series_choice import Choice, chosen
from analysis.report.startup import startup_of
from analysis.scaling.report_forecast import Outlook, outlook_of
from analysis.tables.point import Point
from analysis.tables.series import series_in_order


@dataclass(frozen=True, eq=False)  # what is made of them is kept by identity
class Findings:
    """study: as read. points: those of `analysis.measures.speedup`. The other fields are documented at the functions
    that compute them."""

    study: Study
    points: list[Point]
    work: EqualWork
    learning: Learning
    losses: Losses
    comparisons: Comparisons
    resources: list[dict[str, Any]]
    decisions: list[dict[str, Any]]
    prices: list[dict[str, Any]]
    failure_costs: list[str]
    published: list[Beside]
    startup: list[dict[str, Any]]
    roofline: list[dict[str, Any]]

    @cached_property
    def outlook(self) -> list[Outlook]:
        """Forecast for larger sizes, of the series with a colour of their own in the charts."""
        return outlook_of(self.points, named_series(series_in_order(self.points)))


def findings_of(study: Study, target: float | None = None, choice: Choice | None = None) -> Findings:
    """Compute the findings.

    Args:
        study: as read.
        target: accuracy whose cost is requested; None: that of the study's commands.
        choice: which series are shown, and how; None: all, as usual.

    Raises:
        StudyError: a choice names no series, or several with one label.
    """
    work = equal_work(study.folder, study.runs)
    points = points_of(study.runs, work.differing)
    if choice is not None:
        study, points = _chosen(study, points, choice)
    learning = learning_of(points, study.target_accuracy if target is None else target)
    resources = resources_of(points)
    return Findings(
        study=study,
        points=points,
        work=work,
        learning=learning,
        losses=losses_of(points),
        comparisons=comparisons_of(points),
        resources=resources,
        decisions=decisions_of(points, learning, resources),
        prices=prices(points),
        failure_costs=failure_costs(points),
        published=beside_published(points),
        startup=startup_of(points),
        roofline=roofline_of(points),
    )


def _chosen(study: Study, points: list[Point], choice: Choice) -> tuple[Study, list[Point]]:
    """Return the study with the runs of the chosen series, and their points."""
    kept = chosen(points, choice)
    series, every = {point.series for point in kept}, {point.series for point in points}
    if len(series) == len(every):
        return study, kept
    said = f"{len(series)} of {len(every)} series are shown, as --series asks"
    runs = tuple(run for run in study.runs if run.series is None or run.series in series)
    return replace(study, runs=runs, problems=(*study.problems, said)), kept
