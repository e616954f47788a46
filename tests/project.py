"""Where the project is, and the type of the `cli` fixture."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent

Cli = Callable[..., "subprocess.CompletedProcess[str]"]
