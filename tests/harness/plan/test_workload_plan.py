"""Plans of the user's own training: what a run id covers, its environment, and what the plan says."""

from __future__ import annotations

import os
import sys
import venv
from pathlib import Path

import pytest
from project import Cli

from harness.config import composition
from harness.core.errors import UserError
from harness.plan import workload
from harness.plan.plan import make_plan
from harness.plan.request import StudyRequest, study_request

TRAIN = ("train.py", "--batch-size", "{batch_per_gpu}")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    composition.register()
    (tmp_path / "train.py").write_text("import torch\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def asked(*overrides: str, command: tuple[str, ...] = TRAIN, cluster: str = "local") -> StudyRequest:
    workload.code.cache_clear()  # lasts for one command
    fixed = [f"cluster={cluster}", "cluster.device=cpu", *(["cluster.gres=null"] if cluster == "slurm" else [])]
    kind = [] if any(text.startswith("workload=") for text in overrides) else ["workload=script"]
    return study_request(composition.compose([*fixed, *kind, *overrides], True, "config", None, command))


def run_id(*overrides: str, command: tuple[str, ...] = TRAIN) -> str:
    [request] = asked(*overrides, command=command).requests
    return request.spec.run_id


def test_a_run_id_covers_command_parameters_environment_and_code(folder: Path) -> None:
    first = run_id()
    assert run_id() == first
    others = [
        run_id(command=(*TRAIN, "--epochs", "1")),
        run_id("workload.params.lr=1"),
        run_id(f"workload.python={sys.executable}"),
        run_id("seed=1"),
        run_id("+cluster.env={OMP_NUM_THREADS: 2}"),
        run_id("workload.samples_per_step=7"),
        run_id("workload.stop=false"),
        run_id("workload.single=plain"),
    ]
    (folder / "train.py").write_text("import torch, os\n")
    others.append(run_id())
    assert len({first, *others}) == 1 + len(others)


def test_a_run_id_does_not_depend_on_where_the_training_lies(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = run_id()
    (folder / "copy").mkdir()
    (folder / "copy" / "train.py").write_text((folder / "train.py").read_text())
    monkeypatch.chdir(folder / "copy")
    assert run_id() == first
    [request] = asked("data.root=/elsewhere", "results=other").requests
    assert request.spec.run_id == first
    assert request.site.cwd == str(folder / "copy")
    assert request.site.data_root == "/elsewhere"


def test_the_working_directory_is_where_the_script_is_looked_for(folder: Path) -> None:
    (folder / "project").mkdir()
    (folder / "train.py").rename(folder / "project" / "train.py")
    [request] = asked("workload.cwd=project").requests
    assert request.spec.workload is not None
    assert (request.spec.workload.cwd, request.site.cwd) == ("project", str(folder / "project"))


def test_the_default_environment_is_the_first_python_besides_our_own(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = Path(sys.prefix) / "bin"
    (folder / "bin").mkdir()
    (folder / "bin" / "python3").symlink_to(sys.executable)
    monkeypatch.setenv("PATH", os.pathsep.join([str(ours), str(folder / "bin")]))
    [request] = asked().requests
    assert request.site.python == str(folder / "bin" / "python3")
    monkeypatch.setenv("PATH", str(ours))
    with pytest.raises(UserError, match=r"there is no python3 on the PATH but the harness's own; set workload.python="):
        asked()


def test_an_environment_by_its_folder_its_interpreter_or_its_name_here(folder: Path) -> None:
    venv.create(folder / "env", with_pip=False, symlinks=True)
    for given in ("env", "./env", str(folder / "env"), str(folder / "env" / "bin" / "python")):
        [request] = asked(f"workload.python={given}").requests
        assert request.site.python == str(folder / "env" / "bin" / "python")
        assert request.spec.environment == str(folder / "env")


def test_with_modules_the_node_finds_python() -> None:
    [request] = asked("cluster.modules=[PyTorch/2.1.2]", cluster="slurm").requests
    assert (request.site.python, request.spec.environment) == ("python3", "module:PyTorch/2.1.2:python3")


def test_in_a_container_the_image_has_script_and_python(folder: Path) -> None:
    container = "cluster.container={runtime: apptainer, image: /images/torch.sif}"
    found = asked(container, cluster="slurm", command=("/opt/train.py", "{data_root}", "{batch_per_gpu}"))
    [request] = found.requests
    assert (request.site.python, request.spec.environment) == ("python3", "apptainer:/images/torch.sif:python3")
    for seen in (folder, folder / "results", folder / "data"):
        assert f"--bind={seen}" in request.site.container


def test_a_module_is_known_by_its_file_without_importing_it(folder: Path) -> None:
    (folder / "mine").mkdir()
    (folder / "mine" / "train.py").write_text("raise SystemExit('imported')\n")
    first = run_id(command=("-m", "mine.train", "{batch_per_gpu}"))
    assert "script-own-mine.train-1gpu" in first
    (folder / "mine" / "train.py").write_text("raise SystemExit('imported again')\n")
    assert run_id(command=("-m", "mine.train", "{batch_per_gpu}")) != first
    site = folder / "env" / "lib" / f"python3.{sys.version_info.minor}" / "site-packages"
    venv.create(folder / "env", with_pip=False, symlinks=True)
    (site / "theirs").mkdir()
    (site / "theirs" / "__main__.py").write_text("1\n")
    installed = run_id("workload.python=./env", command=("-m", "theirs"))
    (site / "theirs" / "__main__.py").write_text("2\n")
    assert run_id("workload.python=./env", command=("-m", "theirs")) != installed


def test_a_command_is_known_by_its_script_behind_an_interpreter_too(folder: Path) -> None:
    (folder / "run.sh").write_text("#!/bin/sh\nexec ./train\n")
    (folder / "run.sh").chmod(0o755)
    for command in (("./run.sh",), ("sh", "run.sh")):
        before = run_id("workload=command", command=command)
        text = (folder / "run.sh").read_text()
        (folder / "run.sh").write_text(text + "# changed\n")
        assert run_id("workload=command", command=command) != before


def test_sizes_of_one_training_are_packed_into_one_job() -> None:
    requests = asked("gpus=1,2,4", "workload.params.lr=1,2", "pack=true", cluster="slurm").requests
    [array] = make_plan(requests, (), (), pack=True).arrays
    assert sorted(len(job) for job in array.jobs) == [3, 3]


def test_runs_that_share_a_folder_at_the_same_time_are_noted() -> None:
    [note] = asked("gpus=1,2", cluster="slurm").notes
    assert note.startswith("2 runs may work in ")
    assert "{run_dir}" in note
    assert not asked("gpus=1,2", cluster="slurm", command=(*TRAIN, "--out", "{run_dir}")).notes
    assert not asked("gpus=1,2", "cluster.array_parallelism=1", cluster="slurm").notes
    assert not asked("gpus=1,2").notes  # one after another


def test_a_command_that_takes_no_batch_is_noted() -> None:
    [note] = asked("gpus=1,2", command=("train.py",)).notes
    assert "neither {batch_per_gpu} nor {global_batch}" in note


def test_repeats_and_scaling_are_as_for_other_runs() -> None:
    found = asked("gpus=1,2", "repeats=2", "scaling=strong", "batch=128").requests
    assert [(r.spec.gpus, r.spec.repeat, r.spec.batch_per_gpu) for r in found] == [
        (1, 0, 128),
        (1, 1, 128),
        (2, 0, 64),
        (2, 1, 64),
    ]
    with pytest.raises(UserError, match="nearest batches that can: 126 and 129"):
        asked("gpus=3", "scaling=strong", "batch=128")


def test_a_staged_environment_is_refused() -> None:
    with pytest.raises(UserError, match=r"cluster\.stage_environment=tar is not offered with workload="):
        asked("cluster.stage_environment=tar", cluster="slurm")


def test_the_plan_shows_what_each_run_executes(cli: Cli, folder: Path) -> None:
    arguments = ["-m", "gpus=1,2", "workload=script", f"workload.python={sys.executable}", "cluster=local"]
    done = cli(
        "harness", *arguments, "cluster.device=cpu", "plan_only=true", "workload.unit=tokens",
        "workload.samples_per_step=global_batch*1024", "batch=8",
        "--", "train.py", "-b", "{batch_per_gpu}", "--out", "{run_dir}/x", "--name", "my run",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "plan: 2 runs in 2 arrays" in done.stdout
    assert "16 samples per step, 8 per GPU, counted as 16384 tokens per step" in done.stdout
    assert f"{sys.executable} train.py -b 8 --out {{run_dir}}/x --name 'my run'\n" in done.stdout
    assert "memory is an estimate" not in done.stdout


def test_the_run_id_of_a_training_stays() -> None:
    """Results recorded earlier are found by it."""
    own = ("workload.python=/usr/bin/env", "cluster.cpus_per_gpu=1", "workload.params.lr=0.1", "gpus=2")
    own += ("measure.steps=200",)  # once the default
    assert run_id(*own) == "script-own-train-2gpu-f6707fa6ce9c"


def test_accelerates_default_configuration_counts_where_it_applies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    accelerate, own = "workload.launcher=accelerate", "workload.launcher=torchrun"
    before = run_id(accelerate), run_id(own)
    file = tmp_path / "hf" / "accelerate" / "default_config.yaml"
    file.parent.mkdir(parents=True)
    file.write_text("distributed_type: MULTI_GPU\nmixed_precision: bf16\n")
    assert (run_id(accelerate) == before[0], run_id(own) == before[1]) == (False, True)
    file.write_text("distributed_type: FSDP\n")
    with pytest.raises(UserError, match=r"asks for FSDP: take workload\.launcher=own"):
        asked(accelerate)
    assert run_id(own) == before[1]
