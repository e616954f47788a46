"""Fixtures of the analysis tests: a study to add runs to, and the program itself."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from study_builder import StudyBuilder

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def study(tmp_path: Path) -> StudyBuilder:
    return StudyBuilder(tmp_path / "study")


@pytest.fixture
def analyse(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs `python -m analysis` with the arguments given, from another folder than the project's."""

    def run(*arguments: object) -> subprocess.CompletedProcess[str]:
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        environment = {**os.environ, "PYTHONPATH": path}
        environment.pop("COLUMNS", None)
        command = [sys.executable, "-m", "analysis", *map(str, arguments)]
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)

    return run
