"""Validity of a completed run: its ranks agree, and it did the requested work."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from study_builder import CREATED, Logs, StudyBuilder, resume, spec_of

from analysis.read.attempts import Attempt, Piece
from analysis.read.columns.validity import AGREEMENT, faults_of
from analysis.read.log.rank import RankLog
from analysis.read.study import read_study
from harness.core.spec import STRONG
from harness.core.strategies import names


def only_run(study: StudyBuilder) -> dict:
    (row,) = read_study(study.folder).runs
    return row


def rows(study: StudyBuilder) -> dict[str, dict]:
    return {row["run_id"]: row for row in read_study(study.folder).runs}


@pytest.mark.parametrize("strategy", [name for name in names(lambda row: row.synchronous) if name != "plain"])
@pytest.mark.parametrize(
    ("logs", "reason"),
    [
        # (640.001 - 640) / 640.001
        (Logs(gradients=[(-9.0, 640.0), (-9.0, 640.001)]), "different: their checksums differ by 1.6e-06"),
        (Logs(gradients=[(-9.0, 640.0), (9.0, 640.0)]), "different: their checksums differ by 2.8e-02"),
        (Logs(gradients=[(-9.0, 0.0), (9.0, 0.0)]), "different: their checksums differ by inf"),
        (Logs(gradients=[(-9.0, 640.0), None]), "rank 1 logged no gradients, other ranks did"),
        (Logs(gradients=[(None, None), (-9.0, 640.0)]), "gradient of rank 0 is not finite, that of other ranks is"),
        (Logs(checksums=[100.0, 100.001]), "checksums differ by 1.0e-05 (relative)"),  # 0.001 / 100.001
        (Logs(checksums=[100.0, None]), "rank 1 logged no finite weights_checksum"),
    ],
)
def test_ranks_that_disagree_make_a_run_invalid(study: StudyBuilder, strategy: str, logs: Logs, reason: str) -> None:
    study.add(spec_of(2, strategy=strategy), logs)
    run = only_run(study)
    assert run["status"] == "invalid"
    assert reason in run["reason"]


@pytest.mark.parametrize(
    "logs",
    [
        Logs(gradients=[(-9.0, 640.0), (-9.0003, 640.0)]),  # 4.7e-7, below the tolerance of 1e-6
        Logs(gradients=[(-9.0, 640.0), (-9.0, 640.0003)]),
        Logs(gradients=[(0.0, 0.0), (0.0, 0.0)]),
        Logs(checksums=[100.0, 100.00005]),  # 5e-7
    ],
)
def test_ranks_that_differ_by_rounding_agree(study: StudyBuilder, logs: Logs) -> None:
    study.add(spec_of(2), logs)
    assert (only_run(study)["status"], only_run(study)["notes"]) == ("completed", None)


def test_ranks_of_other_strategies_may_have_different_gradients_and_weights(study: StudyBuilder) -> None:
    logs = Logs(checksums=[100.0, 200.0], gradients=[(-9.0, 640.0), (3.0, 700.0)])
    study.add(spec_of(2, strategy="ps_async"), logs)
    assert only_run(study)["status"] == "completed"


def test_gradients_of_each_attempt_that_counts_have_to_agree(study: StudyBuilder) -> None:
    cut = Logs([1.0], checkpoints={20: 0.5}, ends=False, gradients=[(1.0, 2.0), (-1.0, 2.0)])
    rest = Logs([8.0, 16.0, 32.0], resume=resume(20, 1), begin=CREATED + 100)
    study.attempts(spec_of(2), cut, rest)
    assert only_run(study)["reason"].startswith("attempt 1: the ranks' first gradients are different")


def test_gradients_of_an_attempt_without_part_in_the_figures_do_not_matter(study: StudyBuilder) -> None:
    cut = Logs([1.0], ends=False, gradients=[(1.0, 2.0), (-1.0, 2.0)])
    study.attempts(spec_of(2), cut, Logs(resume=resume(0), begin=CREATED + 50))
    assert only_run(study)["status"] == "completed"


def test_attempt_that_only_evaluated_has_no_gradients_to_disagree_on(study: StudyBuilder) -> None:
    whole = Logs([1.0] * 4, checkpoints={50: 0.5}, ends=False)
    study.attempts(spec_of(2), whole, Logs(block_seconds=[], resume=resume(50, 1), begin=CREATED + 99))
    run = only_run(study)
    assert run["status"] == "completed"
    assert "checked" not in run["notes"]


def test_gradient_that_is_finite_on_no_rank_is_said_and_no_refusal(study: StudyBuilder) -> None:
    study.add(spec_of(2), Logs(gradients=(None, None)))
    run = only_run(study)
    assert run["status"] == "completed"
    assert run["notes"] == "the first gradient is not finite: that the ranks agree on it was not checked"


def test_wrong_number_of_consumed_samples_makes_a_run_invalid(study: StudyBuilder) -> None:
    study.add(spec_of(2), Logs(samples=[6400, 6272]))  # 50 steps of 128 samples; rank 1 one batch less
    run = only_run(study)
    assert (run["status"], run["reason"]) == ("invalid", "rank 1 consumed 6,272 training samples, its steps say 6,400")


def test_ranks_sharing_a_model_consume_the_samples_of_all(study: StudyBuilder) -> None:
    spec = spec_of(4, strategy="tensor", strategy_options={"degree": 2})
    study.add(spec, Logs(samples=2 * 6400))
    run = only_run(study)
    assert (run["status"], run["samples"]) == ("completed", 40 * 4 * 128)


def test_options_that_no_replica_can_be_counted_by_make_a_run_unreadable(study: StudyBuilder) -> None:
    study.add(spec_of(4, strategy="tensor", strategy_options={"degree": 3}), Logs())
    assert only_run(study)["reason"] == "spec.json: 4 ranks cannot be replicas of 3 ranks"


def test_samples_of_a_continued_run_are_those_of_its_last_attempt(study: StudyBuilder) -> None:
    cut = Logs([1.0], checkpoints={20: 0.5}, ends=False)
    right, wrong = (
        Logs([8.0] * 3, resume=resume(20, 1), samples=samples, begin=CREATED + 100) for samples in (3840, 6400)
    )
    study.attempts(spec_of(1), cut, right)
    study.attempts(spec_of(2), cut, wrong)
    found = rows(study)
    assert found[spec_of(1).run_id]["status"] == "completed"
    reason = "attempt 2: rank 0 consumed 6,400 training samples, its steps say 3,840"
    assert found[spec_of(2).run_id]["reason"] == reason


def test_samples_of_a_rank_with_a_lost_block_are_not_checked_but_noted(study: StudyBuilder) -> None:
    run_dir = study.add(spec_of(2), Logs())
    log = run_dir / "attempt-1" / "events.rank1.jsonl"
    log.write_text("".join(line for line in log.read_text().splitlines(True) if '"step":20' not in line))
    run = only_run(study)
    assert run["status"] == "completed"
    assert "rank 1 lacks steps in its log: the samples that it consumed were not checked" in run["notes"]


@pytest.mark.parametrize("strategy", ["allreduce", "ps_async"])
def test_ranks_with_different_networks_make_a_run_invalid(study: StudyBuilder, strategy: str) -> None:
    study.add(spec_of(2, strategy=strategy), Logs(parameters=[269_722, 269_722 + 64]))
    assert only_run(study)["reason"] == "the ranks built different networks: 269,722 and 269,786 parameters"


def test_logs_from_before_the_checks_stay_readable_and_say_what_was_not_checked(study: StudyBuilder) -> None:
    study.add(spec_of(2), Logs(later=False))
    run = only_run(study)
    assert (run["status"], run["samples"], run["communication"]) == ("completed", 40 * 256, None)
    assert run["notes"] == (
        "no rank logged its gradients: that the ranks agree on them was not checked; "
        "not every rank logged the samples that it consumed: they were not checked"
    )


def _rank(total: float, magnitude: float) -> RankLog:
    start = {"ev": "start", "world_size": 2}
    block = {"ev": "steps", "phase": "measure", "step": 0, "n": 1, "seconds": 1.0, "samples": 1}
    return RankLog.of([start, block, {"ev": "gradients", "step": 0, "sum": total, "magnitude": magnitude}])


@settings(deadline=None)
@given(
    magnitude=st.floats(1e-3, 1e6),
    total=st.floats(-1, 1),
    part=st.floats(0, 3).filter(lambda part: abs(part - 1) > 1e-3),
    of_the_sum=st.booleans(),
)
def test_bound_of_agreement_is_a_part_of_the_magnitude(
    magnitude: float, total: float, part: float, of_the_sum: bool
) -> None:
    total *= magnitude  # a sum is at most the sum of magnitudes
    off = part * AGREEMENT * magnitude
    other = (total + off, magnitude) if of_the_sum else (total, magnitude + off)
    ranks = {0: _rank(total, magnitude), 1: _rank(*other)}
    piece = Piece(Attempt(1, ranks, (), (), None, None, None, False), (), 0)
    assert any("first gradients are different" in fault for fault in faults_of(spec_of(2), [piece])) == (part > 1)


def given_batches(study: StudyBuilder, **batches: tuple[int, ...]) -> None:
    """Add a completed run of each framework on 2 GPUs with each of these global batches."""
    for framework, sizes in batches.items():
        for size in sizes:
            study.completed(2, framework=framework, batch_per_gpu=size // 2)


def test_frameworks_with_different_global_batches_are_no_comparison(study: StudyBuilder) -> None:
    given_batches(study, pytorch=(128,), tensorflow=(256,))
    study.completed(4, framework="pytorch")
    read = read_study(study.folder)
    found = {(row["framework"], row["gpus"]): (row["status"], row["reason"]) for row in read.runs}
    reason = "pytorch was given a global batch of 128 and tensorflow of 256 at 2 GPUs: not the same work"
    assert found == {
        ("pytorch", 2): ("invalid", reason),
        ("tensorflow", 2): ("invalid", reason),
        ("pytorch", 4): ("completed", None),  # no other framework was measured there
    }
    assert read.problems == (f"resnet44 on cifar10: {reason}; its 2 completed runs are refused",)


def test_runs_of_two_incomparable_frameworks_are_invalid_but_not_of_a_third(study: StudyBuilder) -> None:
    given_batches(study, pytorch=(128, 512), tensorflow=(256,), jax=(256, 512))
    found = list(rows(study).values())
    assert {(row["framework"], row["global_batch"]): row["status"] for row in found} == {
        ("pytorch", 128): "invalid",
        ("pytorch", 512): "invalid",
        ("tensorflow", 256): "invalid",
        ("jax", 256): "completed",
        ("jax", 512): "completed",
    }
    reason = "pytorch was given a global batch of 128 or 512 and tensorflow of 256 at 2 GPUs: not the same work"
    assert {row["reason"] for row in found} == {None, reason}


@pytest.mark.parametrize("others", [(128, 256), (256, 512)])
def test_batch_that_all_frameworks_have_makes_a_comparison(study: StudyBuilder, others: tuple[int, ...]) -> None:
    given_batches(study, pytorch=(128, 256), tensorflow=others)
    assert {row["status"] for row in rows(study).values()} == {"completed"}


def test_only_completed_runs_count_as_given_batches(study: StudyBuilder) -> None:
    given_batches(study, pytorch=(128,))
    spec = spec_of(2, framework="tensorflow", batch_per_gpu=128)
    study.add(spec, Logs(), result={"status": "failed", "reason": "out of memory"})
    study.add(spec_of(2, framework="jax", batch_per_gpu=256), Logs(world_size=1))
    study.add(spec_of(2, framework="mxnet", batch_per_gpu=32), None, finished=False)
    assert sorted(row["status"] for row in rows(study).values()) == ["completed", "failed", "invalid", "unfinished"]


@pytest.mark.parametrize("change", ["model=resnet20", "precision=bf16", f"scaling={STRONG}"])
def test_batches_of_runs_that_are_not_compared_may_differ(study: StudyBuilder, change: str) -> None:
    study.completed(2)
    other: dict[str, Any] = dict([change.split("=")])
    study.completed(2, framework="jax", batch_per_gpu=16, **other)
    study.completed(4, framework="mxnet", batch_per_gpu=8)
    assert {row["status"] for row in rows(study).values()} == {"completed"}


def test_comparison_is_judged_anew_with_every_report(study: StudyBuilder) -> None:
    given_batches(study, pytorch=(128,), tensorflow=(256,))
    assert {row["status"] for row in rows(study).values()} == {"invalid"}
    given_batches(study, tensorflow=(128,))
    again = read_study(study.folder)
    assert again.reread == 1
    assert {row["status"] for row in again.runs} == {"completed"}
