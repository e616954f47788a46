"""The soak's faults are drawn from a seed, and what must not be is found in a real study's files."""

from __future__ import annotations

import json
import shutil
import time
from collections import Counter
from pathlib import Path

import pytest
from project import Cli
from studies import UNPROBED, read_json, run_dirs

from benchmarks.soak import examination, schedule
from benchmarks.soak.command import main
from benchmarks.soak.commands import Shape, Study, reported_wrongly
from benchmarks.soak.journal import LOST, TWICE, WEIGHTS, WRONG, Finding, Injected, Journal
from harness.core.errors import UserError

TRIVIAL = ("framework=emulated", "measure.evaluate_samples=0", "cluster=local", "checkpoint.keep=true")


def test_a_seed_gives_the_same_faults_and_a_longer_soak_begins_with_them() -> None:
    short, long = (schedule.draw(7, seconds) for seconds in (300, 3600))
    assert short == schedule.draw(7, 300)
    assert short != schedule.draw(8, 300)
    for lane, faults in long.items():
        assert faults[: len(short[lane])] == short[lane]
        made = Counter(fault.kind for fault in faults)
        assert made.keys() == schedule.KINDS[lane].keys()
        assert max(made.values()) - min(made.values()) <= 1, "kinds are dealt like cards"


def test_a_schedule_is_read_as_it_was_written(tmp_path: Path) -> None:
    faults = schedule.draw(1, 600)
    schedule.write(tmp_path / "schedule.json", faults, 1, 600)
    assert schedule.read(tmp_path / "schedule.json") == (faults, 1, 600)
    document = read_json(tmp_path / "schedule.json")
    document["lanes"]["study"][0]["kind"] = "meteorite"
    (tmp_path / "other.json").write_text(json.dumps(document))
    with pytest.raises(UserError, match="no schedule of this version"):
        schedule.read(tmp_path / "other.json")


def test_an_impossible_soak_is_refused_in_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.soak.command.why_not", lambda: "")
    assert main(["--minutes", "0"]) == 2
    assert "must be greater than 0" in capsys.readouterr().err
    assert main(["--replay", str(tmp_path / "none.json")]) == 2
    assert "none.json cannot be read: No such file" in capsys.readouterr().err


@pytest.fixture
def completed(cli: Cli, tmp_path: Path, torch_python: Path) -> Path:
    """The folder of a completed run of the emulated framework."""
    done = cli("harness", *UNPROBED, *TRIVIAL, f"framework.environment={torch_python}")
    assert done.returncode == 0, done.stdout + done.stderr
    (run_dir,) = run_dirs(tmp_path)
    return run_dir


def what(run_dir: Path, faults: tuple[Injected, ...] = ()) -> list[str]:
    return [finding.what for finding in examination.examine([run_dir], [run_dir.name], faults)]


@pytest.mark.torch
def test_what_must_not_be_is_found(completed: Path, tmp_path: Path) -> None:
    reference = {completed.name: examination.weights(completed)}

    def damaged(name: str) -> Path:
        return Path(shutil.copytree(completed, tmp_path / name / completed.name))

    assert what(completed) == []
    assert not list(examination.compare([completed], reference))
    assert [f.what for f in examination.examine([], [completed.name], ())] == [LOST]

    without = damaged("without")
    (without / "result.json").unlink()
    assert what(without) == [LOST]

    twice = damaged("twice")
    shutil.copytree(twice / "attempt-1", twice / "attempt-2")
    # It began before, trained again, and the result is not its own.
    assert what(twice) == [TWICE, TWICE, WRONG]

    # As after a disk was full when an attempt that had ended well was to write its result.
    again = damaged("again")
    log = (again / "attempt-1" / "events.rank0.jsonl").read_text().splitlines()
    start, end = json.loads(log[0]), json.loads(log[-1])
    shutil.copytree(again / "attempt-1", again / "attempt-2")
    later = [{**start, "t": end["t"] + 5}, {"v": 1, "t": end["t"] + 6, "rank": 0, "ev": "resume", "step": 8}]
    (again / "attempt-2" / "events.rank0.jsonl").write_text("".join(json.dumps(event) + "\n" for event in later))
    (again / "result.json").write_text(json.dumps({**read_json(again / "result.json"), "attempt": 2}))
    assert what(again) == []

    short = damaged("short")
    log = short / "attempt-1" / "events.rank0.jsonl"
    blocks = [line for line in log.read_text().splitlines(keepends=True) if '"ev":"steps"' in line]
    log.write_text(log.read_text().replace(blocks[-1], ""))
    assert what(short) == [WRONG]

    other = damaged("other")
    (archive,) = other.rglob("*.npz")
    changed = bytearray(archive.read_bytes())
    changed[changed.index(b"\x93NUMPY") + 130] ^= 1  # in the array's data, behind its header of 128 bytes
    archive.write_bytes(changed)
    (finding,) = examination.compare([other], reference)
    assert "CRC" in finding.text
    shutil.rmtree(other / "checkpoint")
    assert [f.what for f in examination.compare([other], reference)] == [WEIGHTS]
    assert [f.what for f in examination.compare([completed], {completed.name: "else"})] == [WEIGHTS]


@pytest.mark.torch
def test_a_failure_needs_a_fault_of_that_run_at_that_time_that_its_reason_names(completed: Path) -> None:
    result = read_json(completed / "result.json")
    failed = {**result, "status": "failed", "reason": "job 7_1 left the queue without a result; Slurm says CANCELLED"}
    (completed / "attempt-1" / "result-of-this-attempt.json").write_text(json.dumps(failed))
    now = result["ended"]
    hit = Injected("job cancelled", "", now - 1, now, completed.name)
    assert what(completed, (hit,)) == []
    for fault in (
        Injected("job cancelled", "", now - 1, now, "another run"),
        Injected("job cancelled", "", now + 1, now + 2, completed.name),
        Injected("job cancelled", "", now - 9000, now - 8000, completed.name),
        Injected("rank stopped", "for good", now - 1, now, completed.name),
    ):
        assert what(completed, (fault,)) == [WRONG], fault


@pytest.mark.torch
def test_a_command_that_says_other_than_the_files_is_found(completed: Path, tmp_path: Path) -> None:
    study = Study(Shape("scaling", 1, 1, ()), 1, tmp_path)
    (tmp_path / "results" / "scaling").rename(study.folder)
    now = time.time()

    def wrong(output: str, code: int, *faults: Injected) -> bool:
        return bool(reported_wrongly(study, output, code, faults))

    assert not wrong("1 completed, 0 failed, 0 were completed before\n", 0)
    assert wrong("1 completed, 0 failed, 0 were completed before\n", 1)
    assert wrong("0 completed, 1 failed, 0 were completed before\n", 1)
    assert wrong("Traceback (most recent call last)", 1)
    assert wrong("", -9)
    refused = "error: results/scaling-1 cannot be written: No space left on device"
    assert wrong(refused, 2)
    assert wrong(refused, 2, Injected("sbatch refuses", "refused", now - 1, now))
    assert not wrong(refused, 2, Injected("disk full", "", now - 1, float("inf")))
    quoting = (
        "waiting for it\nerror: Slurm does not answer (slurm_load_jobs error: Unable to contact slurm controller)\n"
    )
    assert not wrong(quoting, 2, Injected("slurmctld restarted", "", now - 1, now))


def test_findings_are_charged_to_the_last_fault_that_concerned_them(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    disk, own, other = (journal.began(*fault) for fault in (
        ("disk full", "", ""), ("job cancelled", "", "a"), ("job cancelled", "", "b"))
    )  # fmt: skip
    assert journal.not_survived() == []
    journal.found(Finding(LOST, "a", "has no result"))
    assert journal.not_survived() == [own]
    journal.found(Finding(LOST, "c", "has no result"))
    assert journal.not_survived() == [disk, own]
    assert other not in journal.not_survived()
    said = [json.loads(line) for line in (tmp_path / "journal.jsonl").read_text().splitlines()]
    assert [each["event"] for each in said] == ["fault", "fault", "fault", "FINDING", "FINDING"]
    assert said[3].items() >= {"what": LOST, "subject": "a"}.items()
