"""`workload`: the user's own training on the command line and in files, and each mistake in it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from harness.config import composition, workload
from harness.config.workload_schema import Kind, Workload
from harness.core.errors import UserError
from harness.core.spec import RunSpec
from harness.plan.plan import Request
from harness.plan.request import StudyRequest, study_request

LOCAL = ("cluster=local", "cluster.device=cpu", f"workload.python={sys.executable}")
TRAIN = ("train.py", "--batch-size", "{batch_per_gpu}")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a training, as the current one."""
    composition.register()
    (tmp_path / "train.py").write_text("import torch\n")
    (tmp_path / "train.sh").write_text("#!/bin/sh\n")
    (tmp_path / "train.sh").chmod(0o755)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def asked(*overrides: str, command: tuple[str, ...] | None = TRAIN, config_dir: str | None = None) -> StudyRequest:
    fixed = LOCAL if "workload=command" not in overrides else LOCAL[:2]
    choice = () if any(text.startswith(("workload=", "+experiment=")) for text in overrides) else ("workload=script",)
    points = composition.compose([*fixed, *choice, *overrides], True, "config", config_dir, command)
    return study_request(points)


def requests(*overrides: str, command: tuple[str, ...] | None = TRAIN, config_dir: str | None = None) -> list[Request]:
    return list(asked(*overrides, command=command, config_dir=config_dir).requests)


def spec(*overrides: str, command: tuple[str, ...] | None = TRAIN) -> RunSpec:
    [request] = requests(*overrides, command=command)
    return request.spec


def refused(*overrides: str, command: tuple[str, ...] | None = TRAIN, config_dir: str | None = None) -> str:
    with pytest.raises(UserError) as caught:
        asked(*overrides, command=command, config_dir=config_dir)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_script_is_a_run_of_its_own_kind(folder: Path) -> None:
    [request] = requests("gpus=2", "batch=64", "seed=3")
    found, own = request.spec, request.spec.workload
    assert own is not None
    assert (found.framework, found.strategy, found.model, found.precision) == ("script", "own", "train", "own")
    assert (found.global_batch, found.batch_per_gpu, found.seed) == (128, 64, 3)
    assert (own.kind, own.name, own.command, own.samples_per_step) == ("script", "train", TRAIN, 128)
    assert (own.single, own.launcher, own.processes_per_node, own.stop) == ("distributed", "harness", "gpu", True)
    assert own.cwd is None
    assert (request.site.cwd, request.site.python) == (str(folder), sys.executable)
    assert (found.measure.probe_steps, found.measure.evaluate_samples, found.measure.warmup_limit_steps) == (0, 0, None)
    assert found.run_id.startswith("script-own-train-2gpu-")


def test_the_warm_up_is_of_any_length() -> None:
    measured = spec("measure.warmup_steps=300", "measure.steps=240", "measure.block_steps=40").measure
    assert (measured.warmup_steps, measured.warmup_limit_steps) == (300, None)


def test_what_follows_the_dashes_is_taken_as_it_is() -> None:
    command = ("train.py", "a=1,2", "$HOME", "${{x}}", "--x", "it's", "[", "$(id)", "*", "")
    own = spec(command=command).workload
    assert own is not None
    assert own.command == command


def test_a_command_in_a_file_of_the_users_own(folder: Path) -> None:
    (folder / "mine" / "workload").mkdir(parents=True)
    (folder / "mine" / "workload" / "resnet.yaml").write_text(
        'kind: script\ncommand: [train.py, --batch-size, "{batch_per_gpu}", --epochs, 1]\nname: resnet\n'
    )
    [request] = requests("workload=resnet", command=None, config_dir="mine")
    own = request.spec.workload
    assert own is not None
    assert own.command == ("train.py", "--batch-size", "{batch_per_gpu}", "--epochs", "1")
    assert request.spec.model == own.name == "resnet"
    assert "given twice" in refused("workload=resnet", config_dir="mine")


def test_parameters_need_no_declaration_and_can_be_swept() -> None:
    found = requests(
        "workload.params.lr=0.1,0.2",
        "workload.params.opt=adam",
        "workload.params.amp=true",
        command=("train.py", "{lr}"),
    )
    params = [request.spec.workload.params for request in found if request.spec.workload]
    assert params == [{"amp": True, "lr": lr, "opt": "adam"} for lr in (0.1, 0.2)]
    assert len({request.spec.run_id for request in found}) == 2


def test_parameters_of_an_experiment_can_be_swept(folder: Path) -> None:
    (folder / "mine" / "experiment").mkdir(parents=True)
    (folder / "mine" / "experiment" / "rates.yaml").write_text(
        "# @package _global_\ndefaults:\n  - override /workload: script\n  - override /measure: smoke\n"
        "hydra:\n  sweeper:\n    params:\n      workload.params.lr: 0.1,0.2\n      gpus: 1,2\n"
    )
    found = requests("+experiment=rates", "workload.params.lr=3", config_dir="mine")
    assert [(r.spec.gpus, r.spec.workload.params) for r in found if r.spec.workload] == [(1, {"lr": 3}), (2, {"lr": 3})]


@pytest.mark.parametrize(
    ("override", "named"),
    [
        ("model=resnet20", "'model=resnet20'"),
        ("model=resnet44", "'model=resnet44'"),  # the default: refused too, since it has no effect
        ("framework=jax", "'framework=jax'"),
        ("framework.environment=jax", "'framework.environment=jax'"),
        ("strategy=fsdp", "'strategy=fsdp'"),
        ("precision=bf16", "'precision=bf16'"),
        ("dataset=synthetic", "'dataset=synthetic'"),
        ("data=synthetic", "'data=synthetic'"),
        ("data.workers=2", "'data.workers=2'"),
        ("optimizer.lr=0.2", "'optimizer.lr=0.2'"),
        ("optimizer={lr: 0.2}", "'optimizer.lr'"),
        ("baseline=plain", "'baseline=plain'"),
        ("verify=true", "'verify=true'"),
        ("trace=true", "'trace=true'"),
        ("deterministic=true", "'deterministic=true'"),
        ("target_accuracy=0.5", "'target_accuracy=0.5'"),
        ("skip_unsupported=true", "'skip_unsupported=true'"),
        ("fault=kill_rank", "'fault=kill_rank'"),
        ("checkpoint.interval_steps=10", "'checkpoint.interval_steps=10'"),
        ("checkpoint.keep=true", "'checkpoint.keep=true'"),
        ("measure.probe_steps=3", "'measure.probe_steps=3'"),
        ("measure.evaluate_samples=3", "'measure.evaluate_samples=3'"),
        ("measure={evaluate_samples: 3}", "'measure.evaluate_samples'"),
        ("measure.warmup_limit_steps=300", "'measure.warmup_limit_steps=300'"),
    ],
)
def test_keys_of_the_catalogue_are_refused_by_name(override: str, named: str) -> None:
    said = refused(override)
    assert said.startswith(f"{named} does not apply to workload=script")
    assert "Keys that apply: study, " in said


def test_keys_of_the_catalogue_are_refused_in_an_experiment_too(folder: Path) -> None:
    (folder / "mine" / "experiment").mkdir(parents=True)
    for text, key in (
        ("defaults:\n  - override /model: resnet20\n", "model"),
        ("measure:\n  probe_steps: 3\n", "measure.probe_steps"),
        ("hydra:\n  sweeper:\n    params:\n      precision: fp32,bf16\n", "precision"),
    ):
        (folder / "mine" / "experiment" / "mixed.yaml").write_text(f"# @package _global_\n{text}")
        assert (
            f"'{key}" in refused("+experiment=mixed", "workload=script", config_dir="mine").split(" does not apply")[0]
        )


@pytest.mark.parametrize(
    "override",
    [
        "scaling=strong",
        "repeats=3",
        "measure=smoke",
        "measure.steps=400",
        "measure.precision=0.05",
        "heartbeat=null",
        "data.root=/data",
        "cluster.timeout_minutes=5",
        "+cluster.env={NCCL_ALGO: Ring}",
        "budget_node_hours=100",
        "retry=all",
        "checkpoint.max_restarts=1",
    ],
)
def test_other_keys_apply(override: str) -> None:
    assert requests("gpus=2", override)


@pytest.mark.parametrize(
    ("overrides", "command", "words"),
    [
        (
            ["workload=catalog"],
            ("train.py",),
            "a command after `--` needs workload=script (Python) or workload=command",
        ),
        ([], (), "nothing follows `--`"),
        ([], None, "workload=script needs your training's command"),
        (["workload=command"], None, "workload=command needs your training's command"),
        (["workload.command=[train.py]"], TRAIN, "the command is given twice"),
        ([], ("train.py", "--batch", "{batch}"), "'{batch}': unknown placeholder {batch}; valid are batch_per_gpu, "),
        ([], ("train.py", "{lr}"), "unknown placeholder {lr}"),
        ([], ("train.py", '{"a": 1}'), "write {{ and }} for literal braces"),
        (["workload.resume_args=['{run}/x']"], TRAIN, "workload.resume_args has '{run}/x': unknown placeholder {run}"),
        (["workload.params.seed=1"], TRAIN, "workload.params.seed: {seed} is a placeholder already"),
        (["workload.params.a-b=1"], TRAIN, "workload.params.a-b: a name has letters"),
        (["workload.params.lr=[1,2]"], TRAIN, "workload.params.lr=[1, 2]: give a number, a text, true or false"),
        (["workload.params.lr=null"], TRAIN, "workload.params.lr=None: give a number"),
        (["workload.launcher=slurm"], TRAIN, "there are harness, own, torchrun, accelerate, deepspeed, mpirun"),
        (["workload.launcher=own", "workload.processes_per_node=gpu"], TRAIN, "leave processes_per_node out"),
        (["workload.processes_per_node=2"], TRAIN, "is one of gpu, node"),
        (["workload.single=none"], TRAIN, "is one of distributed, plain"),
        (["workload.kind=notebook"], TRAIN, "'workload.kind' is one of catalog, script, command"),
        (["workload.shell=true"], TRAIN, "workload.shell=true needs workload=command"),
        (["workload=command", "workload.shell=true"], ("a", "b"), "put the 2 words of the command in quotes"),
        (["workload=command", "workload.python=x"], ("./train.sh",), "workload.python has no effect with"),
        (["workload.python=absent"], TRAIN, "workload.python=absent: there is no Python at"),
        (["workload.python=/usr/bin/python3 -I"], TRAIN, "python -I is not supported: Python then ignores PYTHONPATH"),
        (["workload.python=/usr/bin/python3 -u -sE"], TRAIN, "without options such as -u"),
        ([], ("python", "-E", "train.py"), "python -E is not supported"),
        ([], ("-I", "train.py"), "python -I is not supported"),
        (["workload=command"], ("python3", "-I", "train.py"), "python -I is not supported"),
        ([], ("python3.11", "train.py"), "not with 'python3.11': leave it out, and name the interpreter with"),
        ([], ("-u", "train.py"), "with -m and a module, not with '-u'"),
        ([], ("-m",), "-m needs the name of a module"),
        ([], ("absent.py",), "there is no script "),
        (["workload.cwd=absent"], TRAIN, "workload.cwd=absent: there is no folder "),
        (["workload=command"], ("./absent",), "there is no program "),
        (["workload=command"], ("absent-program",), "there is no program 'absent-program' on the PATH"),
        (["workload.samples_per_step=batch*2"], TRAIN, "there is no number 'batch'; valid are batch_per_gpu, "),
        (["workload.samples_per_step=gpus/3"], TRAIN, "is 0.333333 with gpus=1: give a whole number of at least 1"),
        (["workload.samples_per_step=0"], TRAIN, "give a whole number of at least 1"),
        (["workload.samples_per_step=gpus//0"], TRAIN, "workload.samples_per_step=gpus//0: "),
        (["workload.samples_per_step='len(gpus)'"], TRAIN, "or an expression of + - * / //"),
        (["workload.unit=''"], TRAIN, "workload.unit is empty"),
        (["workload.name=a/b"], TRAIN, "workload.name='a/b' becomes part of folder names"),
        (["workload.pattern='step (?P<step>'"], TRAIN, "is not a regular expression"),
        (["workload.pattern=x", "workload.step=SGD"], TRAIN, "workload.step=SGD has no effect with workload.pattern"),
        (
            ["workload.pattern=megatron", "workload.trace=4"],
            TRAIN,
            "workload.trace=4 has no effect with workload.p",
        ),
        (
            ["workload.stop=false", "workload.probe_steps=9"],
            TRAIN,
            "workload.probe_steps=9 has no effect with",
        ),
        (
            ["workload.stop=false", "workload.probe_limit=1"],
            TRAIN,
            "has no effect with workload.stop=false",
        ),
        (["measure=learning"], TRAIN, "measure.evaluate_every_samples=102400 does not apply to workload=script"),
        (["checkpoint.max_requeues=3"], TRAIN, "checkpoint.max_requeues=3 needs workload.resume_args"),
        (["heartbeat=soon"], TRAIN, "heartbeat=soon: give a number of seconds, null or auto"),
        (["workload.comand=x"], TRAIN, "Did you mean 'command'?"),
    ],
    ids=str,
)
def test_a_mistake_gets_one_sentence(overrides: list[str], command: tuple[str, ...] | None, words: str) -> None:
    assert words in refused(*overrides, command=command)


@pytest.mark.parametrize("override", ["workload.python=x", "workload.params.lr=1", "workload.command=[a]"])
def test_keys_of_a_workload_need_one(override: str) -> None:
    with pytest.raises(UserError, match="needs workload=script"):
        study_request(composition.compose(["cluster=local", override], False, "config", None))


@pytest.mark.parametrize(
    ("expression", "samples"),
    [
        ("global_batch", 256),
        ("'{global_batch}'", 256),
        ("2*global_batch", 512),
        ("batch_per_gpu*micro", 512),
        ("'{batch_per_gpu} * {micro}'", 512),
        ("global_batch//2+1", 129),
        ("512", 512),
        ("'(gpus-1)*1024'", 1024),
    ],
)
def test_samples_per_step_may_calculate(expression: str, samples: int) -> None:
    own = spec("gpus=2", "workload.params.micro=4", f"workload.samples_per_step={expression}").workload
    assert own is not None
    assert own.samples_per_step == samples


@pytest.mark.parametrize(
    ("overrides", "command", "name"),
    [
        ([], TRAIN, "train"),
        ([], ("-m", "json.tool"), "json.tool"),
        (["workload=command"], ("./train.sh", "8"), "train.sh"),
        (["workload=command", "workload.shell=true"], ("./train.sh | cat",), "train.sh"),
        (["workload.name=mine"], TRAIN, "mine"),
    ],
    ids=str,
)
def test_a_name_for_tables_and_folders(overrides: list[str], command: tuple[str, ...], name: str) -> None:
    assert spec(*overrides, command=command).model == name


def test_a_launcher_of_its_own_is_started_once_per_node() -> None:
    own = spec("workload.launcher=own").workload
    assert own is not None
    assert own.processes_per_node == "node"


@pytest.mark.parametrize(("overrides", "seconds"), [([], None), (["heartbeat=60"], 60.0)])
def test_output_is_a_heartbeat_only_on_request(overrides: list[str], seconds: float | None) -> None:
    assert requests()[0].site.heartbeat_seconds == 600.0
    found = requests("workload.pattern=nanogpt", *overrides)
    assert found[0].site.heartbeat_seconds == seconds


@pytest.mark.parametrize("seconds", [60, 600])
def test_a_heartbeat_in_a_file_of_the_users_own_counts(folder: Path, seconds: int) -> None:
    """Also of one that an experiment is based on."""
    (folder / "mine" / "experiment").mkdir(parents=True)
    (folder / "mine" / "experiment" / "base.yaml").write_text(f"# @package _global_\nheartbeat: {seconds}\n")
    (folder / "mine" / "experiment" / "lm.yaml").write_text("# @package _global_\ndefaults: [base]\n")
    [request] = requests("workload=script", "+experiment=lm", "workload.pattern=nanogpt", config_dir="mine")
    assert request.site.heartbeat_seconds == seconds
    # Each point of a sweep has its own.
    found = requests("workload.pattern=null,nanogpt")
    assert [request.site.heartbeat_seconds for request in found] == [600.0, None]


def test_a_requeued_run_needs_a_way_to_resume() -> None:
    """Otherwise it would reach the wall limit again."""
    slurm = ("cluster=slurm", "cluster.device=cpu", "cluster.gres=null")
    for arguments, requeues in (([], 0), (["workload.resume_args=[--resume]"], 1)):
        [request] = requests(*slurm, *arguments)
        assert request.site.max_requeues == requeues


def test_the_command_line_is_split_at_the_first_dashes(folder: Path, project: Path) -> None:
    """Both programs, and the rest is never parsed."""
    arguments = [*LOCAL, "workload=script", "plan_only=true", "-m", "gpus=1,2"]
    rest = ["--", "train.py", "--help", "a=1,2", "--", "-m", "{gpus}"]
    for program in (["-m", "harness"], ["-m", "harness", "run"]):
        done = subprocess.run(
            [sys.executable, *program, *arguments, *rest],
            env={"PYTHONPATH": str(project), "PATH": "/usr/bin:/bin"},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        assert "plan: 2 runs in 2 arrays" in done.stdout
        for gpus in (1, 2):
            assert f"{sys.executable} train.py --help a=1,2 -- -m {gpus}\n" in done.stdout


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (["./build/train", "--steps=10"], "train"),
        (["python3", "-u", "code/train.py", "--lr=0.1"], "train"),
        (["/opt/py/bin/python3.11", "-m", "mine.train"], "mine.train"),
        (["bash", "run.sh"], "run"),
        (["python"], "python"),
    ],
)
def test_a_program_that_an_interpreter_runs_gives_the_name(command: list[str], name: str) -> None:
    assert workload.name(Workload(kind=Kind.command, command=command)) == name
