"""The project as a wheel in an environment of its own, used from a folder that has nothing to do with it."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest
from project import PROJECT
from studies import read_json, run_dirs


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the installed commands. The packages that the project needs are those of this environment."""
    folder = tmp_path_factory.mktemp("installed")
    pip = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")
    subprocess.run([*pip, "wheel", "--no-deps", "--wheel-dir", folder, PROJECT], check=True)
    [wheel] = folder.glob("*.whl")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
    python = folder / "venv" / "bin" / "python"
    subprocess.run([*pip, f"--python={python}", "install", "--no-deps", wheel], check=True)
    [packages] = (folder / "venv" / "lib").glob("python3*/site-packages")
    # A .pth file does not process those of the folder that it names, which lead to this checkout.
    (packages / "needed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python.parent


def run(folder: Path, *command: str | Path) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(command, cwd=folder, env={**env, "HOME": str(folder)}, capture_output=True, text=True)


def test_a_wheel_holds_what_it_needs_and_no_more(installed: Path) -> None:
    [wheel] = installed.parents[1].glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    folders = {"harness", "models", "analysis", "conf", "sbatch"}
    assert {name.split("/")[1] for name in names if name.startswith("scaling_harness/")} == folders
    tracked = subprocess.run(["git", "-C", PROJECT, "ls-files", *folders], capture_output=True, text=True, check=True)
    held = {name.removeprefix("scaling_harness/") for name in names if name.startswith("scaling_harness/")}
    assert held == set(tracked.stdout.split()) - {"sbatch/scaling_harness.pth"}


def test_an_installed_harness_plans_measures_and_reports(installed: Path, torch_python: Path, tmp_path: Path) -> None:
    shown = run(tmp_path, installed / "harness", "--help")
    assert shown.returncode == 0, shown.stderr
    assert "resnet44" in shown.stdout, "it finds its configuration"
    local = ("cluster=local", "cluster.device=cpu")
    planned = run(tmp_path, installed / "harness", "-m", "gpus=1,2", *local, "plan_only=true")
    assert planned.returncode == 0, planned.stderr
    builder = next(installed.parent.glob("lib/python3*/site-packages/scaling_harness/sbatch/env/pytorch.sh"))
    assert f"build it with `{builder}`" in planned.stdout
    assert os.access(builder, os.X_OK)
    assert f"no Python at {tmp_path}/.local/share/scaling-harness/envs/pytorch/bin/python" in planned.stdout

    small = ("model=resnet20", "dataset=synthetic", "batch=8", "measure=smoke")
    environment = f"framework.environment={torch_python}"
    done = run(tmp_path, installed / "python", "-m", "harness", "gpus=1", *local, *small, environment)
    assert done.returncode == 0, done.stdout + done.stderr
    [run_dir] = run_dirs(tmp_path)
    assert read_json(run_dir / "result.json")["status"] == "completed"
    assert read_json(run_dir / "spec.json")["site"]["code_version"] == "0.1.0"
    report = run(tmp_path, installed / "python", "-m", "analysis", "results/scaling", "--only", "html")
    assert report.returncode == 0, report.stdout + report.stderr
    assert (tmp_path / "results" / "scaling" / "report.html").exists()
