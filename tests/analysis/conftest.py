"""Fixtures of the analysis tests: a study to add runs to, and the program itself."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from project import Cli
from study_builder import StudyBuilder


@pytest.fixture
def study(tmp_path: Path) -> StudyBuilder:
    return StudyBuilder(tmp_path / "study")


@pytest.fixture
def analyse(cli: Cli) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run `python -m analysis` with the given arguments, outside the project's folder."""
    environment = {key: value for key, value in os.environ.items() if key != "COLUMNS"}
    return lambda *arguments: cli("analysis", *map(str, arguments), env=environment)
