"""The gallery (benchmarks/gallery.py) and the recorded studies it is built from (benchmarks/studies.py)."""

from __future__ import annotations

import io
import json
import re
import tarfile
from pathlib import Path

import jsonschema
import pytest
from PIL import Image
from project import PROJECT

from benchmarks import gallery, studies

RECORDED = sorted(studies.RECORDED.glob("*.tar.xz"))


def names(archive: bytes) -> list[str]:
    with tarfile.open(fileobj=io.BytesIO(archive)) as file:
        return file.getnames()


@pytest.mark.parametrize("archive", RECORDED, ids=lambda path: path.name.split(".")[0])
def test_recorded_study_has_what_the_report_needs_and_nothing_of_the_machine(archive: Path, tmp_path: Path) -> None:
    study = studies.unpack(archive.name.removesuffix(".tar.xz"), tmp_path)
    # Packing it again gives the same archive, so nothing was edited by hand.
    assert names(studies.packed(study)) == names(archive.read_bytes())
    files = [path for path in study.rglob("*") if path.is_file()]
    assert {path.suffix for path in files} <= {".json", ".jsonl"}
    text = "\n".join(path.read_text(encoding="utf-8") for path in files)
    assert not re.findall(r"/(?:tmp|home|root|work|scratch|mnt|usr)/[^\"]*", text)
    assert set(re.findall(r'"host": ?"([^"]*)"', text)) == {studies.HOST}
    schemas = PROJECT / "harness" / "schemas"
    for kind, pattern in (("study", "study.json"), ("spec", "runs/*/spec.json"), ("result", "runs/*/result.json")):
        schema = json.loads((schemas / f"{kind}.schema.json").read_text(encoding="utf-8"))
        found = list(study.glob(pattern))
        assert found
        for path in found:
            jsonschema.validate(json.loads(path.read_text(encoding="utf-8")), schema)


def test_recordings_and_pictures_are_small() -> None:
    kept = [*RECORDED, *(path for path in gallery.GALLERY.iterdir() if path.is_file())]
    assert sum(path.stat().st_size for path in kept) < 3_000_000


def test_every_recorded_study_is_in_the_gallery_and_among_the_presets() -> None:
    page = (gallery.GALLERY / "index.md").read_text(encoding="utf-8")
    for path in RECORDED:
        name = path.name.split(".")[0]
        assert name in {shown.name for shown in gallery.STUDIES}
        assert f"## {name}\n" in page
        assert f"\n## {name}\n" in (PROJECT / "docs" / "studies.md").read_text(encoding="utf-8")
    sentences = re.findall(r"^> - (.*)$", page, flags=re.MULTILINE)
    assert len(sentences) >= len(RECORDED)
    assert all(gallery.RESULT.search(sentence) for sentence in sentences)


def test_published_measurements_come_first_in_the_gallery() -> None:
    page = (gallery.GALLERY / "index.md").read_text(encoding="utf-8")
    first = page.split("\n## ")[1]
    assert first.startswith(f"{gallery.PUBLISHED}\n")
    assert "> - NGC PyTorch reaches 29.7× speedup on 32 GPUs: 93 % efficiency (imported, single run)." in first
    for picture in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", first):
        assert (gallery.GALLERY / picture).stat().st_size > 1000, picture
    readme = (PROJECT / "README.md").read_text(encoding="utf-8")
    assert f"docs/gallery/{gallery.PUBLISHED}_{gallery.FORECAST}.png" in readme


@pytest.mark.whole
@pytest.mark.browser
@pytest.mark.skipif(not gallery.CHROMIUM.exists(), reason="no Chromium: sbatch/system-packages.sh browser")
def test_the_command_makes_pages_and_pictures_of_a_recorded_study(tmp_path: Path) -> None:
    smallest = min(RECORDED, key=lambda path: path.stat().st_size).name.split(".")[0]
    assert gallery.main([smallest, "--out", str(tmp_path)]) == 0
    page = (tmp_path / "index.md").read_text(encoding="utf-8")
    assert page.startswith(gallery.HEAD)
    shown = re.findall(r"!\[[^\]]*\]\(([^)]+)\)", page)
    assert {path.name for path in tmp_path.iterdir()} == {"index.md", *shown}
    for name, width, height, _ in gallery.VIEWS:
        picture = Image.open(tmp_path / f"{smallest}_{name}.png")
        assert picture.size == (width, height)
        assert len(picture.getcolors() or []) > 10  # not blank


def test_a_study_that_is_not_recorded_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert gallery.main(["resnet"]) == 2
    assert "resnet is not recorded; recorded are " in capsys.readouterr().err
