"""A script under the runner starts, fails and ends as Python itself runs it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from ranks import PROBE, SCRIPTS


def outcome(folder: Path, *command: str, runner: bool) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of `python command`."""
    ours = [str(PROBE / "scaling_probe_run.py")] if runner else []
    # The folder is on the path of both, since children get it too.
    env = {**os.environ, "PYTHONPATH": str(PROBE)}
    done = subprocess.run([sys.executable, *ours, *command], env=env, cwd=folder, capture_output=True, text=True)
    # Python's own frames of -m.
    stderr = [line for line in done.stderr.splitlines() if "<frozen runpy>" not in line]
    return done.returncode, done.stdout, "\n".join(stderr)


@pytest.mark.parametrize(
    "command",
    [
        ["how_started.py", "return", "spawn", "forkserver", "fork"],
        ["-m", "package", "3"],
        ["-m", "package.how_started", "text", "spawn"],
        [f"{SCRIPTS}/how_started.py", "raise"],
        ["-m", "package.how_started", "raise"],
        ["how_started.py", "interrupt"],
        ["broken.py"],
    ],
    ids=" ".join,
)
def test_script_runs_as_if_started_directly(tmp_path: Path, command: list[str]) -> None:
    text = (SCRIPTS / "how_started.py").read_text()
    (tmp_path / "how_started.py").write_text(text)
    (tmp_path / "broken.py").write_text("def f(:\n    pass\n")
    (tmp_path / "package").mkdir()
    for name in ("how_started", "__main__"):
        (tmp_path / "package" / f"{name}.py").write_text(text)
    (tmp_path / "package" / "__init__.py").touch()
    outcome(tmp_path, *command, runner=False)  # writes the .pyc files
    assert outcome(tmp_path, *command, runner=True) == outcome(tmp_path, *command, runner=False)


def test_modules_of_the_user_are_found_before_those_of_the_probe(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "run.py").write_text("NAME = 'the user'\n")
    (tmp_path / "train.py").write_text("import sys; sys.path.append('elsewhere'); import run; print(run.NAME)\n")
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(PROBE), str(tmp_path / "elsewhere")])}
    command = [sys.executable, str(PROBE / "scaling_probe_run.py"), "train.py"]
    assert subprocess.check_output(command, env=env, cwd=tmp_path, text=True) == "the user\n"


def test_missing_script_is_one_sentence(tmp_path: Path) -> None:
    code, _, stderr = outcome(tmp_path, "missing.py", runner=True)
    assert (code, stderr) == (2, "error: cannot read the script missing.py: No such file or directory")


def test_deadline_ends_a_process_whose_clean_up_hangs() -> None:
    code = (
        "import threading\n"
        "from _scaling_probe import ending\n"
        "ending.DEADLINE_SECONDS = 0.2\n"
        "ending.exit_within_deadline(0)\n"
        "try:\n"
        "    raise ending.StopTraining(0)\n"
        "finally:\n"
        "    threading.Event().wait()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(PROBE)}, timeout=60)
    assert done.returncode == 0
