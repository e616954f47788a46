"""The last lines printed by the ranks of a run without a result."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from seen import Seen, Tags, words
from study_builder import Logs, StudyBuilder, spec_of

from analysis.read.study import read_study
from analysis.report.html import printed
from analysis.report.html.printed import MOST_LINE_LENGTH, MOST_LINES, Printed, printed_of


def unfinished(study: StudyBuilder, gpus: int = 1) -> Path:
    """Add a run without result.json whose ranks have begun and printed nothing."""
    run_dir = study.add(spec_of(gpus), Logs(block_seconds=[1.0], ends=False, exit_codes=[]), finished=False)
    for rank in range(gpus):
        (run_dir / "attempt-1" / f"stderr.rank{rank}").touch()
    return run_dir


def found(study: StudyBuilder) -> dict[str, Printed]:
    read = read_study(study.folder)
    return printed_of(read.runs, read.folder)


def test_a_run_without_a_result_shows_what_its_rank_printed_last(study: StudyBuilder) -> None:
    run_dir = unfinished(study)
    log = run_dir / "attempt-1" / "stderr.rank0"
    log.write_text("first\nTraceback <b>\n\x1b[31mRuntimeError\x1b[0m: \u202eNCCL\n")
    seen = Seen(study)
    text = Tags(seen.html).text
    assert "first\nTraceback <b>\n\ufffd[31mRuntimeError\ufffd[0m: \ufffdNCCL" in text
    assert "Last lines of stderr of rank 0 in attempt 1, as its files stood when this page was made:" in words(text)
    assert not {"\x1b", "\u202e"} & set(seen.html)
    # Output is not cached: later lines appear in the next report.
    with log.open("a") as file:
        file.write("and later\n")
    assert "and later" in Tags(Seen(study).html).text


def test_lines_name_their_rank_and_the_ranks_with_most_output_are_shown(study: StudyBuilder) -> None:
    run_dir = unfinished(study, 8)
    for rank in (1, 2, 3, 5, 6, 7):
        (run_dir / "attempt-1" / f"stderr.rank{rank}").write_text(f"line of {rank}\n" * (rank if rank != 2 else 50))
    own = found(study)[run_dir.name]
    assert list(own.ranks) == [2, 5, 6, 7]
    assert own.of.startswith("ranks 2, 5, 6 and 7, which printed most of 6 ranks in attempt 1")
    lines = own.last(MOST_LINES)
    assert len(lines) == 10 + 5 + 6 + 7
    assert (lines[0], lines[-1]) == ("[rank 2] line of 2", "[rank 7] line of 7")
    assert own.last(3) == [f"[rank {rank}] line of {rank}" for rank in (2, 5, 6, 7)]
    assert own.last(0) == []


def test_only_the_end_of_a_file_is_read(study: StudyBuilder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(printed, "TAIL_BYTES", 5_000)
    run_dir = unfinished(study)
    log = run_dir / "attempt-1" / "stderr.rank0"
    log.write_bytes(b"head\n" + b"y" * 3_000_000 + b"\n" + b"x" * 3_000 + b"\n\xff\xfe end")
    (own,) = found(study).values()
    assert [line[:3] for line in own.ranks[0]] == ["xxx", "\ufffd\ufffd "]
    assert len(own.ranks[0][0]) == MOST_LINE_LENGTH
    log.write_bytes(b"z" * 1_000_000)  # one endless line, of which only a part is read
    (own,) = found(study).values()
    assert own.ranks[0] == ["z" * (MOST_LINE_LENGTH - 1) + "…"]


def test_previous_attempt_is_shown_if_the_last_one_printed_nothing(study: StudyBuilder) -> None:
    run_dir = unfinished(study)
    (run_dir / "attempt-1" / "stderr.rank0").write_text("why it ended\n")
    (run_dir / "attempt-2").mkdir()
    own = found(study)[run_dir.name]
    assert own.last(3) == ["why it ended"]
    assert "in attempt 1" in own.of


def test_runs_with_a_result_and_those_that_are_missing_have_none(study: StudyBuilder) -> None:
    for run_dir in (study.completed(1), study.add(spec_of(2), Logs(), result={"status": "failed", "reason": "why"})):
        (run_dir / "attempt-1" / "stderr.rank0").write_text("noise\n")
    study.requested.append("pytorch-allreduce-resnet44-64gpu-aaaaaaaaaaaa")
    study.write_study()
    assert found(study) == {}


def test_unrelated_files_are_ignored(study: StudyBuilder, tmp_path: Path) -> None:
    run_dir = unfinished(study)
    (tmp_path / "secret").write_text("not of this study\n")
    attempt = run_dir / "attempt-1"
    os.mkfifo(attempt / "stderr.rank1")
    (attempt / "stderr.rank2").symlink_to(tmp_path / "secret")
    (attempt / "stderr.rank3").mkdir()
    (attempt / "stderr.rank4x").write_text("x")
    assert found(study) == {}
