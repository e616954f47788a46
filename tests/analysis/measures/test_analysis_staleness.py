"""Updates applied by parameter servers: figures, and runs invalidated by contradicting counts."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from project import PROJECT
from seen import Seen, words
from study_builder import Logs, StudyBuilder, spec_of

from analysis.measures.speedup import points_of
from analysis.read.log.packed import unpacked
from analysis.read.study import read_study

STEPS, GPUS = 50, 2  # of the builder: 10 steps of warm-up, 40 measured; batches of 128
SAMPLES = STEPS * GPUS * 128


def applied(**changes: Any) -> dict[str, Any]:
    return {"updates": STEPS * GPUS, "mean": 1.25, "max": 4, "samples": SAMPLES, "lead": 2, **changes}


def only_run(study: StudyBuilder) -> dict[str, Any]:
    (row,) = read_study(study.folder).runs
    return row


def test_the_staleness_of_a_point_is_the_mean_of_its_runs_and_the_largest(study: StudyBuilder) -> None:
    for seed, mean, largest in ((1, 1.0, 4), (2, 2.0, 9)):
        study.add(spec_of(GPUS, strategy="ps_async", seed=seed), Logs(staleness=applied(mean=mean, max=largest)))
    study.add(spec_of(GPUS))
    of = {point.strategy: point for point in points_of(read_study(study.folder).runs)}
    assert (of["ps_async"].staleness_mean, of["ps_async"].staleness_max) == (1.5, 9)
    assert (of["allreduce"].staleness_mean, of["allreduce"].staleness_max) == (None, None)


def test_the_staleness_is_in_the_report_and_in_the_table_of_figures(study: StudyBuilder) -> None:
    study.add(spec_of(GPUS, strategy="ps_async"), Logs(staleness=applied()))
    seen = Seen(study)
    assert (seen.csv[0]["staleness_mean"], seen.csv[0]["staleness_max"]) == ("1.25", "4")
    assert "Mean staleness" in words(seen.html)


def test_a_report_without_parameter_servers_says_nothing_of_staleness(study: StudyBuilder) -> None:
    study.add(spec_of(GPUS), Logs())
    assert "taleness" not in Seen(study).html


@pytest.mark.parametrize(
    ("strategy", "options", "said", "reason"),
    [
        (
            "ps_async",
            {},
            applied(samples=SAMPLES - 128),
            "updates hold 12,672 training samples, the ranks' steps say 12,",
        ),
        ("ssp", {"staleness": 1}, applied(), "a rank was 2 steps ahead of the slowest, the spec allows 1"),
        ("ps_sync", {}, applied(), "a synchronous update came 4 updates late"),
    ],
)
def test_updates_that_are_not_what_was_asked_for_make_a_run_invalid(
    study: StudyBuilder, strategy: str, options: dict[str, Any], said: dict[str, Any], reason: str
) -> None:
    study.add(spec_of(GPUS, strategy=strategy, strategy_options=options), Logs(staleness=said))
    assert only_run(study)["status"] == "invalid"
    assert reason in only_run(study)["reason"]


def test_a_bound_that_was_kept_is_a_result(study: StudyBuilder) -> None:
    study.add(spec_of(GPUS, strategy="ssp", strategy_options={"staleness": 2}), Logs(staleness=applied()))
    assert (only_run(study)["status"], only_run(study)["notes"]) == ("completed", None)


def test_returned_server_is_noted_and_its_lost_updates_are_in_no_throughput(study: StudyBuilder) -> None:
    back = {"step": 20, "server": 1, "seconds": 2.04, "lost_updates": 3, "lost_samples": 3 * 128}
    said = applied(returns=1, lost_updates=3, lost_samples=3 * 128)
    study.add(spec_of(GPUS, strategy="ps_async"), Logs(staleness=said, returns=[back]))
    run = only_run(study)
    assert run["status"] == "completed"
    assert "parameter server 1 ended in the block from step 20 and came back after 2.0 s" in run["notes"]
    assert "3 updates (384 samples) did not reach its weights" in run["notes"]
    assert run["samples"] == 40 * GPUS * 128 - 384
    assert unpacked(run["blocks"]).samples == [2560, 2560 - 384, 2560, 2560]
    schema = json.loads((PROJECT / "harness" / "schemas" / "events.schema.json").read_text())
    for ev, values in (("server_back", back), ("staleness", said)):
        jsonschema.validate({"v": 1, "t": 0.5, "rank": 0, "ev": ev, **values}, schema)


def test_silent_servers_are_reported(study: StudyBuilder) -> None:
    study.add(spec_of(GPUS, strategy="ps_async"), Logs())
    assert only_run(study)["status"] == "completed"
    assert "staleness and samples were not checked" in only_run(study)["notes"]


@pytest.mark.parametrize("name", ["updates", "mean", "max", "samples"])
def test_an_event_that_makes_no_sense_is_counted_as_unreadable(study: StudyBuilder, name: str) -> None:
    study.add(spec_of(GPUS, strategy="ps_async"), Logs(staleness=applied(**{name: -1})))
    assert only_run(study)["unreadable_lines"] == 1
    assert only_run(study)["staleness_mean"] is None


def test_the_event_is_in_the_schema() -> None:
    schema = json.loads((PROJECT / "harness" / "schemas" / "events.schema.json").read_text())
    jsonschema.validate({"v": 1, "t": 0.5, "rank": 0, "ev": "staleness", **applied()}, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"v": 1, "t": 0.5, "rank": 0, "ev": "staleness", **applied(mean=None)}, schema)
