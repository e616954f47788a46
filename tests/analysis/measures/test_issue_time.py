"""Host time to issue the steps: launch-bound points and what the report says about them. Blocks have ten steps in one
second and 128 samples per rank and step."""

from __future__ import annotations

from typing import Any

import pytest
from seen import Seen, words
from study_builder import Logs, StudyBuilder, spec_of
from test_analysis_resources import CPU, resources

STEP = 0.1


def logs(gpus: int, issued: float | list[float | None] | None, cached: float | None = STEP) -> Logs:
    return Logs(issued=issued, cached_batch_seconds=cached, resources=[resources()] * gpus)


def marks(study: StudyBuilder) -> list[str]:
    return [mark for row in Seen(study).csv for mark in row["marks"].split(";")]


@pytest.mark.parametrize(
    ("issued", "bound"),
    [(1.0, True), (0.96, True), (0.94, False), ([0.2, 0.97], True), ([0.97, None], False), (None, False)],
    ids=["equal", "nearly", "not quite", "one rank holds all up", "not known of one rank", "older log"],
)
def test_a_run_is_launch_bound_where_its_host_needs_the_whole_step(
    study: StudyBuilder, issued: Any, bound: bool
) -> None:
    study.add(spec_of(2), logs(2, issued))
    assert ("launch-bound" in marks(study)) == bound
    said = "the scaling shown is the host's"
    assert (said in words(Seen(study).table)) == bound


def test_waiting_for_data_is_not_called_launch_bound(study: StudyBuilder) -> None:
    study.add(spec_of(1), logs(1, 1.0, cached=0.9 * STEP))
    study.add(spec_of(2), logs(2, 1.0, cached=None))
    assert "launch-bound" not in marks(study)


def test_on_a_cpu_there_is_no_launch_to_be_bound_by(study: StudyBuilder) -> None:
    study.add(spec_of(1, cluster=CPU), logs(1, 1.0))
    assert "launch-bound" not in marks(study)
    (row,) = Seen(study).resources
    assert row["issue_share"] == ""


def test_issue_share_is_that_of_the_slowest_rank(study: StudyBuilder) -> None:
    study.add(spec_of(2), logs(2, [0.25, 0.5]))
    (row,) = Seen(study).resources
    assert float(row["issue_share"]) == pytest.approx(0.5)


@pytest.mark.parametrize("damaged", [-0.1, 1.5, "0.5", None])
def test_issue_times_that_cannot_be_are_passed_over(study: StudyBuilder, damaged: Any) -> None:
    run_dir = study.add(spec_of(1), logs(1, 1.0))
    path = run_dir / "attempt-1" / "events.rank0.jsonl"
    text = path.read_text()
    # Blocks take 1.0 s, so this is one step.
    assert '"first_issue_seconds":0.1' in text
    value = {"0.5": '"0.5"', None: "null"}.get(damaged, damaged)
    path.write_text(text.replace('"first_issue_seconds":0.1', f'"first_issue_seconds":{value}'))
    assert "launch-bound" not in marks(study)
    assert "nreadable" not in Seen(study).table
