"""Damaged files of runs: counted and listed by file and kind, never fatal, and never used for figures."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from file_times import touch_later
from project import PROJECT
from study_builder import CREATED, Logs, StudyBuilder, spec_of

from analysis.base.errors import StudyError
from analysis.read import pool
from analysis.read.damage import KINDS
from analysis.read.log.file import _one_by_one, _parsed, read_log
from analysis.read.log.rank import RankLog
from analysis.read.study import Study, read_study

EVENT = '{"v":1,"t":1.0,"rank":0,"ev":"steps","phase":"measure","step":%d,"n":10,"seconds":1.0,"samples":1280}\n'


def named(study: Study) -> dict[tuple[str, str], int]:
    return {(row["file"], row["kind"]): row["count"] for row in study.damage}


@pytest.mark.parametrize(
    ("damage", "kind", "count"),
    [
        (lambda text: text + '{"v":1,"t":1700', "torn line", 1),
        (lambda text: text.replace('"seconds":2.0', '"sec\n', 1), "not JSON", 2),
        (lambda text: "", "empty log", 1),
        (lambda text: text.replace('"seconds":2.0', '"seconds":NaN', 1), "impossible value", 1),
        (lambda text: text.replace('"seconds":2.0', '"seconds":-Infinity', 1), "impossible value", 1),
        (lambda text: text.replace('"n":10,"seconds":2.0', f'"n":{10**400},"seconds":2.0', 1), "impossible value", 1),
        (lambda text: text.replace('"n":10,"seconds":2.0', f'"n":{"1" * 5000},"seconds":2.0', 1), "not JSON", 1),
        (lambda text: text + "\x1b[31m red \u202e\n", "not JSON", 1),
        (lambda text: text + '"\ud800"\n', "not UTF-8", 1),
        (lambda text: text + "[" * 100_000 + "\n", "nested too deeply", 1),
        (lambda text: text + "[1]\n{}\n", "no event", 2),
        (lambda text: text + '{"v":1,"ev":"' + "x" * (2 << 20) + '"}\n', "line too long", 1),
        (lambda text: "".join(line * 2 for line in text.splitlines(True)), "repeated", 8),
        (lambda text: text.replace('"t":1700000016', '"t":1600000016', 1), "clock went back", 1),
        (lambda text: text.replace('"v":1', '"v":2', 1), "another version", 1),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_damaged_log_is_named_with_its_kind(
    study: StudyBuilder, damage: Callable[[str], str], kind: str, count: int
) -> None:
    run_dir = study.add(spec_of(1), Logs(block_seconds=[2.0, 1.0, 1.0, 1.0]))
    study.completed(2)
    log = run_dir / "attempt-1" / "events.rank0.jsonl"
    log.write_bytes(damage(log.read_text()).encode("utf-8", "surrogatepass"))
    read = read_study(study.folder)
    assert named(read)["attempt-1/events.rank0.jsonl", kind] == count
    assert {row["run_id"] for row in read.damage} == {run_dir.name}
    assert all(row["sentence"].isprintable() and row["kind"] in KINDS for row in read.damage)
    assert read.problems
    # Also from the cache; the other run is unaffected.
    assert read_study(study.folder).damage == read.damage
    assert {run["status"] for run in read.runs if run["run_id"] != run_dir.name} == {"completed"}


def steps(t: float, step: int, phase: str = "measure") -> dict[str, Any]:
    return {"t": t, "ev": "steps", "phase": phase, "step": step, "n": 5, "seconds": 4.0, "samples": 640}


@pytest.mark.parametrize(("later", "back"), [(0.0, 0), (-3.0, 1)])
def test_what_is_written_within_a_block_is_no_sign_of_a_clock_that_went_back(later: float, back: int) -> None:
    """On a GPU a device event stands just before that of its block, and with verify=true the first step's check."""
    log = RankLog.of(
        [
            {"t": 10.0, "ev": "start", "world_size": 1, "parameters": 4},
            {"t": 13.9, "ev": "first_step", "difference": 0.0},
            {"t": 14.0, "ev": "device", "step": 5},
            steps(14.001, 0, "first"),
            {"t": 18.001, "ev": "device", "step": 10},
            steps(18.002, 5),
            steps(22.003 + later, 10),
            {"t": 26.0 + later, "ev": "fault", "fault": "slow_rank", "step": 15},
            steps(26.004 + later, 15),
        ]
    )
    assert log.damage["clock went back"] == back


def test_times_of_a_clock_that_jumped_are_not_stated(study: StudyBuilder) -> None:
    whole, back, leapt = (study.add(spec_of(1, seed=seed), Logs(accuracy=0.5)) for seed in (1, 2, 3))
    for run_dir, off in ((back, -1000), (leapt, 10**6)):
        log = run_dir / "attempt-1" / "events.rank0.jsonl"
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        for event in lines[4:]:
            event["t"] += off
        log.write_text("".join(json.dumps(event) + "\n" for event in lines))
    read = read_study(study.folder)
    runs = {run["run_id"]: run for run in read.runs}
    # 3 of start-up, 9 of warm-up, 4 blocks, 2 of evaluation, 1 until the exit.
    assert (runs[whole.name]["allocated_seconds"], runs[whole.name]["first_step_seconds"]) == (19.0, 3.0)
    for run_dir in (back, leapt):
        run = runs[run_dir.name]
        assert (run["status"], run["seconds"], run["useful_seconds"]) == ("completed", 4.0, 13.0)
        assert (run["allocated_seconds"], run["first_step_seconds"]) == (None, None)
        assert json.loads(run["evaluations"])[0]["wall_seconds"] is None
    assert {row["kind"] for row in read.damage} == {"clock went back", "clock gap"}


def test_two_attempts_that_ran_at_once_are_named(study: StudyBuilder) -> None:
    run_dir = study.attempts(spec_of(1), Logs(block_seconds=[100.0], ends=False), Logs(begin=CREATED + 5))
    read = read_study(study.folder)
    assert named(read) == {("attempt-2/begin.json", "overlapping attempts"): 1}
    assert read.runs[0]["seconds"] == 4.0, run_dir


def test_missing_rank_and_damaged_documents_are_named(study: StudyBuilder) -> None:
    run_dir = study.completed(2)
    (run_dir / "attempt-1" / "events.rank1.jsonl").unlink()
    (run_dir / "attempt-1" / "begin.json").write_text("{")
    assert named(read_study(study.folder)) == {
        ("attempt-1/events.rank1.jsonl", "missing log"): 1,
        ("attempt-1/begin.json", "damaged file"): 1,
    }


@pytest.mark.parametrize("name", ["spec.json", "result.json", "attempt-1/events.rank0.jsonl", "attempt-1/begin.json"])
@pytest.mark.parametrize("kind", ["pipe", "loop", "folder", "device"])
def test_irregular_files_are_not_opened(study: StudyBuilder, name: str, kind: str) -> None:
    run_dir = study.completed(1)
    path = run_dir / name
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to(path if kind == "loop" else "/dev/zero")
    if (name, kind) == ("spec.json", "loop"):  # without spec.json it is not a run, and there is no other
        with pytest.raises(StudyError, match="has no runs to analyse"):
            read_study(study.folder)
        return
    read = read_study(study.folder)
    assert read.runs[0]["status"] == "unreadable"
    assert {row["kind"] for row in read.damage} == {"cannot be read"}
    assert read.damage[0]["file"] == name


def test_folder_that_leads_back_to_itself_is_left_alone(study: StudyBuilder) -> None:
    study.completed(1)
    (study.folder / "runs" / "loop").symlink_to("loop")
    (study.folder / "runs" / "up").symlink_to(study.folder)
    read = read_study(study.folder)
    assert [run["status"] for run in read.runs] == ["completed"]
    assert sum("runs/loop" in problem or "runs/up" in problem for problem in read.problems) == 2


def test_log_that_grows_while_it_is_read_ends(study: StudyBuilder) -> None:
    run_dir = study.add(spec_of(1), Logs(), finished=False)
    log = run_dir / "attempt-1" / "events.rank0.jsonl"
    stop = threading.Event()

    def write() -> None:
        step = 1000
        with open(log, "a", buffering=1) as file:
            while not stop.wait(0.0001):
                file.write(EVENT % step)
                step += 10

    writer = threading.Thread(target=write)
    writer.start()
    try:
        counts = [len(read_log(log).blocks) for _ in range(10)]
    finally:
        stop.set()
        writer.join()
    assert counts == sorted(counts)
    # Lines appear as a whole.
    assert set(read_log(log).damage) <= {"clock went back"}


def test_long_log_takes_little_memory_and_a_line_without_end_is_cut(tmp_path: Path) -> None:
    log = tmp_path / "events.rank0.jsonl"
    with open(log, "wb") as file:
        file.write((EVENT % 0).encode())
        file.write(b'{"v":1,"ev":"')
        file.truncate(1 << 30)  # a hole: 1 GiB of zeros without a newline
        file.seek(0, os.SEEK_END)
        file.write(b'"}\n' + (EVENT % 10).encode())
    code = (
        "import re, sys; from pathlib import Path; from analysis.read.log.file import read_log\n"
        "log = read_log(Path(sys.argv[1]))\n"
        "peak = re.search(r'VmHWM:\\s+([0-9]+)', Path('/proc/self/status').read_text())[1]\n"
        "print(len(log.blocks), dict(log.damage), peak, sep=';')"
    )
    environment = {**os.environ, "PYTHONPATH": str(PROJECT)}
    command = [sys.executable, "-c", code, str(log)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    blocks, damage, peak_kib = done.stdout.split(";")
    assert (blocks, damage) == ("2", "{'line too long': 1}")
    assert int(peak_kib) < 60_000, peak_kib


def test_more_events_than_can_be_meant_are_counted_and_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("analysis.read.log.file.MOST_EVENTS", 20_000)  # the real limit would take long
    log = tmp_path / "events.rank0.jsonl"
    log.write_text('{"v":1,"ev":"a"}\n{"v":1,"ev":"b"}\n' * 50_000)
    read = read_log(log)
    assert 20_000 <= read.events < 40_000  # whole pieces
    assert read.events + read.damage["too many events"] == 100_000


@pytest.mark.parametrize(
    "lines",
    [
        ['{"a":1}', '{"b":[1,2]}'],
        ['{"a":[1', "2]}", '{"c":1},{"d":2}'],  # one value on two lines, two values on one
        ['{"a":1},7203318419060157,{"b":1}', '{"c":[1', "2]}"],
        ['{"a":"1', '2"}'],
        ["", "  ", '{"a":1}', "\ufeff{}", "1e400", "nul", '{"a":1}\u2028', '{"a":1}\r'],
        ["[" * 5000 + "]" * 5000, '{"a":1}'],
        ['{"v":1,"ev":"steps","step":[1', '{"ev":"steps"}]}', '{"ev":"steps"},{"ev":"steps"}'],
        ['{"a":{"ev":"steps"}}', '{"v":1,"a":{"ev":"steps"},"t":1.0}'],
    ],
)
@pytest.mark.parametrize("sealed", [False, True])
def test_lines_parsed_at_once_are_those_parsed_one_by_one(lines: list[str], sealed: bool) -> None:
    def alone() -> tuple[list[Any], Counter[str]]:
        log, found = RankLog(), []
        for line in lines:
            found += _one_by_one(f"{line}\n".encode(), log)
        return found, log.damage

    for end in ("\n", ""):
        piece = ("\n".join(lines) + end).encode()
        log = RankLog()
        values = _parsed(piece, sealed)
        found = list(_one_by_one(piece, log)) if values is None else values
        assert found == alone()[0]
        assert sum(log.damage.values()) == sum(alone()[1].values())
    whole = lines[1] == '{"b":[1,2]}' or (lines[0] == '{"a":{"ev":"steps"}}' and not sealed)
    assert (_parsed("\n".join(lines).encode(), sealed) is not None) == whole


def test_processes_give_the_rows_in_order_and_one_that_dies_is_named(study: StudyBuilder) -> None:
    for seed in range(40):
        study.completed(1, seconds=1.0 + seed, seed=seed)
    dirs = sorted((study.folder / "runs").iterdir())
    alone = pool.read_rows(dirs, 0)
    assert pool.read_rows(dirs, 0, processes=2) == alone
    # One log is long, to leave time to kill its reader.
    log = dirs[20] / "attempt-1" / "events.rank0.jsonl"
    log.write_text("".join(EVENT % step for step in range(0, 4_000_000, 10)))
    killer = threading.Thread(target=_kill_who_reads, args=(log,))
    killer.start()
    rows = pool.read_rows(dirs, 0, processes=2)
    killer.join()
    assert (rows[20]["run_id"], rows[20]["status"]) == (dirs[20].name, "unreadable")
    assert rows[20]["reason"] == "the process that read it died (signal 9); it is tried again with the next report"
    assert rows[:20] + rows[21:] == alone[:20] + alone[21:]


def _kill_who_reads(log: Path) -> None:
    """Kill the child of this process that has the file open."""
    until = time.monotonic() + 120
    while time.monotonic() < until:
        for task in Path("/proc/self/task").iterdir():
            for child in (task / "children").read_text().split():
                with contextlib.suppress(OSError):  # a file that was closed, a child that has ended
                    if any(os.readlink(opened) == str(log) for opened in Path(f"/proc/{child}/fd").iterdir()):
                        os.kill(int(child), signal.SIGKILL)
                        return
        time.sleep(0.01)


def test_row_of_a_dead_reader_is_read_again_with_the_next_report(study: StudyBuilder) -> None:
    run_dir = study.completed(1)
    log = run_dir / "attempt-1" / "events.rank0.jsonl"
    log.chmod(0o000)
    if os.access(log, os.R_OK):
        log.chmod(0o644)
        pytest.skip("root reads every file")
    assert ("attempt-1/events.rank0.jsonl", "cannot be read") in named(read_study(study.folder))
    log.chmod(0o644)
    touch_later(log)
    assert not read_study(study.folder).damage
