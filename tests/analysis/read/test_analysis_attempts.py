"""Runs with several attempts: which steps count, useful time, and notes."""

from __future__ import annotations

import json
import shutil

import jsonschema
import pytest
from file_times import touch_later
from project import PROJECT
from study_builder import CREATED, RESULT, Logs, StudyBuilder, resume, spec_of

from analysis.measures.speedup import points_of
from analysis.read.study import read_study
from analysis.tables.point import Point
from analysis.tables.throughput import goodput
from harness.core.events import write_result
from harness.core.spec import CheckpointSpec, FaultSpec
from harness.study import outcome

SCHEMAS = PROJECT / "harness" / "schemas"

# A run of 50 steps in blocks of 10: the warm-up (9 s), then `block_seconds`. The first attempt is cut off after step
# 40, with its last checkpoint at step 20; the second resumes there with a re-warm-up block.
CUT = Logs(block_seconds=[1.0, 2.0, 4.0], checkpoints={20: 0.5}, ends=False, exit_codes=[-9])
REST = Logs(block_seconds=[8.0, 16.0, 32.0], resume=resume(20, 1, lost_steps=20), begin=CREATED + 100)


def only_run(study: StudyBuilder) -> dict:
    rows = read_study(study.folder).runs
    assert len(rows) == 1
    return rows[0]


def points(study: StudyBuilder) -> list[Point]:
    return points_of(read_study(study.folder).runs)


def test_files_of_attempts_follow_the_schemas(study: StudyBuilder) -> None:
    spec = spec_of(2, fault=FaultSpec("kill_rank", 35, 1))
    cut = Logs(block_seconds=CUT.block_seconds, checkpoints={20: 0.5}, fault=(1, 35), ends=False, exit_codes=[-15, -9])
    run_dir = study.attempts(spec, cut, REST)
    outcome.write_restart(run_dir / "attempt-1", outcome.BY_FAILURE, "rank 1 was ended by signal 9 (SIGKILL)", 20)
    outcome.write_job(run_dir / "attempt-1", "0123456789", None, 3)
    seen = set()
    for path in sorted(run_dir.glob("attempt-*/*")):
        name = path.name.split(".")[0]
        schema = json.loads((SCHEMAS / f"{name}.schema.json").read_text())
        for document in path.read_text().splitlines() if name == "events" else [path.read_text()]:
            jsonschema.validate(json.loads(document), schema)
            seen.add(json.loads(document).get("ev", name))
    logged = {"start", "resume", "steps", "gradients", "checkpoint", "fault", "end"}
    assert seen == {*logged, "begin", "exit", "again", "job"}


def test_steps_after_the_checkpoint_count_once_as_the_later_attempt_did_them(study: StudyBuilder) -> None:
    study.attempts(spec_of(1), CUT, REST)
    run = only_run(study)
    assert (run["status"], run["attempt"], run["attempts"], run["continued"]) == ("completed", 2, 2, True)
    # Measured: step 10 by the first attempt, 30 and 40 by the second; its block at 20 is a re-warm-up.
    assert (run["steps"], run["seconds"], run["samples"]) == (30, 1.0 + 16.0 + 32.0, 30 * 128)
    assert run["lost_steps"] == 20  # 20 to 39 of the first attempt
    assert "continued over 2 attempts" in run["notes"]
    assert "10 re-warm-up steps are in no throughput figure" in run["notes"]
    assert "20 steps are lost work" in run["notes"]


def test_goodput_is_useful_step_time_by_allocated_time(study: StudyBuilder) -> None:
    study.attempts(spec_of(1), CUT, REST)
    run = only_run(study)
    assert run["useful_seconds"] == 9 + 1 + (8 + 16 + 32)
    # From begin to exit. First: start-up 3, warm-up 9, blocks 1 + 2 + 4, checkpoint 0.5, exit 1. Second: 3, 56, 1.
    assert run["allocated_seconds"] == pytest.approx(20.5 + 60)
    assert run["idle_seconds"] == pytest.approx(100 - 20.5)
    assert run["checkpoint_seconds"] == 0.5
    (point,) = points(study)
    assert point.goodput == pytest.approx(66 / 80.5)
    assert point.attempts == 2
    assert point.marks == ("single run", "continued")


def test_goodput_of_a_point_is_all_useful_by_all_allocated_of_its_runs(study: StudyBuilder) -> None:
    study.completed(1, seconds=1.0, repeat=0)  # useful 9 + 4, allocated 3 + 13 + 1
    study.completed(1, seconds=10.0, repeat=1)  # useful 9 + 40, allocated 3 + 49 + 1
    study.add(spec_of(1, repeat=2), Logs(), result={"status": "failed", "reason": "killed"})
    (point,) = points(study)
    assert point.goodput == pytest.approx((13 + 49) / (17 + 53))
    assert (point.goodput_low, point.goodput_high) == pytest.approx((13 / 17, 49 / 53))
    assert point.attempts == 2


def test_goodput_is_not_made_of_a_part() -> None:
    assert goodput([30.0, 10.0], [40.0, 60.0]) == 0.4
    assert goodput([30.0, 10.0], [40.0, None]) is None
    assert goodput([30.0, None], [40.0, 60.0]) is None
    assert goodput([0.0], [0.0]) is None


def test_useful_time_is_that_of_the_slowest_rank(study: StudyBuilder) -> None:
    slow = Logs(block_seconds=[[1.0, 1.0, 1.0, 1.0], [1.0, 3.0, 1.0, 1.0]], checkpoints={20: 0.25})
    study.add(spec_of(2), slow)
    run = only_run(study)
    assert run["useful_seconds"] == 9 + 1 + 3 + 1 + 1
    assert run["allocated_seconds"] == pytest.approx(3 + 15 + 0.25 + 1)
    assert run["checkpoint_seconds"] == 0.25  # one checkpoint of two ranks


def test_three_attempts_make_a_chain(study: StudyBuilder) -> None:
    second = Logs(block_seconds=[8.0, 16.0], resume=resume(20, 1), checkpoints={30: 0.5}, ends=False, begin=CREATED)
    third = Logs(block_seconds=[64.0, 128.0], resume=resume(30, 2), begin=CREATED + 200)
    study.attempts(spec_of(1), CUT, second, third)
    run = only_run(study)
    # 10 by the first attempt; 20 by the second, re-warming; 30 by the third, re-warming; 40 by the third.
    assert (run["steps"], run["seconds"]) == (20, 1.0 + 128.0)
    assert run["useful_seconds"] == 9 + 1 + 8 + 64 + 128
    assert run["lost_steps"] == 20 + 10
    assert "20 re-warm-up steps are" in run["notes"]


def test_attempt_that_began_anew_discards_all_and_is_of_one_piece(study: StudyBuilder) -> None:
    ignored = "step-20 was written by code a, this is b; the run starts from step 0"
    again = Logs(block_seconds=[5.0] * 4, resume=resume(0, ignored=ignored), begin=CREATED + 100)
    study.attempts(spec_of(1), CUT, again)
    run = only_run(study)
    assert (run["attempts"], run["continued"], run["seconds"], run["lost_steps"]) == (2, False, 20.0, 40)
    assert run["useful_seconds"] == 9 + 20
    assert run["allocated_seconds"] == pytest.approx(20.5 + 33)
    assert run["notes"].startswith(f"2 attempts, the last one from step 0; attempt 2: {ignored}")
    assert points(study)[0].marks == ("single run",)


def test_attempt_that_died_before_it_trained_discards_nothing(study: StudyBuilder) -> None:
    study.attempts(spec_of(1), CUT, Logs(begin=CREATED + 50), REST, finished=False)
    run_dir = study.folder / "runs" / spec_of(1).run_id
    log = run_dir / "attempt-2" / "events.rank0.jsonl"
    log.write_text(log.read_text().splitlines(True)[0])  # the start event, without the resume event
    (run_dir / "attempt-2" / "exit.rank0.json").unlink()
    write_result(run_dir, {**RESULT, "run_id": spec_of(1).run_id, "attempt": 3})
    run = only_run(study)
    assert (run["status"], run["attempts"], run["seconds"]) == ("completed", 3, 1.0 + 16.0 + 32.0)
    assert run["useful_seconds"] == 66
    assert run["allocated_seconds"] == pytest.approx(20.5 + 3 + 60)  # 3: from its begin to its start event


def test_attempt_that_no_later_one_resumed_from_does_not_count(study: StudyBuilder) -> None:
    # The second restarted from scratch with other code and saved nothing; the third resumed from the first.
    anew = Logs(block_seconds=[5.0] * 3, resume=resume(0, ignored="other code"), ends=False, begin=CREATED + 50)
    study.attempts(spec_of(1), CUT, anew, REST)
    run = only_run(study)
    assert run["seconds"] == 1.0 + 16.0 + 32.0
    assert run["useful_seconds"] == 66
    assert run["lost_steps"] == 20 + 40


def test_attempt_that_only_evaluated_has_no_steps_of_its_own(study: StudyBuilder) -> None:
    whole = Logs(block_seconds=[1.0] * 4, checkpoints={50: 0.5}, ends=False)
    study.attempts(spec_of(1), whole, Logs(block_seconds=[], resume=resume(50, 1), accuracy=0.75, begin=CREATED + 99))
    run = only_run(study)
    assert (run["status"], run["seconds"], run["accuracy"], run["lost_steps"]) == ("completed", 4.0, 0.75, 0)
    assert run["notes"].startswith("continued over 2 attempts; attempt 1 ended")  # without a re-warm-up


def test_killed_node_has_lived_until_its_last_event(study: StudyBuilder) -> None:
    cut = Logs(block_seconds=CUT.block_seconds, checkpoints={20: 0.5}, ends=False, exit_codes=())
    study.attempts(spec_of(1), cut, REST)
    run = only_run(study)
    assert run["allocated_seconds"] == pytest.approx(19.5 + 60)  # without the second until an exit was written
    assert run["idle_seconds"] == pytest.approx(100 - 19.5)
    assert "attempt 1 ended: without a word" in run["notes"]


def test_last_sign_of_life_is_that_of_any_rank(study: StudyBuilder) -> None:
    study.add(spec_of(2), Logs(block_seconds=[[1.0] * 4, [2.0] * 4], exit_codes=[0]))
    assert only_run(study)["allocated_seconds"] == pytest.approx(3 + 9 + 8)  # rank 1's last event; rank 0 exited at 17


def test_attempt_that_left_nothing_but_its_begin_adds_nothing(study: StudyBuilder) -> None:
    run_dir = study.attempts(spec_of(1), CUT, Logs(begin=CREATED + 50), REST)
    for path in (run_dir / "attempt-2").iterdir():
        if path.name != "begin.json":
            path.unlink()
    run = only_run(study)
    assert (run["attempts"], run["useful_seconds"]) == (3, 66)
    assert run["allocated_seconds"] == pytest.approx(80.5)


def test_unknown_begin_makes_goodput_unknown(study: StudyBuilder) -> None:
    run_dir = study.attempts(spec_of(1), CUT, REST)
    (run_dir / "attempt-1" / "begin.json").unlink()
    run = only_run(study)
    assert (run["useful_seconds"], run["allocated_seconds"]) == (66, None)
    (point,) = points(study)
    assert (point.goodput, point.samples_per_second) == (None, pytest.approx(3840 / 49))


@pytest.mark.parametrize("name", ["begin.json", "exit.rank0.json"])
@pytest.mark.parametrize("content", ["", "[]", '{"t": "now"}', '{"t": NaN}', '{"t": 1e99}', "[" * 100_000])
def test_damaged_time_makes_goodput_unknown(study: StudyBuilder, name: str, content: str) -> None:
    run_dir = study.attempts(spec_of(1), CUT, REST)
    (run_dir / "attempt-1" / name).write_text(content)
    run = only_run(study)
    assert (run["status"], run["useful_seconds"], run["allocated_seconds"]) == ("completed", 66, None)


def test_attempt_in_the_queue_is_none_yet(study: StudyBuilder) -> None:
    run_dir = study.attempts(spec_of(1), CUT, finished=False)
    outcome.write_restart(run_dir / "attempt-1", outcome.BY_LIMIT, "wall limit: saved at step 40", 40)
    (run_dir / "attempt-2").mkdir()
    outcome.write_job(run_dir / "attempt-2", "0123456789", None, 0)
    run = only_run(study)
    assert (run["status"], run["attempt"], run["attempts"]) == ("unfinished", 2, 1)
    assert run["reason"].endswith("30 of 40 measured steps logged; attempt 1 ended: wall limit: saved at step 40")


def test_replaced_measurement_is_not_counted(study: StudyBuilder) -> None:
    run_dir = study.attempts(spec_of(1), CUT, REST)
    (run_dir / "result.json").rename(run_dir / "attempt-2" / "result-of-this-attempt.json")
    log = run_dir / "attempt-1" / "events.rank0.jsonl"
    log.write_text(log.read_text().replace('"v":1', '"v":7'))  # not even read
    again = Logs(block_seconds=[5.0] * 4, resume=resume(0, lost_steps=50, idle_seconds=9e5), begin=CREATED + 1e6)
    study.add(spec_of(1), again, attempt=3)
    run = only_run(study)
    assert (run["status"], run["attempt"], run["attempts"], run["continued"]) == ("completed", 3, 1, False)
    assert (run["useful_seconds"], run["allocated_seconds"]) == (29, pytest.approx(33))
    assert (run["lost_steps"], run["idle_seconds"], run["notes"]) == (0, 0, None)


def test_failed_attempt_that_was_tried_again_is_counted(study: StudyBuilder) -> None:
    failed = {**RESULT, "run_id": spec_of(1).run_id, "status": "failed", "reason": "rank 0 was ended by signal 9"}
    run_dir = study.attempts(spec_of(1), CUT, REST)
    (run_dir / "attempt-1" / "result-of-this-attempt.json").write_text(json.dumps(failed))
    run = only_run(study)
    assert (run["attempts"], run["useful_seconds"]) == (2, 66)
    assert "attempt 1 ended: rank 0 was ended by signal 9" in run["notes"]


def test_damaged_replaced_result_makes_the_run_unreadable(study: StudyBuilder) -> None:
    run_dir = study.attempts(spec_of(1), CUT, REST)
    (run_dir / "attempt-1" / "result-of-this-attempt.json").write_text('{"v": 1, "sta')
    run = only_run(study)
    assert (run["status"], run["reason"]) == (
        "unreadable",
        "attempt-1/result-of-this-attempt.json is not a result",
    )


def test_missing_first_part_makes_goodput_unknown(study: StudyBuilder) -> None:
    run_dir = study.attempts(spec_of(1), CUT, REST)
    shutil.rmtree(run_dir / "attempt-1")
    run = only_run(study)
    assert (run["status"], run["seconds"], run["useful_seconds"]) == ("completed", 48.0, None)
    assert "attempt 2 went on from step 20; what was before is not here" in run["notes"]


def test_causes_are_named(study: StudyBuilder) -> None:
    spec = spec_of(1, fault=FaultSpec("kill_rank", 35))
    cut = Logs(block_seconds=CUT.block_seconds, checkpoints={20: 0.5}, ends=False, fault=(0, 35), exit_codes=[-9])
    run_dir = study.attempts(spec, cut, REST)
    outcome.write_restart(run_dir / "attempt-1", outcome.BY_FAILURE, "rank 0 was ended by signal 9 (SIGKILL)", 20)
    notes = only_run(study)["notes"]
    assert "attempt 1 ended: failure: rank 0 was ended by signal 9 (SIGKILL)" in notes
    assert "kill_rank was injected at step 35 on rank 0 in attempt 1" in notes


def test_rank_that_left_as_it_was_told_to_is_said(study: StudyBuilder) -> None:
    cut = Logs(block_seconds=[1.0], checkpoints={20: 0.5}, ends=False, exit_codes=[75])
    study.attempts(spec_of(1), cut, REST)
    assert "attempt 1 ended: left, saved, as it was told to" in only_run(study)["notes"]


def test_each_attempt_whose_steps_count_is_held_to_the_spec(study: StudyBuilder) -> None:
    cut = Logs(block_seconds=[1.0], checkpoints={20: 0.5}, ends=False, device="cpu")
    study.attempts(spec_of(2), cut, REST)
    run = only_run(study)
    assert run["status"] == "invalid"
    assert run["reason"] == "attempt 1: a rank ran with device cpu, the spec asks for cuda"


def test_attempt_without_part_in_the_figures_is_not_held_to_the_spec(study: StudyBuilder) -> None:
    cut = Logs(block_seconds=[1.0], ends=False, device="cpu")
    study.attempts(spec_of(2), cut, Logs(resume=resume(0), begin=CREATED + 50))
    assert only_run(study)["status"] == "completed"


def test_missing_log_in_a_counted_attempt_makes_a_run_invalid(study: StudyBuilder) -> None:
    run_dir = study.attempts(spec_of(2), CUT, REST)
    (run_dir / "attempt-1" / "events.rank1.jsonl").unlink()
    assert only_run(study)["reason"] == "attempt 1: no log of rank 1"


def test_completed_run_whose_last_attempt_has_no_log_is_invalid(study: StudyBuilder) -> None:
    run_dir = study.attempts(spec_of(1), CUT, REST)
    (run_dir / "attempt-2" / "events.rank0.jsonl").unlink()
    assert only_run(study)["reason"] == "no log of rank 0; no measured steps"


def test_ranks_that_went_on_from_different_steps_make_a_run_invalid(study: StudyBuilder) -> None:
    run_dir = study.attempts(spec_of(2), CUT, REST)
    log = run_dir / "attempt-2" / "events.rank1.jsonl"
    log.write_text(log.read_text().replace('"ev":"resume","step":20', '"ev":"resume","step":10'))
    assert "attempt 2: the ranks went on from different steps" in only_run(study)["reason"]


def test_blocks_that_a_killed_rank_lacks_are_lost_and_not_left_out(study: StudyBuilder) -> None:
    run_dir = study.attempts(spec_of(2), CUT, REST)
    log = run_dir / "attempt-1" / "events.rank1.jsonl"
    log.write_text("".join(log.read_text().splitlines(True)[:-1]) + '{"v":1,"t":1.0,"ra')  # killed in its last block
    run = only_run(study)
    assert (run["status"], run["left_out_blocks"], run["unreadable_lines"]) == ("completed", 0, 1)
    assert run["lost_steps"] == 20


def test_unequal_machines_and_versions_of_attempts_are_said(study: StudyBuilder) -> None:
    rest = Logs(REST.block_seconds, device_name="NVIDIA A100", versions={"torch": "2.12.1"}, resume=resume(20, 1))
    study.attempts(spec_of(1), CUT, rest)
    assert "its attempts ran with different versions: torch 2.12.1 / 2.13.0" in only_run(study)["notes"]
    assert points(study)[0].marks == ("single run", "continued", "mixed machines")


def test_probes_and_evaluation_are_those_of_the_last_attempt(study: StudyBuilder) -> None:
    cut = Logs([1.0], cached_batch_seconds=0.5, accuracy=0.1, startup_seconds={"imports": 50.0}, checkpoints={20: 1.0})
    rest = Logs(REST.block_seconds, cached_batch_seconds=0.25, accuracy=0.75, resume=resume(20, 1), checksums=[7.0])
    study.attempts(spec_of(1), cut, rest)
    run = only_run(study)
    assert (run["cached_batch_seconds"], run["accuracy"], run["startup_seconds"]) == (0.25, 0.75, 3.0)


@pytest.mark.parametrize("name", ["events.rank0.jsonl", "begin.json", "exit.rank0.json", "again.json"])
def test_change_of_an_old_attempt_has_the_run_read_again(study: StudyBuilder, name: str) -> None:
    run_dir = study.attempts(spec_of(1), CUT, REST)
    outcome.write_restart(run_dir / "attempt-1", outcome.BY_FAILURE, "rank 0 exited with code 1", 20)
    assert [read_study(study.folder).reread for _ in range(2)] == [1, 0]
    touch_later(run_dir / "attempt-1" / name)
    assert [read_study(study.folder).reread for _ in range(2)] == [1, 0]
    (run_dir / "attempt-1" / name).unlink()
    assert read_study(study.folder).reread == 1


def test_measurement_that_is_replaced_has_the_run_read_again(study: StudyBuilder) -> None:
    run_dir = study.attempts(spec_of(1), CUT, REST)
    read_study(study.folder)
    (run_dir / "result.json").rename(run_dir / "attempt-2" / "result-of-this-attempt.json")
    read = read_study(study.folder)
    assert (read.reread, read.runs[0]["status"]) == (1, "unfinished")


def test_what_a_rank_printed_does_not_have_the_run_read_again(study: StudyBuilder) -> None:
    run_dir = study.attempts(spec_of(1), CUT, REST)
    read_study(study.folder)
    (run_dir / "attempt-1" / "stdout.rank0").write_text("step 1\n")
    assert read_study(study.folder).reread == 0


def test_injected_fault_is_marked_and_is_a_series_of_its_own(study: StudyBuilder) -> None:
    study.completed(1)
    study.completed(1, fault=FaultSpec("kill_rank", 50))
    study.completed(1, fault=FaultSpec("kill_rank", 50, 3))
    study.completed(1, fault=FaultSpec("slow_rank", 0, 0, 0.05))
    found = [(p.detail, p.marks) for p in points(study)]
    assert found == [
        ("", ("single run",)),
        ("fault=kill_rank at step 50", ("fault injected", "single run")),
        ("fault=kill_rank at step 50 on rank 3", ("fault injected", "single run")),
        ("fault=slow_rank at step 0, 0.05 s per step", ("fault injected", "single run")),
    ]


def test_injected_fault_is_said_also_where_nothing_else_was_measured(study: StudyBuilder) -> None:
    study.completed(1, fault=FaultSpec("hang", 20))
    assert points(study)[0].detail == "fault=hang at step 20"


def test_checkpoint_interval_is_said_in_words_where_series_differ_in_it(study: StudyBuilder) -> None:
    study.completed(1)
    study.completed(1, checkpoint=CheckpointSpec(20))
    study.completed(1, model="resnet110", checkpoint=CheckpointSpec(20))
    assert [p.detail for p in points(study)] == ["", "checkpoint every 20 steps", ""]
