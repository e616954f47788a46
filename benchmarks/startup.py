"""Time that the harness takes before and around the training: `--help`, a whole run of one rank, and `doctor`.

- `python -m harness --help` beside the smallest Hydra application. n = 40.
- A run of one rank of PyTorch, from the command to its exit, less a process with as many steps of a minimal loop
  (minimal/pytorch.py): planning, starting, supervision, logs and result. ResNet-20, 8 steps of 4 synthetic images,
  without probes and evaluation. n = 20.
- `python -m harness.doctor` for PyTorch on this machine. n = 10.

All are separate processes from start to exit, alternating with their peers, with files in the page cache. Results are
in RESULTS.md.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from benchmarks.common import ROOT, Row, paired, python, seconds_of

N, RUNS, LOOKS = 40, 20, 10
BARE = """
import hydra
@hydra.main(version_base="1.3", config_path=None)
def app(cfg): pass
app()
"""
BATCH, STEPS = 4, 8
RUN = (
    *("framework=pytorch", "strategy=plain", "gpus=1", "model=resnet20", "dataset=synthetic", f"batch={BATCH}"),
    *("cluster=local", "cluster.device=cpu", "dataset.augment=false", "measure=smoke", "measure.warmup_steps=2"),
    *(f"measure.steps={STEPS - 2}", "measure.probe_steps=0", "measure.evaluate_samples=0"),
)


def rows() -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        return [of_help(folder), of_run(folder), of_doctor(folder)]


def of_help(folder: str) -> Row:
    bare = Path(folder) / "bare.py"
    bare.write_text(BARE)
    ours, peer = [], []
    for _ in range(N):
        ours.append(seconds_of(python("-m", "harness", "--help"), cwd=folder))
        peer.append(seconds_of(python(str(bare), "--help"), cwd=folder))
    return paired("`python -m harness --help`", "s", ours, "bare Hydra app", peer, "≤ 0.35 s, and ≤ 1.0 of the peer")


def of_run(folder: str) -> Row:
    interpreter = str(ROOT / ".envs" / "pytorch" / "bin" / "python")
    minimal = [interpreter, "-m", "benchmarks.sides.minimal_process", "pytorch", str(BATCH), str(STEPS)]
    beyond = []
    for number in range(-1, RUNS):
        whole = seconds_of(python("-m", "harness", *RUN, f"study=run{number}"), cwd=folder)
        # As the rank has it: one compute thread.
        alone = seconds_of(["env", "OMP_NUM_THREADS=1", *minimal], cwd=folder)
        if number >= 0:
            beyond.append(whole - alone)
    return Row("a run of one rank, beyond a process of a minimal loop", "s", beyond, target="≤ 1.5 s")


def of_doctor(folder: str) -> Row:
    command = python("-m", "harness.doctor", "framework=pytorch", "cluster=local", "dataset=synthetic")
    seconds = [seconds_of(command, cwd=folder) for _ in range(LOOKS)]
    return Row("`python -m harness.doctor`, one framework", "s", seconds, target="≤ 3 s")
