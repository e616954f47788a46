"""Accuracy against samples, seconds and GPU-hours, over seeds, and the cost of reaching a target."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from seen import Seen, Tags, words
from study_builder import CREATED, Logs, StudyBuilder, resume, spec_of

from analysis.report.charts.learning import medians
from harness.core.spec import RunSpec

# Steps 10 to 50 in blocks of 10 that take 1 s, after 10 of warm-up in 9 s; 128 samples per GPU and step, 50,000 in all.
EVALUATED = {20: 0.3, 40: 0.5}


def learned(study: StudyBuilder, last: float = 0.6, gpus: int = 1, seconds: float = 1.0, **changes: Any) -> RunSpec:
    spec = spec_of(gpus, **changes)
    study.add(spec, Logs(block_seconds=[seconds] * 4, evaluations=EVALUATED, accuracy=last))
    return spec


def floats(row: Mapping[str, str], *names: str) -> list[float]:
    return [float(row[name]) for name in names]


def test_csv_has_every_evaluation_with_the_cost_of_training_so_far(study: StudyBuilder) -> None:
    spec = learned(study, gpus=2, seed=7)
    rows = Seen(study).learning
    figures = [floats(row, "step", "samples", "epochs", "train_seconds", "wall_seconds", "accuracy") for row in rows]
    # Wall: 3 of start-up, 2 for each evaluation.
    assert figures == [
        pytest.approx([20, 5120, 0.1024, 10, 15, 0.3]),
        pytest.approx([40, 10240, 0.2048, 12, 19, 0.5]),
        pytest.approx([50, 12800, 0.256, 13, 22, 0.6]),
    ]
    assert floats(rows[1], "gpu_hours", "loss", "evaluation_seconds") == pytest.approx([2 * 12 / 3600, 0.9, 2.0])
    assert {(row["run_id"], row["seed"], row["gpus"], row["strategy"]) for row in rows} == {
        (spec.run_id, "7", "2", "allreduce")
    }


def test_evaluations_are_in_no_throughput_figure(study: StudyBuilder) -> None:
    learned(study)
    assert float(Seen(study).csv[0]["samples_per_second"]) == pytest.approx(1280)


def test_resumed_run_has_each_evaluation_once_and_none_of_lost_steps(study: StudyBuilder) -> None:
    evaluated = {20: 0.1, 30: 0.2, 40: 0.9}
    first = Logs(block_seconds=[1.0] * 3, evaluations=evaluated, checkpoints={30: 1.0}, ends=False, exit_codes=[-9])
    rest = {"resume": resume(30, 1), "begin": CREATED + 100}
    second = Logs(block_seconds=[2.0] * 2, evaluations={30: 0.2, 40: 0.4}, accuracy=0.6, **rest)
    study.attempts(spec_of(1), first, second)
    figures = [floats(row, "step", "accuracy", "train_seconds", "wall_seconds") for row in Seen(study).learning]
    # Wall of the first attempt: 3 + 9 + 3 blocks + 3 evaluations of 2 + a checkpoint of 1 + 1 until it exited: 23.
    assert figures == [[20, 0.1, 10, 15], [30, 0.2, 11, 28], [40, 0.4, 13, 32], [50, 0.6, 15, 36]]


def test_seconds_are_absent_where_a_block_is_not_in_the_logs(study: StudyBuilder) -> None:
    log = study.add(spec_of(1), Logs(evaluations=EVALUATED, accuracy=0.6)) / "attempt-1" / "events.rank0.jsonl"
    lines = [line for line in log.read_text().splitlines() if '"step":20,"n":10' not in line]
    log.write_text("\n".join(lines) + "\n")
    rows = Seen(study).learning
    assert [row["train_seconds"] for row in rows] == ["10.0", "", ""]
    assert [row["gpu_hours"] != "" for row in rows] == [True, False, False]
    assert [row["accuracy"] for row in rows] == ["0.3", "0.5", "0.6"]


def test_the_spread_over_three_seeds_is_in_table_and_report(study: StudyBuilder) -> None:
    for seed, last in ((1, 0.60), (2, 0.70), (3, 0.65)):
        learned(study, last, seed=seed)
    seen = Seen(study)
    for text in (words(seen.table), words(Tags(seen.html).text)):
        assert "65.0 %" in text
        assert "60.0–70.0" in text
        assert "fewer than 3" not in text
    assert "spread over 3 seeds" in words(Tags(seen.html).text)


def test_fewer_seeds_are_marked_and_repeats_are_no_seeds(study: StudyBuilder) -> None:
    for seed, repeat, last in ((1, 0, 0.60), (1, 1, 0.60), (2, 0, 0.70)):
        learned(study, last, seed=seed, repeat=repeat)
    seen = Seen(study)
    assert "spread over 2 seeds: fewer than 3" in words(Tags(seen.html).text)
    for text in (words(seen.table), words(Tags(seen.html).text)):
        assert "fewer than 3" in text
        # The mean over seeds; over runs it would be 63.3 %.
        assert "65.0 %" in text
    assert '<span class="mark">fewer than 3 seeds</span>' in seen.html


def test_ranks_that_shared_cores_are_marked_where_their_seconds_appear(study: StudyBuilder) -> None:
    logs = Logs(evaluations=EVALUATED, accuracy=0.6)
    study.add(spec_of(2), logs, result={"oversubscribed": "2 ranks share 1 GPU"})
    seen = Seen(study)
    assert re.search(r"Learning.*2 GPUs.*\n *oversubscribed", seen.table, re.DOTALL)
    assert "hollow: oversubscribed" in seen.words_of("accuracy_by_seconds")
    assert {row["marks"] for row in seen.learning} == {"oversubscribed;single run"}


def test_without_a_target_one_accuracy_per_point_is_no_table_of_its_own(study: StudyBuilder) -> None:
    study.add(spec_of(1), Logs(accuracy=0.6))
    seen = Seen(study)
    assert "Learning" not in seen.table
    assert "1 seed: no spread" in words(Tags(seen.html).text)
    assert not [name for name in seen.figures if name.startswith("accuracy")]


def test_cost_of_reaching_the_target_is_stated(study: StudyBuilder) -> None:
    learned(study, seed=1)
    learned(study, seed=2, seconds=2.0)
    study.write_study(invocations=[{"runs": study.requested, "target_accuracy": 0.45}])
    seen = Seen(study)
    # Reached at step 40, after 9 + 3 and 9 + 6 seconds, 5,120 samples, 0.1024 epochs.
    for text in (words(seen.table), words(Tags(seen.html).text)):
        for shown in ("45.0 %", "reached", "13.5 s", "12.0–15.0 s", "5,120", "0.102", "GPU-hours", "0.00375"):
            assert shown in text
    assert "target: 45.0 %" in seen.figures["accuracy_by_samples.svg"].decode()


def test_a_target_that_was_not_reached_is_said_with_the_best(study: StudyBuilder) -> None:
    learned(study, 0.48, seed=1)
    study.write_study(invocations=[{"runs": study.requested, "target_accuracy": 0.7}])
    seen = Seen(study)
    assert re.search(r"70.0 % .*not reached.*50.0 %", seen.table, re.DOTALL)
    assert "not reached best: 50.0 %" in words(Tags(seen.html).text)


def test_no_mean_cost_unless_all_runs_reach_the_target(study: StudyBuilder) -> None:
    for seed, last in ((1, 0.60), (2, 0.55), (3, 0.65)):
        learned(study, last, seed=seed)
    study.write_study(invocations=[{"runs": study.requested, "target_accuracy": 0.58}])
    seen = Seen(study)
    for text in (words(seen.table), words(Tags(seen.html).text)):
        assert "2 of 3 runs" in text
        assert "13.0–13.0 s" in text
    assert 'data-label="Training until there">–' in seen.html


def test_cost_is_stated_for_the_only_run_that_reached_the_target(study: StudyBuilder) -> None:
    for seed, last in ((1, 0.60), (2, 0.55)):
        learned(study, last, seed=seed)
    study.write_study(invocations=[{"runs": study.requested, "target_accuracy": 0.58}])
    seen = Seen(study)
    for text in (words(seen.table), words(Tags(seen.html).text)):
        assert "1 of 2 runs" in text
        assert "13.0–13.0 s" in text


@pytest.mark.parametrize(
    ("metered", "joules"),
    [
        (("GPU-{rank}", 100.0), ["400.0", "800.0", "1000.0"]),
        (("processors", 100.0), ["200.0", "400.0", "500.0"]),  # two ranks read the same counters
        (("GPU-{rank}", None), ["", "", ""]),
        (None, ["", "", ""]),
    ],
    ids=["a GPU each", "one machine", "not readable", "no meter"],
)
def test_joules_are_those_of_every_device_once(
    study: StudyBuilder, metered: tuple[str, float] | None, joules: list[str]
) -> None:
    study.add(spec_of(2), Logs(evaluations=EVALUATED, accuracy=0.6, energy=metered))
    study.write_study(invocations=[{"runs": study.requested, "target_accuracy": 0.6}])
    seen = Seen(study)
    # Five blocks of two ranks; evaluated after two, four and five.
    assert [row["joules"] for row in seen.learning] == joules
    assert ('data-label="Energy">' in seen.html) == (joules[0] != "")
    if joules[-1] == "1000.0":
        assert re.search(r'"Energy">1.00 kJ', seen.html)


@pytest.mark.parametrize("name", ["accuracy_by_samples", "accuracy_by_seconds"])
def test_curves_are_drawn_and_named(study: StudyBuilder, name: str) -> None:
    for gpus in (1, 2):
        learned(study, gpus=gpus)
    seen = Seen(study)
    text = seen.words_of(name)
    for shown in ("resnet44, cifar10", "PyTorch DDP", "1 GPU", "2 GPUs"):
        assert shown in text
    assert seen.figures[f"{name}.png"].startswith(b"\x89PNG")
    assert f'data-chart="{name.replace("_", "-")}"' in seen.html


def test_a_median_is_that_of_what_all_runs_of_a_point_have() -> None:
    row = {"samples": 10, "train_seconds": 1.0, "accuracy": 0.2}
    first = [row, {"samples": 20, "train_seconds": 2.0, "accuracy": 0.4}]
    second = [{**row, "train_seconds": 3.0, "accuracy": 0.3}, {"samples": 30, "train_seconds": 4.0, "accuracy": 0.5}]
    assert medians([first, second], "train_seconds") == [pytest.approx((2.0, 0.25))]
    assert medians([[{**row, "train_seconds": None}]], "train_seconds") == []


def test_the_analysis_takes_a_target_and_refuses_what_is_none(study: StudyBuilder, analyse) -> None:
    learned(study)
    done = analyse(study.folder, "--target-accuracy", "0.4")
    assert done.returncode == 0, done.stderr
    assert "40.0 %" in done.stdout
    assert (study.folder / "figures" / "accuracy_by_seconds.png").exists()
    refused = analyse(study.folder, "--target-accuracy", "40")
    assert refused.returncode == 2
    assert "--target-accuracy 40: give a fraction between 0 and 1" in refused.stderr


def test_accuracies_of_several_views_are_marked_and_said(study: StudyBuilder) -> None:
    learned(study)
    measure = replace(spec_of(1).measure, evaluate_views=6)
    learned(study, measure=measure, seed=3)
    seen = Seen(study)
    marks = {(row["run_id"], "accuracy of several views" in row["marks"]) for row in seen.learning}
    assert sorted(several for _, several in marks) == [False, True]  # two points, and one of them
    assert "the mean logits of several views of a test image" in words(seen.html)
