"""`python -m analysis` as a user runs it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from project import PROJECT
from study_builder import Logs, StudyBuilder, spec_of

from analysis.report.print.drawing import FORMATS

ROOT = PROJECT
FIGURES = ("speedup", "efficiency", "throughput", "cost_epoch", "block_times")  # of one run
OUTPUTS = [
    *("report.html", "scaling.csv", "breakdown.csv", "comparisons.csv", "decisions.csv"),
    *("learning.csv", "resources.csv", "equal_work.csv", "runs.csv", "runs.parquet", "report.json"),
    *(f"figures/{name}.{kind}" for name in FIGURES for kind in FORMATS),
    *("tables.tex", "report.pdf"),
]


def refused(process: subprocess.CompletedProcess[str]) -> str:
    """Check the form of a refusal, exit code 2 and one line on stderr, and return that line."""
    assert process.returncode == 2
    assert process.stdout == ""
    assert "Traceback" not in process.stderr
    assert process.stderr.count("\n") == 1
    assert process.stderr.startswith("python -m analysis: ")
    return process.stderr


def test_report_is_made_and_its_files_are_named_also_where_a_run_failed(study: StudyBuilder, analyse) -> None:
    study.completed(1)
    study.add(spec_of(2), Logs(), result={"status": "failed", "reason": "rank 1 ended with signal 9"})
    process = analyse(study.folder)
    assert (process.returncode, process.stderr) == (0, "")
    assert "rank 1 ended with signal 9" in process.stdout
    for name in OUTPUTS:
        assert (study.folder / name).stat().st_size > 0
        assert str(study.folder / name if "/" not in name else study.folder / "figures") in process.stdout
    assert not list(study.folder.glob(".*.tmp"))


def test_out_takes_the_files_elsewhere(study: StudyBuilder, analyse, tmp_path: Path) -> None:
    study.completed(1)
    assert analyse(study.folder, "--out", tmp_path / "a" / "b").returncode == 0
    out = tmp_path / "a" / "b"
    assert sorted(str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()) == sorted(OUTPUTS)
    assert not (study.folder / "report.html").exists()


def test_only_some_kinds_are_written_where_some_are_asked_for(study: StudyBuilder, analyse, tmp_path: Path) -> None:
    study.completed(1)
    assert analyse(study.folder, "--out", tmp_path, "--only", "html").returncode == 0
    assert [path.name for path in tmp_path.iterdir() if path.suffix in (".html", ".csv")] == ["report.html"]
    assert "there is no 'dvi'; the kinds are html, " in refused(analyse(study.folder, "--only", "html,dvi"))


def test_study_named_like_a_command_needs_a_path(analyse, tmp_path) -> None:
    StudyBuilder(tmp_path / "report").completed(1)
    for arguments in (["./report"], ["report", "report"]):
        process = analyse(*arguments, "--only", "csv", "--out", tmp_path / "out")
        assert (process.returncode, process.stderr) == (0, "")
    assert "python -m analysis report: study is missing (" in analyse("report").stderr


def test_folder_that_does_not_exist_is_refused(analyse, tmp_path: Path) -> None:
    assert "is not a folder" in refused(analyse(tmp_path / "nowhere"))


def test_empty_folder_is_refused(analyse, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert "is not a study, it has no study.json" in refused(analyse(tmp_path / "empty"))


def test_folder_of_studies_is_refused_and_the_studies_are_named(study: StudyBuilder, analyse) -> None:
    assert "studies in it: study" in refused(analyse(study.folder.parent))


def test_cut_off_study_json_is_refused(study: StudyBuilder, analyse) -> None:
    study.completed(1)
    (study.folder / "study.json").write_text('{"v": 1, "stu')
    assert "is not JSON" in refused(analyse(study.folder))


def test_study_of_unknown_version_is_refused(study: StudyBuilder, analyse) -> None:
    study.write_study(v=99)
    assert "has version 99, this code reads version 1" in refused(analyse(study.folder))


def test_study_without_runs_is_refused(study: StudyBuilder, analyse) -> None:
    assert "has no runs to analyse" in refused(analyse(study.folder))


def test_output_that_cannot_be_written_is_refused(study: StudyBuilder, analyse, tmp_path: Path) -> None:
    study.completed(1)
    (tmp_path / "file").write_text("x")
    assert "choose another folder with --out" in refused(analyse(study.folder, "--out", tmp_path / "file"))
    (tmp_path / "taken" / "report.html").mkdir(parents=True)
    assert "report.html" in refused(analyse(study.folder, "--out", tmp_path / "taken"))


def test_cache_that_cannot_be_written_is_said_on_stderr(study: StudyBuilder, analyse) -> None:
    study.completed(1)
    (study.folder / "analysis").write_text("in the way")
    process = analyse(study.folder)
    assert process.returncode == 0
    assert "going on without a cache" in process.stderr


def test_terminal_that_knows_only_ascii_gets_no_traceback(study: StudyBuilder, analyse, monkeypatch) -> None:
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    study.completed(1)
    process = analyse(study.folder)
    assert (process.returncode, process.stderr) == (0, "")


@pytest.mark.parametrize(
    "heavy", ["pandas", "altair", "vl_convert", "numpy", "jinja2", "rich", "torch", "hydra", "submitit"]
)
def test_help_imports_nothing_heavy(heavy: str) -> None:
    code = (
        "import sys\n"
        "sys.argv = ['analysis', '--help']\n"
        "from analysis.__main__ import main\n"
        "try:\n    main()\nexcept SystemExit as done:\n    assert done.code == 0\n"
        f"sys.exit({heavy!r} in sys.modules)"
    )
    process = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert process.returncode == 0, process.stderr
    assert "usage: python -m analysis" in process.stdout
