"""Checks the imports of every file against the walls described in docs/architecture.md."""

from __future__ import annotations

import ast
import fnmatch
import functools
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest
from project import PROJECT

import analysis.__main__ as analysis

# One worker parses the sources.
pytestmark = pytest.mark.xdist_group("walls")

STANDARD = set(sys.stdlib_module_names)
FRAMEWORKS = {"torch", "tensorflow", "keras", "mxnet", "jax", "horovod", "mpi4py", "nvidia"}
# By name of an adapter's folder, or of a file. Keras 2 comes with TensorFlow as tf.keras; Horovod has a part for each
# framework.
ALLOWED = {
    "pytorch": {"torch", "horovod", "nvidia"},
    "tensorflow": {"tensorflow", "horovod"},
    "keras": {"tensorflow", "horovod"},
    "mxnet": {"mxnet", "horovod"},
    "jax": {"jax"},
    "emulated": {"torch"},
    "horovod": {"horovod"},
    "mpi": {"mpi4py"},
    "process_group": {"torch"},
}
# Read in every environment: standard library only.
SHARED_FILES = ["harness/core/*.py", "models/catalog.py", "models/layers.py"]
SHARED = ("harness.core.", "models.catalog.", "models.layers.")
OLDEST_PYTHON = (3, 8)

SOURCES = sorted(
    path.relative_to(PROJECT) for room in ("harness", "models", "analysis") for path in (PROJECT / room).rglob("*.py")
)


@functools.cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse((PROJECT / path).read_text(encoding="utf-8"))


@functools.cache
def imports(path: Path) -> frozenset[str]:
    """Return the dotted names of all modules that the file imports."""
    found = set()
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            module = node.module or ""
            # `from harness import spec` names the module harness.spec.
            found.update(
                f"{module}.{a.name}" if module in ("harness", "models", "analysis") else module for a in node.names
            )
    return frozenset(found)


def roots(names: Iterable[str]) -> set[str]:
    return {name.split(".")[0] for name in names}


def of(*patterns: str) -> list[Path]:
    """Return matching sources; '*' also matches '/'."""
    return [path for path in SOURCES if any(fnmatch.fnmatch(str(path), pattern) for pattern in patterns)]


def test_there_is_something_to_check() -> None:
    assert len(SOURCES) > 20
    assert "hydra" in roots(imports(Path("harness/config/composition/sweep.py")))


def test_what_all_environments_share_is_standard_library_only() -> None:
    for path in of(*SHARED_FILES):
        found = imports(path)
        assert roots(found) <= STANDARD | {"__future__", "harness", "models"}, path
        ours = {name for name in found if name.startswith(("harness", "models"))}
        assert all(f"{name}.".startswith(SHARED) for name in ours), (path, ours)


def test_what_runs_in_a_framework_environment_parses_with_the_oldest_python() -> None:
    for path in of(*SHARED_FILES, "models/*.py", "harness/worker/*.py"):
        ast.parse((PROJECT / path).read_text(encoding="utf-8"), feature_version=OLDEST_PYTHON)


def test_only_the_composition_knows_hydra() -> None:
    for path in SOURCES:
        if path.parent != Path("harness/config/composition"):
            assert not roots(imports(path)) & {"hydra", "omegaconf"}, path


def test_only_launch_knows_submitit() -> None:
    for path in SOURCES:
        if path.parent != Path("harness/launch"):
            assert "submitit" not in roots(imports(path)), path


def test_the_slurm_client_loads_little_since_every_rank_has_a_supervisor() -> None:
    for path in of("harness/slurm/*.py"):
        found = imports(path)
        assert roots(found) <= STANDARD | {"__future__", "harness"}, path
        ours = {name for name in found if name.startswith("harness")}
        assert all(f"{name}.".startswith((*SHARED, "harness.slurm.")) for name in ours), (path, ours)


def test_only_the_slurm_client_calls_slurms_programs() -> None:
    for path in SOURCES:
        constants = (node.value for node in ast.walk(tree_of(path)) if isinstance(node, ast.Constant))
        words = {value for value in constants if isinstance(value, str)}
        if path.parent != Path("harness/slurm"):
            assert not words & {"scontrol", "squeue", "sacct", "sacctmgr", "sstat", "sinfo", "scancel"}, path


def test_frameworks_stay_in_their_adapters() -> None:
    for path in SOURCES:
        worker = Path("harness/worker")
        # All files of an adapter share its rule, including those in subfolders.
        home = path.relative_to(worker).parts[0] if worker in path.parent.parents else path.stem
        home = path.stem if home == "distributed" else home
        assert roots(imports(path)) & FRAMEWORKS <= ALLOWED.get(home, set()), path


def test_the_worker_needs_nothing_of_the_login_node() -> None:
    for path in of("harness/worker/*.py"):
        others = roots(imports(path)) - FRAMEWORKS
        assert others <= STANDARD | {"__future__", "numpy", "PIL", "harness", "models"}, path
        ours = {name for name in imports(path) if name.split(".")[0] in ("harness", "models", "analysis")}
        assert all(f"{name}.".startswith((*SHARED, "harness.worker.", "models.")) for name in ours), (path, ours)


def test_the_probe_imports_nothing_of_ours_but_itself() -> None:
    """It lies alone on the PYTHONPATH of a user's script, where our packages would hide the user's."""
    found = {path: roots(imports(path)) for path in of("harness/probe/*.py")}
    assert len(found) > 10
    for path, names in found.items():
        assert names <= STANDARD | {"__future__", "_scaling_probe"}, path
        ast.parse((PROJECT / path).read_text(encoding="utf-8"), feature_version=OLDEST_PYTHON)
    assert not [
        path for path in SOURCES if path not in found and roots(imports(path)) & {"scaling_probe", "_scaling_probe"}
    ]


def test_the_probe_offers_no_module_that_a_user_could_have() -> None:
    modules = {path.stem for path in (PROJECT / "harness/probe").iterdir()} - {"__pycache__"}
    assert modules <= {"scaling_probe_run", "scaling_probe", "_scaling_probe", "sitecustomize"}


def test_the_loop_knows_no_framework() -> None:
    assert not roots(imports(Path("harness/worker/loop.py"))) & FRAMEWORKS
    assert not {n for n in imports(Path("harness/worker/loop.py")) if n.startswith("harness.worker.pytorch")}


def test_analysis_reads_files_and_knows_no_launcher() -> None:
    for path in of("analysis/*.py"):
        ours = {name for name in imports(path) if name.split(".")[0] in ("harness", "models")}
        assert all(f"{name}.".startswith((*SHARED, "models.activations.")) for name in ours), (path, ours)


def test_the_schema_loads_little_since_help_waits_for_it() -> None:
    files = [Path(f"harness/config/{name}.py") for name in ("schema", "optimizer_schema", "workload_schema")]
    found = set().union(*(imports(file) for file in files))
    ours = {name for name in found if name.split(".")[0] in ("harness", "models")}
    schemas = {"harness.config.optimizer_schema", "harness.config.workload_schema"}
    assert ours == {"harness.core.serialization", "harness.core.strategies", *schemas}


def test_a_supervisor_reads_no_more_than_it_needs() -> None:
    # One process per rank, all started at once from a shared file system.
    code = "import sys, harness.node.array_task; print(sorted({name.split('.')[0] for name in sys.modules}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=PROJECT)
    others = {"numpy", "submitit", "hydra", "omegaconf", "asyncio", "pandas"}
    assert not set(ast.literal_eval(done.stdout)) & (FRAMEWORKS | others)


def test_only_charts_import_the_chart_library() -> None:
    """So that a table does not wait for its import."""
    knowing = {path.parent for path in of("analysis/*.py") if {"altair", "vl_convert"} & roots(imports(path))}
    assert knowing == {Path("analysis/report/charts"), Path("analysis/report/print")}


COMMANDS = ["run", "status", "cancel", "doctor", "data", "shards", *analysis.COMMANDS]


@pytest.mark.parametrize(
    "command",
    [
        *("harness", "harness.status", "harness.cancel", "harness.doctor", "harness.shards", "analysis"),
        *(f"harness {command}" for command in COMMANDS),
    ],
)
def test_help_imports_no_framework_and_no_pandas(command: str) -> None:
    module = command.split()[0]
    code = (
        "import runpy, sys\n"
        f"sys.argv = {[*command.split(), '--help']}\n"
        "try:\n"
        f"    runpy.run_module('{module}', run_name='__main__', alter_sys=True)\n"
        "except SystemExit as end:\n"
        "    assert not end.code, end.code\n"
        "print('LOADED', sorted({name.split('.')[0] for name in sys.modules}))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(PROJECT)},
    )
    assert done.returncode == 0, done.stderr
    loaded = set(ast.literal_eval(done.stdout.split("LOADED ")[1].strip()))
    assert not loaded & (FRAMEWORKS | {"pandas", "altair", "vl_convert", "numpy", "submitit", "hydra"})
