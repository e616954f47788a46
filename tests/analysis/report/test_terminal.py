"""The summary that `python -m analysis results/<study>` prints."""

from __future__ import annotations

import io

import pytest
from project import PROJECT
from rich.console import Console
from seen import words
from study_builder import Logs, StudyBuilder, spec_of

from analysis.base.text import encodable
from analysis.read.study import read_study
from analysis.report.findings import Findings, findings_of
from analysis.report.headline import headline_sentences
from analysis.report.terminal.summary import IDEAL, KEPT, LOST, MOST_ROWS, WITHIN, bar, print_summary
from analysis.report.terminal.tables import WIDTH_OF_A_FILE, terminal
from analysis.stats.intervals import Interval
from harness.core.spec import STRONG, ClusterSpec

GOLDEN = PROJECT / "tests" / "golden" / "analysis_summary.txt"


def summary_of(findings: Findings, width: int = WIDTH_OF_A_FILE, full: bool = False) -> str:
    """Return the terminal output at this width."""
    stream = io.StringIO()
    print_summary(Console(file=stream, width=width, highlight=False, markup=False, emoji=False), findings, full=full)
    return stream.getvalue()


@pytest.fixture
def findings(study: StudyBuilder) -> Findings:
    """Five series: two with repeats, one oversubscribed, one with a single size, one failed."""
    for repeat, factor in enumerate((1.0, 1.04, 0.96)):
        for gpus, seconds in ((1, 1.0), (2, 1.05), (4, 1.25)):
            study.add(spec_of(gpus, repeat=repeat), Logs(block_seconds=[seconds * factor] * 4, accuracy=0.7))
            study.add(spec_of(gpus, strategy="horovod", repeat=repeat), Logs(block_seconds=[seconds**2 * factor] * 4))
    study.add(spec_of(1, scaling=STRONG), Logs(block_seconds=[1.0, 1.1] * 4))
    shared = {"oversubscribed": "2 ranks share 1 GPU"}
    study.add(spec_of(2, scaling=STRONG, batch_per_gpu=64), Logs(block_seconds=[1.0, 1.1] * 4), result=shared)
    study.completed(1, framework="jax")
    study.add(spec_of(8, framework="mxnet"), Logs(), result={"status": "failed", "reason": "rank 3 has gone"})
    study.write_study(invocations=[{"skipped": ["strategy 'horovod' is not offered by framework 'jax'"]}])
    return findings_of(read_study(study.folder))


def test_summary_is_as_the_golden_file(findings: Findings) -> None:
    lines = [line.rstrip() for line in summary_of(findings, width=80).splitlines()]
    assert lines == GOLDEN.read_text(encoding="utf-8").splitlines()


def test_the_first_three_headlines_come_first_and_the_rest_is_counted(findings: Findings) -> None:
    sentences = headline_sentences(findings)
    assert len(sentences) == 5
    summary = words(summary_of(findings))
    assert f" failed {' '.join(sentences[:3])} and 2 more series, with --full" in summary
    assert sentences[3] not in summary
    assert " ".join(sentences) in words(summary_of(findings, full=True))


@pytest.mark.parametrize("width", [160, 100, 80, 60, 40])
def test_nothing_is_cut_off_at_any_width(findings: Findings, width: int) -> None:
    summary = summary_of(findings, width)
    assert max(map(len, summary.splitlines())) <= width
    text = summary.replace("\n", "").replace(" ", "")
    for said in ("1,280", "rank3hasgone", "oversubscribed", "singlerun", "strategy'horovod'isnotoffered"):
        assert said in text, said


def test_all_tables_are_printed_where_they_are_asked_for(findings: Findings) -> None:
    summary, full = summary_of(findings), summary_of(findings, full=True)
    assert "Equal work" not in summary
    for said in ("Equal work", "Welch's t test", "Student's t interval", "rank 3 has gone"):
        assert said in words(full), said


def test_a_bar_shows_what_is_kept_the_interval_and_the_ideal() -> None:
    assert bar(Interval(0.75, 0.5, 1.0), 1.0, 8) == 4 * KEPT + 4 * WITHIN + IDEAL
    assert bar(Interval(0.5, 0.25, 0.625), 1.0, 8) == 2 * KEPT + 3 * WITHIN + 3 * LOST + IDEAL
    assert bar(Interval(0.5), 1.0, 8) == 4 * KEPT + 4 * LOST + IDEAL
    assert bar(Interval(1.25, 1.0, 1.5), 2.0, 8) == 4 * KEPT + IDEAL + 2 * WITHIN + "  "


def test_long_studies_are_cut_with_their_number_and_ranks_are_no_gpus(study: StudyBuilder) -> None:
    for batch in range(1, MOST_ROWS + 3):
        study.completed(1, batch_per_gpu=batch, cluster=ClusterSpec("atlas", "cpu", 8))
    summary = summary_of(findings_of(read_study(study.folder)), width=80)
    assert "and 2 more points, with --full" in summary
    assert "GPU" not in summary.replace("per GPU", "")


def test_names_are_text_and_no_commands_for_a_terminal(study: StudyBuilder) -> None:
    hostile = "\x1b[31m[bold]\u202e\x07"
    study.add(spec_of(1, model=hostile), Logs())
    study.add(spec_of(2, model=hostile), Logs(), result={"oversubscribed": hostile})
    study.add(spec_of(4, framework=hostile), None, result={"status": "failed", "reason": hostile})
    study.write_study(study=hostile, invocations=[{"skipped": [hostile]}])
    for full in (False, True):
        summary = summary_of(findings_of(read_study(study.folder)), full=full)
        assert not {"\x1b", "\u202e", "\x07"} & set(summary)
        assert "\ufffd[31m[bold]\ufffd\ufffd" in summary


class Tty(io.TextIOWrapper):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("encoding", "full", "interval"), [("utf-8", KEPT, "–"), ("ascii", "#", "-"), ("latin-1", "#", "-")]
)
def test_a_terminal_without_the_characters_gets_others(
    findings: Findings, encoding: str, full: str, interval: str
) -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding=encoding)
    encodable(stream)
    print_summary(terminal(stream), findings)
    stream.flush()
    printed = raw.getvalue().decode(encoding)
    assert f"{8 * full}" in printed
    assert f"2.92{interval}3.50" in printed
    assert "?" not in printed
    assert "\x1b" not in printed


def test_colours_are_for_terminals_that_want_them(findings: Findings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    for no_color in (None, "1"):
        if no_color:
            monkeypatch.setenv("NO_COLOR", no_color)
        else:
            monkeypatch.delenv("NO_COLOR", raising=False)
        stream = Tty(raw := io.BytesIO(), encoding="utf-8")
        console: Console = terminal(stream)
        print_summary(console, findings)
        stream.flush()
        assert ("\x1b[33m" in raw.getvalue().decode()) == (no_color is None)
