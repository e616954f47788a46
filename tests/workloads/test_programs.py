"""The user's own training with programs that nobody here wrote: the harness's throughput is the program's own."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from agreement import agrees
from programs import PROGRAMS, REFUSED, SCRIPTS, Program
from project import Cli
from studies import hosts, logged, read_json, run_of, starts

LOCAL = ("cluster=local", "cluster.device=cpu", "batch=64")
SLURM = ("cluster.device=cpu", "cluster.cpus_per_gpu=1", "cluster.gpus_per_node=1", "batch=64")
MEASURE = ("measure.warmup_steps=10", "measure.steps=120", "measure.precision=null")
# At the next checkpoint, further steps would end a library's loop in another way: take fewer than lead there.
FEW_FURTHER_STEPS = ("workload.probe_steps=1",)
# Run by default: gradient accumulation by hooks.
SELECTED = (("accumulation", 2),)


def cases() -> list[Any]:
    found = []
    for name, program in PROGRAMS.items():
        for gpus in program.gpus:
            marks = () if (name, gpus) in SELECTED else (pytest.mark.whole,)
            found.append(pytest.param(program, gpus, LOCAL, id=f"{name}-{gpus}", marks=marks))
        if program.nodes:
            marks = (pytest.mark.whole, pytest.mark.cluster)
            found.append(pytest.param(program, 2, SLURM, id=f"{name}-2 nodes", marks=marks))
    return found


def in_folder(folder: Path, program: Program) -> None:
    """Put the scripts where the program finds them; skips if its environment is missing."""
    if not (program.env / "bin" / "python").exists():
        pytest.skip(f"no environment {program.env.name}: `make test-workloads` builds it")
    for script in SCRIPTS.iterdir():
        shutil.copy(script, folder)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("program", "gpus", "machine"), cases())
def test_throughput_is_that_of_the_program_itself(
    cli: Cli, tmp_path: Path, request: pytest.FixtureRequest, program: Program, gpus: int, machine: tuple[str, ...]
) -> None:
    in_folder(tmp_path, program)
    environ = request.getfixturevalue("slurm").env if machine is SLURM else None
    measure = (*MEASURE, *(FEW_FURTHER_STEPS if program.trainer else ()))
    done = cli("harness", f"gpus={gpus}", *machine, *measure, *program.arguments, env=environ)
    assert done.returncode == 0, done.stdout + done.stderr
    run_dir = run_of(tmp_path, gpus)
    agrees(run_dir, by_pattern=program.expected["method"] == "pattern")
    (workload,) = logged(run_dir, "workload")
    assert {name: workload[name] for name in program.expected} == program.expected
    (protocol,) = logged(run_dir, "protocol")
    assert protocol["stopped"] == program.stopped
    if machine is SLURM:
        assert len(set(hosts(run_dir))) == 2
        assert [start["world_size"] for start in starts(run_dir)] == [2, 2]
    if program.trainer:
        # Its loop came to its end by itself, and nothing after it ran.
        assert "trained" in (run_dir / "attempt-1" / "stdout.rank0").read_text()
        assert not list(run_dir.glob("out/last*"))


@pytest.mark.whole
@pytest.mark.parametrize(("program", "said"), REFUSED.values(), ids=REFUSED)
def test_a_mistake_in_the_script_is_refused_with_what_was_seen(
    cli: Cli, tmp_path: Path, program: Program, said: str
) -> None:
    in_folder(tmp_path, program)
    done = cli("harness", "gpus=2", *LOCAL, *MEASURE, *program.arguments)
    assert done.returncode == 1
    result = read_json(run_of(tmp_path, 2) / "result.json")
    assert said in result["reason"] + " ".join(result["stderr_tail"])


@pytest.mark.whole
@pytest.mark.parametrize(
    ("gpus", "machine"), [(1, LOCAL), (2, LOCAL), pytest.param(2, SLURM, marks=pytest.mark.cluster, id="2 nodes")]
)
def test_a_program_in_c_is_measured_by_its_output(
    cli: Cli, tmp_path: Path, request: pytest.FixtureRequest, gpus: int, machine: tuple[str, ...]
) -> None:
    environ = request.getfixturevalue("slurm").env if machine is SLURM else None
    subprocess.run(["cc", "-O2", "-o", tmp_path / "heat", SCRIPTS / "heat.c"], check=True)
    pattern = r"workload.pattern='step (?P<step>\d+) \S+ (?P<ms>\S+) ms'"
    keys = (f"gpus={gpus}", "workload=command", *machine, *MEASURE, pattern)
    done = cli("harness", *keys, "--", "./heat", "2000", env=environ)
    assert done.returncode == 0, done.stdout + done.stderr
    agrees(run_of(tmp_path, gpus), by_pattern=True)


LOG = "iteration {step:8d}/    2000 | consumed samples: {samples:12d} | elapsed time per iteration (ms): {ms:.1f} | "
LOG += "learning rate: 1.000000E-04 | global batch size:    64 | lm loss: 6.1{step:05d}E+00 | loss scale: 1.0 |"


@pytest.mark.whole
def test_a_log_of_megatron_is_measured(cli: Cli, tmp_path: Path) -> None:
    """In the format of Megatron-LM's training_log (megatron/training/training.py), which logs means of 10 steps."""
    times = [200.0 + (number * 37 % 10) for number in range(20)]
    lines = [
        f" [2025-04-13 23:{41 + number // 10}:{number % 10:02d}.000000] "
        + LOG.format(step=10 * (number + 1), samples=640 * (number + 1), ms=ms)
        for number, ms in enumerate(times)
    ]
    (tmp_path / "megatron.log").write_text("\n".join(lines) + "\n")
    keys = ("gpus=1", "workload=command", "workload.pattern=megatron", *LOCAL, *MEASURE)
    done = cli("harness", *keys, "--", "cat", "megatron.log")
    assert done.returncode == 0, done.stdout + done.stderr
    blocks = [block for block in logged(run_of(tmp_path, 1), "steps") if block["phase"] == "measure"]
    steps = [step for block in blocks for step in range(block["step"], block["step"] + block["n"])]
    assert len(steps) >= 100
    own = sum(times[step // 10] / 1000 for step in steps)
    assert sum(block["seconds"] for block in blocks) == pytest.approx(own, rel=0.02)
