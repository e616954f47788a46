"""One list of columns for a table wherever it is shown."""

from __future__ import annotations

import re
from collections.abc import Mapping
from html import unescape

import pytest
from seen import Seen
from study_builder import Logs, StudyBuilder, spec_of

from analysis.base.column import Column
from analysis.measures import decisions, equal_work
from analysis.report import losses
from analysis.report.frame import stacked
from analysis.report.losses import breakdown_row
from analysis.tables.columns import POINT, WHAT

STEP = [0.1] * 8  # seconds on either rank, in eight rounds


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    study = StudyBuilder(tmp_path_factory.mktemp("results") / "scaling")
    kinds = ("full", "cached_batch", "no_sync", "allreduce")
    study.add(spec_of(1), Logs(rounds={kind: [[seconds] for seconds in STEP] for kind in kinds}))
    study.verified(2)
    study.verified(2, framework="jax")
    return Seen(study)


@pytest.mark.parametrize(
    ("name", "columns"),
    [
        ("breakdown", losses.COLUMNS),
        ("efficiencies", losses.COLUMNS),
        ("cost", decisions.COLUMNS),
        ("steadiness", POINT),
        ("work", equal_work.COLUMNS),
    ],
)
def test_headings_of_the_page_are_those_of_the_columns(seen: Seen, name: str, columns: Mapping[str, Column]) -> None:
    head = seen.html.split(f'<table id="table-{name}"')[1].split("</thead>")[0]
    headings = re.findall(r'<th scope="col"[^>]*>([^<]+?) ?<', head)
    above = re.search(rf'<p class="note same">([^\n]*)</p>\n<div [^>]*><table id="table-{name}"', seen.html)
    same, _, empty = re.sub("<[^>]*>", "", above[1] if above else "").partition("Without a value: ")
    headings += re.findall(r"(?:In every row: |; )([^:;]+): ", same) + [text for text in empty[:-1].split("; ") if text]
    assert len(headings) > 4
    known = {column.heading for column in (*columns.values(), *POINT.values(), WHAT)}
    assert {unescape(heading) for heading in headings} <= known


def test_terminal_has_the_short_headings_where_there_is_little_room() -> None:
    columns = POINT["global_batch"], POINT["batch_per_gpu"]
    assert stacked(*columns) == "batch\nper GPU"
    assert stacked(*columns, wide=True) == "global batch\nper GPU"


def test_every_figure_of_the_breakdown_has_a_column(seen: Seen) -> None:
    for loss in seen.findings.losses.points:
        assert breakdown_row(loss).keys() - {"point"} <= losses.COLUMNS.keys()


def test_counts_stay_whole_where_a_point_lacks_them(seen: Seen) -> None:
    assert [row["probe_rounds"] for row in seen.breakdown] == ["", "8", ""]
