"""Selection, order, labels and colours of series, in every output of a report."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from study_builder import StudyBuilder

LABELS = """
- {series: pytorch horovod, label: Ours, colour: '#123456'}
- series: fsdp
"""


@pytest.fixture
def three(tmp_path: Path) -> StudyBuilder:
    study = StudyBuilder(tmp_path / "study")
    for strategy, seconds in (("allreduce", 1.0), ("horovod", 1.1), ("fsdp", 1.2)):
        for gpus in (1, 2, 4):
            study.completed(gpus, seconds + 0.05 * gpus, strategy=strategy)
    return study


def strategies(study: StudyBuilder) -> list[str]:
    with open(study.folder / "scaling.csv", encoding="utf-8") as file:
        return list(dict.fromkeys(row["strategy"] for row in csv.DictReader(file)))


def test_labels_colours_and_order_of_a_study_are_those_of_its_file(three: StudyBuilder, analyse) -> None:
    (three.folder / "labels.yaml").write_text(LABELS)
    done = analyse(three.folder)
    assert done.returncode == 0, done.stderr
    assert strategies(three) == ["horovod", "fsdp", "allreduce"]
    figure = (three.folder / "figures" / "speedup.svg").read_text(encoding="utf-8")
    page = (three.folder / "report.html").read_text(encoding="utf-8")
    assert "Ours reaches" in done.stdout
    assert "Ours" in figure
    assert "Horovod" not in figure
    assert "Ours" in page
    assert "#123456" in figure
    assert "#123456" in page
    # Its place in the palette is not taken by another.
    assert "#0072b2" not in figure.lower()


def test_only_chosen_series_are_shown(three: StudyBuilder, analyse) -> None:
    done = analyse(three.folder, "--series", "pytorch allreduce", "--series", "FSDP")
    assert done.returncode == 0, done.stderr
    assert sorted(strategies(three)) == ["allreduce", "fsdp"]
    assert "2 of 3 series are shown, as --series asks" in " ".join(done.stdout.split())
    for name in ("speedup", "efficiency"):
        assert "Horovod" not in (three.folder / "figures" / f"{name}.svg").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("- {series: mxnet}", "no series has 'mxnet' in its name or configuration; there are: PyTorch DDP;"),
        ("- {series: pytorch, label: One}", "'pytorch' is in the names of several series"),
        ("- {series: fsdp, color: red}", "entry 1: there is no key 'color'; valid: series, label, colour"),
        ("- {series: fsdp, colour: red}", "colour='red': give six hexadecimal digits"),
        ("- {series: fsdp, label: 3}", "label=3: give text"),
        ("- fsdp", "entry 1: series is missing"),
        ("fsdp: 1", "holds no list of series"),
        ("- {", "is not YAML"),
    ],
)
def test_mistakes_are_one_sentence(three: StudyBuilder, analyse, tmp_path: Path, text: str, sentence: str) -> None:
    (tmp_path / "mine.yaml").write_text(text)
    done = analyse(three.folder, "--labels", tmp_path / "mine.yaml", "--only", "csv")
    assert done.returncode == 2
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr


def test_a_file_of_labels_that_is_not_there(three: StudyBuilder, analyse, tmp_path: Path) -> None:
    done = analyse(three.folder, "--labels", tmp_path / "none.yaml")
    assert done.returncode == 2
    assert "none.yaml cannot be read: No such file" in done.stderr
