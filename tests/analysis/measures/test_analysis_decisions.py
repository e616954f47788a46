"""Gain and cost of each number of GPUs."""

from __future__ import annotations

import math

import pytest
from seen import Seen, words
from study_builder import Logs, StudyBuilder, spec_of

from analysis.measures.decisions import decisions_of, front, front_sentences, marginal_efficiency
from analysis.measures.learning import learning_of
from analysis.measures.metrics import karp_flatt
from analysis.measures.speedup import points_of
from analysis.read.study import read_study
from analysis.report.findings import findings_of
from analysis.stats.estimates import of_runs


def decisions(study: StudyBuilder) -> list[dict]:
    read = read_study(study.folder)
    points = points_of(read.runs)
    return decisions_of(points, learning_of(points, None), [])


def test_the_serial_fraction_is_that_of_karp_and_flatt() -> None:
    # Speedups by Amdahl's law with 5 % serial work give that fraction back.
    for gpus in (2, 8, 64):
        assert karp_flatt(1 / (0.05 + 0.95 / gpus), gpus) == pytest.approx(0.05)
    assert karp_flatt(2.1, 2) < 0, "more than ideal"
    assert karp_flatt(0.5, 2) > 1, "slower"


def test_every_size_has_what_it_costs(study: StudyBuilder) -> None:
    # Blocks of 10 steps, weak scaling: 1,280 samples per GPU and block.
    for gpus, seconds in ((1, 1.0), (2, 1.25), (4, 2.5)):
        for repeat, noise in enumerate((0.99, 1.0, 1.01)):
            study.completed(gpus, seconds * noise, repeat=repeat)
    one, two, four = decisions(study)
    assert one["serial_fraction"] is None
    # 1.6 times on 2: (1 / 1.6 - 1 / 2) / (1 - 1 / 2).
    assert two["serial_fraction"] == pytest.approx(0.25)
    assert two["serial_fraction_low"] < 0.25 < two["serial_fraction_high"]
    assert (two["added_to_gpus"], four["added_to_gpus"]) == (1, 2)
    assert two["marginal_efficiency"] == pytest.approx(0.6)
    # 4 x 1,280 / 2.5 s equals the throughput of 2: two GPUs for nothing.
    assert four["marginal_efficiency"] == pytest.approx(0, abs=1e-9)
    assert four["marginal_efficiency_low"] < 0 < four["marginal_efficiency_high"]
    assert one["epoch_seconds"] == pytest.approx(one["epoch_gpu_hours"] * 3600)
    assert [row["epoch_front"] for row in (one, two, four)] == [True, True, False]
    [said] = front_sentences([one, two, four])
    assert "2 GPUs" in said
    assert "4 GPUs" not in said


def test_of_a_long_front_the_ends_are_named(study: StudyBuilder) -> None:
    seconds = {1: 1.0, 2: 1.1, 4: 1.2, 8: 1.3, 16: 1.4, 32: 1.5, 64: 1.6}
    for gpus, each in seconds.items():
        study.completed(gpus, each)
    rows = decisions(study)
    assert all(row["epoch_front"] for row in rows)
    [said] = front_sentences(rows)
    named = [part.partition(":")[0].rpartition(" on ")[2] for part in said.partition("cost: ")[2].split("; ")]
    assert named == ["64 GPUs", "32 GPUs", "16 GPUs", "2 between these", "2 GPUs", "1 GPU"]
    [whole] = front_sentences(rows[1:])
    assert whole.count(" GPU-hours") == 6


@pytest.mark.parametrize(
    ("seconds", "reason"), [(4.0, "slower than 1 GPU"), (0.8, "more than 2.00 times as fast as 1 GPU")]
)
def test_an_impossible_serial_fraction_is_replaced_by_the_reason(
    study: StudyBuilder, seconds: float, reason: str
) -> None:
    study.completed(1, 1.0)
    study.completed(2, seconds)
    two = decisions(study)[1]
    assert (two["serial_fraction"], two["serial_fraction_reason"]) == (None, reason)
    assert reason in words(Seen(study).html)


def test_a_single_run_has_costs_and_says_that_its_interval_is_of_blocks(study: StudyBuilder) -> None:
    study.add(spec_of(1), Logs(block_seconds=[1.0, 1.1] * 10))
    [row] = decisions(study)
    assert "one run" in row["basis"]
    assert row["marginal_efficiency"] is None


def test_points_that_are_not_measured_are_in_no_decision(study: StudyBuilder) -> None:
    study.completed(1)
    study.add(spec_of(2), Logs(), result={"status": "failed", "reason": "rank 1: out of memory"})
    assert [row["point"].gpus for row in decisions(study)] == [1]


def test_front_keeps_pareto_optimal_points() -> None:
    assert front([(1, 4), (2, 2), (3, 3), (4, 1)]) == [True, True, False, True]
    assert front([(1, 1), (1, 1)]) == [True, True], "equals do not beat each other"
    assert front([]) == []


def test_the_interval_of_the_marginal_efficiency_covers_it() -> None:
    import numpy as np

    rng = np.random.default_rng(0)
    truth = (1 / 0.3 - 1 / 0.55) / ((4 - 2) * 1.0)
    covered = 0
    for _ in range(1_000):
        four, two = (of_runs((mean * (1 + 0.03 * rng.standard_normal(4))).tolist()) for mean in (0.3, 0.55))
        _, low, high, *_ = marginal_efficiency(four, 4, two, 2, 1.0)
        covered += low < truth < high
    # The smaller of both degrees of freedom is conservative; 4 standard errors of 1,000 draws.
    assert 0.95 - 4 * math.sqrt(0.95 * 0.05 / 1_000) < covered / 1_000 <= 1


def test_different_work_is_not_on_the_pareto_front(study: StudyBuilder) -> None:
    study.completed(2)
    study.add(spec_of(2, framework="jax"), Logs(block_seconds=[0.1] * 4, parameters=7))
    rows = findings_of(read_study(study.folder)).decisions
    assert [(row["point"].framework, row["epoch_front"]) for row in rows] == [("jax", None), ("pytorch", True)]
