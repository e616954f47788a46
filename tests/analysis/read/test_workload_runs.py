"""Runs of the user's own training as the reader sees them."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from project import PROJECT
from study_builder import StudyBuilder
from workload_studies import MEASURE, Seen, add_workload, workload_spec, workload_study

from analysis.measures.speedup import points_of
from analysis.read.row import Run
from analysis.read.study import read_study
from analysis.tables.warnings import point_marks
from harness.core.spec import STRONG, Placement


def only_run(study: StudyBuilder) -> Run:
    (run,) = read_study(study.folder).runs
    return run


def labels(study: StudyBuilder) -> set[str]:
    return {point.name for point in points_of(read_study(study.folder).runs)}


@pytest.mark.parametrize("seen", [Seen(), Seen(data_seconds=[0.1]), Seen(method="pattern", world_size=None)])
def test_built_logs_follow_the_schema(study: StudyBuilder, seen: Seen) -> None:
    run_dir = add_workload(study, workload_spec(), seen)
    schema = json.loads((PROJECT / "harness/schemas/events.schema.json").read_text())
    for line in (run_dir / "attempt-1" / "events.rank0.jsonl").read_text().splitlines():
        jsonschema.validate(json.loads(line), schema)


def test_the_half_width_that_a_probe_does_not_know_follows_from_its_blocks(study: StudyBuilder) -> None:
    spec = workload_spec(2, measure=dataclasses.replace(MEASURE, precision=0.001))
    add_workload(
        study, spec, Seen(block_seconds=[1.0, 1.02, 0.98, 1.0, 1.01, 0.99, 1.03, 0.97], stopped="script ended")
    )
    run = only_run(study)
    # Independent values would have t(7) = 2.365 times 0.02 / sqrt(8) = 1.67 %; that of batch means is wider.
    assert run.relative_half_width == pytest.approx(0.0179, abs=1e-4)
    assert "stopped at the end of the script: half-width 1.8 %, 0.1 % was asked for" in str(run.notes)


def test_a_script_s_run_is_completed_with_its_throughput_and_method(study: StudyBuilder) -> None:
    add_workload(study, workload_spec(2), Seen(block_seconds=[1.0] * 8))
    run = only_run(study)
    assert (run.status, run.reason) == ("completed", None)
    assert run.samples_per_second == 10 * 2 * 128  # ten steps a second of 256 samples
    assert (run.method, run.unit) == ("hooks", "samples")
    assert run.notes == "measured by hooks in its process, steps of SGD"
    assert run.parameters is None
    assert run.train_samples is None


def test_a_throughput_counts_the_unit_of_the_workload(study: StudyBuilder) -> None:
    spec = workload_spec(2, {"unit": "tokens", "samples_per_step": 2 * 128 * 1024})
    add_workload(study, spec, Seen(block_seconds=[1.0] * 8))
    run = only_run(study)
    assert (run.unit, run.samples_per_second) == ("tokens", 10 * 2 * 128 * 1024)


def test_fractional_shares_are_accepted(study: StudyBuilder) -> None:
    add_workload(study, workload_spec(3, {"samples_per_step": 100}), Seen(block_seconds=[1.0] * 8))
    assert only_run(study).samples_per_second == 1000


def test_waiting_for_data_is_that_of_the_rank_that_waits_longest(study: StudyBuilder) -> None:
    add_workload(study, workload_spec(2), Seen(data_seconds=[0.1, 0.2]))
    assert only_run(study).data_waits == [0.02] * 8  # 0.2 s per ten steps


def test_unknown_waiting_is_not_0(study: StudyBuilder) -> None:
    add_workload(study, workload_spec(1), Seen(data_seconds=None))
    assert only_run(study).data_waits_json is None


def test_code_that_changed_after_the_plan_is_a_warning(study: StudyBuilder) -> None:
    run_dir = add_workload(study, workload_spec(1))
    begin = run_dir / "attempt-1" / "begin.json"
    known = json.loads(begin.read_text()) if begin.exists() else {"t": 0.0, "job_id": None}
    begin.write_text(json.dumps({**known, "code_changed": {"planned": "0123abc", "found": "0123abc+4f5e"}}))
    run = only_run(study)
    assert "changed between plan and start (planned: 0123abc; found: 0123abc+4f5e)" in str(run.notes)
    assert "code changed" in point_marks([run], [run], False, False)


def test_time_outside_blocks_is_noted(study: StudyBuilder) -> None:
    add_workload(study, workload_spec(1), Seen(left_out_seconds=0.5))
    assert "5.00 s of evaluation, checkpoints and epoch changes" in str(only_run(study).notes)  # ten blocks


def test_a_long_evaluation_is_no_gap_of_the_clock(study: StudyBuilder) -> None:
    add_workload(study, workload_spec(1), Seen(left_out_seconds=7 * 3600.0))
    assert only_run(study).damage_json is None


def test_a_pattern_sees_rank_0_alone_and_verifies_no_world_size(study: StudyBuilder) -> None:
    spec = workload_spec(2, {"kind": "command", "pattern": "megatron"})
    add_workload(study, spec, Seen(block_seconds=[1.0] * 8, method="pattern", world_size=None))
    run = only_run(study)
    assert (run.status, run.method) == ("completed", "pattern")
    assert run.samples_per_second == 10 * 2 * 128
    assert "world size not verified" in str(run.notes)


@pytest.mark.parametrize(
    ("gpus", "changes", "seen", "reason"),
    [
        (2, {}, Seen(world_size=1), "rank 0 saw a world size of 1, the spec asks for 2"),
        (2, {}, Seen(ranks=1), "no log of rank 1"),
        (2, {"workload": {"processes_per_node": "node"}}, Seen(ranks=1, world_size=3), "saw a world size of 3"),
    ],
)
def test_a_wrong_world_size_makes_a_run_invalid(
    study: StudyBuilder, gpus: int, changes: dict[str, Any], seen: Seen, reason: str
) -> None:
    add_workload(study, workload_spec(gpus, **changes), seen)
    run = only_run(study)
    assert run.status == "invalid"
    assert reason in str(run.reason)


@pytest.mark.parametrize("world_size", [2, 4])  # processes, or devices: frameworks differ
def test_one_process_per_node_logs_for_all_of_its_gpus(study: StudyBuilder, world_size: int) -> None:
    spec = workload_spec(4, {"processes_per_node": "node"}, placement=Placement(2, 2))
    add_workload(study, spec, Seen(ranks=2, world_size=world_size))
    run = only_run(study)
    assert (run.status, run.damage_json) == ("completed", None)


def test_a_script_that_ends_early_says_so(study: StudyBuilder) -> None:
    add_workload(study, workload_spec(), Seen(stopped="script ended"))
    run = only_run(study)
    assert (run.status, run.stopped) == ("completed", "script ended")
    assert "the script ended before all steps were measured" in str(run.notes)


@pytest.mark.parametrize(
    ("changes", "apart"),
    [
        ({"params": {"lr": 0.2}}, "[lr=0.2]"),
        ({"code": "4567def"}, "[code=4567def]"),
        ({"code": f"git:{'0123456789' * 4}+0123456789ab"}, "[code=git:012345678901+0123456789ab]"),
        ({"code": "4567def", "params": {"lr": 0.2, "z": 1}}, "[lr=0.2, z=1, code=4567def]"),
        ({"command": ("train.py", "--amp")}, '[command=["train.py", "--amp"]]'),
        ({"cwd": "/elsewhere"}, "[cwd=/elsewhere]"),
    ],
)
def test_two_workloads_are_two_series_named_by_what_differs(
    study: StudyBuilder, changes: dict[str, Any], apart: str
) -> None:
    for gpus in (1, 2):
        add_workload(study, workload_spec(gpus))
        add_workload(study, workload_spec(gpus, changes))
    found = labels(study)
    assert len(found) == 2
    assert f"train (weak scaling, 128 per GPU) {apart}" in found


def test_sizes_of_weak_and_of_strong_scaling_are_one_series(study: StudyBuilder) -> None:
    for gpus in (1, 2):
        add_workload(study, workload_spec(gpus))
        strong = {"scaling": STRONG, "global_batch": 256, "batch_per_gpu": 256 // gpus}
        add_workload(study, workload_spec(gpus, {"samples_per_step": 256}, **strong))
    assert labels(study) == {"train (weak scaling, 128 per GPU)", "train (strong scaling, global batch 256)"}


def test_an_unfinished_run_says_how_far_it_came(study: StudyBuilder) -> None:
    add_workload(study, workload_spec(), Seen(ends=False))
    run = only_run(study)
    assert run.status == "unfinished"
    assert "80 of 80 measured steps logged" in str(run.reason)


@pytest.mark.parametrize("changes", [{"samples_per_step": 0}, {"samples_per_step": 1.5}, {"unit": 3}, {"kind": "x"}])
def test_a_spec_with_an_impossible_workload_is_unreadable(study: StudyBuilder, changes: dict[str, Any]) -> None:
    run_dir = add_workload(study, workload_spec())
    document = json.loads((run_dir / "spec.json").read_text())
    document["spec"]["workload"] |= changes
    (run_dir / "spec.json").write_text(json.dumps(document))
    run = only_run(study)
    assert run.status == "unreadable"
    assert f"spec.json: workload.{next(iter(changes))} is" in str(run.reason)


def test_a_study_reads_the_same_from_its_cache(tmp_path: Path) -> None:
    study = workload_study(tmp_path / "study")
    first, again = (read_study(study.folder) for _ in range(2))
    assert (first.reread, again.reread) == (3, 0)
    for run, kept in zip(first.runs, again.runs, strict=True):
        assert vars(run).items() <= vars(kept).items()
