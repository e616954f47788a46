"""`python -m harness.doctor` without a scheduler: findings, output and exit code."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from builders import make_site, make_spec
from project import PROJECT, Cli

from harness.config import composition
from harness.core.rendezvous import Rendezvous
from harness.core.spec import write_run
from harness.doctor import command, compute
from harness.doctor.checks import Check

LOCAL = ("cluster=local", "dataset=synthetic")
# For tests that do not concern the framework; this interpreter has none.
NO_TORCH = f"framework.environment={sys.executable}"


def checks(done: subprocess.CompletedProcess[str]) -> dict[str, dict[str, str]]:
    """Return the checks of `--json` by name."""
    assert "Traceback" not in done.stderr
    listed = json.loads(done.stdout)
    assert all(set(check) == {"group", "name", "state", "found", "advice"} for check in listed)
    return {check["name"]: check for check in listed}


@pytest.fixture
def nvidia_smi(tmp_path: Path) -> dict[str, str]:
    """The environment of a machine whose fake nvidia-smi lists two V100s."""
    program = tmp_path / "bin" / "nvidia-smi"
    program.parent.mkdir()
    program.write_text(
        "#!/bin/sh\n"
        'case "$*" in\n'
        '  -L) for n in 1 2; do echo "GPU $((n - 1)): Tesla V100-SXM2-32GB (UUID: GPU-4a8f6d8e-000$n)"; done ;;\n'
        '  *) printf "%s\\n" "Tesla V100-SXM2-32GB, 535.104.05" "Tesla V100-SXM2-32GB, 535.104.05" ;;\n'
        "esac\n"
    )
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    kept = {key: value for key, value in os.environ.items() if key != "CUDA_VISIBLE_DEVICES"}
    return {**kept, "PATH": f"{program.parent}{os.pathsep}{os.environ['PATH']}"}


@pytest.mark.torch
def test_a_machine_that_has_it_all(cli: Cli, torch_python: Path, tmp_path: Path) -> None:
    done = cli("harness.doctor", *LOCAL, "cluster.device=cpu")
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert [line for line in lines if not line.startswith(" ")] == [
        "here", "Slurm", "frameworks", "data sets", "everything this configuration needs is there",
    ]  # fmt: skip
    assert all(line.split()[0] in ("ok", "note") for line in lines if line.startswith(" "))
    torch = subprocess.run(
        [torch_python, "-c", "import torch; print(torch.__version__)"], capture_output=True, text=True
    ).stdout.strip()
    assert any(line.startswith(f"  ok      pytorch: torch {torch}, numpy ") for line in lines)
    assert any("Slurm: not used: cluster=local runs on this machine" in line for line in lines)
    assert "\x1b" not in done.stdout, "plain when piped"
    assert list(tmp_path.iterdir()) == [], "looking leaves nothing behind"


def test_an_environment_that_is_not_there(cli: Cli) -> None:
    done = cli("harness.doctor", *LOCAL, "framework.environment=/nowhere", "trace=nsys", "--only=framework", "--json")
    assert done.returncode == 1
    check = checks(done)["pytorch"]
    assert (check["group"], check["state"]) == ("frameworks", "missing")
    assert "/nowhere/bin/python" in check["found"]
    assert "framework.environment" in check["advice"]
    assert checks(done)["nsys"]["state"] == ("ok" if shutil.which("nsys") else "missing")


def test_frameworks_that_the_configuration_does_not_use_are_looked_at_and_not_loaded(
    environments: None, tmp_path: Path
) -> None:
    """Modules of their names, first on the path, tell whether they were imported."""
    names = ("tensorflow", "jax", "mxnet")
    spy, loaded = tmp_path / "spy", tmp_path / "loaded"
    spy.mkdir()
    loaded.mkdir()
    for name in names:
        (spy / f"{name}.py").write_text(f"open({str(loaded / name)!r}, 'w').close()\n")
    line = [sys.executable, "-m", "harness.doctor", *LOCAL, "--only=others", "--json"]
    env = {**os.environ, "PYTHONPATH": f"{PROJECT}{os.pathsep}{spy}"}

    def look(*arguments: str) -> dict[str, dict[str, str]]:
        return checks(subprocess.run([*line, *arguments], cwd=tmp_path, env=env, capture_output=True, text=True))

    found = look()
    for name in (*names, "keras"):
        folder = PROJECT / ".envs" / ("tensorflow" if name == "keras" else name)
        assert found[name]["state"] == "note"
        assert found[name]["found"] == f"installed in {folder}/bin/python, not loaded"
        assert found[name]["advice"] == "--all loads it"
    assert list(loaded.iterdir()) == []
    found = look("--all")
    assert {path.name for path in loaded.iterdir()} == set(names)
    assert "does not load harness.worker.mxnet" in found["mxnet"]["found"], "that is no MXNet"


def test_another_frameworks_environment_that_is_not_there_or_is_empty(cli: Cli, tmp_path: Path) -> None:
    own = tmp_path / "mine" / "framework"
    own.mkdir(parents=True)
    text = (PROJECT / "conf" / "framework" / "jax.yaml").read_text()
    for name, environment in (("absent", "/nowhere"), ("empty", sys.executable)):
        (own / f"{name}.yaml").write_text(re.sub(r"(?m)^environment:.*$", f"environment: {environment}", text))
    found = cli("harness.doctor", *LOCAL, "--only=others", "--config-dir", "mine", "--json")
    jax = [check for check in json.loads(found.stdout) if check["name"] == "jax"]
    said = [check["found"] for check in jax]
    assert any("no Python at /nowhere/bin/python" in text for text in said)
    assert f"{sys.executable} has no jax" in said
    assert {check["state"] for check in jax} == {"note"}


def test_an_environment_without_the_framework(cli: Cli) -> None:
    done = cli("harness.doctor", *LOCAL, NO_TORCH, "--only=framework", "--json")
    assert done.returncode == 1
    check = checks(done)["pytorch"]
    assert check["state"] == "missing"
    assert "No module named 'torch'" in check["found"]


@pytest.mark.parametrize("program", ["exit 3", "echo '[]'", "echo; kill -9 $$"])
def test_an_interpreter_that_answers_nonsense(cli: Cli, tmp_path: Path, program: str) -> None:
    fake = tmp_path / "python"
    fake.write_text(f"#!/bin/sh\n{program}\n")
    fake.chmod(0o755)
    done = cli("harness.doctor", *LOCAL, f"framework.environment={fake}", "--only=framework", "--json")
    assert done.returncode == 1
    assert checks(done)["pytorch"]["state"] == "missing"
    assert str(fake) in checks(done)["pytorch"]["found"]


def test_the_configured_data_set_must_be_there_and_others_need_not(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "data" / "cifar10").mkdir(parents=True)
    (tmp_path / "data" / "cifar10" / "test_batch.bin").touch()
    done = cli("harness.doctor", "cluster=local", "dataset=cifar10", "--only=data", "--json")
    assert done.returncode == 1
    found = checks(done)
    assert found["cifar10"]["state"] == "missing"
    assert "missing data_batch_1.bin" in found["cifar10"]["found"]
    assert "cs.toronto.edu" in found["cifar10"]["advice"]
    assert found["indoor67"]["state"] == "note"
    assert found["synthetic_imagenet"]["state"] == "ok"
    for number in range(1, 6):
        (tmp_path / "data" / "cifar10" / f"data_batch_{number}.bin").touch()
    found = checks(cli("harness.doctor", "cluster=local", "dataset=cifar10", "--only=data", "--json"))
    assert found["cifar10"]["state"] == "ok"
    assert found["cifar10"]["found"] == str(tmp_path / "data" / "cifar10")


def test_a_results_folder_that_cannot_be_written(cli: Cli) -> None:
    done = cli("harness.doctor", *LOCAL, "results=/proc/none", "--only=here", "--json")
    assert done.returncode == 1
    check = checks(done)["results folder"]
    assert check["state"] == "missing"
    assert "/proc/none cannot be written" in check["found"]
    assert "results=" in check["advice"]


@pytest.mark.torch
def test_gpus_here_and_a_framework_that_cannot_use_them(
    cli: Cli, nvidia_smi: dict[str, str], torch_python: Path
) -> None:
    done = cli("harness.doctor", *LOCAL, "--only=here,framework", "--json", env=nvidia_smi)
    found = checks(done)
    assert found["GPUs"]["found"] == "2 x Tesla V100-SXM2-32GB, driver 535.104.05"
    # device=auto resolves to cuda here, for which this torch is the wrong build, or finds no such GPUs.
    assert found["pytorch"]["state"] == "missing"
    assert done.returncode == 1


# By default in a job (tests/cluster/test_doctor_on_slurm.py), and here with a trial that fails.
@pytest.mark.whole
@pytest.mark.torch
def test_the_probe_computes_here_without_a_scheduler(cli: Cli, torch_python: Path, tmp_path: Path) -> None:
    asked = (*LOCAL, "cluster.device=cpu", "cluster.cpus_per_gpu=1", "--only=here", "--probe", "--json")
    done = cli("harness.doctor", *asked)
    assert done.returncode == 0, done.stdout + done.stderr
    probed = {name: check for name, check in checks(done).items() if check["group"] == "probe"}
    names = ("convolution, fp32", "convolution, bf16", "compile=true", "allreduce, 2 ranks")
    assert list(probed) == [f"pytorch: {name}" for name in names]
    assert all(check["found"].startswith("on the CPU, ") for check in probed.values())
    assert list(tmp_path.iterdir()) == [], "looking leaves nothing behind"


@pytest.mark.torch
def test_a_trial_that_fails_says_why_and_the_others_go_on(cli: Cli, torch_python: Path, tmp_path: Path) -> None:
    """Without what the compiler needs, all other trials work."""
    fake = tmp_path / "python"
    fake.write_text(
        "#!/bin/sh\n"
        "for word; do\n"
        """  if grep -qs '"compile": *true' "$word/spec.json"; then\n"""
        "    echo 'RuntimeError: Cannot find a working triton' >&2; exit 1\n"
        "  fi\n"
        "done\n"
        f'exec {torch_python} "$@"\n'
    )
    fake.chmod(0o755)
    asked = (*LOCAL, "cluster.device=cpu", "cluster.cpus_per_gpu=1", f"framework.environment={fake}")
    done = cli("harness.doctor", *asked, "--only=here", "--probe", "--json")
    assert list(tmp_path.iterdir()) == [fake], "looking leaves nothing behind"
    found = checks(done)
    assert found["pytorch: compile=true"]["state"] == "note", "nobody asked for it"
    assert found["pytorch: compile=true"]["found"] == "on this machine: RuntimeError: Cannot find a working triton"
    assert found["pytorch: compile=true"]["advice"] == "keep framework.options.compile=false"
    assert found["pytorch: allreduce, 2 ranks"]["state"] == "ok"
    assert done.returncode == 0, done.stdout


def test_a_trial_that_hangs_is_ended_at_its_deadline(tmp_path: Path) -> None:
    waiting = tmp_path / "python"
    waiting.write_text("#!/bin/sh\nsleep 600 & wait\n")
    waiting.chmod(0o755)
    run_dir = tmp_path / "0"
    (run_dir / compute.ATTEMPT).mkdir(parents=True)
    write_run(run_dir, make_spec(), replace(make_site(), python=str(waiting)))
    ranks = [Rendezvous(rank, 2, rank, 2, "127.0.0.1", 29999) for rank in range(2)]
    compute.run_ranks(run_dir, ranks, 1.0)
    said = json.loads((run_dir / "done.rank0.json").read_text())
    assert said["why"] == "not finished within 1 s"
    trial = compute.Trial("pytorch: compile=true", "0", False, "leave it out")
    check = compute.outcome_of(tmp_path, trial, "n1")
    assert check == Check("probe", "pytorch: compile=true", "note", "on n1: not finished within 1 s", "leave it out")
    needed = compute.outcome_of(tmp_path, replace(trial, needed=True), "n1")
    assert needed is not None
    assert needed.state == "missing"
    listed = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert str(waiting) not in listed


def test_a_gpu_that_is_asked_for_and_not_there(cli: Cli) -> None:
    empty = {**os.environ, "PATH": str(Path(sys.executable).parent)}
    done = cli("harness.doctor", *LOCAL, "cluster.device=cuda", "precision=fp16", "--only=here", "--json", env=empty)
    assert done.returncode == 1
    assert checks(done)["GPUs"]["state"] == "missing"
    assert "cluster.device=cpu" in checks(done)["GPUs"]["advice"]


def test_without_sbatch_there_is_no_slurm(cli: Cli) -> None:
    empty = {**os.environ, "PATH": str(Path(sys.executable).parent)}
    done = cli("harness.doctor", "cluster=slurm", "dataset=synthetic", "--only=slurm", "--json", env=empty)
    assert done.returncode == 1
    assert checks(done)["sbatch"]["state"] == "missing"
    assert "cluster=local" in checks(done)["sbatch"]["advice"]


def test_a_container_is_looked_at_instead_of_the_environment(cli: Cli, tmp_path: Path) -> None:
    runtime = tmp_path / "bin" / "apptainer"
    asked = (
        *LOCAL,
        "cluster.container.runtime=apptainer",
        "cluster.container.image=torch.sif",
        "--only=framework",
        "--json",
    )
    here = {**os.environ, "PATH": f"{runtime.parent}{os.pathsep}{Path(sys.executable).parent}"}
    check = checks(cli("harness.doctor", *asked, env=here))["container"]
    assert (check["state"], check["found"]) == ("missing", "apptainer: No such file or directory")
    runtime.parent.mkdir()
    runtime.write_text("#!/bin/sh\necho apptainer version 1.3.4\n")
    runtime.chmod(0o755)
    check = checks(cli("harness.doctor", *asked, env=here))["container"]
    assert check["state"] == "missing"
    assert check["found"] == f"apptainer version 1.3.4; no image at {tmp_path / 'torch.sif'}"
    (tmp_path / "torch.sif").touch()
    done = cli("harness.doctor", *asked, env=here)
    assert done.returncode == 0, done.stdout
    assert checks(done)["container"]["state"] == "ok"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nonsense=1"], ["'nonsense' is not a key"]),
        (["gpus=1,2"], ["gpus"]),
        (["model=alexnet9"], ["alexnet9", "resnet44"]),
        (["dataset=absent"], ["absent", "cifar10"]),
        (["measure.steps=15"], ["measure.steps=15"]),
        (["cluster.partition=gpu"], ["cluster.partition has no effect"]),
        (["cluster=slurm", "gpus=5"], ["gpus=5", "4 and 6"]),
        (["--all", "--only=data"], ["--all has no effect with --only=data"]),
        (["--probe", "cluster.scheduler=allocation"], ["--probe", "leave it out"]),
        (["--config-dir", "absent"], ["--config-dir absent"]),
        (["--only", "gpus"], ["--only gpus", "here, slurm, framework, others, data"]),
    ],
    ids=str,
)
def test_a_mistake_gets_one_sentence_and_exit_code_2(cli: Cli, arguments: list[str], words: list[str]) -> None:
    done = cli("harness.doctor", "cluster=local", *arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    for word in words:
        assert word in line


def test_a_configuration_of_ones_own(cli: Cli, tmp_path: Path) -> None:
    own = tmp_path / "mine" / "dataset" / "flowers.yaml"
    own.parent.mkdir(parents=True)
    own.write_text((PROJECT / "conf" / "dataset" / "indoor67.yaml").read_text().replace("indoor67", "flowers"))
    found = checks(cli("harness.doctor", *LOCAL, "--only=data", "--config-dir", "mine", "--json"))
    assert found["flowers"]["state"] == "note"
    assert checks(cli("harness.doctor", *LOCAL, "--only=data", "--json")).keys() & {"flowers"} == set()


def test_without_the_harness_environment_it_says_how_to_get_it(tmp_path: Path) -> None:
    # -S: without installed packages.
    done = subprocess.run(
        [sys.executable, "-S", "-m", "harness.doctor"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(PROJECT)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert "hydra" in done.stderr
    assert "make login" in done.stderr
    assert "Traceback" not in done.stderr


def test_help_imports_no_framework_and_no_pandas() -> None:
    code = (
        "import sys\n"
        "from harness.doctor import command\n"
        "try:\n"
        "    command.main(['--help'])\n"
        "except SystemExit as end:\n"
        "    assert not end.code\n"
        "print('LOADED', sorted({name.split('.')[0] for name in sys.modules}))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=PROJECT, capture_output=True, text=True, timeout=60, check=True
    )
    loaded = set(ast.literal_eval(done.stdout.split("LOADED ")[1]))
    assert not loaded & {"torch", "pandas", "numpy", "submitit"}


def test_a_check_that_breaks_does_not_hide_what_was_found() -> None:
    def breaks() -> Iterator[Check]:
        yield Check("here", "first", "ok", "found")
        raise KeyError("surprise")

    first, second = command.guarded("here", breaks())
    assert first.state == "ok"
    assert (second.group, second.state) == ("here", "missing")
    assert "KeyError: 'surprise'" in second.found


def test_a_trial_that_the_configuration_needs_and_cannot_have_is_missing(tmp_path: Path) -> None:
    composition.register()
    asked = ("cluster=local", "cluster.device=cpu", f"results={tmp_path}", "framework.environment=/nowhere")
    (point,) = composition.compose(asked, False, "config", None)
    checks_ = list(compute.here(point, None, False))
    assert [check.name for check in checks_] == ["pytorch: convolution, fp32"]
    assert checks_[0].state == "missing"
    assert "no Python at /nowhere/bin/python" in checks_[0].found
    assert list(tmp_path.iterdir()) == []
