"""Runs the parts of tests that need a framework in that framework's environment."""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
from contextlib import suppress
from typing import Any

import pytest
from project import PROJECT, TEST_PATH


def needs_dali() -> None:
    """Skip the test if the PyTorch environment lacks NVIDIA DALI."""
    python = PROJECT / ".envs" / "pytorch" / "bin" / "python"
    code = (
        "import importlib.util as util, sys; sys.exit(not (util.find_spec('nvidia') and util.find_spec('nvidia.dali')))"
    )
    if not python.exists() or subprocess.run([str(python), "-c", code], capture_output=True).returncode:
        pytest.skip("no NVIDIA DALI in .envs/pytorch: build it with DALI=1 sbatch/env/pytorch.sh (`make test` does)")


def in_environment(name: str, module: str, function: str, *arguments: Any, timeout_seconds: float = 500) -> Any:
    """Call a function of `tests/<module>.py` in the environment .envs/<name> and return its result, passed as JSON.
    Skips the test if there is no such environment."""
    python = PROJECT / ".envs" / name / "bin" / "python"
    if not python.exists():
        pytest.skip(f"no environment {name}: build it with sbatch/env/{name}.sh (`make envs` does)")
    code = f"import json, sys, {module}\nprint(json.dumps({module}.{function}(*json.loads(sys.argv[1]))))\n"
    process = subprocess.Popen(
        [str(python), "-c", code, json.dumps(arguments)],
        env={**os.environ, "PYTHONPATH": TEST_PATH, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        stdout, stderr = process.communicate(timeout=timeout_seconds)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # with the ranks that it started, which may hang
    assert process.returncode == 0, stderr
    return json.loads(stdout.splitlines()[-1])


@functools.cache
def torch_version() -> tuple[int, int]:
    """Version of .envs/pytorch, such as (2, 13). Skips the test if there is no such environment."""
    major, minor, *_ = in_environment("pytorch", "importlib.metadata", "version", "torch").split(".")
    return int(major), int(minor)
