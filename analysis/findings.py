"""All that is said of a study, worked out once: the report, the terminal and the files show parts of the same."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from analysis.comparisons import Comparisons, comparisons_csv, comparisons_of
from analysis.damage_table import damage_csv
from analysis.data_price import data_csv, prices
from analysis.decisions import decisions_csv, decisions_of
from analysis.equal_work import EqualWork, equal_work, equal_work_csv
from analysis.exports.cells import inert_csv
from analysis.failures import failure_costs
from analysis.learning import Learning, learning_csv, learning_of
from analysis.loss_tables import breakdown_csv
from analysis.losses import Losses, losses_of
from analysis.outlook import Outlook, outlook_of
from analysis.points import points_of
from analysis.published import Beside, beside_published
from analysis.read import Study, records
from analysis.resources import resources_csv, resources_of
from analysis.roofline_table import roofline_csv, roofline_of
from analysis.startup_table import startup_csv, startup_of
from analysis.tables import scaling_csv

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Findings:
    """study: as read. points: the table of `analysis.points`; rows: the same as dicts. All else is what the function
    that makes it says."""

    study: Study
    points: pd.DataFrame
    rows: list[dict[str, Any]]
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
        """What larger sizes would give."""
        return outlook_of(self)

    def tables(self) -> dict[str, str]:
        """CSV by the names of their files."""
        tables = {
            "scaling.csv": scaling_csv(self.points),
            "breakdown.csv": breakdown_csv(self.losses),
            "comparisons.csv": comparisons_csv(self.comparisons),
            "decisions.csv": decisions_csv(self.decisions),
            "learning.csv": learning_csv(self.learning),
            "resources.csv": resources_csv(self.resources),
            "equal_work.csv": equal_work_csv(self.work),
        }
        if self.startup:
            tables["startup.csv"] = startup_csv(self.startup)
        if self.study.damage:
            tables["damage.csv"] = damage_csv(self.study.damage)
        if self.roofline:
            tables["roofline.csv"] = roofline_csv(self.roofline)
        return tables | ({"data.csv": data_csv(self.prices)} if self.prices else {})


def csv_of(findings: Findings) -> dict[str, bytes]:
    """The tables by the names of their files; what a spreadsheet would run has an apostrophe before it."""
    return {name: inert_csv(text).encode("utf-8") for name, text in findings.tables().items()}


def findings_of(study: Study, target: float | None = None) -> Findings:
    """target: the accuracy whose cost is asked for; None: that of the study's commands."""
    work = equal_work(study.folder, study.runs)
    points = points_of(study.runs, work.differing)
    rows = records(points)
    learning = learning_of(study.runs, points, study.target_accuracy if target is None else target)
    resources = resources_of(study.runs, points)
    return Findings(
        study=study,
        points=points,
        rows=rows,
        work=work,
        learning=learning,
        losses=losses_of(study.runs, points),
        comparisons=comparisons_of(study.runs, rows),
        resources=resources,
        decisions=decisions_of(study.runs, points, learning, resources),
        prices=prices(study.runs, points),
        failure_costs=failure_costs(study.runs, rows),
        published=beside_published(rows),
        startup=startup_of(study.runs, points),
        roofline=roofline_of(study.runs, points),
    )
