"""The project's location, and the type of the `cli` fixture."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent

Cli = Callable[..., "subprocess.CompletedProcess[str]"]

SIDES = PROJECT / "tests" / "worker" / "sides"
# PYTHONPATH of the parts of tests that run in a framework's environment.
TEST_PATH = os.pathsep.join(map(str, (PROJECT, PROJECT / "tests", SIDES)))
