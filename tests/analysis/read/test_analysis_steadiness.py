"""Drift, outliers and throttling: what is flagged and what is not; nothing is removed."""

from __future__ import annotations

import json

import numpy as np
import pytest
import scipy  # loads scipy.stats on first use
from seen import Seen, Tags, words
from study_builder import CREATED, Logs, StudyBuilder, spec_of

from analysis.measures.speedup import points_of
from analysis.read.row import Run
from analysis.read.study import read_study
from analysis.report.charts.steadiness import MOST_RUNS
from analysis.report.print.figures import figure_specs
from analysis.stats.estimates import of_runs
from analysis.stats.stability import outliers, trend
from analysis.tables.point import Point
from analysis.tables.warnings import point_notes, steadiness_marks

# Steady to 1 %, without a trend.
STEADY = [1.0, 1.008, 0.995, 1.003, 0.99, 1.006, 0.997, 1.001, 0.993, 1.004]
CALM = {"drift": None, "drift_probability": None, "blocks_error": 0.002, "started": None}


def points(study: StudyBuilder) -> list[Point]:
    return points_of(read_study(study.folder).runs)


def test_trend_is_mann_kendalls_and_theil_and_sens() -> None:
    values = [1.0, 1.06, 1.03, 1.09, 1.06, 1.12, 1.08, 1.15, 1.11, 1.17, 1.14, 1.2]
    times = [float(10 * i) for i in range(len(values))]
    found = trend(times, values)
    assert found is not None
    slope = scipy.stats.theilslopes(values, times)[0]
    assert found.change == pytest.approx(slope * 110 / float(np.median(values)))
    tau = scipy.stats.kendalltau(times, values, method="asymptotic")
    # SciPy has no continuity correction: for the score S = tau n (n - 1) / 2 it uses S, not S - 1.
    score = tau.statistic * 66
    z = scipy.stats.norm.isf(tau.pvalue / 2) * (score - 1) / score
    assert found.p_value == pytest.approx(2 * scipy.stats.norm.sf(z), rel=0.03)  # two values are tied: tau-b
    assert found.is_drift


def test_trend_of_too_few_or_equal_values_is_none() -> None:
    assert trend([0.0, 1.0, 2.0, 3.0, 4.0], [1.0, 2.0, 3.0, 4.0, 5.0]) is None
    equal = trend([float(i) for i in range(8)], [1.0] * 8)
    assert equal is not None
    assert not equal.is_drift
    assert trend([float(i) for i in range(8)], [0.0] * 8) is None


# Measured with 1,500 runs of 20 blocks: falsely flagged are 0.3 to 0.4 % of independent ones, 2 to 3 % if neighbours
# correlate by 0.3, 9 to 13 % by 0.6; correctly flagged are 79 % if step time rises by 3 % and blocks vary by 1 %.
@pytest.mark.parametrize(
    ("correlation", "rise", "least", "most"), [(0, 0, 0, 0.015), (0.3, 0, 0, 0.05), (0, 0.03, 0.7, 1)]
)
def test_how_often_drift_is_flagged(correlation: float, rise: float, least: float, most: float) -> None:
    rng = np.random.default_rng(1)
    times = [float(i) for i in range(20)]
    flagged = 0
    for _ in range(600):
        noise = rng.normal(size=40)
        for i in range(1, 40):
            noise[i] = correlation * noise[i - 1] + np.sqrt(1 - correlation**2) * noise[i]
        blocks = 1 + 0.01 * noise[20:] + rise * np.arange(20) / 19
        found = trend(times, blocks.tolist())
        flagged += found is not None and found.is_drift
    assert least <= flagged / 600 <= most


def test_a_step_and_a_curve_of_the_step_time_are_drift() -> None:
    rng = np.random.default_rng(2)
    times = [float(i) for i in range(20)]
    step = 1 + 0.1 * (np.arange(20) >= 10) + 0.01 * rng.normal(size=20)
    curve = 1 + 0.1 * (1 - np.exp(-np.arange(20) / 5)) + 0.01 * rng.normal(size=20)
    for values in (step, curve):
        found = trend(times, values.tolist())
        assert found is not None
        assert found.is_drift


def test_tukeys_fences() -> None:
    # 0, 1, ..., 8: quartiles 2 and 6, fences at -4 and 12.
    assert outliers([0, 1, 2, 3, 4, 5, 6, 7, 8]) == []
    assert outliers([0, 1, 2, 3, 4, 5, 6, 7, 12.1]) == [8]
    assert outliers([1.0, 1.0, 9.0]) == []


def test_fallbacks_are_marked_beside_the_figure(study: StudyBuilder) -> None:
    study.add(spec_of(1), Logs(block_seconds=STEADY))
    study.add(spec_of(2), Logs(block_seconds=STEADY, fallbacks=["precision=bf16 was \x1b[2Jemulated <b>"]))
    whole, fell_back = points(study)
    assert whole.marks == ("single run",)
    assert fell_back.marks == ("single run", "fell back")
    # Reported once, although both ranks logged it, and made harmless.
    assert fell_back.notes == "precision=bf16 was \ufffd[2Jemulated <b>"
    seen = Seen(study)
    assert "emulated <b>" in words(seen.table)
    assert "emulated &lt;b&gt;" in seen.html
    assert "emulated <b>" not in seen.html


def test_a_run_that_becomes_slower_is_marked_and_says_so(study: StudyBuilder) -> None:
    study.add(spec_of(1), Logs(block_seconds=[1.0 + 0.01 * i for i in range(12)]))
    study.add(spec_of(2), Logs(block_seconds=STEADY))
    slow, steady = points(study)
    assert slow.marks == ("single run", "drift")
    assert steady.marks == ("single run",)
    assert slow.notes == "the step time drifted within 1 of 1 runs"
    (run,) = (run for run in read_study(study.folder).runs if run["gpus"] == 1)
    # 0.11 s from the first to the last block, relative to a median of 1.055 s.
    assert run["notes"].startswith("drift: the step time rose by 10.4 % (Mann-Kendall, p < 0.001)")
    seen = Seen(study)
    assert "the step time drifted within 1 of 1 runs" in words(seen.table)
    assert "drift: the step time rose by 10.4 %" in words(Tags(seen.html).text)


def test_repeats_that_become_slower_one_after_another_are_marked(study: StudyBuilder) -> None:
    for repeat in range(6):
        logs = Logs(block_seconds=[seconds * (1 + 0.02 * repeat) for seconds in STEADY])
        study.add(spec_of(1, repeat=repeat), logs, result={"started": CREATED + 100 * repeat})
    (point,) = points(study)
    assert point.marks == ("drift",)
    assert "drift between runs: the step time rose by 9.5 %" in point.notes  # 0.1 relative to a median of 1.05


def test_runs_that_differ_more_than_their_blocks_let_expect_say_so(study: StudyBuilder) -> None:
    for repeat, factor in enumerate((1.0, 1.3, 0.9)):
        study.add(spec_of(1, repeat=repeat), Logs(block_seconds=[factor * seconds for seconds in STEADY]))
    (point,) = points(study)
    # 1, 1.3, 0.9: standard deviation 0.208, mean 1.067.
    assert "the runs differ by 19.5 % (standard deviation)" in point.notes
    assert "a single run looks surer than it is" in point.notes
    assert point.marks == ()


def test_throttling_that_a_run_recorded_is_a_mark_and_a_note() -> None:
    device = {"throttled": 0.25, "throttle": ["sw_thermal_slowdown"]}
    hot = Run.of({**CALM, "resources": json.dumps({"device": device})})
    cold = Run.of({**CALM, "resources": json.dumps({"device": None})})
    assert steadiness_marks([hot, cold]) == ["throttled"]
    assert steadiness_marks([cold, Run.of(CALM)]) == []
    notes = point_notes([hot, cold], of_runs([1.0, 1.001]))
    assert notes == ["GPUs lowered their clocks (sw_thermal_slowdown) in up to 25 % of a run's samples"]


def test_outliers_are_counted_shown_and_not_removed(study: StudyBuilder) -> None:
    study.add(spec_of(1), Logs(block_seconds=[*STEADY, 3.0]))
    (point,) = points(study)
    assert (point.blocks, point.outlier_blocks) == (11, 1)
    assert point.samples_per_second == pytest.approx(1280 * 11 / (sum(STEADY) + 3.0))
    seen = Seen(study)
    assert (seen.csv[0]["blocks"], seen.csv[0]["outlier_blocks"]) == ("11", "1")
    assert '"Outside the fences">1</td>' in seen.html
    assert "How steady it was" in seen.html


def test_every_block_is_drawn(study: StudyBuilder) -> None:
    study.add(spec_of(1), Logs(block_seconds=STEADY))
    study.add(spec_of(1, repeat=1), Logs(block_seconds=[*STEADY[1:], 100.0]))  # beyond the axis, drawn at its edge
    study.add(spec_of(2, strategy="$horovod$ <b>"), Logs(block_seconds=STEADY[:4]))
    seen = Seen(study)
    blocks = figure_specs(seen.findings)["block_times"]["datasets"]["blocks"]
    assert len(blocks) == 2 * len(STEADY) + 4
    assert max(row["seconds"] for row in blocks) == pytest.approx(10.0)
    assert "runs are drawn" not in seen.words_of("block_times")
    assert "$horovod$ <b>" in seen.words_of("block_times")


def test_least_steady_of_many_runs_are_drawn(study: StudyBuilder) -> None:
    for batch in range(1, MOST_RUNS + 5):
        study.add(spec_of(1, batch_per_gpu=batch), Logs(block_seconds=STEADY[:4]))
    study.add(spec_of(1, model="drifting"), Logs(block_seconds=[1.0 + 0.01 * i for i in range(12)]))
    said = Seen(study).words_of("block_times")
    assert f"{MOST_RUNS} of {MOST_RUNS + 5} runs are drawn, the least steady ones" in said
    assert "further series" in said


def test_no_figure_of_blocks_without_blocks(study: StudyBuilder) -> None:
    study.add(spec_of(1), None, finished=False)
    assert "block_times.svg" not in Seen(study).figures
