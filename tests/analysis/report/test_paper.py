"""Figures, tables.tex and report.pdf: accepted by LaTeX and a PDF reader, and with the measured values."""

from __future__ import annotations

import io
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pdf
import pytest
from paper_studies import HOSTILE, HOSTILE_REASON, hostile_study, plain_study, typeset
from PIL import Image
from study_builder import Logs, StudyBuilder, spec_of

from analysis.base.files import write_files
from analysis.base.text import duration, number, percent, printable, times
from analysis.read.study import read_study
from analysis.report.answers import answers_of
from analysis.report.findings import Findings, findings_of
from analysis.report.print.drawing import FORMATS
from analysis.report.print.figures import figures_of
from analysis.report.print.latex import escaped
from analysis.report.print.paper import Paper
from analysis.report.print.pdf import pdf_of
from analysis.report.print.tables import tex_of

FIGURES = (
    *("speedup", "efficiency", "throughput", "waterfall", "step_time", "accuracy_by_seconds", "accuracy_by_samples"),
    *("cost_epoch", "prediction", "block_times"),
)


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
    assert set(figures) == {f"figures/{name}.{kind}" for name in FIGURES for kind in FORMATS}
    for name in FIGURES:
        assert figures[f"figures/{name}.png"].startswith(b"\x89PNG")
        assert "".join(ElementTree.fromstring(figures[f"figures/{name}.svg"]).itertext()).strip()


def test_a_linear_axis_does_not_begin_below_zero(study: StudyBuilder) -> None:
    for gpus, seconds in ((1, 1.0), (2, 40.0), (12, 1.0)):  # 0.05 of the speed on two GPUs
        study.completed(gpus, seconds=seconds)
    drawing = ElementTree.fromstring(figures_of(findings_of(read_study(study.folder)))["figures/speedup.svg"])
    axes = [group for group in drawing.iter() if group.get("class") == "mark-text role-axis-label"]
    _, heights = ([text.text for text in axis.iter() if text.tag.endswith("text")] for axis in axes)
    assert (heights[0], heights[-1]) == ("0", "12")


@pytest.mark.parametrize("name", FIGURES)
def test_figures_for_print_have_a_papers_width_and_their_fonts_in_them(figures: dict[str, bytes], name: str) -> None:
    document = figures[f"figures/{name}.pdf"]
    assert pdf.fonts(document) == {"LiberationSans"}
    assert pdf.size_mm(document)[0] == pytest.approx(85, abs=1e-4)
    assert 'width="85.000000mm"' in figures[f"figures/{name}.svg"].decode()
    assert Image.open(io.BytesIO(figures[f"figures/{name}.png"])).width == pytest.approx(85 / 25.4 * 300, abs=1)


@pytest.mark.parametrize(("width_mm", "font_pt"), [(85, 7.5), (120, 10), (60, 6)])
def test_width_and_size_of_text_are_those_asked_for(plain: Findings, width_mm: float, font_pt: float) -> None:
    files = figures_of(plain, Paper(width_mm, font_pt))
    for name in FIGURES:
        assert pdf.size_mm(files[f"figures/{name}.pdf"])[0] == pytest.approx(width_mm, abs=1e-4)
        svg = files[f"figures/{name}.svg"].decode()
        pixels = float(re.findall(r'viewBox="0 0 ([\d.]+) ', svg)[0])
        sizes = {float(size) * width_mm / pixels / 25.4 * 72 for size in re.findall(r'font-size="([\d.]+)px"', svg)}
        assert list(sizes) == pytest.approx([font_pt] * len(sizes), rel=0.01), name


@pytest.mark.parametrize("option", ["--width-mm=20", "--font-pt=90"])
def test_sizes_that_no_figure_can_have_are_refused(study: StudyBuilder, analyse, option: str) -> None:
    study.completed(1)
    process = analyse(study.folder, option)
    name, value = option.split("=")
    assert (process.returncode, process.stdout) == (2, "")
    assert f"{name} {value}: give a number from " in process.stderr


def test_words_of_a_figure_stay_within_it(plain: Findings) -> None:
    """Text in print is not truncated: nothing is shortened, and the widest line fits."""
    for name, content in figures_of(plain).items():
        if name.endswith(".svg"):
            assert "…" not in content.decode(), name


def test_tables_are_read_by_latex_with_the_figures(plain: Findings, figures: dict[str, bytes], tmp_path: Path) -> None:
    write_files(tmp_path, {**figures, **tex_of(plain)})
    body = "\\input{tables.tex}" + "".join(f"\\includegraphics{{figures/{name}.pdf}}\\clearpage " for name in FIGURES)
    assert "undefined" not in typeset(tmp_path, body).read_text(encoding="latin-1").lower()
    assert pdf.pages((tmp_path / "main.pdf").read_bytes()) >= len(FIGURES)


def test_figures_and_tables_do_not_obey_names(hostile: Findings, tmp_path: Path) -> None:
    written = {**figures_of(hostile), **tex_of(hostile)}
    write_files(tmp_path, written)
    typeset(tmp_path, "\\input{tables.tex}\\includegraphics{figures/speedup.pdf}")
    assert escaped(HOSTILE) in written["tables.tex"].decode("ascii")
    root = ElementTree.fromstring(written["figures/speedup.svg"])
    assert not [element for element in root.iter() if element.tag.endswith(("image", "script", "a"))]


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
    for row in plain.points[:3]:
        (line,) = re.findall(rf"^{row.gpus} & {row.nodes} & .*$", tables["scaling"], flags=re.MULTILINE)
        shown = (number(row.samples_per_second), times(row.speedup), percent(row.efficiency))
        assert all(f" & {escaped(figure)} & " in line for figure in shown)
        low, high = (number(getattr(row, f"samples_per_second_{end}")) for end in ("low", "high"))
        assert f"{low}--{high}\\textsuperscript" in line
    assert "no figure: failed: pytorch-allreduce-resnet44-8gpu" in tables["scaling"]
    assert "rank 3 ended with signal 9" in tables["scaling"]
    (loss,) = [loss for loss in plain.losses.points if loss.point.gpus == 4]
    assert loss.parts is not None
    assert escaped(duration(loss.parts.step_seconds)) in tables["breakdown"]
    added = plain.decisions[2]
    assert f"{escaped(percent(added['marginal_efficiency']))} & " in tables["decisions"]
    assert "60.0 \\%" in tables["accuracy"]
    assert "Measured on NVIDIA H100; cluster atlas; nccl" in tex


def test_caption_keeps_a_description_of_communication_whole(study: StudyBuilder) -> None:
    pipeline = "gloo, pipeline of 2 stages (idle for 20 % of a step; the largest has 61 % of the FLOPs)"
    study.completed(1)
    study.add(spec_of(2), Logs(communication=pipeline))
    tex = tex_of(findings_of(read_study(study.folder)))["tables.tex"].decode("ascii")
    assert f"cluster atlas; nccl / {escaped(pipeline)}; " in tex


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
    for answer in answers_of(plain.points, plain.losses):
        assert answer.text in words
        assert answer.evidence in words
    assert "PyTorch DDP reaches 3.70× speedup (3." in words
    assert "The largest loss is exposed synchronisation" in words
    assert re.search("pytorch-allreduce-resnet44-8gpu-[0-9a-f]+: failed: rank 3 ended with signal 9", words)
    assert "10 runs: 9 completed, 1 failed." in words
    assert {"Tables", "Method in short", "Runs"} <= set(pdf.words(report).splitlines())
    assert {"LibertinusSerif-Regular", "LiberationSans"} <= pdf.fonts(report)


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
