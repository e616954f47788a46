"""The user's own training on this machine, from the command line to the report."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from own_training import DDP, RANKS_OF_MPI
from processes import local_supervisors, wait_for
from project import PROJECT, Cli
from strangers import attacking
from studies import logged, program, read_json, run_dirs, run_of, started, starts

from harness.core.events import read_events

LOCAL = ("cluster=local", "cluster.device=cpu", "batch=16")
TRAIN = ("train.py", "{batch_per_gpu}")
MEASURE = ("measure.warmup_steps=10", "measure.steps=200", "measure.block_steps=10")
# Each step takes 10 ms and says so.
SHELL = """#!/bin/sh
step=0
while true; do step=$((step + 1)); sleep 0.01; echo "step $step: 10.0 ms"; done
"""
PATTERN = r"workload.pattern='step (?P<step>\d+): (?P<ms>\S+) ms'"


def validate(run_dir: Path) -> None:
    """Check a run's files and events against their schemas."""

    def schema(name: str) -> Any:
        return read_json(PROJECT / "harness" / "schemas" / f"{name}.schema.json")

    for name in ("spec", "result"):
        jsonschema.validate(read_json(run_dir / f"{name}.json"), schema(name))
    for name in ("begin", "env"):
        jsonschema.validate(read_json(run_dir / "attempt-1" / f"{name}.json"), schema(name))
    for file in run_dir.glob("attempt-1/events.rank*.jsonl"):
        log = read_events(file)
        assert log.unreadable_lines == 0
        for event in log.events:
            jsonschema.validate(event, schema("events"))


def test_a_program_measured_by_its_output_from_the_command_to_the_report(cli: Cli, tmp_path: Path) -> None:
    program(tmp_path / "train.sh", SHELL.replace("step=0", f"echo $MY_TOKEN >> {tmp_path}/told\nstep=0"))
    secret = "+cluster.env.MY_TOKEN=of-mine-alone"
    command = ("harness", "-m", "gpus=1,2", "workload=command", *LOCAL, *MEASURE, PATTERN, secret, "--", "./train.sh")
    done = cli(*command)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 completed, 0 failed" in done.stdout
    for run_dir in run_dirs(tmp_path):
        validate(run_dir)
        assert [event["stopped"] for event in logged(run_dir, "protocol")] == ["precision"]
    again = cli(*command)
    assert "0 completed, 0 failed, 2 were completed before" in again.stdout
    report = cli("analysis", "results/scaling")
    assert report.returncode == 0, report.stderr
    assert (tmp_path / "told").read_text() == "of-mine-alone\n" * 3
    written = [path for path in (tmp_path / "results").rglob("*") if path.is_file()]
    assert {"study.json", "spec.json", "report.html"} <= {path.name for path in written}
    assert not [path for path in written if b"of-mine-alone" in path.read_bytes()]
    assert "+cluster.env.MY_TOKEN=***" in (tmp_path / "results/scaling/study.json").read_text()
    # 16 and 32 samples in 10 ms.
    assert "1,600" in report.stdout
    assert "3,200" in report.stdout


def test_ctrl_c_says_what_is_lost(cli: Cli, tmp_path: Path) -> None:
    program(tmp_path / "train.sh", SHELL)
    command = ("-m", "gpus=1,2", "workload=command", *LOCAL, PATTERN, "workload.stop=false", "--", "./train.sh")
    with started(tmp_path, *command) as process:
        outputs = "results/scaling/runs/*/attempt-1/stdout.rank0"
        wait_for(lambda: any("step" in file.read_text() for file in tmp_path.glob(outputs)))
        os.killpg(process.pid, signal.SIGINT)
        said = process.communicate(timeout=120)[0]
    assert "0 runs completed, the run that was interrupted starts again from step 0; 2 runs are left" in said


def test_a_launcher_of_its_own_starts_once_per_node(cli: Cli, tmp_path: Path) -> None:
    program(tmp_path / "train.sh", SHELL)
    program(
        tmp_path / "launch.sh", "#!/bin/sh\necho $NODE_RANK of $NNODES starts $1 at $2\n./train.sh & exec ./train.sh\n"
    )
    arguments = ("workload.launcher=own", "--", "./launch.sh", "{gpus_per_node}", "{master_addr}")
    done = cli("harness", "gpus=2", "workload=command", *LOCAL, *MEASURE, PATTERN, *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    attempt = run_of(tmp_path, 2) / "attempt-1"
    assert (attempt / "stdout.rank0").read_text().startswith("0 of 1 starts 2 at 127.0.0.1\n")
    assert not (attempt / "stdout.rank1").exists()


def test_output_without_a_match_is_one_sentence(cli: Cli, tmp_path: Path) -> None:
    done = cli("harness", "gpus=1", "workload=command", *LOCAL, "workload.pattern=megatron", "--", "echo", "hello")
    assert done.returncode == 1
    said = "no line of the output matched workload.pattern=megatron; the last lines were: hello; correct the pattern"
    assert said in read_json(run_of(tmp_path, 1) / "result.json")["reason"]
    assert "Traceback" not in done.stdout + done.stderr


@pytest.mark.torch
@pytest.mark.whole  # in CI, without strangers: tests/probe/test_stop_channel.py
def test_the_ranks_of_a_script_stop_at_the_same_step_among_strangers_when_enough_was_measured(
    cli: Cli, tmp_path: Path, torch_python: Path
) -> None:
    (tmp_path / "train.py").write_text(DDP)
    measure = ("measure.steps=3000", "measure.precision=0.3")
    arguments = (f"workload.python={torch_python}", "--", "train.py", "{batch_per_gpu}")
    with attacking(lambda: local_supervisors(tmp_path)):
        done = cli("harness", "gpus=2", "workload=script", *LOCAL, *measure, *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    said = "".join(log.read_text() for log in tmp_path.glob("results/scaling/submitit/*/*_0_log.err"))
    assert "connections that are not of this run were dropped" in said
    run_dir = run_of(tmp_path, 2)
    validate(run_dir)
    ranks = range(2)
    assert [logged(run_dir, "protocol", rank=rank)[0]["stopped"] for rank in ranks] == ["precision"] * 2
    ended = [logged(run_dir, "end", rank=rank)[0]["steps"] for rank in ranks]
    assert ended[0] == ended[1] < 3000
    assert [start["world_size"] for start in starts(run_dir)] == [2, 2]


@pytest.mark.torch
# mpirun on two nodes is in tests/cluster.
@pytest.mark.whole  # in CI torchrun on two nodes, and without the harness
@pytest.mark.parametrize("launcher", ["torchrun", "mpirun"])
def test_ranks_of_a_launcher_are_measured_without_a_change(
    cli: Cli, tmp_path: Path, torch_python: Path, launcher: str
) -> None:
    (tmp_path / "train.py").write_text(RANKS_OF_MPI + DDP)
    keys = (f"workload.launcher={launcher}", f"workload.python={torch_python}", "measure.precision=0.3")
    done = cli("harness", "gpus=2", "workload=script", *keys, *LOCAL, "measure.steps=3000", "--", *TRAIN)
    assert done.returncode == 0, done.stdout + done.stderr
    run_dir = run_of(tmp_path, 2)
    validate(run_dir)
    assert [start["world_size"] for start in starts(run_dir)] == [2, 2]
    assert [logged(run_dir, "protocol", rank=rank)[0]["stopped"] for rank in range(2)] == ["precision"] * 2
    assert read_json(run_dir / "result.json")["oversubscribed"] is None
    found = read_json(run_dir / "attempt-1" / "env.json")
    # A wheel from PyPI tells the build it is of (+cu128) when imported only.
    assert found["versions"]["torch"].partition("+")[0] == starts(run_dir)[0]["versions"]["torch"].partition("+")[0]
    assert found["interpreter"] == str(torch_python)


def test_headless_adds_its_key_before_the_command_of_the_training(tmp_path: Path) -> None:
    program(tmp_path / "python", '#!/bin/sh\nprintf "%s|" "$@"\n')
    environ = {
        **os.environ,
        "SLURM_JOB_ID": "1",
        "HARNESS_PROJECT": str(PROJECT),
        "HARNESS_PYTHON": f"{tmp_path}/python",
    }
    script = (PROJECT / "sbatch" / "headless.sh", "-m", "gpus=1,2")
    for command in ((), ("--", "train.py", "--", "a b")):
        done = subprocess.run([*script, *command], env=environ, stdout=subprocess.PIPE, text=True, check=True)
        words = ("-u", "-m", "harness", "-m", "gpus=1,2", "cluster.scheduler=allocation", *command)
        assert done.stdout == "".join(f"{word}|" for word in words)
