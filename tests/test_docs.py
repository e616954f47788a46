"""Runs the `bash` code blocks of README and docs in order in an empty folder, as a reader would."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from project import PROJECT

PAGES = [PROJECT / "README.md", *sorted((PROJECT / "docs").rglob("*.md"))]
# Many trainings: in `make test-matrices`. CI does what the README and quickstart.md begin with, `make demo`.
LONG = ("quickstart.md", "running.md", "studies.md", "exports.md", "learning.md", "recording.md")


def blocks(page: Path) -> list[str]:
    return re.findall(r"^```bash\n(.*?)^```", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def test_there_are_blocks_to_run() -> None:
    assert sum(len(blocks(page)) for page in PAGES) >= 5
    assert {page.name for page in PAGES if blocks(page)} > set(LONG)


@pytest.mark.torch
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, id=page.name, marks=[pytest.mark.whole] if page.name in LONG else [])
        for page in PAGES
        if blocks(page)
    ],
)
def test_code_blocks_run(page: Path, tmp_path: Path, torch_python: Path) -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    script = "set -euxo pipefail\n" + "\n".join(blocks(page))
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(PROJECT), "PATH": path},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


@pytest.mark.parametrize("page", [*PAGES, PROJECT / "CONTRIBUTING.md"], ids=lambda page: page.name)
def test_links_and_named_files_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", text):
        assert (page.parent / target).exists(), f"{page.name}: link to {target}"
    for name in re.findall(r"`((?:conf|harness|models|sbatch|analysis|tests|benchmarks|docs)/[\w./-]+)`", text):
        assert (PROJECT / name).exists(), f"{page.name}: {name}"
