"""framework.environment: all ways to specify it lead to the same run id."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from project import PROJECT, Cli
from studies import UNPROBED, read_json, run_dirs

from harness.config import composition
from harness.core.errors import UserError
from harness.plan import environments
from harness.plan.request import study_request


def run_id(tmp_path: Path, environment: str | Path, *overrides: str) -> str:
    composition.register()
    asked = ("cluster=local", "dataset=synthetic", f"results={tmp_path}", f"framework.environment='{environment}'")
    (point,) = composition.compose([*asked, *overrides], False, "config", None)
    (request,) = study_request([point]).requests
    return request.spec.run_id


def venv(folder: Path) -> Path:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    return folder


def conda(folder: Path, site_packages: Path | None = None) -> Path:
    """Create a minimal conda environment: `conda-meta`, and its own interpreter, which is not a link and finds its
    library relative to itself. site_packages: the packages in it."""
    (folder / "conda-meta").mkdir(parents=True)
    (folder / "conda-meta" / "history").touch()
    (folder / "bin").mkdir()
    python = folder / "bin" / "python"
    python.write_bytes(Path(os.path.realpath(sys.executable)).read_bytes())
    python.chmod(0o755)
    library = Path(sysconfig.get_path("stdlib"))
    own = folder / "lib" / library.name
    own.mkdir(parents=True)
    for entry in library.iterdir():
        if entry.name not in ("site-packages", "dist-packages"):
            (own / entry.name).symlink_to(entry)
    (own / "site-packages").mkdir()
    (own / "dist-packages").symlink_to("site-packages")  # where Debian's Python looks
    if site_packages is not None:
        (own / "site-packages" / "installed.pth").write_text(f"{site_packages}\n")
    return folder


@pytest.mark.torch
def test_an_environment_of_this_checkout_is_the_same_by_name_and_by_path(
    tmp_path: Path, torch_python: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_name = run_id(tmp_path, "pytorch")
    folder = PROJECT / ".envs" / "pytorch"
    link = tmp_path / "link"
    link.symlink_to(folder)
    assert {run_id(tmp_path, path) for path in (folder, f"{folder}/", torch_python, link)} == {by_name}
    monkeypatch.chdir(PROJECT)
    assert run_id(tmp_path, ".envs/pytorch") == by_name


def test_environment_folder_and_its_interpreter_have_one_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = venv(tmp_path / "first"), venv(tmp_path / "second")
    assert os.path.realpath(first / "bin" / "python") == os.path.realpath(second / "bin" / "python")
    monkeypatch.chdir(tmp_path)
    same = (first, f"{first}/", first / "bin" / "python", first / "bin" / "python3", "./first", f"{second}/../first")
    assert len({run_id(tmp_path, path) for path in same}) == 1
    assert environments.canonical(str(first / "bin" / "python3"), PROJECT) == str(first), "as a folder was recorded"
    assert run_id(tmp_path, first) != run_id(tmp_path, second)
    # An interpreter outside any environment keeps its path.
    assert environments.canonical("/usr/bin/python3", PROJECT) == "/usr/bin/python3"


def test_a_conda_environment_by_name_by_folder_and_by_interpreter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    folder = conda(tmp_path / "miniforge3" / "envs" / "torch-2.11")
    (home / ".conda").mkdir(parents=True)
    (home / ".conda" / "environments.txt").write_text(f"{tmp_path}/miniforge3\n{folder}\n{tmp_path}/gone/torch-2.11\n")
    for variable in ("CONDA_EXE", "CONDA_ENVS_PATH", "MAMBA_ROOT_PREFIX", "CONDA_ROOT"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HOME", str(home))
    assert environments.interpreter("pytorch", "torch-2.11", PROJECT) == folder / "bin" / "python"
    assert len({run_id(tmp_path, given) for given in ("torch-2.11", folder, folder / "bin" / "python")}) == 1
    # Found through mamba's own folders, without that list.
    (home / ".conda" / "environments.txt").unlink()
    with pytest.raises(UserError, match="no Python at"):
        environments.interpreter("pytorch", "torch-2.11", PROJECT)
    monkeypatch.setenv("MAMBA_ROOT_PREFIX", str(tmp_path / "miniforge3"))
    assert environments.interpreter("pytorch", "torch-2.11", PROJECT) == folder / "bin" / "python"
    # Two environments of one name are ambiguous.
    other = conda(tmp_path / "scratch" / "torch-2.11")
    monkeypatch.setenv("CONDA_ENVS_PATH", str(other.parent))
    with pytest.raises(UserError, match=r"several conda environments have that name: .*; give the folder of one"):
        environments.interpreter("pytorch", "torch-2.11", PROJECT)


def test_the_python_of_a_module_is_the_one_that_the_node_has(tmp_path: Path) -> None:
    on_slurm = ("cluster=slurm", "cluster.device=cpu", "cluster.gres=null", "data.check=false")
    module = (*on_slurm, "cluster.modules=[PyTorch/2.1.2]")
    assert environments.interpreter("pytorch", "python3", PROJECT, ["PyTorch/2.1.2"]) == Path("python3")
    ids = {
        run_id(tmp_path, "python3", *on_slurm, f"cluster.modules=[PyTorch/{version}]") for version in ("2.1.2", "2.3")
    }
    assert len(ids) == 2, "another module is another environment"
    assert run_id(tmp_path, "python3", *module) in ids
    with pytest.raises(UserError, match=r"give its full path, or set cluster\.modules"):
        run_id(tmp_path, "python3", *on_slurm)


@pytest.mark.torch
def test_a_run_in_a_conda_environment(cli: Cli, tmp_path: Path, torch_python: Path) -> None:
    """The interpreter is the environment's own; PyTorch comes from this project's environment."""
    ask = "import sysconfig; print(sysconfig.get_path('purelib')); import sys; print(sys.version_info[:2])"
    told = subprocess.run([torch_python, "-c", ask], capture_output=True, text=True, check=True).stdout.split("\n")
    if told[1] != str(sys.version_info[:2]):
        pytest.skip("PyTorch's environment has another version of Python than this one")
    folder = conda(tmp_path / "envs" / "torch", Path(told[0]))
    asked = ("gpus=1", "cluster=local", *UNPROBED, "batch=8")
    done = cli("harness", *asked, f"framework.environment={folder}")
    assert done.returncode == 0, done.stdout + done.stderr
    (run_dir,) = run_dirs(tmp_path)
    assert read_json(run_dir / "spec.json")["spec"]["environment"] == str(folder)
    assert read_json(run_dir / "attempt-1" / "env.json")["interpreter"] == str(folder / "bin" / "python")
    again = cli("harness", *asked, f"framework.environment={folder}/bin/python")
    assert "1 run is completed already" in again.stdout, again.stdout


def test_an_environment_without_the_framework_is_named_in_the_plan(cli: Cli, tmp_path: Path) -> None:
    python = venv(tmp_path / "bare") / "bin" / "python"
    asked = ("gpus=1", "cluster=local", "cluster.device=cpu", "dataset=synthetic", f"results={tmp_path}")
    asked = ("-m", *asked, f"framework.environment={python.parent.parent}", "plan_only=true")
    done = cli("harness", *asked, "strategy=allreduce,zero1,horovod,mpi")
    assert done.returncode == 0, done.stderr
    said = " ".join(done.stdout.split())
    lacking = f"will fail: {python} has no package numpy and no torch"
    assert said.count(f"{lacking}; install it there, or set framework.environment") == 1
    assert f"runs of framework 'pytorch' {lacking}; install it" in said
    assert f"runs of framework 'pytorch' with strategy=horovod {lacking} and no horovod; install it" in said
    assert f"runs of framework 'pytorch' with strategy=mpi {lacking} and no mpi4py; install it" in said
