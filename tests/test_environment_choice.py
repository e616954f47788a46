"""The build of an environment that sbatch/env/choose.py chooses, and the versions pinned for it."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
from project import PROJECT

ENV = PROJECT / "sbatch" / "env"
CHOOSE = runpy.run_path(str(ENV / "choose.py"))
SETTINGS = ("VARIANT", "GPU", "CUDA", "CLUSTER")

# Output of `nvidia-smi --query-gpu=<query> --format=csv,noheader` for compute_cap and driver_version.
V100_580 = ("7.0\n7.0\n7.0\n7.0", "580.65.06\n" * 4)
V100_535 = ("7.0", "535.183.01")
A100_535 = ("8.0\n8.0", "535.161.08\n535.161.08")
H100_570 = ("9.0", "570.86.15")
H200_580 = ("9.0", "580.82.07")
T4_AND_V100 = ("7.5\n7.0", "580.65.06\n580.65.06")
OLD_DRIVER = ('Field "compute_cap" is not a valid field to query.', "470.57.02")
NONE = (
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.",
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.",
)
NO_SLURM = None


@pytest.fixture
def choose(tmp_path: Path):  # type: ignore[no-untyped-def]
    def run(
        smi: tuple[str, str] = NONE, framework: str = "pytorch", gres: str | None = NO_SLURM, **settings: str
    ) -> tuple[str, str]:
        """Return (stdout, refusal) on a machine with this nvidia-smi and these Slurm nodes."""
        capability, driver = (f"echo '{text.strip()}'; exit {int('NVIDIA' in text or 'Field' in text)}" for text in smi)
        write(tmp_path / "nvidia-smi", f'case "$1" in *compute_cap) {capability};; *driver_version) {driver};; esac')
        write(tmp_path / "sinfo", "exit 1" if gres is None else f"echo '{gres}'")
        outer = {key: value for key, value in os.environ.items() if key not in SETTINGS}
        done = subprocess.run(
            [sys.executable, ENV / "choose.py", framework],
            env={**outer, **settings, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"},
            capture_output=True,
            text=True,
        )
        assert done.returncode == (1 if done.stderr else 0)
        assert len((done.stdout + done.stderr).splitlines()) == 1, "one line, or one sentence"
        return done.stdout.strip(), done.stderr.strip()

    return run


def write(program: Path, line: str) -> None:
    program.write_text(f"#!/bin/sh\n{line}\n")
    program.chmod(0o755)


@pytest.mark.parametrize(
    ("smi", "settings", "chosen"),
    [
        # The driver of a V100 may support CUDA 13; the GPU does not.
        (V100_580, {}, "cuda cu126 7.0"),
        (V100_535, {}, "cuda cu126 7.0"),
        (A100_535, {}, "cuda cu126 8.0"),
        (H100_570, {}, "cuda cu126 9.0"),
        (H200_580, {}, "cuda cu130 9.0"),
        (H200_580, {"CUDA": "cu126"}, "cuda cu126 9.0"),
        (H200_580, {"VARIANT": "cuda"}, "cuda cu130 9.0"),
        (H200_580, {"VARIANT": "cpu"}, "cpu - -"),
        (T4_AND_V100, {}, "cuda cu126 7.0,7.5"),
        # Explicit settings win over this machine's hardware: a login node may have its own GPU.
        (H200_580, {"GPU": "v100"}, "cuda cu126 7.0"),
        (NONE, {"GPU": "v100"}, "cuda cu126 7.0"),
        (NONE, {"GPU": "a100"}, "cuda cu130 8.0"),
        (NONE, {"GPU": "a100", "CUDA": "cu126"}, "cuda cu126 8.0"),
        (NONE, {"GPU": "h100", "VARIANT": "cuda"}, "cuda cu130 9.0"),
        (NONE, {"GPU": "b200"}, "cuda cu130 10.0"),
        (NONE, {"CUDA": "cu126"}, "cuda cu126 -"),
        (NONE, {"CUDA": "cu130", "VARIANT": "cuda"}, "cuda cu130 -"),
        (NONE, {"CLUSTER": "iris"}, "cuda cu126 7.0"),
        (NONE, {"CLUSTER": "cpu"}, "cpu - -"),
        (NONE, {"CLUSTER": "iris", "VARIANT": "cpu"}, "cpu - -"),
        (NONE, {}, "cpu - -"),
        (NONE, {"VARIANT": "cpu"}, "cpu - -"),
    ],
)
def test_the_build_follows_the_gpus_that_it_is_for(choose, smi, settings, chosen) -> None:  # type: ignore[no-untyped-def]
    assert choose(smi, **settings) == (chosen, "")


@pytest.mark.parametrize(
    ("smi", "settings", "said"),
    [
        (V100_580, {"CUDA": "cu130"}, "CUDA=cu130 does not run on this machine (compute capability 7.0, driver 580)"),
        (A100_535, {"CUDA": "cu130"}, "CUDA=cu130 does not run on this machine (compute capability 8.0, driver 535)"),
        (NONE, {"GPU": "v100", "CUDA": "cu130"}, "leave CUDA out, or take CUDA=cu126"),
        (NONE, {"GPU": "b200", "CUDA": "cu126"}, "leave CUDA out, or take CUDA=cu130"),
        (NONE, {"GPU": "v100", "VARIANT": "cpu"}, "VARIANT=cpu and GPU=v100 contradict each other"),
        (NONE, {"CUDA": "cu126", "VARIANT": "cpu"}, "VARIANT=cpu and CUDA=cu126 contradict each other"),
        (NONE, {"CLUSTER": "cpu", "VARIANT": "cuda"}, "CLUSTER=cpu has no GPUs"),
        (NONE, {"CLUSTER": "gpu8"}, "CLUSTER=gpu8 does not say which GPUs it has (gpu_type: null)"),
        (NONE, {"CLUSTER": "nowhere"}, "CLUSTER=nowhere: "),
        (NONE, {"CUDA": "cu128"}, "CUDA=cu128: take one of: cu126 cu130"),
        (NONE, {"GPU": "v1000"}, "GPU=v1000: not a GPU that is known here, such as a100 "),
        (
            NONE,
            {"GPU": "k80"},
            "no build of pytorch runs on GPU=k80 (compute capability 3.7); run the ranks in a container",
        ),
        (NONE, {"VARIANT": "cuda"}, "VARIANT=cuda on a machine without a GPU: say which GPUs it is for, by GPU=v100"),
        (
            OLD_DRIVER,
            {},
            "this machine's driver 470 is older than 525, the oldest that pytorch runs on; update it, or run",
        ),
    ],
)
def test_what_cannot_be_built_is_refused_in_one_sentence(choose, smi, settings, said) -> None:  # type: ignore[no-untyped-def]
    stdout, stderr = choose(smi, **settings)
    assert stdout == ""
    assert stderr.startswith("error: ")
    assert said in stderr


def test_a_login_node_must_be_told_and_a_machine_without_gpus_need_not(choose) -> None:  # type: ignore[no-untyped-def]
    _, said = choose(gres="gpu:volta:4(S:0-1)\n(null)")
    assert "login node of a cluster with GPUs" in said
    assert "GPU=v100" in said
    assert "VARIANT=cpu" in said
    assert choose(gres="gpu:volta:4(S:0-1)", GPU="v100") == ("cuda cu126 7.0", "")
    assert choose(gres="gpu:volta:4(S:0-1)", VARIANT="cpu") == ("cpu - -", "")
    assert choose(gres="(null)") == ("cpu - -", "")


def test_frameworks_with_one_cuda_build_say_where_it_ends(choose) -> None:  # type: ignore[no-untyped-def]
    assert choose(H200_580, "tensorflow") == ("cuda cu122 9.0", "")
    assert choose(A100_535, "mxnet", CUDA="cu130") == ("cuda cu117 8.0", "")
    assert choose(H200_580, "jax") == ("cuda cu130 9.0", "")
    _, said = choose(H200_580, "mxnet")
    assert "mxnet is for compute capability 5.0 to 8.9, and this machine has compute capability 9.0" in said
    assert "without mxnet" in said
    # CUDA 11.7 runs on drivers from 450 on.
    assert choose(OLD_DRIVER, "mxnet") == ("cuda cu117 -", "")


@pytest.mark.parametrize(
    ("machine", "libc", "said"),
    [
        ("x86_64", ("glibc", "2.28"), None),
        (
            "x86_64",
            ("glibc", "2.17"),
            "need glibc 2.28 or newer, and this system has 2.17; run the ranks in a container",
        ),
        ("ppc64le", ("glibc", "2.28"), "this machine is ppc64le; run the ranks in a container"),
    ],
)
def test_machines_without_packages_are_pointed_to_a_container(
    machine: str, libc: tuple[str, str], said: str | None
) -> None:
    if said is None:
        CHOOSE["check_machine"](machine, libc)
        return
    with pytest.raises(CHOOSE["Refused"], match=re.escape(said)):
        CHOOSE["check_machine"](machine, libc)


@pytest.mark.parametrize(
    ("cuda", "capabilities", "release", "said"),
    [
        ("cu126", "7.0", "12.9", "70"),
        ("cu126", "7.0,8.0", "12.6", "70,80"),
        ("cu130", "9.0", "13.0", "90"),
        ("cu126", "-", "12.6", ""),
        ("cu117", "7.0", "11.7", "70"),
        ("cu126", "7.0", "13.0", "an nvcc up to 12.9, and nvcc is of CUDA 13"),
        ("cu126", "-", "13.0", "an nvcc up to 12.9, and nvcc is of CUDA 13"),
        ("cu122", "7.0", "13.0", "Horovod for cu122 for compute capability 7.0 is compiled by an nvcc up to 12.9"),
    ],
)
def test_horovod_is_compiled_for_the_gpus_and_by_an_nvcc_that_knows_them(
    tmp_path: Path, cuda: str, capabilities: str, release: str, said: str
) -> None:
    write(tmp_path / "nvcc", f"echo 'Cuda compilation tools, release {release}, V{release}.88'")
    code = (
        f'. "{ENV}/common.sh"; VARIANT=cuda CUDA={cuda} capabilities={capabilities}; can_compile_cuda; '
        'echo "${HOROVOD_BUILD_CUDA_CC_LIST:-}"'
    )
    outer = {key: value for key, value in os.environ.items() if not key.startswith("HOROVOD_")}
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(["bash", "-c", code], env={**outer, "PATH": path}, capture_output=True, text=True)
    if done.returncode == 0:
        assert done.stdout.strip() == said
    else:
        assert said in done.stderr
        assert "set HOROVOD=0" in done.stderr


# The pins -------------------------------------------------------------------------------------------------------------


def pins(file: str) -> dict[str, str]:
    lines = (ENV / file).read_text().splitlines()
    found = (re.match(r"([A-Za-z0-9_.-]+)([=<>].*)", line.split(";")[0].strip()) for line in lines)
    return {match[1]: match[2].removeprefix("==") for match in found if match}


def number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version.split("+")[0]))


V100_FILES = ("pytorch.cu126.constraints.txt", "pytorch.cu126-pypi.constraints.txt", "jax.cu126.constraints.txt")


@pytest.mark.parametrize("file", V100_FILES)
def test_builds_for_v100_have_its_kernels(file: str) -> None:
    pinned = pins(file)
    # cuDNN 9.11 dropped GPUs before Turing (cuDNN's support matrix).
    assert number(pinned["nvidia-cudnn-cu12"]) <= (9, 10, 2, 21)
    assert not [name for name in pinned if name.endswith(("cu13", "cuda130"))], "CUDA 13 starts at Turing"
    # PyTorch 2.14 is the last release with a CUDA 12.6 build; on PyPI, 2.10 the last with kernels for 7.0.
    if "torch" in pinned:
        assert number(pinned["torch"]) < ((2, 15) if "pypi" not in file else (2, 11))


def test_the_pinned_torch_lists_volta_among_the_gpus_of_its_cuda_12_build() -> None:
    """Read from torch itself, so that the pin cannot move past the last release with such a build."""
    environment = PROJECT / ".envs" / "pytorch"
    if not (environment / "recipe").exists():
        pytest.skip("no PyTorch environment: build it with sbatch/env/pytorch.sh (`make test` does)")
    (table,) = environment.glob("lib/python3*/site-packages/torch/cuda/__init__.py")
    (metadata,) = environment.glob("lib/python3*/site-packages/torch-*.dist-info")
    if metadata.name.split("-")[1].split("+")[0] != pins(V100_FILES[0])["torch"]:
        pytest.skip("another torch than that of CUDA=cu126")
    cuda_12 = re.search(r'"12\.6": \{\s*"x86_64": \{([\d, ]+)\}', table.read_text())
    assert cuda_12 is not None
    assert "70" in cuda_12[1].split(", ")


@pytest.mark.parametrize(
    ("base", "other"),
    [
        ("pytorch.constraints.txt", "pytorch.cu126.constraints.txt"),
        ("pytorch.constraints.txt", "pytorch.cu126-pypi.constraints.txt"),
        ("jax.constraints.txt", "jax.cu126.constraints.txt"),
    ],
)
def test_the_builds_of_a_framework_differ_only_in_cuda(base: str, other: str) -> None:
    one, two = pins(base), pins(other)
    differing = {name for name in {*one, *two} if one.get(name) != two.get(name)}
    assert {name for name in differing if not name.startswith(("nvidia", "cuda-", "triton", "torch"))} == set()
    assert ("torch" in differing) == ("pypi" in other)


# Rows of the table in docs/frameworks.md: text of the row, source file, packages of the build, cuDNN and NCCL, and the
# oldest driver.
ROWS = [
    ("`CUDA=cu126`", "pytorch.cu126.constraints.txt", "torch", "cu12", CHOOSE["BUILDS"]["cu126"]),
    ("without that index", "pytorch.cu126-pypi.constraints.txt", "torch", "cu12", CHOOSE["BUILDS"]["cu126"]),
    ("`CUDA=cu130`", "pytorch.constraints.txt", "torch", "cu13", CHOOSE["BUILDS"]["cu130"]),
    ("`CUDA=cu126`", "jax.cu126.constraints.txt", "jax", "cu12", CHOOSE["BUILDS"]["cu126"]),
    ("`CUDA=cu130`", "jax.constraints.txt", "jax", "cu12", CHOOSE["BUILDS"]["cu130"]),
    ("V100", "tensorflow.constraints.txt", "tensorflow", "cu12", CHOOSE["ONLY"]["tensorflow"]),
    ("V100", "mxnet.cu117.constraints.txt", "mxnet-cu117", "cu11", CHOOSE["ONLY"]["mxnet"]),
]


@pytest.mark.parametrize(("gpus", "file", "package", "cuda", "build"), ROWS)
def test_the_table_of_builds_is_what_is_pinned(
    gpus: str, file: str, package: str, cuda: str, build: dict[str, object]
) -> None:
    table = (PROJECT / "docs" / "frameworks.md").read_text().split("| GPUs | build | CUDA |")[1].split("\n\n")[0]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()[2:]]
    pinned = pins(file)
    row = next(row for row in rows if row[2].startswith(f"{package} {pinned[package]}") and gpus in row[1])
    nccl = re.sub(r">=(\d+\.\d+).*", r"\1", pinned[f"nvidia-nccl-{cuda}"])  # a range stays within its series
    assert row[4:7] == [pinned[f"nvidia-cudnn-{cuda}"], nccl, str(build["driver"])]
    runtime = pinned.get("cuda-toolkit") or pinned[f"nvidia-cuda-runtime-{cuda}"]
    assert runtime.startswith(row[3] + ".")
    named = {"V100": (7, 0), "A100": (8, 0), "H100": (9, 0)}
    listed = {name for name in named if name in row[1].replace(f"not {name}", "")}
    assert listed == {name for name, capability in named.items() if build["oldest"] <= capability <= build["newest"]}  # type: ignore[operator]
