"""Figures, tables.tex and report.pdf: that LaTeX and a PDF reader take them, and that they hold what was measured."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pdf
import pytest
from paper_studies import HOSTILE, HOSTILE_REASON, hostile_study, plain_study, typeset
from study_builder import Logs, StudyBuilder, spec_of

from analysis.base.files import write_files
from analysis.base.text import duration, number, percent, printable, times
from analysis.read.study import read_study
from analysis.report.answers import answers_of
from analysis.report.findings import Findings, findings_of
from analysis.report.print.drawing import DOUBLE, FORMATS, SINGLE, style
from analysis.report.print.figures import figures_of
from analysis.report.print.latex import escaped
from analysis.report.print.pdf import pdf_of
from analysis.report.print.pgf import why_no_pgf
from analysis.report.print.scaling_figures import scaling_figure
from analysis.report.print.tables import tex_of

FIGURES = ("speedup", "efficiency", "block_times", "accuracy_by_samples", "accuracy_by_seconds", "waterfall")


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Findings:
    return plain_study(tmp_path_factory.mktemp("paper") / "study")


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Findings:
    return hostile_study(tmp_path_factory.mktemp("paper") / "study")


@pytest.fixture(scope="module")
def report(plain: Findings) -> bytes:
    return pdf_of(plain)["report.pdf"]


@pytest.fixture(scope="module")
def figures(plain: Findings) -> dict[str, bytes]:
    return figures_of(plain)


def test_every_figure_is_there_in_every_format(figures: dict[str, bytes]) -> None:
    kinds = [*FORMATS, *(["pgf"] if why_no_pgf() is None else [])]
    assert set(figures) == {f"figures/{name}.{kind}" for name in FIGURES for kind in kinds}
    for name in FIGURES:
        assert figures[f"figures/{name}.png"].startswith(b"\x89PNG")
        assert "".join(ElementTree.fromstring(figures[f"figures/{name}.svg"]).itertext()).strip()


def test_a_linear_axis_does_not_begin_below_zero(study: StudyBuilder) -> None:
    for gpus, seconds in ((1, 1.0), (2, 40.0), (12, 1.0)):  # 0.05 of the speed on two GPUs
        study.completed(gpus, seconds=seconds)
    with style("speedup"):
        axes = scaling_figure(findings_of(read_study(study.folder)).rows, "speedup").axes[0]
    assert axes.get_yscale() == "linear"
    assert axes.get_ylim()[0] == 0


@pytest.mark.parametrize("name", FIGURES)
def test_figures_for_print_have_a_papers_width_and_their_fonts_in_them(figures: dict[str, bytes], name: str) -> None:
    document = figures[f"figures/{name}.pdf"]
    assert pdf.fonts(document) == {"STIXGeneral-Regular"}
    box = re.search(rb"/MediaBox \[ 0 0 ([\d.]+) ([\d.]+) \]", document)
    assert box is not None
    inches = DOUBLE if name == "block_times" else SINGLE
    assert float(box[1]) / 72 == pytest.approx(inches)


def test_figures_and_tables_are_read_by_latex(plain: Findings, figures: dict[str, bytes], tmp_path: Path) -> None:
    if (why := why_no_pgf()) is not None:
        pytest.skip(why)
    write_files(tmp_path, {**figures, **tex_of(plain)})
    body = "\\input{tables.tex}" + "".join(f"\\input{{figures/{name}.pgf}}\\clearpage " for name in FIGURES)
    assert "undefined" not in typeset(tmp_path, body).read_text(encoding="latin-1").lower()
    assert pdf.pages(tmp_path / "main.pdf") >= len(FIGURES)


def test_figures_and_tables_do_not_obey_names(hostile: Findings, tmp_path: Path) -> None:
    if (why := why_no_pgf()) is not None:
        pytest.skip(why)
    written = {**figures_of(hostile), **tex_of(hostile)}
    write_files(tmp_path, written)
    typeset(tmp_path, "\\input{tables.tex}\\input{figures/speedup.pgf}\\input{figures/waterfall.pgf}")
    assert escaped(HOSTILE) in written["tables.tex"].decode("ascii")


def test_where_there_is_no_latex_the_terminal_says_so(
    study: StudyBuilder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    study.completed(1)
    monkeypatch.setenv("PATH", "")
    why_no_pgf.cache_clear()
    try:
        files = figures_of(findings_of(read_study(study.folder)))
    finally:
        why_no_pgf.cache_clear()
    assert "figures/speedup.pdf" in files
    assert not [name for name in files if name.endswith(".pgf")]
    assert capsys.readouterr().out.startswith("figures/*.pgf are not written: there is no pdflatex here")


def test_names_become_latex_that_sets_them() -> None:
    assert escaped("a_b & 50 % \\x{y}") == r"a\_b \& 50 \% \textbackslash{}x\{y\}"
    assert escaped("é ü ł 95–97 µs 中") == "\\'{e} \\\"{u} \\l{} 95--97 \\ensuremath{\\mu}s {[}U+4E2D{]}"
    assert escaped("-- ,,") == "-{}- ,{},"
    assert escaped("a\x1b[0m\u202e").isascii()


def test_tables_hold_the_figures_of_the_points(plain: Findings) -> None:
    tex = tex_of(plain)["tables.tex"].decode("ascii")
    tables = {
        name: tex.split(f"\\label{{tab:{name}}}")[1].split("\\end{table*}")[0]
        for name in ("scaling", "breakdown", "decisions", "accuracy")
    }
    for row in plain.rows[:3]:
        (line,) = re.findall(rf"^{row['gpus']} & {row['nodes']} & .*$", tables["scaling"], flags=re.MULTILINE)
        shown = (number(row["samples_per_second"]), times(row["speedup"]), percent(row["efficiency"]))
        assert all(f" & {escaped(figure)} & " in line for figure in shown)
        low, high = (number(row[f"samples_per_second_{end}"]) for end in ("low", "high"))
        assert f"{low}--{high}\\textsuperscript" in line
    assert "no figure: failed: pytorch-allreduce-resnet44-8gpu" in tables["scaling"]
    assert "rank 3 ended with signal 9" in tables["scaling"]
    (loss,) = [loss for loss in plain.losses.points if loss.point["gpus"] == 4]
    assert loss.parts is not None
    assert escaped(duration(loss.parts.step_seconds)) in tables["breakdown"]
    added = plain.decisions[2]
    assert f"{escaped(percent(added['marginal_efficiency']))} & " in tables["decisions"]
    assert "60.0 \\%" in tables["accuracy"]
    assert "Measured on NVIDIA H100; cluster atlas; nccl" in tex


def test_marks_stand_at_their_figures(study: StudyBuilder) -> None:
    study.completed(1)
    study.add(spec_of(2), Logs(), result={"oversubscribed": "2 ranks share 1 GPU"})
    findings = findings_of(read_study(study.folder))
    tex = tex_of(findings)["tables.tex"].decode("ascii").replace("\n", " ")
    letters = re.search(r" 2\\textsuperscript\{([a-z,]+)\}", tex)
    assert letters is not None
    notes = dict(re.findall(r"\\textsuperscript\{([a-z])\}\\,([^\\}]*)", tex))
    said = " ".join(notes[letter] for letter in letters[1].split(","))
    assert "oversubscribed: ranks shared cores or GPUs, not a scaling result" in said
    assert "a single run" in said
    assert "Not all of this is a scaling result" in pdf.words(pdf_of(findings)["report.pdf"])


def test_report_says_what_was_found_and_names_every_failed_run(plain: Findings, report: bytes) -> None:
    words = re.sub(r"\s+", " ", pdf.words(report).replace("\u00a0", " "))
    for answer in answers_of(plain.rows, plain.losses):
        assert answer.text in words
        assert answer.evidence in words
    assert "PyTorch DDP reaches 3.70 (3." in words
    assert "The largest loss is exposed communication" in words
    assert re.search("pytorch-allreduce-resnet44-8gpu-[0-9a-f]+: failed: rank 3 ended with signal 9", words)
    assert "10 runs: 9 completed, 1 failed." in words
    assert {"Tables", "Method in short", "Runs"} <= set(pdf.words(report).splitlines())
    assert {"LibertinusSerif-Regular", "STIXGeneral-Regular"} <= pdf.fonts(report)


def test_equal_studies_make_equal_reports(plain: Findings, report: bytes) -> None:
    assert pdf_of(plain)["report.pdf"] == report
    assert b"2023-11-14" in report  # the study's clock


def test_report_does_not_obey_names(hostile: Findings) -> None:
    document = pdf_of(hostile)["report.pdf"]
    assert b"e.vil" not in document  # no link was made of it
    words = re.sub(r"\s+", "", pdf.words(document))
    for piece in ("#panic()", "\\undefined{x}", "<imgsrc=xonerror=alert(1)>", "\\end{document}"):
        assert piece in words
    assert not {"\x1b", "\u202e"} & set(printable(HOSTILE_REASON))
