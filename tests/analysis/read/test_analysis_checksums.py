"""Checksums of a run's files: no damage changes a figure without being named."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from study_builder import CREATED, Logs, StudyBuilder, resume, spec_of

from analysis.base.errors import StudyError
from analysis.read.log.file import read_log
from analysis.read.run import read_run_row
from analysis.read.study import CHANGED, read_study
from harness.core.events import EventWriter
from harness.core.seals import is_intact, sealed
from harness.core.spec import Placement

# Columns that say something of the damage itself.
NAMES_DAMAGE = {"damage", "unreadable_lines"}
LINES = 40


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "events.rank0.jsonl"
    writer = EventWriter(path, 0)
    for number in range(LINES):
        counts = {"step": 10 * number, "n": 10, "seconds": 1.0 + number, "samples": 1280}
        writer.write("steps", t=CREATED + 50.0 * number, phase="measure", **counts, loss=None)
    writer.close()
    return path


def test_intact_log_has_no_damage_though_it_was_opened_again(log: Path) -> None:
    writer = EventWriter(log, 0)
    writer.write("end", t=CREATED + 3000.0, steps=400, samples=51_200, weights_checksum=None)
    writer.close()
    read = read_log(log)
    assert (len(read.blocks), read.end is not None, dict(read.damage)) == (LINES, True, {})
    last = json.loads(log.read_text().splitlines()[-1])
    assert last["i"] == LINES


def changed(at: int, old: bytes, new: bytes) -> Callable[[list[bytes]], list[bytes]]:
    return lambda lines: [line.replace(old, new) if i == at else line for i, line in enumerate(lines)]


@pytest.mark.parametrize(
    ("damage", "found", "blocks"),
    [
        (changed(7, b'"seconds":8.0', b'"seconds":9.0'), {"checksum": 1}, LINES - 1),
        (changed(7, b'"v":1', b'"v":3'), {"checksum": 1}, LINES - 1),
        (changed(7, b'"crc":"', b'"csc":"'), {"checksum": 2}, LINES - 2),
        (changed(7, b'"seconds"', b"seconds"), {"not JSON": 1}, LINES - 1),
        (lambda lines: lines[:7] + lines[9:], {"checksum": 1, "missing line": 2}, LINES - 3),
        (lambda lines: lines[2:], {"checksum": 1, "missing line": 2}, LINES - 3),
        (lambda lines: [*lines[:7], lines[7], *lines[7:]], {"repeated": 1}, LINES),
        (lambda lines: [*lines[:20], lines[17], *lines[20:]], {"repeated": 1}, LINES),
        (lambda lines: [*lines[:20], lines[3], *lines[20:]], {"checksum": 1}, LINES),
        (lambda lines: [*lines[:-1], lines[-1][:-30]], {"torn line": 1}, LINES - 1),
        (
            lambda lines: [*lines[:7], lines[7].replace(b"\n", b"\t"), *lines[8:]],
            {"not JSON": 1, "missing line": 1},
            LINES - 2,
        ),
        (lambda lines: [*lines[:7], b'{"v":1,"t":1.0,"rank":0,"ev":"fault"}\n', *lines[7:]], {"checksum": 1}, LINES),
    ],
    ids=[
        "value",
        "version",
        "key",
        "syntax",
        "dropped",
        "beginning",
        "doubled",
        "doubled apart",
        "doubled far apart",
        "torn",
        "merged",
        "inserted",
    ],
)
def test_damage_to_a_log_is_counted_and_the_other_lines_count(
    log: Path, damage: Callable[[list[bytes]], list[bytes]], found: dict[str, int], blocks: int
) -> None:
    log.write_bytes(b"".join(damage(log.read_bytes().splitlines(keepends=True))))
    read = read_log(log)
    assert dict(read.damage) == found
    assert len(read.blocks) == blocks
    assert all(block.seconds == 1.0 + block.step / 10 for block in read.blocks)


def test_a_changed_document_does_not_fit_its_checksum() -> None:
    document = sealed({"t": 1.5, "name": "ü", "list": [1, None]})
    assert is_intact(json.loads(json.dumps(document, indent=1)))
    assert not is_intact({**document, "t": 2.5})
    assert not is_intact({key: value for key, value in document.items() if key != "list"})
    assert is_intact({"t": 1.5})  # of an older version


def runs(folder: Path) -> Iterator[Path]:
    """Runs with all that figures are read from: one completed on a shared GPU, one continued, one failed."""
    study = StudyBuilder(folder / "study", sealed=True)
    full = Logs(
        block_seconds=[[1.25, 2.5, 1.125, 3.0625], [1.5, 2.25, 1.0625, 3.125]],
        accuracy=0.625,
        cached_batch_seconds=0.09,
        no_sync_seconds=0.07,
        rounds={"full": [0.1, 0.11], "no_sync": [[0.08, 0.09], 0.08], "allreduce": [0.01, 0.02]},
        probes={"rounds": 2, "seconds": 3.0, "share": 0.1, "limit": 0.2, "skipped": None},
        start={"device_id": "GPU-0"},
        energy=("gpu", 120.0),
        evaluations={20: 0.5},
        fallbacks=["no fused optimiser"],
    )
    yield study.add(spec_of(2), full, {"oversubscribed": "2 ranks on one GPU"})
    begun = {"startup_seconds": {"imports": 2.0, "rendezvous": 0.5, "build": 0.5}}
    cut = Logs([1.0, 1.5], checkpoints={20: 0.5}, ends=False, exit_codes=[-9, 1], **begun)
    rest = Logs([1.0, 2.0, 1.0], resume=resume(20, 1), begin=CREATED + 100, checkpoints={40: 0.25}, **begun)
    yield study.attempts(spec_of(2, placement=Placement(2, 1), seed=2), cut, rest)
    failed = {"status": "failed", "reason": "rank 1 exited with code 1", "failed_rank": 1, "exit_code": 1}
    yield study.add(spec_of(2, seed=3), Logs([1.0], ends=False, exit_codes=[1, 1]), failed)


def damaged(content: bytes, random_: random.Random) -> bytes:
    kind = random_.choice(["flip", "flip", "flip", "drop", "double", "swap", "cut line", "cut"])
    lines = content.splitlines(keepends=True)
    at, to = random_.randrange(len(lines)), random_.randrange(len(lines))
    if kind == "flip":
        bit = random_.randrange(8 * len(content))
        return content[: bit // 8] + bytes([content[bit // 8] ^ (1 << bit % 8)]) + content[bit // 8 + 1 :]
    if kind == "drop":
        del lines[at]
    elif kind == "double":
        lines.insert(to, lines[at])
    elif kind == "swap":
        lines[at], lines[to] = lines[to], lines[at]
    elif kind == "cut line":
        lines[at] = lines[at][: random_.randrange(len(lines[at]))]
    else:
        return content[: random_.randrange(len(content))]
    return b"".join(lines)


# Measured: 250 take 3 s on one core.
@pytest.mark.parametrize("times", [pytest.param(250, id="250"), pytest.param(2000, id="2000", marks=pytest.mark.whole)])
def test_no_damage_changes_a_figure_without_being_named(tmp_path: Path, times: int) -> None:
    found = {run: read_run_row(run) for run in runs(tmp_path)}
    assert [row["damage"] for row in found.values()] == [None, None, None]
    files = sorted(path for run in found for path in run.rglob("*") if path.is_file() and path.name != "job.json")
    assert {path.suffix for path in files} == {".json", ".jsonl"}
    named = changed_rows = 0
    for seed in range(times):
        random_ = random.Random(seed)
        path = random_.choices(files, [4 if each.suffix == ".jsonl" else 1 for each in files])[0]
        (run,) = (each for each in found if each in path.parents)
        content = path.read_bytes()
        path.write_bytes(damaged(content, random_))
        row = read_run_row(run)
        path.write_bytes(content)
        is_named = row.get("damage") is not None or row["status"] in ("unreadable", "invalid")
        differing = [key for key in {*row, *found[run]} - NAMES_DAMAGE if row.get(key) != found[run].get(key)]
        assert is_named or not differing, (seed, path.name, differing)
        named, changed_rows = named + is_named, changed_rows + bool(differing)
    assert named > 0.8 * times
    assert changed_rows > 0.5 * times


def test_no_damage_of_study_json_changes_what_is_read_from_it_without_being_named(tmp_path: Path) -> None:
    study = StudyBuilder(tmp_path / "study", sealed=True)
    study.add(spec_of(2), Logs([1.0]))
    study.write_study(invocations=[{"runs": ["a", "b"], "skipped": ["c"], "target_accuracy": 0.75}])
    whole = read_study(study.folder)
    assert whole.problems == ()
    path = study.folder / "study.json"
    content = path.read_bytes()
    changed = 0
    for seed in range(200):
        path.write_bytes(damaged(content, random.Random(seed)))
        try:
            read = read_study(study.folder)
        except StudyError:
            continue
        same = (read.name, read.created, read.invocations) == (whole.name, whole.created, whole.invocations)
        assert same or CHANGED in read.problems, seed
        changed += not same
    assert changed > 20


def test_nothing_is_read_from_job_json(tmp_path: Path) -> None:
    study = StudyBuilder(tmp_path / "study", sealed=True)
    run_dir = study.add(spec_of(2), Logs([1.0]))
    whole = read_run_row(run_dir)
    (run_dir / "attempt-1" / "job.json").write_text('{"job_id": 7')
    assert read_run_row(run_dir) == whole


def test_older_run_that_lost_oversubscribed_is_still_known_to_share_a_gpu(tmp_path: Path) -> None:
    study = StudyBuilder(tmp_path / "study")
    run_dir = study.add(spec_of(2), Logs(start={"device_id": "GPU-0"}), {"oversubscribed": "2 ranks on one GPU"})
    document: dict[str, Any] = json.loads((run_dir / "result.json").read_text())
    del document["oversubscribed"]
    (run_dir / "result.json").write_text(json.dumps(document))
    assert read_run_row(run_dir)["oversubscribed"] == "2 ranks on one GPU"
