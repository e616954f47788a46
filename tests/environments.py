"""Runs the parts of tests that need a framework in that framework's environment."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from project import PROJECT, TEST_PATH

# What to import, where it is not the name. Optimisers and DistributedDataParallel load torch._dynamo, which takes as
# long as torch.
FRAMEWORKS = {"pytorch": "torch._dynamo"}


def needs_dali() -> None:
    """Skip the test if the PyTorch environment lacks NVIDIA DALI."""
    python = PROJECT / ".envs" / "pytorch" / "bin" / "python"
    code = (
        "import importlib.util as util, sys; sys.exit(not (util.find_spec('nvidia') and util.find_spec('nvidia.dali')))"
    )
    if not python.exists() or subprocess.run([str(python), "-c", code], capture_output=True).returncode:
        pytest.skip("no NVIDIA DALI in .envs/pytorch: build it with DALI=1 sbatch/env/pytorch.sh (`make test` does)")


def in_environment(
    name: str, module: str, function: str, *arguments: Any, folder: Path | None = None, timeout_seconds: float = 500
) -> Any:
    """Call a function of `tests/<module>.py` in a process of its own in the environment .envs/<name> and return its
    result, passed as JSON. Skips the test if there is no such environment."""
    python = PROJECT / ".envs" / name / "bin" / "python"
    if not python.exists():
        pytest.skip(f"no environment {name}: build it with sbatch/env/{name}.sh (`make envs` does)")
    request = {"module": module, "function": function, "arguments": arguments, "folder": str(folder or Path.cwd())}
    status, stdout, stderr = answered(python, [FRAMEWORKS.get(name, name)], request, timeout_seconds)
    assert status == 0, f"wait status {status}\n{stderr}"
    return json.loads(stdout.splitlines()[-1])


def answered(
    python: Path,
    imported: Sequence[str],
    request: dict[str, Any],
    timeout_seconds: float,
    environ: dict[str, str] | None = None,
) -> tuple[int, str, str]:
    """Return the wait status and the output of what tests/fork_server.py was asked for.

    imported: modules that its process has imported, with these environment variables; by default, those of now.
    """
    server = _server(python, imported, dict(os.environ) if environ is None else environ)
    assert server.stdin is not None
    assert server.stdout is not None
    with tempfile.TemporaryDirectory() as said:
        stdout, stderr = Path(said) / "stdout", Path(said) / "stderr"
        request = {**request, "stdout": str(stdout), "stderr": str(stderr), "seconds": timeout_seconds}
        server.stdin.write(json.dumps(request) + "\n")
        server.stdin.flush()
        return int(server.stdout.readline()), stdout.read_text(), stderr.read_text()


# The server of each interpreter, and the environment variables that it was started with.
_servers: dict[Path, tuple[dict[str, str], subprocess.Popen[str]]] = {}


def _server(python: Path, imported: Sequence[str], environ: dict[str, str]) -> subprocess.Popen[str]:
    """Return the interpreter's process of tests/fork_server.py, which ends when this process does. Libraries read
    their variables when they are imported, so that other variables need another one."""
    environ = {key: value for key, value in environ.items() if key != "PYTEST_CURRENT_TEST"}
    environ.update(PYTHONPATH=TEST_PATH, OMP_NUM_THREADS="1")
    known, server = _servers.get(python, ({}, None))
    if server is None or known != environ or server.poll() is not None:
        if server is not None:
            server.communicate()
        argv = [str(python), str(PROJECT / "tests" / "fork_server.py"), *imported]
        server = subprocess.Popen(argv, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        _servers[python] = (environ, server)
    return server


# Older versions are refused by name on CPUs: their gloo loses messages of schedule=1f1b, and cannot average.
OLDEST_TORCH = {"pipeline": (2, 8), "fsdp": (2, 10)}


@functools.cache
def trains_on_cpus(strategy: str) -> bool:
    """Whether .envs/pytorch has what the strategy's default options need. Skips the test if there is no such folder."""
    if strategy == "horovod":
        return any((PROJECT / ".envs" / "pytorch").glob("lib/*/site-packages/horovod"))
    major, minor, *_ = in_environment("pytorch", "importlib.metadata", "version", "torch").split(".")
    return (int(major), int(minor)) >= OLDEST_TORCH.get(strategy, (0, 0))
