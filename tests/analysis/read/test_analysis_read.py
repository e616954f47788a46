"""Reading a study's folder: statuses, validity, damage, the cache."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys

import jsonschema
import pytest
from environment_files import write_environment
from file_times import touch_later
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from project import PROJECT
from study_builder import SITE, Logs, StudyBuilder, spec_of

from analysis.base.errors import StudyError
from analysis.read.files import begin_signing, signature
from analysis.read.row import Run
from analysis.read.study import Study, read_study
from harness.core.spec import Placement

SCHEMAS = PROJECT / "harness" / "schemas"


def only_run(study: Study) -> Run:
    rows = study.runs
    assert len(rows) == 1
    return rows[0]


def test_built_studies_follow_the_schemas(study: StudyBuilder) -> None:
    logs = Logs(cached_batch_seconds=0.09, no_sync_seconds=0.08, allreduce={1024: 1e-4}, accuracy=0.7)
    run_dir = study.add(spec_of(2), logs)

    def validated(name: str, *documents: str) -> int:
        schema = json.loads((SCHEMAS / f"{name}.schema.json").read_text())
        for document in documents:
            jsonschema.validate(json.loads(document), schema)
        return len(documents)

    validated("result", (run_dir / "result.json").read_text())
    validated("study", (study.folder / "study.json").read_text())
    for rank, n_events in ((0, 12), (1, 11)):  # start, 1 + 4 blocks, the gradients, 3 probes, rank 0's evaluation, end
        lines = (run_dir / "attempt-1" / f"events.rank{rank}.jsonl").read_text().splitlines()
        assert validated("events", *lines) == n_events


def test_step_time_is_that_of_the_slowest_rank(study: StudyBuilder) -> None:
    study.add(spec_of(2), Logs(block_seconds=[[1.0, 2.0], [1.5, 1.0]]))
    run = only_run(read_study(study.folder))
    assert run["seconds"] == 3.5  # max(1.0, 1.5) + max(2.0, 1.0)
    assert run["samples"] == 5120  # 2 ranks x 2 blocks x 10 steps x 128
    assert run["steps"] == 20


def test_failed_run_is_named_with_its_reason(study: StudyBuilder) -> None:
    failure = {"status": "failed", "reason": "rank 1 ended with signal 9", "failed_rank": 1, "exit_code": -9}
    study.add(spec_of(2), Logs(), result={**failure, "stderr_tail": ["out of memory"]})
    run = only_run(read_study(study.folder))
    assert (run["status"], run["reason"]) == ("failed", "rank 1 ended with signal 9")
    assert (run["failed_rank"], run["exit_code"]) == (1, -9)
    assert json.loads(run["stderr_tail"]) == ["out of memory"]


def test_run_without_result_is_unfinished_and_says_how_far_it_came(study: StudyBuilder) -> None:
    study.add(spec_of(1), Logs(block_seconds=[1.0, 1.0]), finished=False)
    run = only_run(read_study(study.folder))
    assert run["status"] == "unfinished"
    assert "20 of 40 measured steps" in run["reason"]


def test_run_that_was_asked_for_and_has_no_folder_is_missing(study: StudyBuilder) -> None:
    study.completed(1)
    study.requested.append("pytorch-allreduce-resnet44-64gpu-aaaaaaaaaaaa")
    study.write_study()
    missing = read_study(study.folder).runs[-1]
    assert missing["status"] == "missing"
    assert missing["run_id"] == "pytorch-allreduce-resnet44-64gpu-aaaaaaaaaaaa"


@pytest.mark.parametrize(
    ("logs", "reason"),
    [
        (Logs(world_size=1), "rank 0 saw a world size of 1, the spec asks for 2"),
        (Logs(device="cpu"), "a rank ran with device cpu, the spec asks for cuda"),
        (Logs(block_seconds=[[], []]), "no measured steps"),
        (Logs(block_seconds=[0.0, 0.0]), "no samples or no seconds"),
    ],
)
def test_completed_run_that_cannot_be_trusted_is_invalid(study: StudyBuilder, logs: Logs, reason: str) -> None:
    study.add(spec_of(2), logs)
    run = only_run(read_study(study.folder))
    assert run["status"] == "invalid"
    assert reason in run["reason"]


def test_missing_log_of_a_rank_makes_a_run_invalid(study: StudyBuilder) -> None:
    run_dir = study.add(spec_of(2), Logs())
    (run_dir / "attempt-1" / "events.rank1.jsonl").unlink()
    run = only_run(read_study(study.folder))
    assert (run["status"], run["reason"]) == ("invalid", "no log of rank 1")


def test_only_the_last_attempt_counts(study: StudyBuilder) -> None:
    study.add(spec_of(1), Logs(block_seconds=[9.0]), finished=False)
    study.add(spec_of(1), Logs(block_seconds=[1.0]), attempt=10)  # 10 comes after 2, not after 1
    shutil.copytree(
        study.folder / "runs" / spec_of(1).run_id / "attempt-1",
        study.folder / "runs" / spec_of(1).run_id / "attempt-2",
    )
    run = only_run(read_study(study.folder))
    assert (run["attempt"], run["seconds"]) == (10, 1.0)


def test_torn_last_line_is_counted_and_the_rest_is_read(study: StudyBuilder) -> None:
    run_dir = study.add(spec_of(1), Logs(block_seconds=[1.0, 2.0]), finished=False)
    with open(run_dir / "attempt-1" / "events.rank0.jsonl", "a") as log:
        log.write('{"v":1,"t":1.0,"rank":0,"ev":"ste')
    study_read = read_study(study.folder)
    run = only_run(study_read)
    assert run["unreadable_lines"] == 1
    assert run["seconds"] == 3.0
    assert any("1 unreadable line in the logs of 1 run" in problem for problem in study_read.problems)


def test_block_that_one_rank_lost_is_left_out_of_all(study: StudyBuilder) -> None:
    run_dir = study.add(spec_of(2), Logs(block_seconds=[1.0, 2.0, 4.0]))
    log = run_dir / "attempt-1" / "events.rank1.jsonl"
    lines = log.read_text().splitlines()
    log.write_text("\n".join(line for line in lines if '"step":20' not in line) + "\n")  # the second of three blocks
    run = only_run(read_study(study.folder))
    assert (run["seconds"], run["samples"]) == (5.0, 5120)  # 1 + 4; 2 ranks x 2 blocks x 1280
    assert "1 block left out" in run["notes"]


def test_unknown_version_is_refused_by_name(study: StudyBuilder) -> None:
    run_dir = study.add(spec_of(1), Logs())
    log = run_dir / "attempt-1" / "events.rank0.jsonl"
    log.write_text(log.read_text().replace('"v":1', '"v":7'))
    run = only_run(read_study(study.folder))
    assert run["status"] == "unreadable"
    assert "events.rank0.jsonl: schema version 7; this code reads version 1" in run["reason"]
    assert str(study.folder) not in run["reason"]


@pytest.mark.parametrize("name", ["spec.json", "result.json"])
@pytest.mark.parametrize("content", ["", '{"v": 1,', "[" * 100_000, "[]", '{"v": 9}', "\x00\xff"])
def test_damaged_file_makes_the_run_unreadable_and_keeps_the_others(
    study: StudyBuilder, name: str, content: str
) -> None:
    study.completed(1)
    damaged = study.completed(2)
    (damaged / name).write_text(content, encoding="latin-1")
    statuses = {row["run_id"]: row["status"] for row in read_study(study.folder).runs}
    assert statuses == {spec_of(1).run_id: "completed", damaged.name: "unreadable"}


def test_spec_with_values_of_another_type_is_unreadable(study: StudyBuilder) -> None:
    run_dir = study.completed(1)
    document = json.loads((run_dir / "spec.json").read_text())
    document["spec"]["gpus"] = "four"
    (run_dir / "spec.json").write_text(json.dumps(document))
    assert "gpus is 'four'" in only_run(read_study(study.folder))["reason"]


def test_foreign_entries_are_named_as_problems(study: StudyBuilder) -> None:
    study.completed(1)
    runs = study.folder / "runs"
    (runs / "notes.txt").write_text("mine")
    (runs / "empty").mkdir()
    (runs / "other").mkdir()
    (runs / "other" / "file").write_text("x")
    problems = "\n".join(read_study(study.folder).problems)
    assert "runs/notes.txt is a file that is not part of a study" in problems
    assert "runs/empty is an empty folder" in problems
    assert "runs/other is a folder without spec.json" in problems


def test_copied_run_is_no_repeat(study: StudyBuilder) -> None:
    run_dir = study.completed(1)
    shutil.copytree(run_dir, run_dir.with_name("a-copy"))
    read = read_study(study.folder)
    statuses = {row["run_id"]: row["status"] for row in read.runs}
    assert statuses == {"a-copy": "invalid", run_dir.name: "completed"}
    assert any("runs/a-copy holds the spec.json of run" in problem for problem in read.problems)


def test_second_read_uses_cache_and_a_changed_run_is_reread(study: StudyBuilder) -> None:
    study.completed(1, seconds=1.0)
    changed = study.completed(2, seconds=1.0)
    first = read_study(study.folder)
    second = read_study(study.folder)
    assert (first.reread, second.reread) == (2, 0)
    assert [run.columns() for run in second.runs] == [run.columns() for run in first.runs]

    log = changed / "attempt-1" / "events.rank0.jsonl"
    log.write_text(log.read_text().replace('"seconds":1.0', '"seconds":3.0'))
    touch_later(log)
    third = read_study(study.folder)
    assert third.reread == 1
    assert third.runs[1]["seconds"] == 12.0  # 4 blocks of 3 s on the slower rank


ROW_FILES = (
    "spec.json",
    "result.json",
    *(f"attempt-1/{name}" for name in ("begin.json", "env.json", "exit.rank1.json")),
)


@pytest.mark.parametrize("name", [*ROW_FILES, "attempt-1/events.rank1.jsonl"])
@pytest.mark.parametrize("change", ["time", "size", "gone"])
def test_no_change_of_a_file_that_a_row_is_made_of_goes_unnoticed(study: StudyBuilder, name: str, change: str) -> None:
    study.completed(1)
    run_dir = study.completed(2)
    write_environment(run_dir)
    assert read_study(study.folder).reread == 2
    assert read_study(study.folder).reread == 0
    path = run_dir / name
    before = path.stat()
    if change == "time":
        touch_later(path)
    elif change == "size":
        with path.open("a") as file:
            file.write(" ")
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    else:
        path.unlink()
    after = read_study(study.folder)
    gone = name == "spec.json" and change == "gone"  # then it is no longer a run
    assert after.reread == (0 if gone else 1)
    assert len(after.problems) >= gone


@pytest.mark.parametrize("name", ["attempt-2", "attempt-1/again.json", "attempt-1/events.rank7.jsonl"])
def test_only_files_that_affect_the_row_invalidate_the_cache(study: StudyBuilder, name: str) -> None:
    run_dir = study.completed(1)
    read_study(study.folder)
    (run_dir / "attempt-1" / "stderr.rank0").write_text("a word")
    (run_dir / "attempt-1" / "trace.rank0.json.gz").write_text("a trace")
    assert read_study(study.folder).reread == 0
    if name == "attempt-2":
        (run_dir / name).mkdir()
    else:
        (run_dir / name).write_text("{}")
    assert read_study(study.folder).reread == 1


def test_the_page_needs_no_pandas(study: StudyBuilder) -> None:
    """Importing it takes a sixth of the time that such a page needs."""
    study.add(spec_of(1), Logs())
    code = (
        "import sys\nfrom analysis.__main__ import main\n"
        f"assert not main([{str(study.folder)!r}, '--only', 'html'])\nsys.exit('pandas' in sys.modules)"
    )
    for _ in ("first read", "from the cache"):
        done = subprocess.run([sys.executable, "-c", code], cwd=PROJECT, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
    assert (study.folder / "analysis" / "runs.parquet").exists()


@pytest.mark.parametrize("processes", [1, 2, 5, 9])
def test_processes_sign_what_one_does_and_one_that_fails_costs_only_time(
    study: StudyBuilder, monkeypatch: pytest.MonkeyPatch, processes: int
) -> None:
    for seed in range(4):
        study.completed(1, seed=seed)
    runs = study.folder / "runs"
    (runs / "two\nlines").mkdir()
    (runs / os.fsdecode(b"\xff")).write_text("a file")
    paths = sorted(entry.path for entry in os.scandir(runs))
    alone = [signature(path) for path in paths]
    assert len({each.digest for each in alone}) == 6
    assert begin_signing(paths, processes)() == alone
    monkeypatch.setattr(sys, "executable", shutil.which("false"))
    assert begin_signing(paths, processes)() == alone


def test_damaged_cache_is_read_anew(study: StudyBuilder) -> None:
    study.completed(1)
    first = read_study(study.folder)
    (study.folder / "analysis" / "runs.parquet").write_bytes(b"PAR1 and nothing more")
    second = read_study(study.folder)
    assert second.reread == 1
    assert [run.columns() for run in second.runs] == [run.columns() for run in first.runs]


def test_cache_that_cannot_be_written_is_said_and_done_without(study: StudyBuilder) -> None:
    study.completed(1)
    (study.folder / "analysis").write_text("a file where the cache's folder would be")
    read = read_study(study.folder)
    assert only_run(read)["status"] == "completed"
    assert "without a cache" in read.remarks[0]


def test_placements_of_equal_size_are_different_runs(study: StudyBuilder) -> None:
    study.completed(2)
    study.completed(2, placement=Placement(2, 1))
    assert len({row["point"] for row in read_study(study.folder).runs}) == 2


WHOLE_LINES = st.sampled_from(
    [
        '{"v":1,"t":1.0,"rank":0,"ev":"start","world_size":1,"device_name":7,"versions":[],"startup_seconds":{"a":"b"}}',
        '{"v":1,"t":1.0,"rank":0,"ev":"start","world_size":"1"}',
        '{"v":1,"t":1.0,"rank":0,"ev":"steps","phase":"measure","step":0,"n":10,"seconds":2.0,"samples":10}',
        '{"v":1,"t":1.0,"rank":0,"ev":"steps","phase":"measure","step":9,"n":10,"seconds":"2.0","samples":10}',
        '{"v":1,"t":1.0,"rank":0,"ev":"steps","phase":"measure","step":9,"n":0,"seconds":2.0,"samples":10}',
        '{"v":1,"t":1.0,"rank":0,"ev":"steps","phase":"measure","step":9,"n":10,"seconds":NaN,"samples":10}',
        '{"v":1,"t":1.0,"rank":0,"ev":"steps","phase":"measure","step":9,"n":10,"seconds":-1e999,"samples":10}',
        '{"v":1,"t":1.0,"rank":0,"ev":"steps","phase":"measure","step":9,"n":10,"seconds":1,"samples":1e400}',
        f'{{"v":1,"t":1.0,"rank":0,"ev":"steps","phase":"measure","step":9,"n":1{"0" * 400},"seconds":1,"samples":1}}',
        '{"v":1,"t":1.0,"rank":0,"ev":"probe","probe":["x"],"n":1,"seconds":1}',
        '{"v":1,"t":1.0,"rank":0,"ev":"eval","step":1,"samples":10,"accuracy":7,"correct":1,"seconds":1}',
        '{"v":1,"t":1.0,"rank":0,"ev":"end","steps":1,"samples_seen":1,"weights_checksum":[1]}',
        '{"v":1,"t":1.0,"rank":0,"ev":"end","steps":-1,"samples":"all","weights_checksum":1e400}',
        '{"v":1,"t":1.0,"rank":0,"ev":"gradients","step":0,"sum":null,"magnitude":1.0}',
        '{"v":1,"t":1.0,"rank":0,"ev":"gradients","step":0,"sum":[1],"magnitude":-1}',
        '{"v":1,"t":1.0,"rank":0,"ev":"gradients","step":0,"sum":1e400,"magnitude":1e400}',
        '{"v":1,"t":1.0,"rank":0,"ev":"gradients","sum":1.0}',
        '{"v":1,"t":1.0,"rank":0,"ev":"\\ud800"}',
        '{"v":1,"t":1e400,"rank":0,"ev":"resume","step":0,"from_attempt":[1],"ignored":{"a":1}}',
        '{"v":1,"t":-1,"rank":0,"ev":"resume","step":"0","from_attempt":1}',
        '{"v":1,"t":"1","rank":0,"ev":"resume","step":7,"from_attempt":1}',
        '{"v":1,"rank":0,"ev":"checkpoint","step":10,"seconds":-1}',
        '{"v":1,"t":1.0,"rank":0,"ev":"checkpoint","step":10,"seconds":1e400}',
        '{"v":1,"t":1.0,"rank":0,"ev":"fault","fault":["x"],"step":null}',
        '{"v":1,"t":1.0,"rank":0,"ev":"leave","step":true}',
        '{"v":2,"ev":"start"}',
        "[" * 3000,
    ]
)
DAMAGED_LOGS = st.lists(st.one_of(WHOLE_LINES.map(str.encode), st.binary(max_size=40)), max_size=12)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lines=DAMAGED_LOGS, cut=st.integers(0, 30))
def test_damaged_logs_never_raise_and_never_become_a_number(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], cut: int
) -> None:
    study = StudyBuilder(tmp_path_factory.mktemp("damaged") / "study")
    run_dir = study.add(spec_of(1), Logs())
    content = b"\n".join(lines)
    (run_dir / "attempt-1" / "events.rank0.jsonl").write_bytes(content[: max(0, len(content) - cut)])
    run = only_run(read_study(study.folder))
    assert run["status"] in ("completed", "invalid", "unreadable")
    # The only valid block in the lines above: 10 samples in 2 seconds, and only if it occurs once.
    assert run["seconds"] in (None, 2.0)
    assert run["samples"] in (None, 10)
    assert run["useful_seconds"] in (None, 0.0, 2.0)
    assert run["checkpoint_seconds"] in (None, 0.0)
    assert run["accuracy"] is None
    assert run["startup_seconds"] is None
    numbers = [value for value in run.columns().values() if isinstance(value, float)]
    assert all(map(math.isfinite, numbers))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"v": 1, "study":', "is not JSON, perhaps cut off"),
        ("[1]", "it has no version 'v'"),
        ('{"v": 2, "study": "x", "invocations": []}', "has version 2, this code reads version 1"),
        ('{"v": 1, "runs": []}', "it lacks 'study' or a list 'invocations'"),
        ('{"v": 1, "study": "x", "invocations": [3]}', "it lacks 'study' or a list 'invocations'"),
    ],
)
def test_study_json_of_another_kind_is_refused(study: StudyBuilder, content: str, message: str) -> None:
    study.completed(1)
    (study.folder / "study.json").write_text(content)
    with pytest.raises(StudyError, match=message):
        read_study(study.folder)


def test_code_version_comes_from_the_site(study: StudyBuilder) -> None:
    study.add(spec_of(1), Logs(), site={"code_version": "fedcba-dirty"})
    assert SITE.code_version != "fedcba-dirty"
    assert only_run(read_study(study.folder))["code_version"] == "fedcba-dirty"
