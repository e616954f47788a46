"""The commit-msg hook, run like pre-commit does, on good and bad messages."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from project import PROJECT


def checked(message: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the hook of .pre-commit-config.yaml with these tests' interpreter."""
    [hook] = [
        hook
        for repo in yaml.safe_load((PROJECT / ".pre-commit-config.yaml").read_text())["repos"]
        for hook in repo["hooks"]
        if hook.get("stages") == ["commit-msg"]
    ]
    (file := folder / "COMMIT_EDITMSG").write_text(message, encoding="utf-8")
    interpreter, *script = hook["entry"].split()
    assert interpreter == ".venv/bin/python"
    return subprocess.run([sys.executable, *script, str(file)], cwd=PROJECT, capture_output=True, text=True)


@pytest.mark.parametrize(
    "message",
    [
        "Move the modules into the packages of the architecture",
        "slurm: retry a requeue that races with node loss\n\nThe reason.\n",
        "tests, docs: pin what the commands print and write",
        "Seed each rank's loader with its own number",
        "x" * 72,
        "status: " + "x" * 64,
        "Merge branch 'main'\n",
        "Add a column\n\n# Please enter the commit message. Lines starting with '#' are ignored.\n",
    ],
)
def test_a_good_message_passes(tmp_path: Path, message: str) -> None:
    done = checked(message, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("message", "sentence"),
    [
        ("x" * 73, "the subject has 73 characters, at most 72 are allowed"),
        ("Add a column.", "the subject ends with a period"),
        ("Added a column", "'Added' is not imperative"),
        ("report: adding a column", "'adding' is not imperative"),
        ("Fixes the column", "'Fixes' is not imperative"),
        ("Add a column\nof joules", "the line after the subject is not empty"),
        ("", "the subject is empty"),
        ("# only a comment\n", "the subject is empty"),
    ],
)
def test_a_bad_message_is_refused_with_the_reason(tmp_path: Path, message: str, sentence: str) -> None:
    done = checked(message, tmp_path)
    assert done.returncode == 1
    assert sentence in done.stderr
