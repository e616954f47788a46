"""The command line as a user sees it: output, exit codes, files."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from project import Cli

# Nothing is launched, so any interpreter works.
PLAN = ("plan_only=true", "dataset=synthetic", "framework.environment=/usr/bin/env", "cluster=local")


def sentence(stderr: str) -> str:
    assert "Traceback" not in stderr
    lines = [line for line in stderr.splitlines() if line.strip()]
    assert len(lines) == 1, stderr
    assert lines[0].startswith("error: ")
    return lines[0]


def test_plan_only_prints_the_plan_and_creates_nothing(cli: Cli, tmp_path: Path) -> None:
    done = cli("harness", "-m", "gpus=1,2,4,8,12", "model=resnet20,resnet44", "seed=0,1,2", *PLAN, "cluster=slurm")
    assert done.returncode == 0, done.stderr
    assert "plan: 30 runs in 5 arrays" in done.stdout
    # 6 runs of 30 minutes on 1, 1, 1, 2 and 3 nodes.
    # 30 min, and once more after a requeue.
    assert "48.00 node-hours" in done.stdout
    assert "cluster=slurm" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_more_ranks_than_cores_is_said_in_the_plan(cli: Cli) -> None:
    ranks = len(os.sched_getaffinity(0)) + 1
    done = cli("harness", f"gpus={ranks}", *PLAN, "cluster.device=cpu")
    assert done.returncode == 0, done.stderr
    assert "oversubscribed" in done.stdout


def test_cfg_job_prints_the_whole_configuration(cli: Cli) -> None:
    done = cli("harness", "--cfg", "job", "gpus=4", "cluster=local")
    assert done.returncode == 0, done.stderr
    assert "gpus: 4\n" in done.stdout
    assert "bucket_mb: null" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["gpus=0"], ["gpus=0", "at least 1"]),
        (["gpus=-1"], ["gpus=-1", "at least 1"]),
        (["trace=chrome"], ["trace=chrome", "true", "nsys"]),
        (["trace=true", "trace_steps=0"], ["trace_steps=0", "at least 1"]),
        (["gpus=abc"], ["gpus=abc", "a whole number"]),
        (["-m", "gpus=1,5", "cluster=slurm"], ["gpus=5", "4 and 6"]),
        (["gpus=3", "scaling=strong", "batch=128"], ["batch=128", "gpus=3", "126 and 129"]),
        (["gpus=3", "scaling=strong", "batch=2"], ["nearest batches that can: 3;"]),
        (["nonsense=1"], ["'nonsense' is not a key", "Valid keys"]),
        (["model=alexnet9"], ["there is no 'alexnet9' in 'model'", "resnet44"]),
        (["model.name=alexnet9"], ["'alexnet9' is not in the catalogue", "resnet44"]),
        (["strategy.name=ring"], ["ring", "allreduce", "strategy=<name>"]),
        (["strategy.name=pipeline"], ["'bucket_mb' is not a key", "strategy=pipeline"]),
        (["strategy=mpi", "strategy.options.bucket_mb=1"], ["the strategy that was chosen has no options"]),
        (["dataset=cifar10"], ["cifar10", "was not found: nothing in", "cs.toronto.edu"]),
        (["framework.environment=absent"], ["'absent'", ".envs/absent/bin/python", "framework.environment"]),
        (["precision=fp16", "cluster.device=cpu"], ["fp16", "fp32 or bf16"]),
        (["measure.steps=15"], ["measure.steps=15", "block_steps=10"]),
        (["study=../x"], ["study='../x'"]),
        (["-m", "study=a,b"], ["'study' cannot be swept"]),
        (["--config-dir", "absent"], ["--config-dir absent"]),
        (["cluster.device=auto", "cluster=slurm"], ["cuda or cpu"]),
        (["cluster.partition=gpu"], ["cluster.partition has no effect", "cluster=slurm"]),
        (["cluster=slurm", "cluster.gpu_type=v100", "cluster.gres=null"], ["set cluster.gres=gpu"]),
        (["--config-path", "."], ["--config-dir"]),
        (["--cfg", "job", "gpu=2"], ["'gpu' is not a key", "Did you mean 'gpus'?"]),
        (["model=resnet50", "dataset=synthetic", "dataset.image_size=16"], ["at least 32 pixels", "has 16"]),
        (
            ["model=alexnet", "dataset=synthetic"],
            ["'alexnet' needs images of at least 63 pixels", "'synthetic' has 32"],
        ),
        (["+cluster.env={A-B: x}"], ["'A-B' is not a name"]),
    ],
    ids=str,
)
def test_a_mistake_gets_one_sentence_and_exit_code_2(cli: Cli, arguments: list[str], words: list[str]) -> None:
    done = cli("harness", *PLAN[1:], *arguments)
    assert done.returncode == 2
    message = sentence(done.stderr)
    for word in words:
        assert word in message


def test_a_plan_needs_neither_data_nor_environments_and_says_which_are_missing(cli: Cli, tmp_path: Path) -> None:
    absent = ("dataset=cifar10", "framework.environment=absent")
    done = cli("harness", "-m", "gpus=1,2", "framework=pytorch,jax", *PLAN, *absent)
    assert done.returncode == 0, done.stderr
    assert "plan: 4 runs in 2 arrays" in done.stdout
    missing = [line for line in done.stdout.splitlines() if line.startswith("these runs cannot start yet: ")]
    assert len(missing) == 3, "the data set once, and the environment of each framework"
    assert f"python -m harness.data cifar10 --root {tmp_path / 'data'}" in missing[0]
    for framework, line in zip(("pytorch", "jax"), missing[1:], strict=True):
        assert f"'absent' of framework '{framework}' does not exist" in line


def test_a_results_folder_that_cannot_be_written(cli: Cli) -> None:
    done = cli("harness", *PLAN[1:], "results=/proc/none")
    assert done.returncode == 2
    assert "/proc/none/scaling cannot be written" in sentence(done.stderr)


def test_a_results_folder_that_cannot_be_read(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "results" / "scaling").mkdir(parents=True)
    (tmp_path / "results" / "scaling" / "runs").touch()
    done = cli("harness", *PLAN)
    assert done.returncode == 2
    assert "results/scaling/runs cannot be read: Not a directory" in sentence(done.stderr)


def test_two_studies_into_one_folder(cli: Cli, tmp_path: Path) -> None:
    folder = tmp_path / "results" / "mine"
    folder.mkdir(parents=True)
    (folder / "study.json").write_text(json.dumps({"v": 1, "study": "theirs", "created": 0, "invocations": []}))
    done = cli("harness", *PLAN[1:], "study=mine")
    assert done.returncode == 2
    assert "belongs to study 'theirs', not to 'mine'" in sentence(done.stderr)


def test_a_folder_of_something_else_is_not_taken_for_a_study(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "results" / "photos").mkdir(parents=True)
    (tmp_path / "results" / "photos" / "cat.jpg").touch()
    done = cli("harness", *PLAN[1:], "study=photos")
    assert done.returncode == 2
    assert "it is not a study" in sentence(done.stderr)


@pytest.mark.parametrize("text", ["", "{", '{"v": 9}', "[1]"])
def test_a_damaged_study_json_is_not_overwritten(cli: Cli, tmp_path: Path, text: str) -> None:
    (tmp_path / "results" / "mine").mkdir(parents=True)
    path = tmp_path / "results" / "mine" / "study.json"
    path.write_text(text)
    done = cli("harness", *PLAN[1:], "study=mine")
    assert done.returncode == 2
    assert str(Path("results/mine/study.json")) in sentence(done.stderr)
    assert path.read_text() == text
