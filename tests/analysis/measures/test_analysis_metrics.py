"""The figures of merit, compared with hand calculations."""

from __future__ import annotations

import json
import math

import pytest
from file_times import touch_later
from study_builder import CREATED, Logs, StudyBuilder, resume, spec_of

from analysis.measures.metrics import efficiency, speedup
from analysis.measures.speedup import points_of
from analysis.read.study import read_study
from analysis.tables.point import Message, Point
from analysis.tables.throughput import throughput
from harness.core.spec import STRONG, Placement


def points(study: StudyBuilder) -> list[Point]:
    return points_of(read_study(study.folder).runs)


def test_rates_are_combined_harmonically() -> None:
    # 100 samples at 100/s and 100 samples at 50/s: 200 samples in 3 s, not the mean of the rates, 75/s.
    assert throughput([1 / 100, 2 / 100]) == pytest.approx(200 / 3)


def test_speedup_and_efficiency_are_relative_to_the_smallest_count() -> None:
    # From 2 GPUs at 100/s to 8 at 300/s: 3x; ideal is 4x.
    assert speedup(300, 100) == 3.0
    assert efficiency(300, 8, 100, 2) == 0.75


def test_point_is_all_runs_that_differ_in_seed_and_repeat(study: StudyBuilder) -> None:
    study.completed(1, seconds=1.0, repeat=0)
    study.completed(1, seconds=2.0, repeat=1)
    study.completed(1, seconds=1.0, repeat=0, seed=2)
    (point,) = points(study)
    # Each run: 4 blocks of 1,280 samples, in 4, 8 and 4 seconds: 15,360 samples in 16 s.
    assert point.samples_per_second == pytest.approx(960.0)
    assert (point.samples_per_second_min, point.samples_per_second_max) == (640.0, 1280.0)
    # In units of 1/1,280 s per sample 1, 2, 1: mean 4/3, standard deviation 1/√3, so that the relative error of the
    # mean is 1/4; 4.3027 is the 97.5 % quantile of t with 2 degrees of freedom (any table).
    factor = math.exp(4.3027 / 4)
    assert point.samples_per_second_low == pytest.approx(960 / factor, rel=1e-4)
    assert point.samples_per_second_high == pytest.approx(960 * factor, rel=1e-4)
    assert point.samples_per_second_basis == "3 runs"
    assert point.marks == ()


def test_failed_repeat_does_not_enter_the_figure_and_is_counted(study: StudyBuilder) -> None:
    study.completed(1, seconds=1.0, repeat=0)
    study.add(spec_of(1, repeat=1), Logs(block_seconds=[5.0]), result={"status": "failed", "reason": "killed"})
    (point,) = points(study)
    assert point.samples_per_second == 1280.0
    assert (point.runs_completed, point.runs_all, point.status) == (1, 2, "1 completed, 1 failed")
    assert point.reasons.endswith(": failed, killed")
    assert point.marks == ("single run",)


def test_point_without_completed_run_stays_without_figures(study: StudyBuilder) -> None:
    study.completed(1)
    study.add(spec_of(2), None, finished=False)
    point = points(study)[1]
    assert (point.gpus, point.status, point.samples_per_second, point.speedup) == (
        2,
        "unfinished",
        None,
        None,
    )


def test_weak_and_strong_scaling_are_different_series(study: StudyBuilder) -> None:
    study.completed(1)
    study.completed(2)
    study.completed(1, scaling=STRONG, global_batch=128)
    study.completed(2, scaling=STRONG, batch_per_gpu=64, global_batch=128)
    found = points(study)
    assert [(p.scaling, p.gpus, p.batch_per_gpu, p.global_batch) for p in found] == [
        ("strong", 1, 128, 128),
        ("strong", 2, 64, 128),
        ("weak", 1, 128, 128),
        ("weak", 2, 128, 256),
    ]
    assert len({p.series for p in found}) == 2
    # Strong: 2 ranks x 64 samples in the time of 1 x 128: no speedup. Weak: twice the samples in the same time.
    assert [p.speedup for p in found] == [1.0, 1.0, 1.0, 2.0]
    assert [p.efficiency for p in found] == [1.0, 0.5, 1.0, 1.0]


def test_series_with_equal_labels_say_in_what_they_differ(study: StudyBuilder) -> None:
    study.completed(1, strategy_options={"bucket_mb": 1})
    study.completed(1, strategy_options={"bucket_mb": 25})
    study.completed(1, model="resnet110")
    assert [p.detail for p in points(study)] == ["strategy_options.bucket_mb=1", "strategy_options.bucket_mb=25", ""]


def test_baseline_is_the_placement_on_the_fewest_nodes(study: StudyBuilder) -> None:
    study.completed(2, seconds=2.0, placement=Placement(2, 1))
    study.completed(2, seconds=1.0)
    assert [(p.nodes, p.speedup) for p in points(study)] == [(1, 1.0), (2, 0.5)]


def relations(study: StudyBuilder) -> dict[tuple[str, int], tuple]:
    return {
        (p.strategy, p.gpus): (p.relative_to_gpus, p.relative_to_strategy, p.speedup, p.efficiency)
        for p in points(study)
    }


def test_speedup_is_relative_to_the_framework_alone_where_it_was_measured(study: StudyBuilder) -> None:
    study.completed(1, seconds=1.0, strategy="plain")
    for strategy, options in (("allreduce", {"bucket_mb": 1}), ("horovod", {"controller": "gloo"})):
        study.completed(1, seconds=1.25, strategy=strategy, strategy_options=options)
        study.completed(2, seconds=2.0, strategy=strategy, strategy_options=options)
    # Weak scaling: on one GPU 0.8 of the throughput, because of the wrapper; on two, twice the samples in 2 s.
    assert relations(study) == {
        ("plain", 1): (1, "plain", 1.0, 1.0),
        ("allreduce", 1): (1, "plain", 0.8, 0.8),
        ("allreduce", 2): (1, "plain", 1.0, 0.5),
        ("horovod", 1): (1, "plain", 0.8, 0.8),
        ("horovod", 2): (1, "plain", 1.0, 0.5),
    }
    wrapped = next(p for p in points(study) if (p.strategy, p.gpus) == ("allreduce", 1))
    assert wrapped.ideal_speedup == 1.0
    assert (wrapped.speedup_low, wrapped.speedup_high) == (None, None)
    assert wrapped.speedup_basis == "no interval: 4 blocks of one run, 6 are needed"


def test_plain_baseline_of_strong_scaling_has_the_same_global_batch(study: StudyBuilder) -> None:
    for batch in (128, 256):
        study.completed(1, seconds=batch / 128, strategy="plain", scaling=STRONG, batch_per_gpu=batch)
    study.completed(4, seconds=0.5, scaling=STRONG, batch_per_gpu=64, global_batch=256)
    (point,) = (p for p in points(study) if p.gpus == 4)
    # 256 samples per step: 2 s for ten steps on one GPU, 0.5 s on four.
    assert (point.relative_to_gpus, point.relative_to_strategy, point.speedup) == (1, "plain", 4.0)


@pytest.mark.parametrize(
    "changes",
    [
        {"framework": "jax"},
        {"model": "resnet20"},
        {"precision": "bf16"},
        {"framework_options": {"compile": True}},
        {"scaling": STRONG},
        {"batch_per_gpu": 64},
    ],
)
def test_plain_point_of_other_settings_is_no_baseline(study: StudyBuilder, changes: dict) -> None:
    study.completed(1, strategy="plain", **changes)
    study.completed(2)
    study.completed(4)
    assert [p.relative_to_strategy for p in points(study) if p.strategy == "allreduce"] == ["allreduce"] * 2
    assert [p.relative_to_gpus for p in points(study) if p.strategy == "allreduce"] == [2, 2]


def test_plain_run_that_did_not_complete_is_no_baseline(study: StudyBuilder) -> None:
    study.add(spec_of(1, strategy="plain"), Logs(), result={"status": "failed", "reason": "killed"})
    study.completed(1)
    study.completed(2)
    assert relations(study)["allreduce", 2] == (1, "allreduce", 2.0, 1.0)
    assert relations(study)["plain", 1] == (None, None, None, None)


def test_warnings_of_the_baseline_apply_to_points_relative_to_it(study: StudyBuilder) -> None:
    shared = {"oversubscribed": "1 rank on a shared GPU", "code_version": "other"}
    study.add(spec_of(1, strategy="plain"), Logs(device_name="NVIDIA A100"), site=shared)
    study.completed(2)
    assert {p.strategy: p.marks for p in points(study)} == {
        "plain": ("oversubscribed", "single run"),
        "allreduce": ("single run", "mixed code versions", "mixed machines", "baseline oversubscribed"),
    }


def test_first_step_time_starts_with_the_first_attempt_and_ends_with_the_slowest_rank(study: StudyBuilder) -> None:
    logs = Logs(startup_seconds={"imports": 2.0, "build": 1.0}, begin=CREATED)
    run_dir = study.add(spec_of(2), logs)
    assert points(study)[0].first_step_seconds == 3.0  # the blocks begin after the start-up
    log = run_dir / "attempt-1" / "events.rank1.jsonl"
    # Everything after its start event is logged 2.5 s later; its warm-up takes 9 s.
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    for line in lines[1:]:
        line["t"] += 2.5
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    ended = run_dir / "attempt-1" / "exit.rank1.json"
    ended.write_text(json.dumps(json.loads(ended.read_text()) | {"t": lines[-1]["t"] + 1}))
    touch_later(log)
    assert points(study)[0].first_step_seconds == 5.5
    study.add(spec_of(2, repeat=1), logs)
    assert points(study)[0].first_step_seconds == (5.5 + 3.0) / 2


def test_first_step_of_a_continued_run_is_that_of_its_first_attempt(study: StudyBuilder) -> None:
    cut = Logs([1.0], checkpoints={20: 0.5}, ends=False)
    study.attempts(spec_of(1), cut, Logs([8.0] * 3, resume=resume(20, 1), begin=CREATED + 100))
    assert points(study)[0].first_step_seconds == 3.0


@pytest.mark.parametrize("begin", [None, CREATED + 60])
def test_first_step_is_not_stated_where_its_begin_is_not_known(study: StudyBuilder, begin: float | None) -> None:
    run_dir = study.add(spec_of(1), Logs(begin=None))
    if begin is not None:  # from another node's clock, which is ahead
        (run_dir / "attempt-1" / "begin.json").write_text(json.dumps({"t": begin, "job_id": None}))
    assert points(study)[0].first_step_seconds is None


def test_first_step_is_not_stated_where_a_rank_did_not_come_so_far(study: StudyBuilder) -> None:
    first = Logs([1.0], ends=False)
    run_dir = study.attempts(spec_of(2), first, Logs(resume=resume(0), begin=CREATED + 100))
    log = run_dir / "attempt-1" / "events.rank1.jsonl"
    log.write_text(log.read_text().splitlines(True)[0])
    assert points(study)[0].first_step_seconds is None


def test_mixed_code_versions_and_machines_are_marked(study: StudyBuilder) -> None:
    study.add(spec_of(1), Logs())
    study.add(spec_of(2), Logs(device_name="NVIDIA A100"), site={"code_version": "other"})
    for point in points(study):
        assert point.marks == ("single run", "mixed code versions", "mixed machines")


def test_point_relative_to_an_oversubscribed_one_is_marked(study: StudyBuilder) -> None:
    study.add(spec_of(1), Logs(), site={"oversubscribed": "1 rank on a shared GPU"})
    study.add(spec_of(2), Logs())
    base, other = points(study)
    assert base.marks == ("oversubscribed", "single run")
    assert other.marks == ("single run", "baseline oversubscribed")


def test_probes_are_seconds_per_step_of_the_slowest_rank(study: StudyBuilder) -> None:
    logs = Logs(cached_batch_seconds=0.08, no_sync_seconds=0.09, allreduce={2048: 0.5, 1024: 0.25}, accuracy=0.75)
    run_dir = study.add(spec_of(2), logs)
    slower = run_dir / "attempt-1" / "events.rank1.jsonl"
    lines = slower.read_text()
    assert lines.count('"seconds":0.8}') == 1  # ten steps of the cached batch
    slower.write_text(lines.replace('"seconds":0.8}', '"seconds":0.85}'))
    (point,) = points(study)
    assert point.step_seconds == pytest.approx(0.1)  # blocks of 10 steps take 1 s
    assert point.cached_batch_seconds == pytest.approx(0.085)
    assert point.data_stall_seconds == pytest.approx(0.015)
    assert point.exposed_communication_seconds == pytest.approx(-0.005)
    assert point.allreduce == (Message(1024, 0.25), Message(2048, 0.5))
    assert point.startup_seconds == 3.0  # 2 s of imports and 1 s of building
    assert (point.test_accuracy, point.test_samples) == (0.75, 10_000)
    assert point.samples_seen == 50 * 256  # 10 warm-up steps and 40 measured ones


def test_probe_that_one_rank_lacks_is_not_stated(study: StudyBuilder) -> None:
    run_dir = study.add(spec_of(2), Logs(cached_batch_seconds=0.08))
    log = run_dir / "attempt-1" / "events.rank1.jsonl"
    log.write_text("".join(line for line in log.read_text().splitlines(True) if "probe" not in line))
    (point,) = points(study)
    assert point.cached_batch_seconds is None
    assert point.data_stall_seconds is None


def test_series_are_ordered_by_the_numbers_in_their_names(study: StudyBuilder) -> None:
    for model, batch in (("resnet110", 64), ("resnet20", 1024), ("resnet20", 64)):
        study.completed(1, model=model, batch_per_gpu=batch)
    found = [(p.model, p.batch_per_gpu) for p in points(study)]
    assert found == [("resnet20", 64), ("resnet20", 1024), ("resnet110", 64)]
