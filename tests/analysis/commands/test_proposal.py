"""`python -m analysis proposal`: the section's contents match the measurements and state what is missing."""

from __future__ import annotations

import re
from pathlib import Path

import pdf
import pytest
from markdown_it import MarkdownIt
from paper_studies import HOSTILE, add_series, hostile_study, plain_study, typeset
from seen import Tags
from study_builder import Logs, StudyBuilder, spec_of

from analysis.base.errors import StudyError
from analysis.base.files import write_files
from analysis.base.text import duration, number, percent, span, times
from analysis.commands.proposal import ask_of, proposal_documents
from analysis.read.study import read_study
from analysis.report.answers import answers_of
from analysis.report.findings import Findings, findings_of
from analysis.report.print.drawing import drawing
from analysis.report.print.paper import Paper
from analysis.scaling.prediction import predict_series
from analysis.scaling.study_series import study_series
from harness.core.spec import ClusterSpec


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Findings:
    return plain_study(tmp_path_factory.mktemp("proposal") / "study")


def proposed(findings: Findings, *settings: str) -> dict[str, bytes]:
    return proposal_documents(findings, ask_of(list(settings)), Paper())


def markdown(findings: Findings, *settings: str) -> str:
    return proposed(findings, *settings)["proposal.md"].decode("utf-8")


def rows_of(text: str) -> list[list[str]]:
    """Return the cells of the table, without warnings and markup."""
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    plain = [re.sub(r"<sup>.*?</sup>|[*\\]", "", line) for line in lines[2:]]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in plain]


def test_table_holds_the_figures_of_the_points_in_every_format(plain: Findings) -> None:
    documents = proposed(plain, "gpus=4", "runs=40", "epochs=90")
    rows = rows_of(documents["proposal.md"].decode())
    for row, cells in zip(plain.points[:3], rows, strict=True):
        hours = row.gpus * 90 * 50_000 / row.samples_per_second / 3600
        interval = span(row.speedup_low, row.speedup_high, times)
        assert cells == [
            *(str(row.gpus), duration(row.step_seconds), times(row.speedup), interval),
            percent(row.efficiency),
            span(row.efficiency_low, row.efficiency_high, percent),
            *(number(hours), "40", number(40 * hours)),
        ]
        assert " & ".join(cell.replace("%", "\\%").replace("–", "--") for cell in cells[-3:]) in re.sub(
            r"\\textbf\{([^}]*)\}", r"\1", documents["proposal.tex"].decode()
        )


def test_section_names_test_case_machine_method_and_gaps(plain: Findings) -> None:
    text = markdown(plain, "gpus=4", "runs=40", "hours=6")
    assert "resnet44 (658,586 parameters) on cifar10 (50,000 samples per epoch), in fp32" in text
    assert "Measured on NVIDIA H100; cluster atlas; nccl" in text
    assert "no figure for 8 GPUs (failed: pytorch-allreduce-resnet44-8gpu" in text
    assert "40 runs of 6 hours on 4 GPUs each, at 24.0 GPU-hours per run, need 960 GPU-hours" in text
    assert "From 2 to 4 GPUs, each additional GPU contributes " in text
    assert f"{answers_of(plain.points, plain.losses)[0].headline} Speedup" in text
    method = text.split("## Method")[1]
    assert len(re.findall(r"\.(?=\s)", method)) == 2
    assert text.count("FILL IN:") == 5


def test_unspecified_run_length_is_left_blank(plain: Findings) -> None:
    text = markdown(plain, "gpus=2", "runs=3")
    assert rows_of(text)[1][-3:] == ["[FILL IN: hours]", "3", "[FILL IN: total]"]
    assert rows_of(text)[0][-3:] == ["–", "3", "–"]
    assert re.findall(r"[\d.]+ GPU-hours", text) == []


def test_steps_are_those_at_the_size_that_is_asked_for(plain: Findings) -> None:
    (cells,) = [cells for cells in rows_of(markdown(plain, "gpus=4", "runs=1", "steps=36000")) if cells[0] == "4"]
    (row,) = [row for row in plain.points if row.gpus == 4 and row.samples_per_second]
    assert cells[-3] == number(4 * 36_000 * 512 / row.samples_per_second / 3600)


def test_size_that_was_not_measured_is_predicted_and_marked(plain: Findings) -> None:
    documents = proposed(plain, "gpus=16", "runs=2", "epochs=1")
    text = documents["proposal.md"].decode()
    (source,) = study_series(plain.points)
    found = predict_series(source, (16,), None, None)
    rate = next(one.rate for one in found.predicted if one.size.gpus == 16)
    assert rate is not None
    base = plain.points[0].samples_per_second
    cells = rows_of(text)[-1]
    assert cells[:4] == [
        "16",
        duration(2048 / rate.median),
        times(rate.median / base),
        span(rate.central90.low / base, rate.central90.high / base, times),
    ]
    assert "> **16 GPUs were not measured: their figures are predicted.**" in text
    assert "predicted, not measured: the median and the 90 % interval" in text
    assert "It is made by the pooled law" in text


def test_a_budget_for_all_runs_chooses_the_size(plain: Findings) -> None:
    text = markdown(plain, "runs=40", "epochs=90", "budget_gpu_hours=1e5", "efficiency=0.9")
    (chosen,) = [cells for cells in rows_of(text) if f"**{cells[0]}**" in text]
    assert float(chosen[-1].replace(",", "")) < 1e5
    assert float(chosen[4].removesuffix(" %")) >= 90
    assert "it is the fastest for which 100,000 GPU-hours suffice for 40 runs at an efficiency of 90 % or more" in text
    larger = markdown(plain, "runs=40", "epochs=90", "budget_gpu_hours=1e5")
    assert "up to 8 times the largest measured" in larger
    assert larger != text


def test_marks_are_loud_and_ranks_are_not_called_gpus(study: StudyBuilder) -> None:
    shared = {"oversubscribed": "2 ranks share 1 core"}
    for gpus in (1, 2):
        spec = spec_of(gpus, cluster=ClusterSpec("local", "cpu", 8))
        study.add(spec, Logs(device="cpu", device_name="EPYC"), result=shared if gpus > 1 else None)
    text = markdown(findings_of(read_study(study.folder)), "gpus=2", "runs=2", "hours=1")
    loud = "".join(line for line in text.splitlines() if line.startswith("> "))
    assert "This is not a scaling result at 2: oversubscribed, 2 ranks share 1 core." in loud
    assert "A single run at 1 and 2" in loud
    without = text.replace("not with GPUs: this says nothing about how GPUs scale", "").replace(
        "ranks shared cores or GPUs", ""
    )
    assert "GPU" not in without
    assert "| CPU ranks | Time per step |" in text
    assert "Rank-hours per run" in text


def test_base_of_another_strategy_stands_in_the_table(study: StudyBuilder) -> None:
    study.completed(1, 0.9, strategy="plain")
    study.completed(2)
    text = markdown(findings_of(read_study(study.folder)), "gpus=2", "runs=1", "hours=1")
    assert [cells[0] for cells in rows_of(text)] == ["1", "2"]
    assert rows_of(text)[1][2] == times(1.8)
    assert "the framework alone" in text


@pytest.mark.parametrize("gpus", [4, 16])
def test_its_picture_is_as_wide_as_two_columns_and_the_same_each_time(plain: Findings, gpus: int) -> None:
    documents = proposed(plain, f"gpus={gpus}", "runs=4")
    picture = documents["figures/proposal.pdf"]
    assert pdf.fonts(picture) == {"LiberationSans"}
    assert pdf.size_mm(picture)[0] == pytest.approx(175, abs=1e-4)
    drawing.cache_clear()
    assert proposed(plain, f"gpus={gpus}", "runs=4") == documents


def test_latex_reads_it(plain: Findings, tmp_path: Path) -> None:
    write_files(tmp_path, proposed(plain, "gpus=16", "runs=4", "epochs=2"))
    log = typeset(tmp_path, "\\input{proposal.tex}").read_text(encoding="latin-1")
    assert "figures/proposal.pdf" in log.replace("\n", "")


def test_names_are_not_obeyed(tmp_path: Path) -> None:
    documents = proposed(hostile_study(tmp_path / "study"), "gpus=2", "runs=4", "hours=2")
    write_files(tmp_path, documents)
    typeset(tmp_path, "\\input{proposal.tex}")
    html = MarkdownIt("commonmark").enable("table").render(documents["proposal.md"].decode())
    tags = Tags(html)
    assert {attributes.get("src") for tag, attributes in tags.tags if tag == "img"} == {"figures/proposal.png"}
    assert not {"a", "code", "script"} & {tag for tag, _ in tags.tags}
    assert HOSTILE in tags.text
    assert "\x1b" not in tags.text


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (["gpus=4"], "runs= is missing: how many runs, such as 40"),
        (["gpus=0", "runs=1"], "gpus=0: give whole numbers from 1"),
        (["runs=40"], "gpus= is missing"),
        (["gpus=4", "runs=1", "epochs=1", "budget_gpu_hours=9"], "gpus= and budget_gpu_hours= are given"),
        (["runs=1", "hours=1", "budget_gpu_hours=9"], "give samples= or epochs="),
        (["runs=1", "epochs=90", "budget_gpu_hours=1e-3"], "for one of 1 runs: No size is sure to stay within"),
        (["gpus=4", "runs=1", "hours=2", "epochs=1"], "hours= and epochs= are given; give one of them"),
        (["gpus=4", "runs=1", "language=de"], "'language=de' is no setting; there are gpus=, runs="),
        (["gpus=4", "runs=1", "series=jax"], "no series has that in its name; there are: PyTorch DDP"),
        (["gpus=1024", "runs=1"], "refused: 256 times the largest measured size"),
        (["gpus=4", "runs=1", "cluster=moon"], "this study measured nothing there, only on atlas"),
    ],
)
def test_impossible_proposal_is_rejected_in_one_sentence(plain: Findings, settings: list[str], sentence: str) -> None:
    with pytest.raises(StudyError, match=re.escape(sentence)):
        proposed(plain, *settings)


def test_several_series_one_size_and_no_size(study: StudyBuilder, analyse, tmp_path: Path) -> None:
    study.add(spec_of(2), result={"status": "failed", "reason": "NCCL"})
    with pytest.raises(StudyError, match="no run has completed; there is nothing to show"):
        proposed(findings_of(read_study(study.folder)), "gpus=2", "runs=1")
    study.completed(4)
    with pytest.raises(StudyError, match="cannot be predicted: measured on 4 GPUs only"):
        proposed(findings_of(read_study(study.folder)), "gpus=8", "runs=1")
    add_series(study, (1, 2), framework="jax")
    process = analyse("proposal", study.folder, "gpus=2", "runs=1", "--out", tmp_path / "out")
    assert process.returncode == 2
    assert "choose one with series=…, words of its name: JAX allreduce" in process.stderr
    process = analyse("proposal", study.folder, "gpus=2", "runs=1", "series=jax", "--out", tmp_path / "out")
    assert (process.returncode, process.stderr) == (0, "")
    names = ("proposal.md", "proposal.tex", "figures/proposal.pdf", "figures/proposal.png")
    assert all(str(tmp_path / "out" / name) in process.stdout for name in names)
    assert all((tmp_path / "out" / name).stat().st_size for name in names)
