"""The builders of the frameworks' environments (sbatch/env), and the environments built."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from project import PROJECT

# framework's environment -> its Horovod modules
HOROVOD = {
    "pytorch": ["horovod.torch"],
    "tensorflow": ["horovod.tensorflow", "horovod.keras", "horovod.tensorflow.keras"],
    "mxnet": ["horovod.mxnet"],
    "jax": [],
}
MODULE = {"pytorch": "torch", "tensorflow": "tensorflow", "mxnet": "mxnet", "jax": "jax"}
SETTINGS = ("PYTHON", "VARIANT", "GPU", "CUDA", "CLUSTER", "MPI", "HOROVOD", "DALI", "CXX", "HOROVOD_CUDA_HOME")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A separate checkout, so that builds do not affect other tests. It has an additional small environment."""
    folder = tmp_path / "checkout"
    shutil.copytree(PROJECT / "sbatch" / "env", folder / "sbatch" / "env")
    for module in ("harness/__init__.py", "harness/core/__init__.py", "harness/core/gpu_types.py"):
        (folder / module).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(PROJECT / module, folder / module)
    env = folder / "sbatch" / "env"
    (env / "small.sh").write_text(
        '#!/usr/bin/env bash\n. "$(dirname "${BASH_SOURCE[0]}")/common.sh"\n'
        "begin small 8\ninstall numpy pillow\ninstall_mpi\nfinish numpy\n"
    )
    (env / "small.sh").chmod(0o755)
    shutil.copy(env / "pytorch.constraints.txt", env / "small.constraints.txt")
    return folder


def build(checkout: Path, name: str, **settings: str) -> subprocess.CompletedProcess[str]:
    outer = {key: value for key, value in os.environ.items() if key not in SETTINGS}
    return subprocess.run(
        [checkout / "sbatch" / "env" / f"{name}.sh"],
        env={**outer, "VARIANT": "cpu", **settings},
        capture_output=True,
        text=True,
        timeout=240,
    )


def refusal(checkout: Path, name: str, **settings: str) -> str:
    """Return the sentence with which the builder refuses before doing anything."""
    done = build(checkout, name, **settings)
    assert done.returncode != 0
    assert not (checkout / ".envs").exists()
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    return line


def path_without(folder: Path, *programs: str) -> str:
    """Return a PATH that lacks only these programs."""
    folder.mkdir()
    for directory in reversed(os.environ["PATH"].split(os.pathsep)):
        for program in Path(directory).iterdir() if Path(directory).is_dir() else ():
            link = folder / program.name
            link.unlink(missing_ok=True)
            if program.name not in programs:
                link.symlink_to(program)
    return str(folder)


def interpreter(oldest: int, newest: int) -> str:
    """Find a Python 3 on this machine within these minor versions."""
    folders = [Path(folder) for folder in os.environ["PATH"].split(os.pathsep)]
    folders += (Path.home() / ".pyenv" / "versions").glob("3.*/bin")
    for minor in range(oldest, newest + 1):
        for folder in folders:
            python = folder / f"python3.{minor}"
            if python.is_file() and subprocess.run([python, "-V"], capture_output=True).returncode == 0:
                return str(python)
    pytest.skip(f"this machine has no Python 3.{oldest} to 3.{newest} to refuse")


@pytest.mark.parametrize(
    ("setting", "choices"), [("VARIANT", "cpu cuda"), ("MPI", "pypi system"), ("HOROVOD", "0 1 keep"), ("DALI", "0 1")]
)
def test_a_setting_that_is_no_choice_is_refused(checkout: Path, setting: str, choices: str) -> None:
    assert refusal(checkout, "pytorch", **{setting: "bogus"}) == f"error: {setting}=bogus: take one of: {choices}"


@pytest.mark.parametrize("name", ["tensorflow", "mxnet"])
def test_a_python_too_new_for_the_framework_is_refused(checkout: Path, name: str) -> None:
    said = refusal(checkout, name, PYTHON=interpreter(12, 19))
    assert re.search(rf"{name} does not run on Python 3\.1[2-9].*; set PYTHON to .* 3\.[89] to 3\.11, or .* ENVS", said)


@pytest.mark.parametrize("name", ["pytorch", "jax"])
def test_a_python_too_old_for_the_framework_is_refused(checkout: Path, name: str) -> None:
    said = refusal(checkout, name, PYTHON=interpreter(6, 10))
    assert re.search(rf"{name} does not run on Python 3\..*; set PYTHON to .* 3\.11 or newer", said)


def test_a_python_that_is_not_there_is_named(checkout: Path) -> None:
    assert "there is no /no/python that runs; set PYTHON to" in refusal(checkout, "jax", PYTHON="/no/python")


@pytest.mark.parametrize(
    ("program", "settings", "said"),
    [
        ("g++", {}, "'g++' is no C++17 compiler: load a module of GCC 9 or newer"),
        ("make", {}, "Horovod is built with make, and there is none on the PATH"),
        ("mpicc", {"MPI": "system"}, "MPI=system takes the mpicc on the PATH, and there is none"),
        ("nvcc", {"VARIANT": "", "GPU": "v100"}, "the CUDA build compiles Horovod with nvcc, and there is none on the"),
    ],
)
def test_a_missing_program_is_named_before_anything_is_built(
    checkout: Path, tmp_path: Path, program: str, settings: dict[str, str], said: str
) -> None:
    if program != "g++" and shutil.which("g++") is None:
        pytest.skip("no g++ here, which is asked for first")
    assert said in refusal(checkout, "mxnet", PATH=path_without(tmp_path / "bin", program), **settings)


def test_the_gpus_that_an_environment_is_for_are_settings_of_its_builder(checkout: Path) -> None:
    said = refusal(checkout, "pytorch", VARIANT="", GPU="v100", CUDA="cu130")
    assert said.startswith("error: CUDA=cu130 does not run on GPU=v100")
    assert refusal(checkout, "mxnet", VARIANT="", GPU="h100").startswith("error: mxnet is for compute capability")


def test_an_environment_is_finished_once_and_built_again_only_when_its_recipe_changes(checkout: Path) -> None:
    # Neither a compiler nor PYTHONPATH from a module is used.
    settings = {"HOROVOD": "0", "CXX": "/no/compiler", "PYTHONPATH": str(PROJECT)}
    first = build(checkout, "small", **settings)
    assert first.returncode == 0, first.stderr
    assert re.search(r"^numpy [\d.]+ with Open MPI v4\.1\.8$", first.stdout, re.MULTILINE)

    again = build(checkout, "small", **settings)
    assert (again.returncode, again.stdout) == (0, f"up to date: {checkout}/.envs/small\n")

    finish = f". {checkout}/sbatch/env/common.sh; target={checkout}/.envs/small VARIANT=cpu HOROVOD=0; finish torch"
    unfinished = subprocess.run(["bash", "-c", finish], capture_output=True, text=True)
    assert unfinished.returncode != 0
    assert "No module named 'torch'" in unfinished.stderr
    assert f"error: the environment in {checkout}/.envs/small does not work" in unfinished.stderr
    assert build(checkout, "small", **settings).stdout == again.stdout

    # HOROVOD=keep leaves out what is not there, and asks for what is.
    assert build(checkout, "small", **{**settings, "HOROVOD": "keep"}).stdout == again.stdout
    (horovod,) = [p / "horovod" for p in (checkout / ".envs" / "small").glob("lib/python3*/site-packages")]
    horovod.mkdir()
    assert "is no C++17 compiler" in build(checkout, "small", **{**settings, "HOROVOD": "keep"}).stderr
    horovod.rmdir()

    with open(checkout / "sbatch" / "env" / "small.constraints.txt", "a") as constraints:
        constraints.write("# changed\n")
    # Rejected after the recipe was found to differ, which would require a rebuild.
    assert "is no C++17 compiler" in build(checkout, "small", **{**settings, "HOROVOD": "1"}).stderr


def test_compiled_horovod_is_reused_until_its_recipe_changes(checkout: Path) -> None:
    if shutil.which("g++") is None:
        pytest.skip("no g++ here, whose version is part of the key")

    def key(project: Path, variant: str = "cpu") -> str:
        common = f'. "{project}/sbatch/env/common.sh"; patches=("$here"/patches/*)'
        code = f"{common}; name=pytorch VARIANT={variant} MPI=pypi framework=PYTORCH; key_of_horovod"
        return subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=True).stdout

    assert re.fullmatch(r"[0-9a-f]{16}\n", key(PROJECT))
    assert key(checkout) == key(PROJECT)
    patch, *_ = (checkout / "sbatch" / "env" / "patches").iterdir()
    patch.write_text("another\n" + patch.read_text())
    assert key(checkout) != key(PROJECT)


# The environments in .envs ------------------------------------------------------------------------------------------


def environment(name: str) -> Path:
    folder = PROJECT / ".envs" / name
    if not (folder / "recipe").exists():
        pytest.skip(f"no {name} environment: build it with sbatch/env/{name}.sh (`make test` does)")
    return folder


def has_horovod(folder: Path) -> bool:
    return any(folder.glob("lib/python3*/site-packages/horovod"))


def ranks(folder: Path, code: str) -> list[str]:
    """Return the sorted lines that two ranks print, one each, under the environment's own mpirun."""
    mpirun = folder / "bin" / "mpirun"
    if not mpirun.exists():
        pytest.skip("built with MPI=system, whose mpirun is the site's")
    outer = {key: value for key, value in os.environ.items() if not key.startswith("SLURM")}
    done = subprocess.run(
        [mpirun, "-n", "2", "--oversubscribe", "--bind-to", "none", folder / "bin" / "python", "-c", code],
        env={**outer, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return sorted(done.stdout.split())


@pytest.mark.parametrize("name", sorted(HOROVOD))
def test_mpi4py_and_horovod_join_the_same_ranks_beside_the_framework(name: str) -> None:
    folder = environment(name)
    code = f"import importlib, {MODULE[name]}, numpy, PIL\nfrom mpi4py import MPI\nworld = MPI.COMM_WORLD\n"
    for module in HOROVOD[name] if has_horovod(folder) else []:
        code += f"hvd = importlib.import_module('{module}'); hvd.init()\n"
        code += "assert hvd.mpi_built() and hvd.gloo_built() and hvd.mpi_enabled()\n"
        code += "assert (hvd.rank(), hvd.size()) == (world.rank, world.size)\n"
    code += "print(f'{world.rank}:{world.allreduce(world.rank + 1)}\\n', end='', flush=True)\n"
    assert ranks(folder, code) == ["0:3", "1:3"]


@pytest.mark.parametrize("name", sorted(HOROVOD))
def test_every_package_of_an_environment_is_pinned(name: str) -> None:
    code = "from importlib.metadata import distributions\n"
    code += "for d in distributions(): print(d.metadata['Name'], d.version, sep='==')"
    python = environment(name) / "bin" / "python"
    listed = subprocess.run([python, "-I", "-c", code], capture_output=True, text=True, check=True).stdout
    normal = re.compile(r"[-_.]+(?=.*==)")
    pins = (PROJECT / "sbatch" / "env" / f"{name}.constraints.txt").read_text()
    pinned = {normal.sub("-", line.split(";")[0]).lower() for line in pins.splitlines()}
    found = {normal.sub("-", line.split("+")[0]).lower() for line in listed.splitlines()}
    of_the_venv = {line for line in found if line.startswith(("pip==", "setuptools=="))}
    assert not found - pinned - of_the_venv


@pytest.mark.parametrize("name", ["pytorch", "tensorflow", "mxnet"])
def test_the_compiled_horovod_names_no_checkout(name: str) -> None:
    folder = environment(name)
    if not has_horovod(folder):
        pytest.skip(f"the {name} environment was built with HOROVOD=0")
    (library,) = folder.glob("lib/python3*/site-packages/horovod/*/mpi_lib*.so")
    content = library.read_bytes()
    assert b"$ORIGIN/" in content
    assert b"/.envs/" not in content
