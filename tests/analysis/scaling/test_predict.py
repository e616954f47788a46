"""`python -m analysis predict`: predictions for unmeasured sizes, and refusals."""

from __future__ import annotations

import json

import pytest
from study_builder import Logs, StudyBuilder, spec_of

from analysis.base.errors import StudyError
from analysis.base.text import percent
from analysis.measures.speedup import points_of
from analysis.read.study import read_study
from analysis.scaling.budget import best_plan, costs, plan_sentence, sizes_to_consider
from analysis.scaling.prediction import SeriesPrediction, efficiency_of, predict_series
from analysis.scaling.request import Limits, Request, request_of
from analysis.scaling.series import Size
from analysis.scaling.study_series import StudySeries, study_series
from analysis.stats.intervals import Interval
from harness.core.spec import STRONG, Placement

OVERSUBSCRIBED = {"oversubscribed": "2 ranks share 1 core"}


def sources_of(study: StudyBuilder) -> list[StudySeries]:
    read = read_study(study.folder)
    return study_series(points_of(read.runs))


def predicted(study: StudyBuilder, *gpus: int, per_node: int | None = None, bandwidth: float | None = None):
    (source,) = sources_of(study)
    return predict_series(source, gpus, per_node, bandwidth)


def at(prediction: SeriesPrediction, gpus: int):
    return next(one for one in prediction.predicted if one.size.gpus == gpus)


@pytest.fixture
def measured(study: StudyBuilder) -> StudyBuilder:
    """Add runs with blocks of 1 s on one GPU, and 2 % longer with every doubling, up to two nodes of 4."""
    for doublings, gpus in enumerate((1, 2, 4, 8)):
        study.completed(gpus, 1 + 0.02 * doublings, placement=Placement(max(1, gpus // 4), min(gpus, 4)))
    return study


def test_prediction_is_between_linear_and_no_scaling_and_shows_baselines(measured: StudyBuilder) -> None:
    found = predicted(measured, 16)
    one = at(found, 16)
    assert one.size == Size(16, 4)
    assert one.linear == pytest.approx(16 * 1280)
    assert one.flat == pytest.approx(16 * 1280 / 1.06)
    assert one.rate is not None
    assert (
        one.rate.central90.low
        < one.rate.central50.low
        < one.rate.median
        < one.rate.central50.high
        < one.rate.central90.high
    )
    assert one.rate.median == pytest.approx(16 * 1280 / 1.08, rel=0.03)
    assert at(found, 8).measured == pytest.approx(8 * 1280 / 1.06)
    assert found.own_test is not None
    assert found.own_test.size == Size(8, 2)
    assert "pooled law" in found.why
    assert {law.name for law in found.laws} >= {"amdahl", "gustafson", "usl", "ring", "tree", "communication"}


def test_efficiency_is_relative_to_what_was_measured(measured: StudyBuilder) -> None:
    found = predicted(measured, 16)
    assert efficiency_of(found, at(found, 1)) == Interval(1.0)
    one = at(found, 16)
    efficiency = efficiency_of(found, one)
    assert one.rate is not None
    assert efficiency is not None
    assert efficiency.estimate == pytest.approx(one.rate.median / (16 * 1280))
    assert efficiency.high == pytest.approx(one.rate.central90.high / (16 * 1280))


def test_far_sizes_are_marked_and_very_far_ones_refused(measured: StudyBuilder) -> None:
    found = predicted(measured, 64, 128, 1024)
    assert at(found, 64).caveats == ()
    assert at(found, 128).caveats == ("16 times the largest measured size",)
    assert at(found, 1024).rate is None
    assert at(found, 1024).caveats[0].startswith("refused: 128 times")
    assert at(predicted(measured, 10), 10).caveats == ("refused: 10 GPUs cannot be placed evenly on 3 nodes",)


def test_links_that_were_not_measured_widen_the_interval_and_are_said(study: StudyBuilder) -> None:
    for gpus in (1, 2, 4):
        study.completed(gpus)
    inside, between = predicted(study, 8, per_node=8), predicted(study, 8)
    assert at(inside, 8).caveats == ()
    assert at(between, 8).caveats == ("links between nodes were not measured: from usual losses alone",)
    assert "nodes are taken to have 4 GPUs" in between.basis[0]
    narrow, wide = at(inside, 8).rate, at(between, 8).rate
    assert narrow is not None
    assert wide is not None
    assert wide.central90.high / wide.central90.low > narrow.central90.high / narrow.central90.low
    # A link so slow that an allreduce takes as long as a step: 2.6 MB in 0.1 s.
    slow = at(predicted(study, 8, bandwidth=2.6e7), 8)
    assert slow.rate is not None
    assert slow.rate.median < 0.8 * wide.median


def test_one_size_allows_no_conclusion(study: StudyBuilder) -> None:
    study.completed(4)
    found = predicted(study, 8)
    assert found.predicted == ()
    assert found.why_not == "measured on 4 GPUs only: how it scales cannot be concluded; measure a second size"


def test_failed_points_are_listed(study: StudyBuilder) -> None:
    study.completed(1)
    study.completed(2)
    study.add(spec_of(4), result={"status": "failed", "reason": "NCCL"})
    (source,) = sources_of(study)
    assert source.series.remarks == ("no figure for 4 GPUs (failed)",)
    assert [size.gpus for size in source.series.sizes] == [1, 2]


def test_no_one_gpu_run_takes_that_of_the_framework_alone(study: StudyBuilder) -> None:
    study.completed(1, 1.0, strategy="plain")
    study.completed(2, 1.1)
    (source,) = sources_of(study)
    assert [size.gpus for size in source.series.sizes] == [1, 2]
    assert source.series.remarks == ("1 GPU is the framework alone",)


def test_strong_scaling_is_predicted_as_such(study: StudyBuilder) -> None:
    """A step on one GPU takes 0.1 s, of which 5 ms do not shrink: Amdahl's law with a serial fraction of 5 %."""
    for gpus in (1, 2, 4):
        seconds = 10 * (0.095 / gpus + 0.005)
        spec = spec_of(gpus, scaling=STRONG, global_batch=128, batch_per_gpu=128 // gpus)
        study.add(spec, Logs(block_seconds=[seconds] * 4))
    one = at(predicted(study, 8, per_node=8), 8)
    assert one.rate is not None
    assert one.rate.central90.low < 128 / (0.095 / 8 + 0.005) < one.rate.central90.high


def test_repeated_runs_say_how_far_they_differ(study: StudyBuilder) -> None:
    for gpus in (1, 2):
        for repeat, seconds in enumerate((1.0, 1.1)):
            study.completed(gpus, seconds, repeat=repeat)
    (source,) = sources_of(study)
    assert source.series.noise == pytest.approx(0.0674, abs=1e-3)  # log(1.1) / sqrt(2)


def test_budget_takes_the_fastest_size_that_surely_fits(measured: StudyBuilder) -> None:
    found = costs(predicted(measured, 16), samples=3600 * 1280.0)
    by_gpus = {cost.predicted.size.gpus: cost for cost in found}
    assert by_gpus[1].hours == pytest.approx(1, rel=0.02)
    assert by_gpus[8].gpu_hours == pytest.approx(1.06, rel=0.02)
    assert by_gpus[8].node_hours.estimate == pytest.approx(by_gpus[8].gpu_hours / 4)
    assert best_plan(found, Limits(100.0)) is by_gpus[16]
    assert best_plan(found, Limits(by_gpus[8].gpu_hours_high)) is by_gpus[8]
    assert best_plan(found, Limits(0.5)) is None
    assert plan_sentence(found, Limits(0.5), "cuda").startswith(
        "No size is sure to stay within 0.500 GPU-h: the cheapest"
    )


def test_budget_takes_no_size_that_may_be_less_efficient_than_asked(measured: StudyBuilder) -> None:
    found = costs(predicted(measured, 16), samples=3600 * 1280.0)
    sixteen = next(cost for cost in found if cost.predicted.size.gpus == 16)
    assert sixteen.efficiency.low is not None
    assert best_plan(found, Limits(100.0, sixteen.efficiency.low)) is sixteen
    stricter = Limits(100.0, sixteen.efficiency.estimate)
    smaller = best_plan(found, stricter)
    assert smaller is not None
    assert smaller.predicted.size.gpus == 8
    said = plan_sentence(found, stricter, "cuda")
    assert said.startswith(f"Within 100 GPU-h at {percent(stricter.efficiency)} efficiency or more: 8 GPUs")
    assert "16 GPUs would take" in said


def test_without_gpus_a_budget_considers_sizes_up_to_8_times_the_largest(measured: StudyBuilder, analyse) -> None:
    (source,) = sources_of(measured)
    largest = source.series.largest.gpus
    sizes = sizes_to_consider(source, 4)
    assert sizes[-1] == 8 * largest
    assert all(size < 4 or size % 4 == 0 for size in sizes)
    done = analyse("predict", measured.folder, "samples=1e7", "budget_gpu_hours=50", "efficiency=0.5", "--json")
    (series,) = json.loads(done.stdout)["series"]
    by_gpus = {one["gpus"]: one for one in series["predictions"]}
    assert max(by_gpus) == 8 * largest
    chosen = by_gpus[series["best_plan_gpus"]]
    assert chosen["gpu_hours"] < 50
    assert chosen["efficiency"]["median"] > 0.5


def test_command_carries_marks_into_every_prediction(study: StudyBuilder, analyse) -> None:
    for gpus in (1, 2, 4):
        study.add(spec_of(gpus), Logs(), site=OVERSUBSCRIBED)
    done = analyse("predict", study.folder, "gpus=8", "epochs=1", "budget_gpu_hours=10")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("oversubscribed") >= 5  # of 4 sizes, and the plan
    found = json.loads(analyse("predict", study.folder, "gpus=8", "epochs=2", "budget_gpu_hours=10", "--json").stdout)
    (series,) = found["series"]
    assert series["samples"] == 100_000
    assert [one["gpus"] for one in series["predictions"]] == [1, 2, 4, 8]
    assert all("oversubscribed" in one["marks"] for one in series["predictions"])
    assert "single run" in series["marks"]
    assert "oversubscribed" in series["plan"]


def test_command_refuses_in_one_sentence(study: StudyBuilder, analyse) -> None:
    study.completed(1)
    done = analyse("predict", study.folder, "gpus=8", "cluster=elsewhere")
    assert (done.returncode, done.stdout) == (2, "")
    assert "cluster=elsewhere: this study measured nothing there, only on atlas" in done.stderr
    assert done.stderr.count("\n") == 1


def test_settings_are_read() -> None:
    found = request_of(["gpus=16,32,16", "cluster=atlas", "samples=1e6", "budget_gpu_hours=5", "gpus_per_node=4"])
    assert found == Request((16, 32), "atlas", 4, None, 1e6, None, Limits(5.0))
    assert request_of(["epochs=2", "budget_gpu_hours=5", "efficiency=0.7"]).limits == Limits(5.0, 0.7)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["gpus=0"], "gpus=0: give whole numbers"),
        (["gpus=8,x"], "gpus=x: give whole numbers"),
        (["gpus="], "gpus=: give whole numbers"),
        (["cluster=a"], "no number of GPUs is given to predict"),
        (["gpus=8", "gpus=16"], "given twice"),
        (["gpus=8", "nodes=2"], "'nodes=2' is no setting; there are gpus=, cluster="),
        (["gpus=8", "epochs=-1"], "epochs=-1: give a number above 0"),
        (["gpus=8", "samples=nan"], "samples=nan: give a number above 0"),
        (["gpus=8", "samples=5", "epochs=1"], "give one of them"),
        (["gpus=8", "budget_gpu_hours=5"], "give samples= or epochs="),
        (["gpus=8", "efficiency=0.7"], "add budget_gpu_hours="),
        (["epochs=1", "budget_gpu_hours=5", "efficiency=70"], "efficiency=70: give a share of ideal scaling up to 1"),
    ],
)
def test_settings_that_say_nothing_are_refused(settings: list[str], said: str) -> None:
    with pytest.raises(StudyError, match=said.replace("(", r"\(")):
        request_of(settings)
