"""Fixtures of all tests: the frameworks' environments, and the command line as a user calls it."""

from __future__ import annotations

import gc
import importlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Generator
from pathlib import Path
from types import ModuleType
from typing import Any

import forked_commands
import pytest
from environments import in_environment
from hypothesis import settings
from project import PROJECT, Cli
from studies import failures

# No deadline per example, since several tests share the cores.
settings.register_profile("tests", deadline=None)
settings.load_profile("tests")
# Collected tests live until the end; rescanning them would take a fifth of the collection time.
gc.disable()


def pytest_configure() -> None:
    # Tests in the background of a shell inherit an ignored SIGINT, and would pass it on to every program they start.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--whole", action="store_true", help="also the whole of every matrix (marker whole), for hours")
    parser.addoption("--renew-goldens", action="store_true", help="pin what the program prints and writes now")


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--whole"):
        whole = [item for item in items if item.get_closest_marker("whole")]
        config.hook.pytest_deselected(items=whole)
        items[:] = [item for item in items if item not in whole]
    if "PYTEST_XDIST_WORKER" not in os.environ:
        return
    for item in items:
        # What the tests of a module share is made once, by one worker.
        known = item._fixtureinfo.name2fixturedefs.values()
        if any(fixture.scope == "module" for fixtures in known for fixture in fixtures):
            item.add_marker(pytest.mark.xdist_group(item.path.stem))

    def length(item: pytest.Item) -> tuple[float, bool]:
        limit = item.get_closest_marker("timeout")
        return limit.args[0] if limit else 0, item.get_closest_marker("cluster") is not None

    items.sort(key=length, reverse=True)  # long ones first, so that all workers finish at about the same time


def pytest_collection_finish() -> None:
    gc.enable()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    folder = getattr(item, "funcargs", {}).get("tmp_path")
    if report.failed and isinstance(folder, Path) and (why := failures(folder)):
        report.sections.append(("runs that failed, and why", why))
    return report


@pytest.fixture(scope="session")
def project() -> Path:
    return PROJECT


@pytest.fixture(scope="session")
def torch_python() -> Path:
    """Interpreter of the PyTorch environment."""
    python = PROJECT / ".envs" / "pytorch" / "bin" / "python"
    if not python.exists():
        pytest.skip("no PyTorch environment: build it with sbatch/env/pytorch.sh (`make test` does)")
    return python


@pytest.fixture(scope="session")
def environments() -> None:
    """Require the environments of all frameworks."""
    for name in ("pytorch", "tensorflow", "mxnet", "jax"):
        if not (PROJECT / ".envs" / name / "recipe").exists():
            pytest.skip(f"no {name} environment: build it with sbatch/env/{name}.sh (`make test` does)")


@pytest.fixture(scope="session")
def fashion_mnist() -> Path:
    """A data.root with the real Fashion-MNIST."""
    for root in (PROJECT / "data", Path("/usr/share/datasets")):
        if (root / "fashion-mnist" / "train-images-idx3-ubyte.gz").exists():
            return root
    pytest.skip("no Fashion-MNIST: get it with sbatch/data/fashion-mnist.sh (`make test` does)")


@pytest.fixture
def trace_parts(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The probe's module, imported as in a user's process."""
    monkeypatch.syspath_prepend(str(PROJECT / "harness" / "probe"))
    return importlib.import_module("_scaling_probe.trace_parts")


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    """cli("harness", "-m", "gpus=1,2"): run a command as a user would, in an empty folder without a scheduler."""

    def run(module: str, *arguments: str, env: dict[str, str] | None = None, **keywords: Any) -> Any:
        environ = {**(os.environ if env is None else env), "PYTHONPATH": str(PROJECT)}
        timeout = keywords.pop("timeout", 500)
        followed = env is None or forked_commands.follows(environ)
        if followed and not keywords and module in forked_commands.FORKED:
            return forked_commands.run(module, arguments, tmp_path, environ, timeout)
        return subprocess.run(
            [sys.executable, "-m", module, *arguments],
            cwd=tmp_path,
            env=environ,
            capture_output=True,
            text=True,
            timeout=timeout,
            **keywords,
        )

    return run


@pytest.fixture
def in_torch(torch_python: Path, tmp_path: Path) -> Callable[..., Any]:
    """Run a function of `tests/worker/sides/torch_side.py` in the PyTorch environment and return its result, passed as
    JSON."""

    def run(function: str, *arguments: Any) -> Any:
        return in_environment("pytorch", "torch_side", function, *arguments, folder=tmp_path)

    return run
