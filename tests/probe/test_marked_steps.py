"""Steps that the user's code marks with scaling_probe, with and without the runner."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from ranks import PROBE, SCRIPTS, run

PYTHON = Path(sys.executable)


@pytest.mark.parametrize("runner", [True, False], ids=["runner", "alone"])
def test_marked_steps_are_measured_until_the_last(tmp_path: Path, runner: bool) -> None:
    (rank,) = run(tmp_path, PYTHON, "--times", "times.0.json", script="marked.py", runner=runner)
    # Step 12 is the first one of the second epoch; it is left out with the wait between them, like step 24.
    blocks = [(b["phase"], b["step"], b["n"], b["samples"]) for b in rank.of("steps")]
    assert blocks[:2] == [("first", 0, 1, 8), ("warmup", 1, 4, 32)]
    assert blocks[2:] == [("measure", 5, 5, 40), ("measure", 10, 4, 32), ("measure", 15, 5, 40), ("measure", 20, 4, 32)]
    assert rank.times is not None
    begins, ends = map(list, zip(*rank.times["steps"], strict=True))
    begins.append(rank.times["end"])
    for b in rank.measured:
        steps = range(b["step"], b["step"] + 5)
        left_out = sum(0.05 + ends[k] - begins[k] for k in steps if k % 12 == 0)
        least = sum(ends[k] - begins[k] for k in steps if k % 12)
        most = begins[steps[-1] + 1] - ends[steps[0] - 1] - left_out
        assert least - 1e-5 <= b["seconds"] <= most + 1e-5
        assert b["data_seconds"] <= most - least + 1e-5
    assert rank.measured[1]["left_out_seconds"] > 0.05
    workload = rank.one("workload")
    assert (workload["method"], workload["handed_out"], workload["epochs"]) == ("probe", 8, 3)
    assert rank.one("start")["world_size"] is None
    assert rank.one("end")["steps"] == 25
    assert (rank.stdout, rank.stderr) == ("", "")


def test_manual_steps_of_another_size_are_refused(tmp_path: Path) -> None:
    (rank,) = run(tmp_path, PYTHON, "--manual", script="marked.py", samples_per_step=16, expect=1, runner=False)
    assert rank.stderr.startswith("error: 8 samples per step were handed out on this rank (1 batches), but ")


def test_marked_training_that_ends_early_is_measured(tmp_path: Path) -> None:
    steps = {"warmup": 5, "block": 5, "last": 1000}
    (rank,) = run(tmp_path, PYTHON, "--manual", script="marked.py", steps=steps, runner=False)
    assert (rank.one("end")["steps"], rank.one("protocol")["stopped"]) == (120, "script ended")
    assert rank.measured[0]["data_seconds"] is None


def test_under_another_launcher_only_its_ranks_record(tmp_path: Path) -> None:
    told = str(tmp_path / "probe.rank{rank}.json")
    run(tmp_path, PYTHON, script="marked.py", runner=False, told=told)
    (tmp_path / "events.rank0.jsonl").unlink()
    env = {**os.environ, "PYTHONPATH": str(PROBE), "SCALING_PROBE": told}
    env.pop("RANK", None)
    done = subprocess.run(
        [sys.executable, SCRIPTS / "marked.py"], env=env, capture_output=True, text=True, cwd=tmp_path
    )
    assert (done.returncode, done.stdout) == (0, "the script's last line\n")
    assert not (tmp_path / "events.rank0.jsonl").exists()


def test_a_copy_does_nothing_outside_the_harness(tmp_path: Path) -> None:
    (tmp_path / "scaling_probe.py").write_text((PROBE / "scaling_probe.py").read_text())
    code = (
        "import sys\n"
        "before = set(sys.modules)\n"
        "import scaling_probe\n"
        "loader = [1, 2]\n"
        "assert scaling_probe.steps(loader, samples=len) is loader\n"
        "scaling_probe.step()\n"
        "assert not {'_scaling_probe', 'threading'} & (set(sys.modules) - before)\n"
    )
    env = {name: value for name, value in os.environ.items() if name not in ("SCALING_PROBE", "PYTHONPATH")}
    subprocess.run([sys.executable, "-c", code], env=env, cwd=tmp_path, check=True)


def test_a_copy_that_cannot_find_the_probe_says_so(tmp_path: Path) -> None:
    (tmp_path / "scaling_probe.py").write_text((PROBE / "scaling_probe.py").read_text())
    env = {**os.environ, "SCALING_PROBE": "probe.rank0.json", "PYTHONPATH": ""}
    command = [sys.executable, "-c", "import scaling_probe"]
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith("error: the harness's probe is not on Python's path: start Python without -I and -E")
