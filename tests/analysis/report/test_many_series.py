"""Figures and report.pdf of one, eight and forty series: no series and no letter is missing."""

from __future__ import annotations

import io
import re
import shutil
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pdf
import pytest
import vl_convert
from paper_studies import add_series
from PIL import Image
from seen import words
from study_builder import StudyBuilder
from test_charts import validate

from analysis.read.imported import read_imported
from analysis.read.study import read_study
from analysis.report.findings import Findings, findings_of
from analysis.report.print.figures import drawn, figure_specs
from analysis.report.print.paper import Paper
from analysis.report.print.pdf import pdf_of
from analysis.report.series_names import names_of

TRAININGS = (
    *(("pytorch", "allreduce"), ("pytorch", "horovod"), ("tensorflow", "allreduce"), ("tensorflow", "horovod")),
    *(("keras", "allreduce"), ("keras", "horovod"), ("mxnet", "allreduce"), ("jax", "allreduce")),
)
MODELS = ("resnet20", "resnet44", "resnet56", "resnet110", "vgg16")
MARGIN = 60  # pixels around a figure in which nothing may be drawn


@pytest.fixture(scope="module", params=[1, 4, *(pytest.param(n, marks=pytest.mark.whole) for n in (8, 40))])
def several(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Findings:
    study = StudyBuilder(tmp_path_factory.mktemp("series") / "study")
    every = [(*training, model) for model in MODELS for training in TRAININGS]
    for framework, strategy, model in every[: request.param]:
        add_series(study, (1, 2), framework=framework, strategy=strategy, model=model)
    findings = findings_of(read_study(study.folder))
    assert len(names_of(findings.points)) == request.param
    return findings


@pytest.fixture(scope="module")
def figures(several: Findings) -> Mapping[str, bytes]:
    """All figures for papers, as SVG."""
    return drawn(several, ("svg",))


def text_of(svg: bytes) -> str:
    """Return all text of a figure, with its lines joined."""
    return words(" ".join(ElementTree.fromstring(svg).itertext()))


def is_white_around(svg: bytes) -> bool:
    """Return whether nothing reaches beyond the figure's own area, where viewers and PDF cut it."""
    text = svg.decode("utf-8")
    width, height = map(float, re.findall(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', text)[0])
    outer = f'viewBox="{-MARGIN} {-MARGIN} {width + 2 * MARGIN} {height + 2 * MARGIN}"'
    text = re.sub(r'viewBox="[^"]+"', outer, text, count=1)
    size = f'width="{width + 2 * MARGIN}" height="{height + 2 * MARGIN}"'
    text = re.sub(r'width="[\d.]+mm" height="[\d.]+mm"', size, text, count=1)
    picture = Image.open(io.BytesIO(vl_convert.svg_to_png(text))).convert("RGBA")
    page = Image.new("RGBA", picture.size, "white")
    page.alpha_composite(picture)
    grey, edge = np.asarray(page.convert("L")), MARGIN - 1
    around = (grey[:edge], grey[-edge:], grey[:, :edge], grey[:, -edge:])
    return min(int(part.min()) for part in around) > 200


def test_figures_name_every_series_and_cut_no_letter(several: Findings, figures: Mapping[str, bytes]) -> None:
    said = " ".join(text_of(svg) for svg in figures.values())
    for name in names_of(several.points).values():
        assert name in said, name
    for file, svg in figures.items():
        assert is_white_around(svg), file
        assert "…" not in svg.decode("utf-8"), file


def test_figures_follow_the_schema_of_vega_lite(several: Findings) -> None:
    for spec in figure_specs(several).values():
        validate(spec)


@pytest.mark.parametrize("paper", [Paper(60), pytest.param(Paper(120, 10), marks=pytest.mark.whole)])
def test_narrow_and_wide_figures_cut_no_letter_either(tmp_path: Path, paper: Paper) -> None:
    study = StudyBuilder(tmp_path / "study")
    for framework, strategy in TRAININGS:
        add_series(study, (1, 2), framework=framework, strategy=strategy)
    cut = [
        file
        for file, svg in drawn(findings_of(read_study(study.folder)), ("svg",), paper).items()
        if not is_white_around(svg)
    ]
    assert cut == []


BEYOND = """() => {
  const svg = document.querySelector('svg'), box = svg.getBoundingClientRect();
  return [...svg.querySelectorAll('text')].filter((text) => {
    const own = text.getBoundingClientRect();
    return own.left < box.left - 1 || own.right > box.right + 1 || own.top < box.top - 1 || own.bottom > box.bottom + 1;
  }).map((text) => text.textContent);
}"""


@pytest.mark.browser
def test_a_browser_shows_every_text_within_its_figure_in_whatever_font(figures: Mapping[str, bytes]) -> None:
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("no Chromium: sbatch/system-packages.sh browser installs it")
    from playwright.sync_api import sync_playwright

    assert any(name.startswith("waterfall") for name in figures)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": 800, "height": 600})
        for font in ("Liberation Sans", "DejaVu Sans", "monospace"):
            for name, svg in figures.items():
                page.set_content(svg.decode("utf-8").replace('font-family="Liberation Sans"', f'font-family="{font}"'))
                assert (name, font, page.evaluate(BEYOND)) == (name, font, [])
        browser.close()


def test_a_letter_that_is_cut_is_seen(figures: Mapping[str, bytes]) -> None:
    svg = figures["speedup.svg"].decode("utf-8")
    width = re.findall(r'viewBox="0 0 ([\d.]+) ', svg)[0]
    assert not is_white_around(svg.replace(f'viewBox="0 0 {width} ', f'viewBox="0 0 {float(width) - 20} ').encode())


def test_report_for_paper_names_every_series_and_stays_short(several: Findings) -> None:
    paper = pdf_of(several)["report.pdf"]
    said = words(pdf.words(paper).replace("\u00a0", " "))
    # Half of it tables: of 40 series all rows are there, but not each sentence on each pair of them.
    assert pdf.pages(paper) <= (10 if len(names_of(several.points)) < 40 else 18)
    for point in several.points:
        assert point.name in said
    many = len(names_of(several.points)) >= 8
    # One bar of losses for each of many series, where few have a waterfall each.
    assert ("What each part of a step takes away" in said) is many
    assert ("From 100 % efficiency to the measured one" in said) is not many


def test_pictures_stand_before_tables_of_many_pages(tmp_path: Path) -> None:
    table = tmp_path / "table.csv"
    rows = [f"{n},{100 * n - i},library {i:02}" for i in range(51) for n in (1, 2, 4, 8)]
    table.write_text("\n".join(["gpus,samples_per_second,library", *rows]))
    said = words(pdf.words(pdf_of(findings_of(read_imported(table)))["report.pdf"]).replace("\u00a0", " "))
    figures = [found.start() for found in re.finditer(r"Figure \d+\. ", said)]
    assert len(figures) > 4
    assert max(figures) < said.index("Table 1. ")


def test_what_is_left_out_is_what_scales_worst(tmp_path: Path) -> None:
    table = tmp_path / "table.csv"
    rows = [f"{n},{rate},library {i:02}" for i in range(14) for n, rate in ((1, 100), (2, 130 + 4 * i))]
    table.write_text("\n".join(["gpus,samples_per_second,library", *rows]))
    findings = findings_of(read_imported(table))
    said = words(pdf.words(pdf_of(findings)["report.pdf"]).replace("\u00a0", " "))
    assert re.findall(r"library (\d+) reaches", said) == [f"{i:02}" for i in range(13, 1, -1)]
    assert "and 2 more, in report.html" in said
    # Ideal lines belong to the named series; 14 would be a hatched area.
    assert drawn(findings, ("svg",))["throughput.svg"].count(b'stroke-dasharray="5,4"') == 8
