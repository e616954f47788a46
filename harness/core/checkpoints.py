"""Checkpoints of a run in `<run>/checkpoint/step-<n>/`: which exist, and which one a run can resume from."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.core.run_files import CHECKPOINT


@dataclass(frozen=True)
class Saved:
    """A complete checkpoint.

    Attributes:
        step: optimiser steps done.
        attempt: the attempt that wrote it.
        ended: how training had ended (harness/core/measuring/protocol.py); None if it was still running.
    """

    path: Path
    step: int
    attempt: int
    code_version: str
    ended: dict[str, Any] | None


def saved_steps(run_dir: Path) -> list[int]:
    """Steps of the complete checkpoints, ascending."""
    folder = run_dir / CHECKPOINT
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    return sorted(int(name[5:]) for name in names if re.fullmatch(r"step-[0-9]{1,18}", name))


def latest(run_dir: Path, code_version: str) -> tuple[Saved | None, str | None]:
    """The newest checkpoint that this code can resume from, and why the newest one was rejected, if it was."""
    for step in reversed(saved_steps(run_dir)):
        path = run_dir / CHECKPOINT / f"step-{step}"
        try:
            about = json.loads((path / "about.json").read_text(encoding="utf-8"))
            saved = Saved(path, step, int(about["attempt"]), str(about["code_version"]), about.get("ended"))
        except (OSError, ValueError, KeyError, TypeError) as error:
            return None, f"{path.name} cannot be read ({error}); the run starts from step 0"
        if saved.code_version != code_version:
            versions = f"code {saved.code_version}, this is {code_version}"
            return None, f"{path.name} was written by {versions}; the run starts from step 0"
        return saved, None
    return None, None
