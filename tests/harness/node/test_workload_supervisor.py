"""Processes of the user's own training as their supervisors run them: real programs, one supervisor per rank."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from builders import make_site, make_spec
from processes import wait_for
from project import PROJECT
from studies import read_json

from harness.core import spec as specs
from harness.core.events import read_events
from harness.core.spec import MeasureSpec, Placement
from harness.core.workload import code_identity
from harness.core.workload.spec import WorkloadSpec

# Steps of 10 ms, each printed; the last words go to stderr.
STEPS = """
import os, sys, time
for step in range(1, int(sys.argv[1]) + 1):
    time.sleep(0.01)
    print(f"step {step}: 10.0 ms, loss {1 / step:.3f}")
print("done", file=sys.stderr)
"""
PATTERN = r"step (?P<step>\d+): (?P<ms>\S+) ms, loss (?P<loss>\S+)"
MEASURE = MeasureSpec(warmup_steps=4, steps=20, block_steps=4, probe_steps=0, evaluate_samples=0)


class Run:
    """A run directory, and the supervisors of one attempt of it."""

    def __init__(self, folder: Path, command: Sequence[str], gpus: int = 1, **changes: Any) -> None:
        self.folder, self.gpus = folder / "run", gpus
        self.folder.mkdir()
        site = {name: changes.pop(name) for name in ("heartbeat_seconds", "signal_seconds") if name in changes}
        measure = changes.pop("measure", MEASURE)
        workload = WorkloadSpec("command", "mine", tuple(command), {}, changes.pop("code", ""), 8 * gpus, **changes)
        self.spec = make_spec(
            **dict.fromkeys(("strategy", "model", "precision"), "own"),
            framework=workload.kind,
            gpus=gpus,
            placement=Placement(1, gpus),
            workload=workload,
            measure=measure,
        )
        here = make_site(python=sys.executable, project=str(PROJECT), cwd=str(folder), data_root=None, **site)
        specs.write_run(self.folder, self.spec, here)
        self.processes: list[subprocess.Popen[str]] = []
        self.variables: dict[str, str] | None = None  # of the launcher; None: submitit's

    def start(self, attempt: int = 1) -> None:
        tasks = self.spec.processes.ranks_per_node
        self.processes = [
            subprocess.Popen(
                [sys.executable, "-m", "harness.node.attempt", str(self.folder), str(attempt), "0123456789"],
                cwd=PROJECT,
                env={
                    **os.environ,
                    **(
                        self.variables
                        or {
                            "SUBMITIT_LOCAL_JOB_ID": "1",
                            "SUBMITIT_LOCAL_NTASKS": str(tasks),
                            "SUBMITIT_LOCAL_GLOBALID": str(rank),
                            "SUBMITIT_LOCAL_LOCALID": str(rank),
                        }
                    ),
                },
                text=True,
            )
            for rank in range(tasks)
        ]

    def wait(self) -> dict[str, Any]:
        """Wait for the end of the attempt, and return the result; empty if there is none."""
        for process in self.processes:
            process.wait(120)
        file = self.folder / "result.json"
        return read_json(file) if file.exists() else {}

    def result(self, attempt: int = 1) -> dict[str, Any]:
        self.start(attempt)
        return self.wait()

    def text(self, name: str, attempt: int = 1) -> str:
        return (self.folder / f"attempt-{attempt}" / name).read_text()

    def events(self, kind: str, rank: int = 0) -> list[dict[str, Any]]:
        log = read_events(self.folder / "attempt-1" / f"events.rank{rank}.jsonl")
        assert log.unreadable_lines == 0
        return [event for event in log.events if event["ev"] == kind]

    def kill(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()


@pytest.fixture
def runs() -> Iterator[list[Run]]:
    made: list[Run] = []
    yield made
    for run in made:
        run.kill()


def python(text: str, *arguments: str) -> list[str]:
    return [sys.executable, "-c", text.replace("{", "{{").replace("}", "}}"), *arguments]


def test_a_command_is_measured_by_its_output_and_ended_when_enough_was_seen(tmp_path: Path) -> None:
    run = Run(tmp_path, python(STEPS, "100000"), pattern=PATTERN)
    assert run.result()["status"] == "completed"
    (start,), (workload,), (protocol,), (end,) = map(run.events, ("start", "workload", "protocol", "end"))
    assert (start["world_size"], start["threads"], start["device"]) == (None, None, "cpu")
    assert (workload["method"], workload["step_of"]) == ("pattern", PATTERN)
    assert (protocol["stopped"], protocol["warmup_steps"], protocol["measured_steps"]) == ("limit", 4, 20)
    assert end["steps"] == 24
    blocks = run.events("steps")
    assert [(b["phase"], b["step"], b["n"]) for b in blocks] == [
        ("first", 0, 1),
        ("warmup", 1, 3),
        *(("measure", step, 4) for step in range(4, 24, 4)),
    ]
    assert {b["samples"] / b["n"] for b in blocks} == {8}
    assert blocks[-1]["seconds"] == pytest.approx(0.04)
    assert blocks[-1]["loss"] == pytest.approx(1 / 24, abs=1e-3)
    assert run.text("stdout.rank0").startswith("step 1: 10.0 ms, loss 1.000\n")


def test_all_ranks_are_ended_together_and_have_torchruns_variables(tmp_path: Path) -> None:
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR")
    text = f"import os; print(*(os.environ[n] for n in {names}), flush=True)\n" + STEPS
    run = Run(tmp_path, python(text, "100000"), gpus=2, pattern=PATTERN)
    assert run.result()["status"] == "completed"
    assert run.text("stdout.rank1").splitlines()[0] == "1 1 2 2 0 127.0.0.1"
    assert len(run.events("protocol")) == 1
    assert [event["ev"] for event in read_events(run.folder / "attempt-1" / "events.rank1.jsonl").events] == [
        "start",
        "end",
    ]
    assert {json.loads(run.text(f"exit.rank{rank}.json"))["code"] for rank in (0, 1)} == {0}


def test_precision_ends_it_early_and_stop_false_never(tmp_path: Path) -> None:
    precise = MeasureSpec(warmup_steps=4, steps=1000, block_steps=4, probe_steps=0, evaluate_samples=0, precision=0.1)
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    stopped = Run(tmp_path / "a", python(STEPS, "100000"), pattern=PATTERN, measure=precise)
    assert stopped.result()["status"] == "completed"
    assert stopped.events("protocol")[0]["stopped"] == "precision"
    whole = Run(tmp_path / "b", python(STEPS, "40"), pattern=PATTERN, measure=precise, stop=False)
    assert whole.result()["status"] == "completed"
    assert whole.events("protocol")[0]["stopped"] == "script ended"
    assert whole.events("end")[0]["steps"] == 40
    assert whole.text("stderr.rank0") == "done\n"


def test_a_program_that_is_no_python_and_ends_by_itself(tmp_path: Path) -> None:
    text = "i=0; while [ $i -lt 12 ]; do i=$((i+1)); sleep 0.01; echo step $i: 10 ms, loss 1; done"
    run = Run(tmp_path, [text], shell=True, pattern=PATTERN)
    assert run.result()["status"] == "completed"
    assert run.events("protocol")[0]["measured_steps"] == 8


def test_output_without_a_match_says_what_was_looked_for_and_seen_last(tmp_path: Path) -> None:
    result = Run(tmp_path, ["echo", "epoch 1 done"], pattern=PATTERN).result()
    assert result["status"] == "failed"
    assert result["reason"] == (
        f"rank 0: no line of the output matched workload.pattern={PATTERN}; the last lines were: epoch 1 done; correct "
        "the pattern, or have the training print its steps"
    )


def test_too_few_steps_say_how_many_are_needed(tmp_path: Path) -> None:
    result = Run(tmp_path, python(STEPS, "5"), pattern=PATTERN).result()
    assert result["status"] == "failed"
    assert "let the training take at least 8 steps" in result["reason"]


def test_a_command_without_pattern_and_probe_is_not_a_measurement(tmp_path: Path) -> None:
    result = Run(tmp_path, ["true"]).result()
    assert result["status"] == "failed"
    assert result["reason"].startswith("rank 0: it ended without a training step that could be seen; set workload.pat")


def test_a_program_that_fails_is_reported_with_its_code(tmp_path: Path) -> None:
    result = Run(tmp_path, python("import sys; sys.exit('broken')"), pattern=PATTERN).result()
    assert (result["status"], result["reason"], result["stderr_tail"]) == (
        "failed",
        "rank 0 exited with code 1: broken",
        ["broken"],
    )


def test_a_launcher_s_last_words_do_not_hide_why_a_rank_failed(tmp_path: Path) -> None:
    text = """
import sys
said = ["slow", "[rank1]: Traceback (most recent call last):", "[rank1]:   File x", "[rank1]: ValueError: bad batch"]
print(*said, "Traceback (most recent call last):", "ChildFailedError: ", sep="\\n", file=sys.stderr)
sys.exit(3)
"""
    result = Run(tmp_path, python(text), launcher="own", processes_per_node="node").result()
    assert result["reason"] == "rank 0: exited with code 3; the first error of its ranks: ValueError: bad batch"


def test_what_argparse_says_is_the_first_error(tmp_path: Path) -> None:
    text = "import argparse; argparse.ArgumentParser('train.py').parse_args(['--local_rank=0'])"
    result = Run(tmp_path, python(text), launcher="own", processes_per_node="node").result()
    said = "the first error of its ranks: unrecognized arguments: --local_rank=0"
    assert result["reason"] == f"rank 0: exited with code 2; {said}"


def test_when_told_to_end_it_gets_sigterm_and_the_run_is_unfinished(tmp_path: Path, runs: list[Run]) -> None:
    text = """
import os, signal, sys, time
def leave(*_):
    print("told", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, leave)
print("ready", *sys.argv[1:], flush=True)
time.sleep(60)
"""
    run = Run(tmp_path, python(text), pattern=PATTERN, resume_args=("--from", "{run_dir}/last"))
    runs.append(run)
    run.start()
    wait_for(lambda: (run.folder / "attempt-1" / "stdout.rank0").exists() and "ready" in run.text("stdout.rank0"))
    run.processes[0].send_signal(signal.SIGTERM)
    assert run.wait() == {}
    assert run.text("stdout.rank0") == "ready\ntold\n"
    assert json.loads(run.text("exit.rank0.json"))["interrupted"]
    # The next attempt continues as resume_args say.
    run.start(attempt=2)
    wait_for(lambda: (run.folder / "attempt-2" / "stdout.rank0").exists() and "\n" in run.text("stdout.rank0", 2))
    assert run.text("stdout.rank0", 2) == f"ready --from {run.folder}/last\n"


def test_nothing_of_it_is_left_behind(tmp_path: Path) -> None:
    """Nor with a session of its own, as torchrun's ranks have, started by something that has ended."""
    text = (
        "import subprocess; print(subprocess.Popen(['sleep', '600']).pid, flush=True)\n"
        "subprocess.run(['sh', '-c', 'setsid sleep 600 & echo $!'])\n"
        "print('step 1: 1 ms, loss 1')"
    )
    run = Run(tmp_path, python(text), pattern=PATTERN)
    run.result()
    for pid in run.text("stdout.rank0").splitlines()[:2]:
        command = Path(f"/proc/{pid}/cmdline")
        # Empty for a process that has ended and that init has not collected.
        assert not command.exists() or b"sleep" not in command.read_bytes()


def test_without_output_for_the_time_of_the_heartbeat_it_is_stopped(tmp_path: Path) -> None:
    result = Run(tmp_path, ["sleep", "60"], pattern=PATTERN, heartbeat_seconds=2.0).result()
    assert result["reason"] == (
        "rank 0: no progress for 2 s (heartbeat): its output did not grow; if that is normal, set a longer "
        "heartbeat=<seconds>, or heartbeat=null"
    )


def test_one_process_per_node_has_the_variables_of_nodes_only(tmp_path: Path) -> None:
    text = "import os; print(*sorted(set(os.environ) & {'RANK', 'LOCAL_RANK', 'WORLD_SIZE', 'NODE_RANK', 'NNODES'}))\n"
    run = Run(tmp_path, python(text + STEPS, "12"), gpus=2, pattern=PATTERN, processes_per_node="node")
    assert run.result()["status"] == "completed"
    assert run.text("stdout.rank0").splitlines()[0] == "NNODES NODE_RANK"
    assert not (run.folder / "attempt-1" / "exit.rank1.json").exists()


def test_a_script_changed_since_the_plan_is_noted(tmp_path: Path) -> None:
    script = tmp_path / "train.sh"
    script.write_text("#!/bin/sh\necho planned\n")
    script.chmod(0o755)
    planned = code_identity.of_command("command", ("./train.sh",), False, tmp_path, "")
    run = Run(tmp_path, ["./train.sh"], code=planned)
    run.result()
    assert "code_changed" not in read_json(run.folder / "attempt-1" / "begin.json")
    script.write_text("#!/bin/sh\necho changed\n")
    run.result(attempt=2)
    changed = read_json(run.folder / "attempt-2" / "begin.json")["code_changed"]
    assert changed["planned"] == planned != changed["found"]


DISPOSITIONS = """
import signal
names = ("SIGTERM", "SIGINT", "SIGHUP", "SIGPIPE", "SIGUSR1", "SIGUSR2")
usual = (signal.SIG_DFL, signal.default_int_handler)
default = [name for name in names if signal.getsignal(getattr(signal, name)) in usual]
print("default:", *default, "blocked:", *signal.pthread_sigmask(signal.SIG_BLOCK, []))
"""
TASK = {
    "SLURM_JOB_ID": "18",
    "SLURM_PROCID": "0",
    "SLURM_NTASKS": "1",
    "SLURM_TASKS_PER_NODE": "1",
    "SLURM_LOCALID": "0",
    "SLURM_JOB_NODELIST": "localhost",
}


@pytest.mark.parametrize(
    ("variables", "signals", "ignored"), [(None, False, ""), (TASK, False, "SIGUSR2"), (TASK, True, "")]
)
def test_signals_have_their_default_meaning_but_for_slurms_warning(
    tmp_path: Path, variables: dict[str, str] | None, signals: bool, ignored: str
) -> None:
    # Python itself ignores SIGPIPE.
    run = Run(tmp_path, python(DISPOSITIONS + STEPS, "12"), pattern=PATTERN, signals=signals)
    run.variables = variables
    assert run.result()["status"] == "completed"
    kept = [name for name in ("SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1", "SIGUSR2") if name != ignored]
    assert run.text("stdout.rank0").splitlines()[0] == f"default: {' '.join(kept)} blocked:"


def test_a_run_at_its_wall_limit_says_what_to_set(tmp_path: Path, runs: list[Run]) -> None:
    run = Run(tmp_path, python(STEPS, "100000"), pattern=PATTERN, stop=False, signal_seconds=2.0)
    runs.append(run)
    run.start()
    wait_for(lambda: (run.folder / "attempt-1" / "stdout.rank0").exists() and "step" in run.text("stdout.rank0"))
    run.processes[0].send_signal(signal.SIGUSR2)
    said = "rank 0: the wall limit was reached before the training ended; set a longer cluster.timeout_minutes"
    assert run.wait()["reason"].startswith(said)
