"""What it costs to record energy, memory, the device's state, network and files beside the time: throughput with all
of it on against all off, in one run.

PyTorch, ResNet-20, synthetic 32x32 images, 16 per step, fp32, one rank alone, one compute thread. One process takes
blocks of 5 steps (a default run has 10, so that recording weighs half as much there) with recording and without, in
turns, and first the one, then the other: n = 400 pairs. A block's seconds are all of it, with what is read before and
after the steps, which in a run is not even part of the time that is measured. The ratio is the median over the pairs;
its 95 % interval is that of a median, by order statistics (the sign test turned around: no assumption on how the noise
is distributed, but that pairs are independent). Then recording alone, without steps, as often: what can be told of the
cost where other programs make blocks differ by more than that.

What a machine does not have is not read: clocks and temperature where /sys tells none, RAPL where it may not be read,
NVML without a GPU. The results are in RESULTS.md, with the machine and its load.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from pathlib import Path

from benchmarks.common import ROOT, Row, paired, python
from harness.core.rendezvous import Rendezvous
from harness.core.spec import read_run
from harness.node.command import rank_environment

PAIRS, STEPS, BATCH = 400, 5, 16


def rows() -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        command = python(
            *("-m", "harness", "gpus=1", "cluster=local", "cluster.device=cpu", "model=resnet20", "dataset=synthetic"),
            *("measure=smoke", "measure.warmup_steps=1", "measure.steps=1", "measure.block_steps=1"),
            *("measure.probe_steps=0", "measure.evaluate_samples=0", f"batch={BATCH}", "study=recording"),
        )
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL, env=environment)
        (run_dir,) = (Path(folder) / "results" / "recording" / "runs").iterdir()
        spec, site = read_run(run_dir)
        environment = rank_environment(spec, site, Rendezvous(0, 1, 0, 1, "127.0.0.1", 0), os.environ)
        command = [site.python, "-m", "benchmarks.recorded", str(run_dir), str(PAIRS), str(STEPS)]
        done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True, env=environment)
    seconds = json.loads(done.stdout.splitlines()[-1])
    on, off = ([BATCH * STEPS / s for s in seconds[name]] for name in ("on", "off"))
    return [
        paired("recording on, throughput", "samples/s", on, "recording off", off, "≥ 0.99 of the peer"),
        Row("recording alone, per block of steps", "ms", [1e3 * s for s in seconds["alone"]]),
        Row(
            "… of a block's seconds", "%", [100 * a / b for a, b in zip(seconds["alone"], seconds["off"], strict=True)]
        ),
    ]
